"""Plays the research environment against a stand-in for a model, on loopback: python examples/research/play.py

The stand-in speaks the wire format of a real server. Against a real one, set RESEARCH_URL and run

    rlenv eval examples/research/env.yaml --policy openai --base-url $RESEARCH_URL --model NAME
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv import OraclePolicy
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import Message, ToolCall
from rlenv.runs import files as record
from rlenv.testing.endpoint import FakeEndpoint

SPEC = Path(__file__).resolve().parent / "env.yaml"


def writer(body: Mapping[str, Any]) -> str | Message:
    """What a well-behaved model would answer: it searches, summarises, cites, and then writes its answer."""
    messages = body["messages"]
    if messages[0]["content"].startswith("You summarise"):
        text = messages[-1]["content"].partition("Text:\n")[2]
        return " ".join(re.search(r"(\d+) (m|trout|days)\b", text).groups())  # type: ignore[union-attr]
    question = next(message["content"] for message in messages if message["role"] == "user")
    results = [message["content"] for message in messages if message["role"] == "tool"]
    identity = f"call-{len(results)}"
    if not results:
        return Message("assistant", "", (ToolCall("search", {"query": question}, identity),))
    title, _, text = results[0].partition("\n")
    if len(results) == 1:
        text = text.partition("\n\n")[0]
        return Message("assistant", "", (ToolCall("summarise", {"question": question, "text": text}, identity),))
    if len(results) == 2:
        return Message("assistant", "", (ToolCall("cite", {"title": title.partition("] ")[2]}, identity),))
    return f"<answer>{results[1]} {results[2]}</answer>"


async def main() -> int:
    """Plays every task with the oracle, which sends the agent; the stand-in plays the agent."""
    async with FakeEndpoint(writer) as server:
        os.environ["RESEARCH_URL"] = server.base_url
        environment = load(SPEC)
        async with environment:
            policy = OraclePolicy(environment.spec, environment.parts.dialect)
            jobs = [Job("train", task) for task in range(len(environment.tasks("train")))]
            played = await rollout(environment, policy, jobs)
    out = sys.stdout
    for trajectory in played:
        out.write(f"{trajectory.task['question']}\n  {trajectory.answer}  reward {trajectory.reward.total:g}\n")
    nested = record.nested(played[0].turns[0].results[0])
    assert nested is not None
    calls = ", ".join(call.name for turn in nested.turns for call in turn.results)
    out.write(f"the first agent made {nested.calls} calls: {calls}\n")
    return 0 if all(trajectory.success for trajectory in played) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
