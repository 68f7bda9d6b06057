from __future__ import annotations

import asyncio

import pytest

from rlenv.episodes.environment import load


def _pairs(split: str) -> set[tuple[int, ...]]:
    return {tuple(sorted((row["a"], row["b"]))) for row in load("arithmetic").tasks(split)}


def test_no_pair_of_operands_stands_in_two_splits_in_either_order() -> None:
    train, test, warmup = _pairs("train"), _pairs("test"), _pairs("warmup")
    assert not train & test
    assert not train & warmup
    assert not test & warmup
    # With the diagonal, all unordered pairs of 11..99.
    assert len(train | test | warmup) == 89 * 90 // 2


def test_every_row_states_its_own_product() -> None:
    environment = load("arithmetic")
    for split in environment.spec.tasks:
        for row in environment.tasks(split):
            assert row["answer"] == row["a"] * row["b"]
            assert row["question"] == f"What is {row['a']} * {row['b']}?"


@pytest.mark.parametrize(
    ("action", "reward", "success"),
    [
        ("<answer>{right}</answer>", 1.1, True),
        ("<answer>{wrong}</answer>", 0.1, False),
        ("The result is {right}.", 0.0, False),
    ],
)
def test_an_answer_earns_for_its_number_and_for_its_form(action: str, reward: float, success: bool) -> None:
    async def run() -> None:
        environment = load("arithmetic")
        right = environment.tasks("test")[0]["answer"]
        async with environment.start(split="test") as episode:
            step = await episode.step(action.format(right=right, wrong=right + 1))
            assert step.is_last
            assert episode.trajectory.reward.total == pytest.approx(reward)
            assert episode.trajectory.success is success

    asyncio.run(run())


def test_the_clock_tells_the_same_time_in_every_episode() -> None:
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'

    async def run(task: int) -> str:
        async with load("arithmetic").start(task=task, seed=task) as episode:
            return (await episode.step(call)).observation.text

    assert asyncio.run(run(0)) == asyncio.run(run(7))
    assert "09:41" in asyncio.run(run(0))
