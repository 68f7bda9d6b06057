"""Plays episodes step by step through Gymnasium: python examples/step_loop.py

The policy is a few lines of Python. Put your model in its place: it reads text and writes text.
"""

from __future__ import annotations

import json
import re
import sys

import gymnasium

import rlenv

EPISODES = 3


def act(observation: str) -> str:
    """Calls the calculator when it sees a question, and answers with the result when it sees one."""
    result = re.search(r"<tool_response>\s*(-?\d+)", observation)
    if result:
        return f"<answer>{result[1]}</answer>"
    question = re.search(r"What is (\d+) \* (\d+)\?", observation)
    if question is None:
        return "I do not know."
    call = {"name": "calculate", "arguments": {"expression": f"{question[1]}*{question[2]}"}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def main() -> None:
    """Plays a few test tasks and writes each reward."""
    gymnasium.register_envs(rlenv)
    env = gymnasium.make("rlenv/arithmetic-v0", split="test")
    for seed in range(EPISODES):
        observation, info = env.reset(seed=seed)
        question, total, is_ended = info["task"]["question"], 0.0, False
        while not is_ended:
            observation, reward, terminated, truncated, info = env.step(act(observation))
            total += float(reward)
            is_ended = terminated or truncated
        sys.stdout.write(f"{question} reward {total:.1f}, success {info['success']}\n")
    env.close()


if __name__ == "__main__":
    main()
