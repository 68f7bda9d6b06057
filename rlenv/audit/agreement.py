"""How far two sets of scores agree: accuracy, kappa, alpha, rank correlation, each with a bootstrap interval."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlenv.runs.figures.agreement import spearmans_rho, table_of, weighted_kappa

__all__ = [
    "Estimate",
    "Pairs",
    "accuracy",
    "alpha",
    "bootstrap",
    "distance",
    "kappa",
    "mean",
    "spearman",
]

Pairs = Sequence[tuple[float, float]]
Statistic = Callable[[Pairs], float | None]

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % bootstrap interval (Efron 1979, percentile method); None where it cannot be said."""

    value: float | None
    low: float | None
    high: float | None

    def excludes(self, number: float) -> bool:
        """Whether the interval is known and does not hold `number`."""
        return self.low is not None and self.high is not None and not self.low <= number <= self.high


def accuracy(pairs: Pairs) -> float | None:
    """The share of equal pairs; None without pairs."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def mean(pairs: Pairs) -> float | None:
    """The mean of the differences, second minus first; None without pairs."""
    return math.fsum(b - a for a, b in pairs) / len(pairs) if pairs else None


def distance(pairs: Pairs) -> float | None:
    """The mean distance of the two; None without pairs."""
    return math.fsum(abs(b - a) for a, b in pairs) / len(pairs) if pairs else None


def kappa(pairs: Pairs) -> float | None:
    """Cohen's kappa with quadratic weights (`rlenv.runs.figures.agreement.weighted_kappa`); None without pairs too."""
    return weighted_kappa(*table_of(pairs)) if pairs else None


def alpha(units: Sequence[Sequence[float | None]]) -> float | None:
    """Krippendorff's alpha for interval data: 1 - Dₒ/Dₑ, Dₒ the mean squared distance of scores of one unit, each unit
    weighted by the scores it has, Dₑ that of all scores of units with two or more.

    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability". None without such a unit, or where all
    scores are one.

    Args:
        units: the scores of what was scored, one of each judge; None where a judge gave none.
    """
    kept = [[one for one in unit if one is not None] for unit in units]
    kept = [unit for unit in kept if len(unit) > 1]
    values = [one for unit in kept for one in unit]
    if len(set(values)) < 2:  # their distances may be tiny in place of none, as their mean is rounded
        return None
    expected = _squares(values) / (len(values) - 1)
    return 1 - math.fsum(_squares(unit) / (len(unit) - 1) for unit in kept) / expected


def _squares(values: Sequence[float]) -> float:
    """The sum of the squared distances of all pairs: n·Σ (v - mean)²."""
    middle = math.fsum(values) / len(values)
    return len(values) * math.fsum((one - middle) ** 2 for one in values)


def spearman(pairs: Pairs) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one side has a single value."""
    return spearmans_rho(table_of(pairs)[0]) if pairs else None


def bootstrap(pairs: Pairs, statistic: Statistic, *, seed: int = 0) -> Estimate:
    """The statistic of `pairs` with its interval over 1,000 resamples; equal seeds give equal intervals."""
    value = statistic(pairs)
    if value is None or len(pairs) < 2:
        return Estimate(value, None, None)
    rng = random.Random(seed)
    drawn = [statistic([rng.choice(pairs) for _ in pairs]) for _ in range(_RESAMPLES)]
    found = sorted(one for one in drawn if one is not None)
    if len(found) < _RESAMPLES // 2:
        return Estimate(value, None, None)
    return Estimate(value, found[int(0.025 * len(found))], found[min(len(found) - 1, int(0.975 * len(found)))])
