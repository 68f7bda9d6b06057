"""pass@k and pass^k."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.runs.statistics.intervals import clustered_counts, student, wilson
from rlenv.runs.statistics.passes import pass_at, pass_curve, pass_hat

REFERENCE = json.loads((Path(__file__).parents[2] / "golden" / "statistics.json").read_text(encoding="utf-8"))


def test_both_are_what_every_choice_of_k_samples_gives() -> None:
    for n, c, k, one, every in REFERENCE["passes"]:
        assert pass_at(k, samples=n, successes=c) == pytest.approx(one, abs=1e-12)
        assert pass_hat(k, samples=n, successes=c) == pytest.approx(every, abs=1e-12)
        assert pass_curve("at", [(c, n)], samples=n)[k].value == pytest.approx(one, abs=1e-12)
        assert pass_curve("hat", [(c, n)], samples=n)[k].value == pytest.approx(every, abs=1e-12)


def test_one_rises_with_k_and_the_other_falls_and_at_one_both_are_the_success_rate() -> None:
    tasks = [(0, 8), (3, 8), (8, 8), (5, 8)]
    at, hat = (pass_curve(kind, tasks, samples=8) for kind in ("at", "hat"))
    assert at[1] == hat[1]
    assert at[1].value == 0.5
    assert at[1].interval == clustered_counts(tasks)
    assert (at[8].value, hat[8].value) == (0.75, 0.25)
    for k in range(2, 9):
        assert (at[k].value or 0) >= (at[k - 1].value or 0)
        assert (hat[k].value or 0) <= (hat[k - 1].value or 0)
        for one in (at[k], hat[k]):
            assert one.interval is not None
            assert 0 <= one.interval[0] <= (one.value or 0) <= one.interval[1] <= 1


def test_a_task_with_fewer_valid_samples_is_left_out_and_counted() -> None:
    found = pass_curve("at", [(1, 1), (0, 4), (0, 0)], samples=4)
    assert [(one.value, one.tasks, one.left_out) for one in found.values()] == [
        (0.5, 2, 1), (0.0, 1, 2), (0.0, 1, 2), (0.0, 1, 2)
    ]  # fmt: skip
    assert pass_curve("hat", [(0, 0)], samples=2)[2].interval is None


def test_very_many_samples_have_figures_at_powers_of_two() -> None:
    found = pass_curve("hat", [(2_000, 3_000)], samples=3_000)
    assert list(found) == [2**power for power in range(12)] + [3_000]
    assert found[2].value == pytest.approx(2_000 * 1_999 / (3_000 * 2_999), abs=1e-12)


def test_equal_tasks_leave_an_interval_as_wide_as_their_samples_do() -> None:
    one = pass_curve("at", [(4, 16)] * 20, samples=16)[4]
    assert one.interval is not None
    assert one.interval == pytest.approx(wilson((one.value or 0) * 80, 80, quantile=student(19)))  # 20 · 16 / 4 choices
