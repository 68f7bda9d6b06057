"""Whatever a policy writes, stepping never raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlenv.testing.hostile import hostile_actions


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("answer", ["tag", "boxed", "last_number", "final_message"])
def test_hostile_actions_step_without_an_exception(make_environment: Any, answer: str) -> None:
    environment = make_environment(
        answer={"from": answer}, limits={"turns": 50, "invalid_actions": 50, "tool_calls": 100_000}
    )

    async def main() -> int:
        stepped = 0
        episode = environment.start(task=0)
        await episode.open()
        for action in hostile_actions(1_500, seed=1):
            step = await episode.step(action)
            stepped += 1
            if step.is_last:
                assert step.reward is not None or episode.failure is not None
                await episode.aclose()
                episode = environment.start(task=stepped % 2)
                await episode.open()
        await episode.aclose()
        return stepped

    assert asyncio.run(main()) == 1_500


def test_hostile_actions_are_equal_for_equal_seeds() -> None:
    assert list(hostile_actions(300, seed=4)) == list(hostile_actions(300, seed=4))
    assert len(list(hostile_actions(10))) == 10
