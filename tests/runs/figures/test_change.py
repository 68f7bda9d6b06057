"""Changes between two runs, and whether they may be chance.

How many tasks it takes.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlenv.errors import UsageError
from rlenv.runs.figures import standard_error, student_quantile, wilson
from rlenv.runs.figures.change import (
    LEVEL,
    Change,
    Spread,
    fit_to_p,
    mcnemar,
    paired_change,
    paired_tasks,
    sign_flips,
    spread_of,
    spread_of_rate,
    tasks_needed,
    unpaired_tasks,
)

REFERENCE = json.loads((Path(__file__).parents[2] / "golden" / "statistics.json").read_text(encoding="utf-8"))


def test_mcnemars_exact_test_is_that_of_statsmodels() -> None:
    for fixed, broken, p in REFERENCE["mcnemar"]:
        assert mcnemar(fixed, broken) == pytest.approx(p, abs=1e-9, rel=0)


def test_sign_flips_are_those_of_scipy_over_all_ways() -> None:
    for sums, p in REFERENCE["sign_flips"]:
        found = sign_flips(np.zeros(len(sums)), np.array(sums), np.arange(len(sums)))
        assert found.p == pytest.approx(p, abs=1e-9, rel=0)
        assert found.method == "exact"


def test_with_one_sample_a_task_the_test_is_mcnemars() -> None:
    a, b = np.array([0.0] * 9 + [1.0] * 3 + [1.0] * 8), np.array([1.0] * 9 + [0.0] * 3 + [1.0] * 8)
    assert sign_flips(a, b, np.arange(20)).p == mcnemar(9, 3)


def test_sixteen_samples_of_one_task_are_no_proof() -> None:
    zeros, ones = np.zeros(16), np.ones(16)
    assert sign_flips(zeros, ones, np.zeros(16, dtype=np.int64)).p == 1.0
    assert sign_flips(zeros, ones, np.arange(16)).p < 0.001
    assert paired_change(zeros, ones, np.zeros(16, dtype=np.int64)).low is None


def test_draws_stand_for_too_many_ways_and_never_say_that_it_is_impossible() -> None:
    random = np.random.default_rng(1)
    shift = random.normal(3.0, 1.0, 200)
    found = sign_flips(np.zeros(200), shift, np.arange(200))
    assert found.method == "20000 draws"
    assert found.p == pytest.approx(1 / 20_001)
    assert sign_flips(np.zeros(200), random.normal(0.0, 1.0, 200), np.arange(200)).p > 0.01


def test_a_change_has_the_clustered_error_and_leaves_out_what_is_not_known() -> None:
    a = np.array([0.0, 0.2, 0.4, np.nan, 0.5])
    b = np.array([0.5, 0.4, 0.3, 1.0, np.nan])
    change = paired_change(a, b, np.array([0, 0, 1, 1, 2]))
    assert (change.pairs, change.tasks, change.invalid) == (3, 2, 2)
    assert change.change == pytest.approx(0.2)
    error = standard_error([(0.7, 2), (-0.1, 1)]) or 0.0
    assert change.high == pytest.approx(0.2 + student_quantile(1) * error)


def test_nothing_that_changed_leaves_what_so_many_tasks_cannot_rule_out() -> None:
    same = np.ones(20)
    change = paired_change(same, same, np.arange(20), is_share=True)
    assert change.change == 0.0
    assert change.high == pytest.approx(1 - 0.025 ** (1 / 20))  # Clopper and Pearson's bound of none in 20
    assert change.low == -(change.high or 0.0)
    fixed = paired_change(np.zeros(20), same, np.arange(20), is_share=True)
    assert fixed.high == 1.0
    assert fixed.low == pytest.approx(1 - 2 * (change.high or 0.0))
    assert paired_change(same, same, np.arange(20)).low is None  # a reward has no bounds


def test_nineteen_of_twenty_intervals_of_a_change_hold_it() -> None:
    random, held, sims = np.random.default_rng(2), 0, 400
    tasks = np.arange(100).repeat(4)
    for _ in range(sims):
        before = random.beta(1, 1, 100)
        after = np.clip(before + 0.1 * (random.random(100) < 0.5), 0, 1)
        truth = 0.5 * (0.1 - 0.1**2 / 2)  # of a uniform rate, what is above 0.9 has no room
        a, b = ((random.random((100, 4)) < rates[:, None]).ravel().astype(np.float64) for rates in (before, after))
        change = paired_change(a, b, tasks, is_share=True)
        assert change.low is not None
        assert change.high is not None
        held += change.low <= truth <= change.high
    assert 366 <= held <= 393  # exact bounds of the binomial distribution for 95 %, one in 1,000 to either side


def test_tasks_that_all_changed_alike_leave_the_interval_of_their_pairs() -> None:
    a, b = np.ones(20), np.array([1.0, 0.0] * 10)
    change = paired_change(a, b, np.arange(10).repeat(2), is_share=True)
    error = standard_error([(one, 1) for one in (b - a).tolist()]) or 0.0
    assert change.low == pytest.approx(-0.5 - student_quantile(9) * error)
    assert paired_change(a, b, np.arange(10).repeat(2)).low is None  # of a reward nothing says how much it may vary


@pytest.mark.filterwarnings("error")
def test_numbers_whose_difference_is_none_have_the_chance_of_small_ones() -> None:
    tasks = np.arange(8)
    small = np.array([1.0, -1.0, 1.0, 1.0, 0.5, -0.25, 1.0, 0.125])
    a, b = small * 1.7e308, -small * 1.7e308
    assert sign_flips(a, b, tasks) == sign_flips(small, -small, tasks)
    change = paired_change(a, b, tasks)
    assert change.a == pytest.approx(float(small.mean()) * 1.7e308)
    assert change.change == pytest.approx(-2 * float(small.mean()) * 1.7e308)
    far = paired_change(np.full(2, 1.7e308), np.full(2, -1.7e308), np.arange(2))
    assert (far.change, far.low, far.high) == (None, None, None)


def test_a_few_that_changed_to_one_side_may_have_been_more() -> None:
    a, b = np.array([0.0] + [1.0] * 99), np.ones(100)
    change = paired_change(a, b, np.arange(100), is_share=True)
    assert (change.low or 0) < 0  # one of a hundred is no proof
    assert change.high == pytest.approx(wilson(1, 100)[1])


@pytest.mark.parametrize("kind", ["successes", "rewards"])
def test_an_interval_leaves_out_0_where_and_only_where_p_says_so(kind: str) -> None:
    random, decided = np.random.default_rng(3), [0, 0]
    for _ in range(400):
        tasks, samples = int(random.integers(2, 24)), int(random.integers(1, 5))
        shift, places = random.uniform(-0.5, 0.5), np.arange(tasks).repeat(samples)
        a, b = random.random((2, tasks * samples))
        if kind == "successes":
            a, b = (a < 0.5) * 1.0, (b < 0.5 + shift) * 1.0
        else:
            b = b + shift * random.random(tasks).repeat(samples)
        p = sign_flips(a, b, places).p
        before = paired_change(a, b, places, is_share=kind == "successes")
        after = fit_to_p(before, p)
        if before.low is None or before.high is None:
            assert after == before
            continue
        assert after.low is not None
        assert after.high is not None
        assert after.change is not None
        assert (after.low > 0 or after.high < 0) == (p < LEVEL)
        assert after.low <= after.change <= after.high
        decided[0] += after != before
        decided[1] += p < LEVEL
    assert min(decided) > 10


@pytest.mark.parametrize("sign", [1, -1])
def test_a_p_at_the_level_is_no_change(sign: int) -> None:
    low, high = sorted((0.1 * sign, 0.5 * sign))
    found = fit_to_p(Change(0.0, 0.3 * sign, 0.3 * sign, low, high), LEVEL)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 0 <= found.high


def test_known_sizes() -> None:
    # 0.6 against 0.7 with one sample: 7.849 · (0.24 + 0.21) / 0.01, the textbook formula of two proportions.
    found = unpaired_tasks(spread_of_rate(0.6, 0.0), spread_of_rate(0.7, 0.0), difference=0.1, k=1)
    assert found == 354
    # A discordance of 0.3 and a difference of 0.1, Connor's equation: (1.96·√0.3 + 0.8416·√0.29)² / 0.01.
    assert paired_tasks(Spread(0.1, 0.29, 0.0), difference=0.1, k=1) == 234


def test_samples_help_only_as_far_as_they_differ() -> None:
    free, alike = (spread_of_rate(0.5, icc) for icc in (0.0, 1.0))
    sizes = [unpaired_tasks(free, free, difference=0.05, k=k) for k in (1, 4)]
    assert sizes[0] == pytest.approx(4 * sizes[1], abs=4)
    assert len({unpaired_tasks(alike, alike, difference=0.05, k=k) for k in (1, 4)}) == 1


def test_a_pilot_tells_between_from_within() -> None:
    random = np.random.default_rng(4)
    means = random.normal(0, 2.0, 3_000)
    samples = [(task, float(mean + noise)) for task, mean in enumerate(means) for noise in random.normal(0, 1.0, 4)]
    found = spread_of(samples)
    assert found.between == pytest.approx(4.0, rel=0.1)
    assert found.within == pytest.approx(1.0, rel=0.05)
    assert found.icc == pytest.approx(0.8, abs=0.02)
    # Tasks that are more alike than chance has them do not differ; all of the variance is that of samples.
    assert spread_of([(task, float(one)) for task in range(5) for one in (0, 1)]) == Spread(0.5, 0.0, 2.5 / 9)
    assert spread_of([("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)]) == Spread(0.5, 0.5, 0.0)
    # One sample a task tells nothing of what more would bring.
    assert spread_of(samples[::4]).within == 0.0
    with pytest.raises(UsageError, match="takes two or more"):
        spread_of([("a", 1.0), ("a", 0.0)])


def test_so_many_tasks_show_the_difference_four_times_of_five() -> None:
    random, seen, sims = np.random.default_rng(5), 0, 300
    tasks = paired_tasks(Spread(0.15, 0.35 - 0.15**2, 0.0), difference=0.15, k=1)
    for _ in range(sims):
        change = random.choice([1.0, -1.0, 0.0], size=tasks, p=[0.25, 0.10, 0.65])
        seen += sign_flips(np.zeros(tasks), change, np.arange(tasks)).p < 0.05
    assert 0.70 <= seen / sims <= 0.88  # the exact test is a little shy of 5 %


def test_a_pilot_in_which_nothing_varies_says_nothing() -> None:
    none = Spread(0.0, 0.0, 0.0)
    found = tasks_needed([1, 4], difference=0.05, runs=(none, none), change=none)
    assert [(one.unpaired, one.paired) for one in found] == [(None, None)] * 2


@pytest.mark.parametrize(("better", "worse"), [(0.005, 0.0017), (0.0017, 0.005), (0.004, 0.0), (0.002, 0.002)])
def test_changes_near_certainty_are_held_though_none_was_seen_to_one_side(better: float, worse: float) -> None:
    """Exact, for one sample of each of 300 tasks: the share of comparisons whose interval holds the true change."""
    tasks, held = 300, 0.0
    for fixed, broken in itertools.product(range(10), range(10)):
        same = tasks - fixed - broken
        ways = math.comb(tasks, fixed) * math.comb(tasks - fixed, broken)
        a = np.array([0.0] * fixed + [1.0] * broken + [1.0] * same)
        b = np.array([1.0] * fixed + [0.0] * broken + [1.0] * same)
        found = fit_to_p(paired_change(a, b, np.arange(tasks), is_share=True), mcnemar(fixed, broken))
        assert found.low is not None
        assert found.high is not None
        if found.low <= better - worse <= found.high:
            held += ways * better**fixed * worse**broken * (1 - better - worse) ** same
    assert held >= 0.95
