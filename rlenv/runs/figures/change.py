"""Two runs over the same tasks: how much a mean changed, and whether it may be chance.

How many tasks it takes to see a difference of so much with a power of 80 % at a level of 5 %, two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import grouped
from rlenv.errors import UsageError
from rlenv.runs.figures import Z, clopper_pearson_upper, score_interval, standard_error, student_quantile

LEVEL: Final = 0.05
"""Below it a p counts as a change."""
_SEED: Final = 7
_EXACT: Final = 16
"""The most changed tasks whose signs are all tried, whatever the amounts: 65,536 ways."""
_DRAWS: Final = 20_000
_CELLS: Final = 50_000_000
"""Additions that an exact distribution of whole numbers may take: a fifth of a second."""


@dataclass(frozen=True, slots=True)
class Change:
    """Means over pairs of which both sides are known, and the change with its 95 % interval; None where not known.

    `pairs` are those of `tasks` tasks, `invalid` the pairs that were left out.
    """

    a: float | None
    b: float | None
    change: float | None
    low: float | None
    high: float | None
    pairs: int = 0
    tasks: int = 0
    invalid: int = 0


@dataclass(frozen=True, slots=True)
class Chance:
    """A two-sided p of no change: `exact`, or by `draws` of signs where there are too many ways."""

    p: float
    method: str


def mcnemar(fixed: int, broken: int) -> float:
    """The two-sided exact p of McNemar's test: of `fixed + broken` fair coins, so uneven a split or a more uneven one.

    Source: McNemar 1947; exact by the binomial distribution. 1 where nothing changed.
    """
    count, few = fixed + broken, min(fixed, broken)
    if not count:
        return 1.0
    term = tail = 1
    for one in range(few):
        term = term * (count - one) // (one + 1)
        tail += term
    p: float = 2 * tail / 2**count
    return min(1.0, p)


def paired_change(
    a: NDArray[np.float64], b: NDArray[np.float64], tasks: NDArray[np.int64], *, is_share: bool = False
) -> Change:
    """The change of a mean over pairs with its 95 % interval, clustered by task: samples of one task are no independent
    ones. Pairs with a side that is not known (not a number) are left out.

    The mean of the differences and its cluster-robust standard error (`standard_error`) times Student's t; a bound of
    `score_interval` on the changes that were seen is taken where it is farther, as where a few changed, all to one
    side. Of shares what so many tasks cannot rule out (Clopper and Pearson's bound for none of them) is added on the
    other side, as variances add (Newcombe 1998, "Improved confidence intervals for the difference between binomial
    proportions based on paired data").

    There is no interval for fewer than two tasks, nor where no task's change differs from the others'; of shares it is
    then the one of the pairs without their tasks, and where no pair differs from the others that bound to both sides. A
    change, or a bound, that is no finite number is None.
    """
    known = ~np.isnan(a) & ~np.isnan(b)
    invalid = int((~known).sum())
    if not known.any():
        return Change(None, None, None, None, None, invalid=invalid)
    unit = _unit(a[known], b[known])
    a, b = a[known] / unit, b[known] / unit
    middle = _mean(b - a)
    sums, sizes = _sums_by_task(b - a, tasks[known])
    low, high = _bounds_of(middle, b - a, list(zip(sums.tolist(), sizes.tolist(), strict=True)), is_share=is_share)
    change, lowest, highest = (one * unit if math.isfinite(one * unit) else None for one in (middle, low, high))
    return Change(_mean(a) * unit, _mean(b) * unit, change, lowest, highest, len(a), len(sums), invalid)


def fit_to_p(change: Change, p: float) -> Change:
    """The change with an interval that holds 0 where p is 0.05 or more, and leaves it out where p is less.

    The test decides: where the two differ, the bound that is nearer to 0 is the one that goes with p under a normal
    distribution, change · (1 - 1.96 / z of p). Source: Miettinen 1976, "Estimability and estimation in case-referent
    studies", test-based limits. Nothing changes where there is no interval.
    """
    if change.change is None or change.low is None or change.high is None:
        return change
    if (change.low <= 0 <= change.high) == (p >= LEVEL):
        return change
    z = NormalDist().inv_cdf(1 - max(p, 1e-15) / 2)
    bound = change.change * (1 - Z / z) if z else -math.inf * change.change
    # No farther beyond 0 than the other bound is on this side of it.
    if change.change > 0:
        return replace(change, low=bound if p < LEVEL else max(min(bound, 0.0), -change.high))
    return replace(change, high=bound if p < LEVEL else min(max(bound, 0.0), -change.low))


def _bounds_of(
    change: float, pairs: NDArray[np.float64], tasks: list[tuple[float, int]], *, is_share: bool
) -> tuple[float, float]:
    """The interval of a change, of the differences of pairs and of each task's sum and count; not a number for none."""
    least, most = float(pairs.min()), float(pairs.max())
    if least == most:
        # One that is broken takes 2 from one that is fixed.
        half = clopper_pearson_upper(len(tasks)) * (2 if change else 1) if is_share else math.nan
        low, high = change - half, change + half
    else:
        error = standard_error(tasks)
        if error == 0 and is_share:
            error = standard_error([(pair, 1) for pair in pairs.tolist()])
        if not error:
            return math.nan, math.nan
        half = student_quantile(len(tasks) - 1) * error
        are_two = bool(((pairs == least) | (pairs == most)).all())
        low, high = score_interval(tasks, least, most, most=len(pairs) if are_two else math.inf)
        low, high = min(low, change - half), max(high, change + half)
        unseen = clopper_pearson_upper(len(tasks)) if is_share else 0.0
        if least == 0:
            low = change - math.hypot(change - low, unseen)
        if most == 0:
            high = change + math.hypot(high - change, unseen)
    return (max(-1.0, low), min(1.0, high)) if is_share else (low, high)


def _unit(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The unit of numbers: the largest of large ones, whose differences and squares are no finite numbers."""
    largest = float(max(np.abs(a).max(), np.abs(b).max()))
    return largest if largest > 1e100 else 1.0


def _mean(numbers: NDArray[np.float64]) -> float:
    return math.fsum(numbers.tolist()) / len(numbers)


def _sums_by_task(
    differences: NDArray[np.float64], tasks: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    _, at = np.unique(tasks, return_inverse=True)
    sums: NDArray[np.float64] = np.bincount(at, differences).astype(np.float64)
    return sums, np.bincount(at).astype(np.int64)


def sign_flips(a: NDArray[np.float64], b: NDArray[np.float64], tasks: NDArray[np.int64]) -> Chance:
    """The two-sided p of a change of no task: had A and B been told apart by a coin for each task, so large a sum of
    the differences or a larger one. Pairs with a side that is not known (not a number) are left out.

    Source: Fisher 1935, "The Design of Experiments", section 21. Exact where the tasks' sums are whole numbers, as of
    successes (with one sample a task it is McNemar's exact test), and for up to 16 tasks that changed; beyond by 20,000
    draws with a fixed seed, where p is (1 + as large) / (1 + draws) (Phipson and Smyth 2010), so never 0.
    """
    known = ~np.isnan(a) & ~np.isnan(b)
    sums = np.empty(0)
    if known.any():
        unit = _unit(a[known], b[known])
        sums = _sums_by_task(b[known] / unit - a[known] / unit, tasks[known])[0]
    sizes = np.abs(sums[sums != 0])
    if not len(sizes):
        return Chance(1.0, "exact")
    whole = bool((sizes == np.round(sizes)).all())
    if whole and (sizes == 1).all():
        return Chance(mcnemar(int((sums > 0).sum()), int((sums < 0).sum())), "exact")
    if whole and len(sizes) * float(sizes.sum()) <= _CELLS:
        return Chance(_tail_chance(sizes.astype(np.int64), abs(round(float(sums.sum())))), "exact")
    total = abs(float(sums.sum()))
    bar = total - 1e-9 * max(float(sizes.sum()), total)  # equal sums may differ in their last digits
    if len(sizes) <= _EXACT:
        found = np.zeros(1)
        for size in sizes:
            found = np.concatenate((found - size, found + size))
        return Chance(float((np.abs(found) >= bar).mean()), "exact")
    random, above = np.random.default_rng(_SEED), 0
    step = max(1, 2_000_000 // len(sizes))
    for start in range(0, _DRAWS, step):
        signs = random.integers(0, 2, (min(step, _DRAWS - start), len(sizes)), dtype=np.int8) * 2 - 1
        above += int((np.abs(signs @ sizes) >= bar).sum())
    return Chance((1 + above) / (1 + _DRAWS), f"{_DRAWS} draws")


def _tail_chance(sizes: NDArray[np.int64], total: int) -> float:
    """The chance that sizes with signs of a coin sum to `total` or more, to either side."""
    reach = int(sizes.sum())
    chances = np.zeros(2 * reach + 1)
    chances[reach] = 1.0
    for size in sizes.tolist():
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    return min(1.0, 2 * float(chances[reach + total :].sum())) if total else 1.0


_POWER: Final = 0.8416212335729143
"""The 80 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The number of tasks of k samples each: of each run where both play other tasks, in all where both play the
    same.
    """

    k: int
    unpaired: int | None
    paired: int | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The variances of numbers: `between` tasks, and `within` a task from sample to sample, around `mean`."""

    mean: float
    between: float
    within: float

    def of(self, k: int) -> float:
        """The variance of a task's mean over k samples."""
        return self.between + self.within / k

    @property
    def icc(self) -> float | None:
        """The correlation of two samples of a task; None where nothing varies."""
        whole = self.between + self.within
        return self.between / whole if whole else None


def spread_of(samples: Iterable[tuple[Any, float]]) -> Spread:
    """The variances of a pilot run, of each sample's task and number.

    By the analysis of variance of one factor: the mean square within tasks, and that between less that within, over
    the samples of a task (Searle, Casella and McCulloch 1992, "Variance Components", 3.6). Where that would be below 0
    tasks do not differ, and the variance of all samples is that within. With one sample a task nothing tells the two
    apart, and all of it counts as between tasks: more samples then promise nothing.

    Raises:
        UsageError: there are fewer than two tasks.
    """
    groups = list(grouped(samples).values())
    count = len(groups)
    if count < 2:
        raise UsageError(f"found {count} tasks with a valid figure; a spread takes two or more")
    trials = sum(map(len, groups))
    middle = math.fsum(map(math.fsum, groups)) / trials
    means = [math.fsum(group) / len(group) for group in groups]
    inside = math.fsum((one - mean) ** 2 for group, mean in zip(groups, means, strict=True) for one in group)
    across = math.fsum(len(group) * (mean - middle) ** 2 for group, mean in zip(groups, means, strict=True))
    within = inside / (trials - count) if trials > count else 0.0
    size = (trials - sum(len(group) ** 2 for group in groups) / trials) / (count - 1)
    between = (across / (count - 1) - within) / size
    return Spread(middle, between, within) if between >= 0 else Spread(middle, 0.0, (inside + across) / (trials - 1))


def spread_of_rate(rate: float, icc: float) -> Spread:
    """The variances of successes of a rate whose samples of one task correlate by `icc`: rate·(1 - rate) in all."""
    whole = rate * (1 - rate)
    return Spread(rate, icc * whole, (1 - icc) * whole)


def unpaired_tasks(a: Spread, b: Spread, *, difference: float, k: int) -> int:
    """Tasks of each of two runs over other tasks: (z₀.₉₇₅ + z₀.₈)² · (V_A + V_B) / difference².

    V is the variance of a task's mean over k samples, between + within / k. Source: Cohen 1988, "Statistical Power
    Analysis", 2.4, with the variance of clusters (Donner and Klar 2000, 5.2); that of evals, Miller 2024, equation 9.
    """
    return max(2, math.ceil((Z + _POWER) ** 2 * (a.of(k) + b.of(k)) / difference**2 - 1e-9))


def paired_tasks(change: Spread, *, difference: float, k: int) -> int:
    """Tasks that two runs both play: (z₀.₉₇₅·√Q + z₀.₈·√(Q - difference²))² / difference².

    Q is the mean square of a task's change over k samples, V + difference²; with one sample it is the share of tasks
    that come out differently. Source: Connor 1987, "Sample size for testing differences in proportions for the
    paired-sample design", equation 2, whose discordance is the pilot's: V is that of `change`, how the differences
    of pairs vary.
    """
    spread = change.of(k)
    square = spread + difference**2
    needed = (Z * math.sqrt(square) + _POWER * math.sqrt(spread)) ** 2 / difference**2
    return max(2, math.ceil(needed - 1e-9))


def tasks_needed(
    ks: Sequence[int], *, difference: float, runs: tuple[Spread, Spread], change: Spread | None = None
) -> list[TaskCounts]:
    """The tasks that it takes for each number of samples; paired where it is known how pairs differ.

    None where nothing varies: a pilot that only fails, say, does not tell how one varies that sometimes succeeds.
    """
    return [
        TaskCounts(
            k,
            unpaired_tasks(*runs, difference=difference, k=k) if any(one.of(1) for one in runs) else None,
            None if change is None or not change.of(1) else paired_tasks(change, difference=difference, k=k),
        )
        for k in ks
    ]
