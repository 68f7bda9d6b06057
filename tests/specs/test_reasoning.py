"""Right answers to the puzzles of reasoning.yaml."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load

COUNTDOWN = {"dataset": "countdown", "answer": "2 + 3 * 4", "metadata": {"numbers": [2, 3, 4], "target": 14}}
SORTING = {"dataset": "number_sorting", "answer": "-4, 2, 10", "metadata": {}}


@pytest.mark.parametrize(
    ("row", "answer", "value"),
    [
        (COUNTDOWN, "2 + 3 * 4", 1),
        (COUNTDOWN, "4*(3 + 2/4)", 0),  # the target, with a number twice
        (COUNTDOWN, "(4 * 3)+2", 1),
        (COUNTDOWN, "4 * 3", 0),
        (COUNTDOWN, "14", 0),
        (COUNTDOWN, "4 * 3 + 2 = 14", 0),
        (COUNTDOWN, "2 / (3 - 4 + 1)", 0),
        (COUNTDOWN, "4 / (3 - 2 - 1) + 1", 0),
        (COUNTDOWN, "3 ** 2 + 4", 0),
        (COUNTDOWN, "-2 + 3 * 4", 0),
        (COUNTDOWN, "2 / 0 * 3 * 4", 0),
        (COUNTDOWN, "(" * 150 + "2 + 3 * 4", 0),
        (COUNTDOWN, "2 3 4", 0),
        (COUNTDOWN, "", 0),
        (SORTING, "-4,2,10", 1),
        (SORTING, "2, -4, 10", 0),
        (SORTING, "the numbers -4, 2, 10", 0),
    ],
)
def test_any_expression_that_makes_the_target_is_right_and_nothing_else(
    row: dict[str, Any], answer: str, value: int, tmp_path: Path
) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({**row, "question": "?"}))
    environment = load("reasoning", set={"tasks": {"test": {"path": str(path)}}})

    async def run() -> float | None:
        async with environment.start(split="test") as episode:
            await episode.step(f"<answer>{answer}</answer>")
            assert episode.trajectory.reward is not None
            return episode.trajectory.reward.total

    assert asyncio.run(run()) == value
