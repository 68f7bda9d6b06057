"""Two runs over the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlenv.runs.figures.change import mcnemar, paired_change
from rlenv.runs.figures.paired import compare_runs, pairs
from rlenv.runs.figures.snapshot import Snapshot
from tests.support.runs import row, snapshot


@pytest.mark.parametrize(
    ("fixed", "broken", "p"),
    [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 0.0625), (0, 5, 0.0625), (10, 2, 158 / 4096), (6, 6, 1.0)],
)
def test_mcnemar_is_the_exact_two_sided_binomial(fixed: int, broken: int, p: float) -> None:
    assert mcnemar(fixed, broken) == pytest.approx(p)


def test_mcnemar_takes_thousands() -> None:
    assert 0 < mcnemar(5100, 4900) < 0.1


def test_pairs_are_of_one_split_task_and_seed() -> None:
    a = snapshot(row(0, task=1, seed=1), row(1, task=1, seed=2), row(2, task=2, seed=1))
    b = snapshot(
        row(0, task=2, seed=1), row(1, task=1, seed=2), row(2, task=1, seed=2), row(3, task=1, seed=1, split="x")
    )
    found, alone_a, alone_b = pairs(a, b)
    assert {(one.task, one.seed, one.a, one.b) for one in found} == {(1, 2, 1, 1), (2, 1, 2, 0)}
    assert (alone_a, alone_b) == (1, 2)


def test_a_question_is_known_by_its_whole_prompt() -> None:
    # The prompts of all tasks begin alike; B has played the same rows in another order.
    def run(order: Sequence[int]) -> Snapshot:
        shown: dict[str, Any] = {"title": "Answer with a number.", "mode": "sampled"}
        own = [{**shown, "asked": f"digest {one}"} for one in order]
        return snapshot(*(row(at, task=at, seed=at, success=bool(one % 2), **own[at]) for at, one in enumerate(order)))

    found = compare_runs(run(range(9)), run((7, 6, 5, 4, 3, 2, 1, 0, 8)))
    assert (found["renumbered"], found["asked_otherwise"]) == (8, 0)
    assert (found["success"]["fixed"], found["success"]["broken"]) == (0, 0)


def test_rows_that_came_and_went_have_no_partner_and_a_changed_one_is_said() -> None:
    def run(*asked: str) -> Snapshot:
        return snapshot(*(row(at, task=at, seed=at, asked=one, mode="sampled") for at, one in enumerate(asked)))

    found = compare_runs(run("p", "q", "r", "s"), run("new", "p", "q", "S"))
    assert (found["pairs"], found["renumbered"], found["asked_otherwise"]) == (3, 2, 1)
    assert found["unpaired"] == {"a": 1, "b": 1}
    assert found["unlike"] == ""


def test_of_several_environments_each_has_tasks_of_its_own() -> None:
    def run(*places: tuple[str, bool]) -> Snapshot:
        return snapshot(*(row(at, task=0, seed=5, environment=e, success=s) for at, (e, s) in enumerate(places)))

    found = compare_runs(run(("x", True), ("y", False)), run(("y", False), ("x", True)))
    assert (found["pairs"], found["success"]["tasks"], found["success"]["change"]) == (2, 2, 0.0)
    assert "A is of x, B of z" in compare_runs(run(("x", True)), run(("z", True)))["unlike"]


def test_of_one_task_at_several_steps_the_last_counts() -> None:
    a = snapshot(row(0, task=1, seed=1, step=3), row(1, task=1, seed=1, step=9), row(2, task=1, seed=1, step=5))
    found, *_ = pairs(a, a)
    assert [(one.a, one.b) for one in found] == [(1, 1)]


def test_tasks_without_a_number_have_no_partner() -> None:
    a, b = (snapshot(row(0, task=-1, seed=1), row(1, task=3, seed=1)) for _ in range(2))
    found, alone_a, alone_b = pairs(a, b)
    assert [one.task for one in found] == [3]
    assert (alone_a, alone_b) == (1, 1)


def test_what_changed_is_named() -> None:
    def run(*ends: tuple[bool | None, float | None]) -> object:
        return snapshot(*(row(number, success=success, reward=reward) for number, (success, reward) in enumerate(ends)))

    a = run((False, 0.0), (True, 1.0), (True, 0.5), (True, 0.5), (True, 1.0), (None, None))
    b = run((True, 1.0), (False, 0.0), (True, 0.9), (True, 0.1), (True, 1.0), (True, 1.0))
    found = compare_runs(a, b)  # type: ignore[arg-type]
    assert [one["kind"] for one in found["tasks"]] == ["broken", "fixed", "worse", "better", "same", "same"]
    assert found["pairs"] == 6
    success = found["success"]
    assert (success["fixed"], success["broken"], success["same"], success["p"]) == (1, 1, 3, 1.0)
    assert success["change"] == 0.0
    assert found["tasks"][0]["a"] == {"id": "e-1", "reward": 1.0, "success": True}


@pytest.mark.parametrize(
    ("before", "after", "bounds"),
    [
        ((None, False), (True, True), (0.5, 1.0)),
        ((True, False), (None, False), (-0.5, 0.0)),
        ((None, True), (None, True), (-0.5, 0.5)),
    ],
)
def test_what_is_not_known_of_either_run_bounds_the_change(
    before: Sequence[bool | None], after: Sequence[bool | None], bounds: tuple[float, float]
) -> None:
    a, b = (snapshot(*(row(at, task=at, success=one) for at, one in enumerate(ends))) for ends in (before, after))
    assert compare_runs(a, b)["success"]["bounds"] == bounds


def test_tasks_stand_by_how_much_they_changed_with_their_question() -> None:
    def run(*wins: float) -> object:
        titles = ("near", "far", "same", "paid")
        rewards = [*wins[:6], 0.5, 0.5 + wins[6]]
        return snapshot(
            *(
                row(at, task=at // 2, seed=at % 2, title=titles[at // 2], success=reward >= 1.0, reward=reward)
                for at, reward in enumerate(rewards)
            )
        )

    found = compare_runs(run(0, 1, 0, 0, 1, 1, 0), run(1, 1, 1, 1, 1, 1, 0.25))  # type: ignore[arg-type]
    told = [(one["title"], one["kind"], one["success"]["change"], one["reward"]["change"]) for one in found["by_task"]]
    assert told == [("far", "fixed", 1.0, 1.0), ("near", "fixed", 0.5, 0.5), ("paid", "better", 0.0, 0.125),
                    ("same", "same", 0.0, 0.0)]  # fmt: skip
    assert [one["kind"] for one in found["by_task"][1]["pairs"]] == ["fixed", "same"]
    assert (found["by_task"][0]["other"], found["tasks_left_out"]) == (None, 0)


def test_the_interval_of_a_change_is_the_same_each_time_and_holds_it() -> None:
    random = np.random.default_rng(0)
    a, tasks = random.random(300), np.arange(300)
    b = a + random.normal(0.1, 0.2, 300)
    change = paired_change(a, b, tasks)
    assert change == paired_change(a, b, tasks)
    assert change.low is not None
    assert change.high is not None
    assert change.change is not None
    assert change.low < change.change < change.high
    error = float(np.std(b - a)) / math.sqrt(300)
    assert change.high - change.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_samples_of_one_task_are_not_counted_as_independent() -> None:
    random = np.random.default_rng(0)
    shift = random.normal(0.0, 1.0, 30).repeat(10)
    zeros = np.zeros(300)
    of_tasks = paired_change(zeros, shift, np.arange(30).repeat(10))
    alone = paired_change(zeros, shift, np.arange(300))
    assert of_tasks.high is not None
    assert of_tasks.low is not None
    assert alone.high is not None
    assert alone.low is not None
    assert of_tasks.high - of_tasks.low > 2 * (alone.high - alone.low)


def test_runs_with_nothing_in_common_have_no_change() -> None:
    found = compare_runs(snapshot(row(0, asked="one")), snapshot(row(1, asked="another")))
    assert (found["pairs"], found["success"]["change"], found["success"]["p"]) == (0, None, 1.0)
    assert found["unpaired"] == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((False, 0.0), (True, 0.0), "fixed"),
        ((True, 0.0), (False, 1.0), "broken"),  # whatever its reward says
        ((None, 0.0), (True, 1.0), "better"),
        ((True, 1.0), (None, 0.0), "worse"),
        ((True, None), (True, 1.0), "same"),
        ((True, 1.0), (True, None), "same"),
        ((True, 0.5), (True, 0.5 + 1e-12), "same"),
        ((True, 0.5), (True, 0.5 + 1e-6), "better"),
    ],
)
def test_a_pair_changed_by_its_success_where_both_are_known_or_else_by_its_reward(
    before: tuple[bool | None, float | None], after: tuple[bool | None, float | None], kind: str
) -> None:
    a, b = (snapshot(row(0, success=success, reward=reward)) for success, reward in (before, after))
    assert [one["kind"] for one in compare_runs(a, b)["tasks"]] == [kind]


def test_pairs_stand_in_the_order_of_their_tasks_however_they_were_paired() -> None:
    def run(*seeds: int) -> Snapshot:
        tasks = (5, 3, 5, 3)
        return snapshot(*(row(at, task=tasks[at], seed=seed, mode="sampled") for at, seed in enumerate(seeds)))

    found, alone_a, alone_b = pairs(run(1, 2, 3, 4), run(7, 2, 3, 8))
    assert [(one.task, one.a, one.b) for one in found] == [(3, 1, 1), (3, 3, 3), (5, 0, 0), (5, 2, 2)]
    assert (alone_a, alone_b) == (0, 0)
