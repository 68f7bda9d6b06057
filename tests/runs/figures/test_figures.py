"""Intervals against SciPy and statsmodels, against themselves, and against simulated evaluations.

pass@k and pass^k.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlenv.runs.figures import (
    clopper_pearson_upper,
    clustered_counts,
    clustered_interval,
    mean_interval,
    mean_of_parts,
    pass_curve,
    score_interval,
    standard_error,
    student_quantile,
    wilson,
)
from rlenv.runs.figures.change import sign_flips
from rlenv.tasks.rows import seed_of

REFERENCE = json.loads((Path(__file__).parents[2] / "golden" / "statistics.json").read_text(encoding="utf-8"))
EXACT = 1e-9


def test_students_quantile_is_scipys() -> None:
    for freedom, quantile in REFERENCE["student"]:
        assert student_quantile(freedom) == pytest.approx(quantile, abs=EXACT, rel=0), freedom


def test_wilsons_interval_is_that_of_statsmodels() -> None:
    for won, trials, low, high in REFERENCE["wilson"]:
        assert wilson(won, trials) == pytest.approx((low, high), abs=EXACT, rel=0)
    for trials, upper in REFERENCE["clopper_pearson_upper"]:
        assert clopper_pearson_upper(trials) == pytest.approx(upper, abs=EXACT, rel=0)


def test_standard_errors_are_those_of_a_clustered_regression() -> None:
    for one in REFERENCE["clusters"]:
        found = standard_error([(sum(group), len(group)) for group in one["groups"]])
        assert found == pytest.approx(one["error"], abs=EXACT, rel=0)
    assert standard_error([(1.0, 4)]) is None


def test_with_one_sample_a_task_a_share_has_wilsons_interval() -> None:
    assert clustered_interval([[True]] * 7 + [[False]] * 13) == pytest.approx(wilson(7, 20))


def test_samples_that_agree_are_worth_one_and_an_estimated_spread_takes_students_quantile() -> None:
    alike = [[index % 2 == 0] * 16 for index in range(20)]
    assert clustered_interval(alike) == pytest.approx(wilson(10, 20, quantile=student_quantile(19)))
    assert clustered_interval([[True, False]] * 20) == pytest.approx(wilson(20, 40, quantile=student_quantile(19)))
    # Where all succeed nothing says how alike samples are: they count as one a task.
    assert clustered_interval([[True] * 16] * 100) == pytest.approx(wilson(100, 100))
    assert clustered_interval([[], []]) == (0.0, 1.0)


def test_samples_of_one_task_are_one_trial_whatever_they_say() -> None:
    assert clustered_interval([[True, False] * 8]) == clustered_interval([[True, False]])
    low, high = clustered_interval([[True, False] * 500])
    assert high - low > 0.9
    assert clustered_interval([[True] * 1_000]) == pytest.approx((0.025, 1.0))


@pytest.mark.parametrize("tasks", [5, 20, 100, 500])
def test_a_rate_near_a_bound_is_held_nine_times_of_ten(tasks: int) -> None:
    # The exact coverage of a binomial over all rates; Wilson's own falls to 0.84 where one failure is rare.
    found = [clustered_counts([(1, 1)] * won + [(0, 1)] * (tasks - won)) for won in range(tasks + 1)]
    logs = [math.log(math.comb(tasks, won)) for won in range(tasks + 1)]
    for rate in [*np.linspace(0.5, 0.999, 60), *(1 - 1 / (tasks * np.linspace(1, 20, 60)))]:
        held = [low <= rate <= high for low, high in found]
        chance = sum(
            math.exp(logs[won] + won * math.log(rate) + (tasks - won) * math.log1p(-rate))
            for won in range(tasks + 1)
            if held[won]
        )
        assert chance > 0.91, rate


def test_a_reward_of_0_and_1_has_the_interval_of_the_success_rate() -> None:
    groups = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    share = clustered_interval([[bool(one) for one in group] for group in groups])
    assert mean_interval(groups) == pytest.approx(share)
    # Of two other values nothing says that there are no more: at least Student's.
    scaled = mean_interval([[3 * one - 1 for one in group] for group in groups]) or (0.0, 0.0)
    half = student_quantile(3) * (
        standard_error([(3 * sum(group) - len(group), len(group)) for group in groups]) or 0.0
    )
    assert scaled == pytest.approx(((3 * 5 / 8 - 1) - half, (3 * 5 / 8 - 1) + half))


def test_a_mean_interval_is_the_same_upside_down_and_leaves_what_was_seen_where_few_tasks_were() -> None:
    groups = [[1.0, 0.9], [1.0, 1.0], [0.2, 1.0], [1.0, 0.95]]
    low, high = mean_interval(groups) or (0.0, 0.0)
    error = standard_error([(sum(group), len(group)) for group in groups]) or 0.0
    middle = sum(map(sum, groups)) / 8
    assert high == pytest.approx(middle + student_quantile(3) * error)
    assert low <= middle - student_quantile(3) * error
    assert mean_interval([[-one for one in group] for group in groups]) == pytest.approx((-high, -low))


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_nineteen_of_twenty_intervals_of_a_mean_hold_it_for_a_few_tasks(tasks: int) -> None:
    random = np.random.default_rng(tasks)
    found = [mean_interval(random.normal(size=(tasks, 1)).tolist()) for _ in range(400)]
    held = sum(one is not None and one[0] <= 0 <= one[1] for one in found)
    assert 366 <= held <= 393  # as below; between the smallest and the largest of three lies the truth in 3 of 4


def test_a_mean_of_many_tasks_has_students_interval() -> None:
    random = np.random.default_rng(3)
    groups = (random.normal(size=(4_000, 1)) + random.normal(size=(4_000, 3))).tolist()
    low, high = mean_interval(groups) or (0.0, 0.0)
    error = standard_error([(sum(group), len(group)) for group in groups]) or 0.0
    assert (high - low) / 2 == pytest.approx(student_quantile(3_999) * error, rel=2e-3)


def test_nothing_that_varies_leaves_no_interval_of_a_mean() -> None:
    assert mean_interval([[0.5, 0.5], [0.5]]) is None
    assert mean_interval([[0.5, 0.7]]) is None
    assert mean_interval([[0.0, 0.5, 1.0], [0.5, 0.0, 1.0]]) is None  # tasks' means are equal


def test_the_mean_of_groups_has_an_interval_as_independent_estimates_do() -> None:
    # Two groups of equal intervals: half as wide, times √2.
    low, high = mean_of_parts([(0.5, (0.4, 0.7)), (0.3, (0.2, 0.5))]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.4 - 0.1 / 2**0.5, 0.4 + 0.2 / 2**0.5))
    assert mean_of_parts([]) is None


def test_a_score_interval_never_leaves_its_bounds() -> None:
    assert score_interval([(1.0, 1)] * 3, 0.0, 1.0)[1] == 1.0
    assert score_interval([], 0.0, 1.0) == (0.0, 1.0)
    low, high = score_interval([(0.99, 1), (1.0, 1), (0.5, 1)], 0.0, 1.0)
    assert 0.0 < low < high < 1.0


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["none", "beta", "all"])
@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_nineteen_of_twenty_intervals_hold_the_truth(kind: str, samples: int, rate: float) -> None:
    # Of 400 evaluations whose intervals hold it by 95 %, fewer than 366 or more than 393 do in one of 1,000: exact
    # bounds of the binomial distribution. The whole table is that of benchmarks/coverage.py.
    random, tasks, sims = np.random.default_rng([samples, int(rate * 10), len(kind)]), 100, 400
    success = reward = 0
    for _ in range(sims):
        drawn = {
            "none": np.full(tasks, rate),
            "beta": random.beta(2 * rate, 2 * (1 - rate), tasks),
            "all": (random.random(tasks) < rate) * 1.0,
        }[kind]
        won = random.binomial(samples, drawn)
        low, high = clustered_counts([(int(one), samples) for one in won])
        success += low <= rate <= high
        format_kept = random.binomial(samples, 0.9, tasks)
        clusters = [(float(one), samples) for one in 0.7 * won + 0.3 * format_kept]
        low, high = score_interval(clusters, 0.0, 1.0)
        reward += low <= 0.7 * rate + 0.27 <= high
    assert 366 <= success <= 393
    assert 366 <= reward <= 393


@pytest.mark.slow
@pytest.mark.parametrize("world", [lambda seed: random.Random(seed).random() < 0.5, lambda seed: seed % 2])
@pytest.mark.parametrize("samples", [1, 4])
def test_a_world_that_is_drawn_by_the_seeds_of_tasks_is_many_draws(world: Any, samples: int) -> None:
    # The whole table is that of benchmarks/coverage.py.
    tasks, runs, places = 100, 1_000, np.arange(100).repeat(samples)
    drawn = np.array(
        [
            [[world(seed_of(run, "test", task, sample)) for sample in range(samples)] for task in range(tasks)]
            for run in range(runs)
        ],
        dtype=float,
    )
    held = [clustered_counts([(int(count), samples) for count in one.sum(axis=1)]) for one in drawn]
    assert 930 <= sum(low <= 0.5 <= high for low, high in held) <= 970
    apart = sum(sign_flips(a.ravel(), b.ravel(), places).p < 0.05 for a, b in itertools.pairwise(drawn))
    assert apart <= 50


REFERENCE_of_passes = json.loads((Path(__file__).parents[2] / "golden" / "statistics.json").read_text(encoding="utf-8"))


def test_both_are_what_every_choice_of_k_samples_gives() -> None:
    for n, c, k, one, every in REFERENCE_of_passes["passes"]:
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
    assert one.interval == pytest.approx(
        wilson((one.value or 0) * 80, 80, quantile=student_quantile(19))
    )  # 20 · 16 / 4 choices


def test_no_trials_leave_the_whole_range() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert clustered_interval([]) == (0.0, 1.0)
    assert clustered_interval([[]]) == (0.0, 1.0)
    assert score_interval([], -2.0, 3.0) == (-2.0, 3.0)
