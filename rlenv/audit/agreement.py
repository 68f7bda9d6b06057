"""Agreement of a judge's scores with labels: agreement, calibration, and disagreement with the verifiers of a run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, linear_regression

from rlenv._base.bounded import grouped
from rlenv.runs.figures.rewards import Estimate, agreement_of, spearmans_rho, table_of
from rlenv.trajectory import TermResult, Trajectory

Pairs = Sequence[tuple[float, float]]
Statistic = Callable[[Pairs], float | None]

_RESAMPLES = 1000


def accuracy(pairs: Pairs) -> float | None:
    """The share of equal pairs; None without pairs."""
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def mean(pairs: Pairs) -> float | None:
    """The mean of the differences, second minus first; None without pairs."""
    return math.fsum(b - a for a, b in pairs) / len(pairs) if pairs else None


def distance(pairs: Pairs) -> float | None:
    """The mean distance of the two; None without pairs."""
    return math.fsum(abs(b - a) for a, b in pairs) / len(pairs) if pairs else None


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
    expected = _squared_distances(values) / (len(values) - 1)
    return 1 - math.fsum(_squared_distances(unit) / (len(unit) - 1) for unit in kept) / expected


def _squared_distances(values: Sequence[float]) -> float:
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


_BINS = 5


@dataclass(frozen=True, slots=True)
class Bin:
    """The anchors with scores from `low` up to `high` (in the last bin: and with it), and their means; None of none."""

    low: float
    high: float
    count: int
    score: float | None
    label: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scores against labels, on the judge's scale.

    `bins` are of one width over the scale. `error` is the mean distance of a bin's mean score from its mean label,
    weighted by its anchors (the expected calibration error of Naeini et al. 2015, for scores), as a share of the scale.
    `line` is (intercept, slope) of the least-squares line from score to label, `steps` the (score, label) of the
    isotonic regression: the rising step function with the least squared error; both None and () where they cannot be
    said.
    """

    bins: tuple[Bin, ...]
    error: float | None
    line: tuple[float, float] | None
    steps: tuple[tuple[float, float], ...]


def calibration(pairs: Pairs, *, scale: tuple[float, float]) -> Calibration:
    """The calibration of scores on `scale`."""
    low, high = scale
    width = (high - low) / _BINS
    binned: list[list[tuple[float, float]]] = [[] for _ in range(_BINS)]
    for label, score in pairs:
        binned[min(_BINS - 1, max(0, int((score - low) / width)))].append((label, score))
    bins = tuple(_make_bin(low + place * width, low + (place + 1) * width, held) for place, held in enumerate(binned))
    distances = [
        one.count * abs(one.score - one.label) for one in bins if one.score is not None and one.label is not None
    ]
    error = math.fsum(distances) / len(pairs) / (high - low) if pairs else None
    return Calibration(bins, error, fit_line(pairs), fit_isotonic(pairs))


def _make_bin(low: float, high: float, held: Pairs) -> Bin:
    if not held:
        return Bin(low, high, 0, None, None)
    labels, scores = zip(*held, strict=True)
    return Bin(low, high, len(held), math.fsum(scores) / len(held), math.fsum(labels) / len(held))


def fit_line(pairs: Pairs) -> tuple[float, float] | None:
    """(intercept, slope) of the least-squares line from score to label; None where there is one score only."""
    try:
        slope, intercept = linear_regression([score for _, score in pairs], [label for label, _ in pairs])
    except StatisticsError:
        return None
    return intercept, slope


def fit_isotonic(pairs: Pairs) -> tuple[tuple[float, float], ...]:
    """For each score, rising, the label of the isotonic regression; equal scores are one, with their mean label.

    Source: the pool-adjacent-violators algorithm, Barlow et al. 1972, "Statistical inference under order restrictions".
    """
    by_score = grouped((score, label) for label, score in pairs)
    pools: list[tuple[float, list[float]]] = []  # the sum of the labels of some scores that follow each other
    counts: list[int] = []
    for score in sorted(by_score):
        total, count, scores = math.fsum(by_score[score]), len(by_score[score]), [score]
        while pools and pools[-1][0] * count > total * counts[-1]:
            below, held = pools.pop()
            total, count, scores = total + below, count + counts.pop(), held + scores
        pools.append((total, scores))
        counts.append(count)
    return tuple((one, total / count) for (total, held), count in zip(pools, counts, strict=True) for one in held)


_LISTED = 50
_HIGH = 0.5


@dataclass(frozen=True, slots=True)
class Differing:
    """One episode on which the two differ; `value` is the judge's share of its scale."""

    split: str
    task_index: int
    seed: int
    value: float
    verified: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A judge's term beside another one, over the episodes where both were measured.

    The judge is high at or above the middle of its scale, the other term passes at 1 or more. `unmeasured` are episodes
    where one of the two was invalid or skipped; they are part of no other figure. `kappa` is Cohen's, of the two yes or
    no, with its bootstrap interval over tasks. `high_but_failed` and `low_but_passed` list the episodes, the judge's
    surest first, 50 at most; `failed` and `passed` count what the other term says, `high` and `low` how many of them
    the judge takes for the opposite.
    """

    judge: str
    against: str
    episodes: int
    unmeasured: int
    failed: int
    high: int
    passed: int
    low: int
    kappa: Estimate
    high_but_failed: tuple[Differing, ...]
    low_but_passed: tuple[Differing, ...]


def disagreement(trajectories: Iterable[Trajectory], *, judge: str, against: Sequence[str]) -> tuple[Disagreement, ...]:
    """The judge's term beside each of the terms of `against`, in order."""
    episodes = list(trajectories)
    return tuple(_compare_terms(episodes, judge, other) for other in against)


def _compare_terms(episodes: Sequence[Trajectory], judge: str, other: str) -> Disagreement:
    found = []
    for one in episodes:
        terms = one.reward.terms
        value, verified = _judge_share(terms.get(judge)), getattr(terms.get(other), "value", None)
        if value is not None and verified is not None:
            found.append(Differing(one.split, one.task_index, one.seed, value, verified))
    failed = [one for one in found if one.verified < 1]
    passed = [one for one in found if one.verified >= 1]
    high = sorted((one for one in failed if one.value >= _HIGH), key=lambda one: -one.value)
    low = sorted((one for one in passed if one.value < _HIGH), key=lambda one: one.value)
    passes, is_high = [float(one.verified >= 1) for one in found], [float(one.value >= _HIGH) for one in found]
    agreed = agreement_of(other, passes, judge, is_high, [(one.split, one.task_index) for one in found])
    return Disagreement(
        judge=judge,
        against=other,
        episodes=len(found),
        unmeasured=len(episodes) - len(found),
        failed=len(failed),
        high=len(high),
        passed=len(passed),
        low=len(low),
        kappa=agreed.kappa or Estimate(None),
        high_but_failed=tuple(high[:_LISTED]),
        low_but_passed=tuple(low[:_LISTED]),
    )


def _judge_share(term: TermResult | None) -> float | None:
    """The judge's score as a share of its scale, before `range` and `clip`; None where it was not measured."""
    if term is None or term.value is None:
        return None
    raw, scale = term.details.get("raw"), term.details.get("scale")
    if raw is None or not isinstance(scale, (list, tuple)) or len(scale) != 2:
        return None
    return float((raw - scale[0]) / (scale[1] - scale[0]))
