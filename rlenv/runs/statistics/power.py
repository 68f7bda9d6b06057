"""How many tasks it takes to see a difference of so much with a power of 80 % at a level of 5 %, two-sided."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlenv.errors import UsageError
from rlenv.runs.statistics.intervals import Z

__all__ = ["Spread", "Tasks", "needed", "paired_tasks", "spread_of", "spread_of_rate", "unpaired_tasks"]

_POWER: Final = 0.8416212335729143
"""The 80 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks of k samples each: of each run where both play other tasks, in all where both play the same."""

    k: int
    unpaired: int | None
    paired: int | None


@dataclass(frozen=True, slots=True)
class Spread:
    """How numbers vary: `between` tasks, and `within` a task from sample to sample (variances), around `mean`."""

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
    tasks: dict[Any, list[float]] = defaultdict(list)
    for task, number in samples:
        tasks[task].append(number)
    groups, count = list(tasks.values()), len(tasks)
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


def needed(
    ks: Sequence[int], *, difference: float, runs: tuple[Spread, Spread], change: Spread | None = None
) -> list[Tasks]:
    """The tasks that it takes for each number of samples; paired where it is known how pairs differ.

    None where nothing varies: a pilot that only fails, say, does not tell how one varies that sometimes succeeds.
    """
    return [
        Tasks(
            k,
            unpaired_tasks(*runs, difference=difference, k=k) if any(one.of(1) for one in runs) else None,
            None if change is None or not change.of(1) else paired_tasks(change, difference=difference, k=k),
        )
        for k in ks
    ]
