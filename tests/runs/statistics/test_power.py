"""How many tasks it takes."""

from __future__ import annotations

import numpy as np
import pytest

from rlenv.errors import UsageError
from rlenv.runs.statistics.paired import sign_flips
from rlenv.runs.statistics.power import Spread, needed, paired_tasks, spread_of, spread_of_rate, unpaired_tasks


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
    found = needed([1, 4], difference=0.05, runs=(none, none), change=none)
    assert [(one.unpaired, one.paired) for one in found] == [(None, None)] * 2
