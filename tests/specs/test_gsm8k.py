from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rlenv.episodes.environment import load


@pytest.mark.shared_data
@pytest.mark.parametrize(("path", "count"), [("gsm8k/test.jsonl", 200), ("gsm8k/train.jsonl", 500)])
def test_the_oracle_earns_the_maximum_on_the_official_rows(
    path: str,
    count: int,
    public: Callable,
    play_oracle: Callable,
    assert_all_earn_maximum: Callable,
) -> None:
    environment = load("gsm8k", set={"tasks.test.path": str(public(path))})
    trajectories = play_oracle(environment, "test")
    assert len(trajectories) == count
    # Some official solutions annotate no computation: the oracle then answers without a call, and the term for
    # well-formed calls is skipped.
    called = [trajectory for trajectory in trajectories if trajectory.calls]
    silent = [trajectory for trajectory in trajectories if not trajectory.calls]
    assert_all_earn_maximum(environment, called)
    assert [(t.success, t.reward.total) for t in silent] == [(True, 1.0)] * len(silent)


@pytest.mark.shared_data
def test_the_calculator_gives_the_value_that_each_official_annotation_states(
    public: Callable, play_oracle: Callable
) -> None:
    environment = load("gsm8k", set={"tasks.test.path": str(public("gsm8k/test.jsonl"))})
    off = []
    for trajectory in play_oracle(environment, "test"):
        stated = [value for _, value in trajectory.task["calc"]]
        given = [result.text for turn in trajectory.turns for result in turn.results]
        assert len(stated) == len(given)
        off += [
            (trajectory.task["id"], mine, theirs)
            for mine, theirs in zip(given, stated, strict=True)
            if float(mine) != pytest.approx(float(theirs.replace(",", "")), rel=0.01, abs=0.01)
        ]
    assert off == []


@pytest.mark.parametrize(("final", "value"), [("#### {n}", 1.0), ("#### {n}0", 0.0), ("It is {n}.", 0.0)])
def test_only_the_official_last_line_with_the_right_number_is_correct(final: str, value: float) -> None:
    async def run() -> None:
        environment = load("gsm8k")
        number = environment.tasks("test")[0]["answer"].split("#### ")[1]
        async with environment.start(split="test") as episode:
            await episode.step(final.format(n=number))
            assert episode.trajectory.reward.terms["correct"].value == value

    asyncio.run(run())
