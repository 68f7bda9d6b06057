"""Figures by step, and the one line of a run."""

from __future__ import annotations

import pytest

from rlenv.runs.figures import clustered_interval, mean_interval, wilson
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import count_words, kept_points, overview, recent_rows, series, spark
from tests.support.runs import row, snapshot


def run() -> Snapshot:
    """Two steps of training in groups of two, and a validation."""
    rows = []
    for number, (step, group, success) in enumerate(
        [(0, "a", True), (0, "a", False), (0, "b", False), (0, "b", False), (1, "a", True), (1, "a", True)]
    ):
        rows.append(
            row(number, step=step, group=group, success=success, reward=float(success), terms={"right": float(success)})
        )
    rows.append(row(6, step=1, group="b", success=None, reward=None))
    rows.append(row(7, step=1, mode="greedy", success=True, reward=1.0))
    return snapshot(*rows)


def test_series_align_with_the_steps() -> None:
    steps, found = series(run())
    assert steps == [0, 1]
    assert all(len(values) == 2 for one in found.values() for values in one.values())
    assert found["train/success"]["mean"] == [0.25, 1.0]
    assert found["train/success"]["n"] == [4, 2]
    assert found["train/invalid"]["mean"] == [0.0, pytest.approx(1 / 3)]
    assert found["train/term.right"]["mean"] == [0.25, 1.0]
    assert found["greedy/success"]["mean"] == [None, 1.0]
    assert found["greedy/success"]["low"][0] is None


def test_the_band_is_that_of_the_samples_of_groups() -> None:
    _, found = series(run())
    band = (found["train/success"]["low"][0], found["train/success"]["high"][0])
    assert band == pytest.approx(clustered_interval([[True, False], [False, False]]))
    alone = snapshot(*(row(number, success=number < 3) for number in range(10)))
    _, found = series(alone)
    assert (found["train/success"]["low"][0], found["train/success"]["high"][0]) == pytest.approx(wilson(3, 10))


def test_the_band_of_the_reward_is_the_interval_of_an_evaluation() -> None:
    rewards = [("a", 0.2), ("a", 0.4), ("b", 0.9), ("b", 0.8), ("c", 0.1), ("c", None)]
    rows = snapshot(*(row(number, group=group, reward=reward) for number, (group, reward) in enumerate(rewards)))
    band = series(rows)[1]["train/reward"]
    assert (band["low"][0], band["high"][0]) == mean_interval([[0.2, 0.4], [0.9, 0.8], [0.1]])
    alone = series(snapshot(row(0, reward=0.5), row(1, reward=0.5)))[1]["train/reward"]
    assert (alone["low"], alone["high"]) == ([None], [None]), "nothing varies, so that nothing says how much it may"


def test_since_gives_later_steps_alone() -> None:
    steps, found = series(run(), since=0)
    assert steps == [1]
    assert found["train/success"]["mean"] == [1.0]
    assert series(run(), since=1) == ([], {})


def test_no_rows_have_no_series() -> None:
    assert series(snapshot()) == ([], {})


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    values: list[float | int | None] = [0.5] * 1000
    values[317], values[611], values[5] = 1.0, 0.0, None
    kept = kept_points(1000, 100, values)
    assert len(kept) <= 100
    assert {0, 317, 611, 999} <= set(kept)
    assert kept == sorted(kept)
    assert kept_points(3, 100, [None] * 3) == [0, 1, 2]


def test_each_mode_is_thinned_by_its_own_figures() -> None:
    train = [row(step, step=step, success=step % 2 == 0) for step in range(400)]
    validated = [row(1000 + step, step=step, mode="greedy", success=step == 150) for step in range(50, 400, 50)]
    steps, found = series(snapshot(*train, *validated), points=20)
    shown = found["greedy/success"]["mean"]
    assert [step for step, value in zip(steps, shown, strict=True) if value is not None] == list(range(50, 400, 50))
    assert shown[steps.index(150)] == 1.0
    assert len(steps) <= 20 + len(validated)


def test_one_line_of_a_run_is_of_its_last_validation() -> None:
    line = overview(run())
    assert (line.episodes, line.step, line.success, line.invalid) == (8, 1, 1.0, 1)
    assert (line.success_low, line.success_high) == clustered_interval([[True]])
    assert line.spark == (0.25, 1.0), "of training: it was validated once"


@pytest.mark.parametrize(
    ("validated", "trained", "said"),
    [
        ((0,), (), ("greedy", 0, 0)),
        ((0,), (1, 2, 3), ("train", 1, 3)),  # a validation from before training says nothing of what was trained
        ((1,), (1, 2, 3), ("greedy", 1, 1)),
        ((0, 2), (1, 2, 3), ("greedy", 2, 2)),
        ((), (0, 1), ("train", 0, 1)),
    ],
)
def test_one_line_of_a_run_says_of_which_mode_and_steps_it_is(
    validated: tuple[int, ...], trained: tuple[int, ...], said: tuple[str, int, int]
) -> None:
    rows = [row(step, step=step, mode="greedy", split="test") for step in validated]
    rows += [row(100 + step, step=step) for step in trained]
    line = overview(snapshot(*rows))
    assert (line.mode, line.first_step, line.last_step) == said
    assert line.splits == (("train",) if said[0] == "train" else ("test",))


def test_the_spark_of_a_single_validation_is_that_of_training() -> None:
    rows = [row(step, step=step, success=step > 1) for step in (1, 2, 3)]
    assert overview(snapshot(*rows, row(9, step=3, mode="greedy"))).spark == (0.0, 1.0, 1.0)


def test_training_is_judged_by_its_last_ten_steps() -> None:
    rows = snapshot(*(row(step, step=step, success=step >= 20) for step in range(30)))
    assert recent_rows(rows, "train").sum() == 10
    assert overview(rows).success == 1.0
    assert spark(rows, "train", points=3) == [0.0, 0.0, 1.0]


def test_a_run_without_a_valid_reward_has_no_success() -> None:
    line = overview(snapshot(row(0, reward=None, success=None)))
    assert (line.success, line.success_low, line.spark) == (None, None, ())
    assert overview(snapshot()).episodes == 0


def test_counts_begin_with_the_most_frequent() -> None:
    rows = snapshot(row(0, reason="turns"), row(1, reason="answer"), row(2, reason="answer"), row(3, reason=""))
    assert count_words(rows, "reason") == {"answer": 2, "turns": 1}
