"""Plays tasks of reasoning-gym with their own answers, with nonsense and with programs in their place.

Prints by generator what its own answer is worth by the rule and by the library, and what became of the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import reasoning_gym

import rlenv

PROGRAMS = ("__import__('os').system('touch ran')", "().__class__.__mro__", "(lambda: 1)()", "print(1)")


async def main(spec: str) -> None:
    async with rlenv.load(spec) as environment:

        async def worth(task: int, answer: str) -> list[object]:
            async with environment.start(task=task) as episode:
                await episode.step(f"<answer>{answer}</answer>")
            term = episode.trajectory.reward.terms["score"]
            return [term.status, term.value]

        own, other, programs = {}, {}, {}
        for index, row in enumerate(environment.tasks("train")):
            made = dict(row["reasoning_gym"])
            at, config = made.pop("index"), made.pop("config")
            library = reasoning_gym.create_dataset(**made, **config)
            entry = library[at]
            own[row["source"]] = [*await worth(index, row["answer"]), library.score_answer(entry["answer"], entry)]
            other[row["source"]] = await worth(index, "nonsense")
            endless = ["9**9**9**9"] if row["source"] == "countdown" else []
            programs[row["source"]] = [await worth(index, one) for one in (*PROGRAMS, *endless)]
    said = {"own": own, "other": other, "programs": programs, "ran": os.path.exists("ran")}  # noqa: ASYNC240 - at the end
    sys.stdout.write(json.dumps(said) + "\n")


asyncio.run(main(sys.argv[1]))
