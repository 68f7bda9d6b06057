"""The figures of a run of episodes; here the 95 % intervals of shares and means over samples of several tasks.

Samples of one task are no independent ones, so that what counts is how tasks differ (Cochran 1977, "Sampling
Techniques", 9A.2; Miller 2024, "Adding Error Bars to Evals"). How often each interval holds the truth is measured by
`benchmarks/coverage.py`.

pass@k and pass^k: that one of k samples of a task succeeds, and that all do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Final, Literal

Z: Final = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: of a two-sided interval of 95 %."""
_SQUARED: Final = 1e100  # numbers up to this have squares and sums of squares
_RARE: Final = (0.0, 0.0253178, 0.2422093, 0.6186721)
"""The mean of a Poisson distribution that gives 0, 1, 2, 3 or more with 2.5 %, on a line between (Garwood 1936)."""
_MANY: Final = 1_000  # degrees of freedom from which the expansion of Student's quantile errs by less than 1e-12

Interval = tuple[float, float]


def wilson(successes: float, trials: float, *, quantile: float = Z) -> Interval:
    """The score interval of a proportion; (0, 1) for no trials.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    if trials == 0:
        return (0.0, 1.0)
    rate, z2 = successes / trials, quantile * quantile
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = quantile / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # Rounding leaves 2.8e-17 where the bound is none.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return (low, 1.0 if successes == trials else min(1.0, centre + half))


def clustered_interval(groups: Sequence[Sequence[bool]]) -> Interval:
    """The 95 % interval of a share over samples of several tasks, one sequence a task; (0, 1) for none.

    Wilson's, for as many trials as would give the variance that the tasks show between them (Σ (n·(p - share))² / N²):
    as many as there are tasks where a task's samples all agree, and all samples where tasks do not differ. With one
    sample a task it is Wilson's interval of the samples; with more the variance is an estimate, and Student's quantile
    for one degree less than there are tasks stands in the place of the normal one (Korn and Graubard 1998). Of a single
    task nothing says how tasks differ: all its samples count as one.
    """
    return clustered_counts([(sum(group), len(group)) for group in groups])


def clustered_counts(groups: Sequence[tuple[int, int]]) -> Interval:
    """The interval of `clustered_interval`, of each task's successes and samples."""
    return score_interval([(won, count) for won, count in groups if count], 0.0, 1.0, most=sum(n for _, n in groups))


def score_interval(
    clusters: Sequence[tuple[float, int]], low: float, high: float, *, most: float = math.inf
) -> Interval:
    """The 95 % interval of a mean of numbers within [low, high], of each task's sum and count; [low, high] for none.

    Wilson's for the mean's place within the bounds, taken as a share of as many trials as give the variance between
    tasks. Unlike the mean and its standard errors to both sides it never leaves the bounds, and leans towards the
    middle as much as a mean near a bound is skewed. Up to three trials from a bound it leans too much: there stands
    the bound of a rare outcome by Poisson's distribution (Brown, Cai and DasGupta 2001, "Interval Estimation for a
    Binomial Proportion", 4.1.1), and of all trials alike the exact one.

    Args:
        most: there are no more trials than these, such as all samples of a share.
    """
    trials, count = sum(n for _, n in clusters), len(clusters)
    if not trials:
        return (low, high)
    span = high - low
    places = [((total - n * low) / span, n) for total, n in clusters]
    share = min(1.0, max(0.0, math.fsum(place for place, _ in places) / trials))
    spread = math.fsum((place - n * share) ** 2 for place, n in places) / trials**2
    if share in (0.0, 1.0) or count == 1:
        worth = float(count)  # nothing says how alike a task's samples are
    else:
        # Equal tasks leave rounding where there is no variance.
        worth = min(share * (1 - share) / spread if spread > 1e-30 else math.inf, most)
    if worth == math.inf:
        return (low + share * span,) * 2
    is_estimate = share not in (0.0, 1.0) and most > count
    bounds = wilson(share * worth, worth, quantile=student_quantile(count - 1) if is_estimate and count > 1 else Z)
    below, above = _lower_bound(share, worth, bounds[0]), 1 - _lower_bound(1 - share, worth, 1 - bounds[1])
    return (low + below * span, low + above * span)


def _lower_bound(share: float, trials: float, wilsons: float) -> float:
    """Wilson's lower bound, or the exact one where that is known to be too high: of a few successes, and of all."""
    if share == 1.0:
        return min(wilsons, 1 - clopper_pearson_upper(trials))
    seen = share * trials
    if share > 0.5 or seen >= len(_RARE) - 1:
        return wilsons
    at = int(seen)
    return min(wilsons, (_RARE[at] + (seen - at) * (_RARE[at + 1] - _RARE[at])) / trials)


def mean_interval(groups: Sequence[Sequence[float]]) -> Interval | None:
    """The 95 % interval of a mean over samples of several tasks, one sequence a task; None for fewer than two tasks.

    None also where nothing varies, since nothing says then how much it may, and where a bound is no finite number.
    `score_interval` on the range that the samples show, and at least Student's to both sides, since a few samples show
    less than the range there is. Where only two values occur the mean is a share of the larger one, so that there are
    no more trials than samples; where these are 0 and 1 the interval is that of `clustered_interval`.
    """
    groups = [group for group in groups if group]
    if len(groups) < 2:
        return None
    low, high = min(map(min, groups)), max(map(max, groups))
    if low == high:
        return None
    # The square of a large number is none that is finite; in units of the largest each one is.
    largest = max(-low, high)
    unit = largest if largest > _SQUARED else 1.0
    is_share = all(number in (low, high) for group in groups for number in group)
    clusters = [(math.fsum(number / unit for number in group), len(group)) for group in groups]
    trials = sum(map(len, groups))
    found = score_interval(clusters, low / unit, high / unit, most=trials if is_share else math.inf)
    if found[0] == found[1]:
        return None
    if not (is_share and (low, high) == (0, 1)):
        middle = math.fsum(total for total, _ in clusters) / trials
        half = student_quantile(len(groups) - 1) * (standard_error(clusters) or 0.0)
        found = (min(found[0], middle - half), max(found[1], middle + half))
    low, high = found[0] * unit, found[1] * unit
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def standard_error(clusters: Sequence[tuple[float, int]]) -> float | None:
    """The cluster-robust standard error of a mean, of each task's sum and count; None for fewer than two tasks.

    √(G / (G - 1) · Σ (sum - n·mean)²) / N for G tasks with N samples: that of a regression on a constant (Liang and
    Zeger 1986; statsmodels' `cov_type="cluster"` without the correction for parameters, which is 1 here).
    """
    trials, count = sum(n for _, n in clusters), len(clusters)
    if count < 2:
        return None
    middle = math.fsum(total for total, _ in clusters) / trials
    spread = math.fsum((total - n * middle) ** 2 for total, n in clusters)
    return math.sqrt(spread * count / (count - 1)) / trials


def mean_of_parts(parts: Sequence[tuple[float, Interval]]) -> Interval | None:
    """The 95 % interval of the mean of independent estimates, each with its own interval; None for none.

    The distances of each estimate to its bounds add as variances do. Source: Zou and Donner 2008, "Construction of
    confidence limits about effect measures: a general approach" (MOVER).
    """
    if not parts:
        return None
    middle = math.fsum(one for one, _ in parts) / len(parts)
    below = math.sqrt(math.fsum((one - low) ** 2 for one, (low, _) in parts)) / len(parts)
    above = math.sqrt(math.fsum((high - one) ** 2 for one, (_, high) in parts)) / len(parts)
    return (middle - below, middle + above)


def clopper_pearson_upper(trials: float) -> float:
    """The upper bound of a share of which none of `trials` was seen, 95 % two-sided (Clopper and Pearson 1934)."""
    return 1.0 - math.pow(0.025, 1 / trials)


@cache
def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t for whole degrees of freedom, exact to 1e-9.

    Newton's method on its distribution function; for many degrees Cornish and Fisher's expansion. Source: Abramowitz
    and Stegun 1972, 26.7.3, 26.7.4 and 26.7.5.
    """
    z, f = Z, freedom
    start = z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
    start += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
    start += (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * f**4)
    if freedom >= _MANY:
        return start
    # Of one and two degrees the quantile is known; beyond, the expansion is near enough to start from.
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    scale = math.exp(math.lgamma((f + 1) / 2) - math.lgamma(f / 2)) / math.sqrt(f * math.pi)
    t = start
    for _ in range(12):
        density = 2 * scale * (1 + t * t / f) ** (-(f + 1) / 2)
        t -= (_student_mass(t, f) - 0.95) / density
    return t


def _student_mass(t: float, freedom: int) -> float:
    """The chance that Student's t lies within ±t, for three degrees or more."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    if freedom % 2:
        factors = (2 * i / (2 * i + 1) * square for i in range(1, (freedom - 1) // 2))
        return 2 / math.pi * (angle + sine * math.fsum(accumulate(factors, mul, initial=math.cos(angle))))
    factors = ((2 * i - 1) / (2 * i) * square for i in range(1, freedom // 2))
    return sine * math.fsum(accumulate(factors, mul, initial=1.0))


_ALL: Final = 256
"""Up to so many samples of a task there is a figure for each k; beyond, for powers of two."""
Kind = Literal["at", "hat"]


@dataclass(frozen=True, slots=True)
class PassAtK:
    """A chance over k samples of a task, as `pass_curve` estimates it: the mean over tasks.

    `tasks` are those with k valid samples or more. `left_out` had fewer, and are no part of `value`, which is None
    where no task is left. `interval` is one of 95 % for tasks like these (`score_interval` on [0, 1]).
    """

    value: float | None
    tasks: int
    left_out: int
    interval: tuple[float, float] | None = None


def pass_curve(kind: Kind, tasks: Sequence[tuple[int, int]], *, samples: int) -> dict[int, PassAtK]:
    """pass@k ("at") or pass^k ("hat") by k, of each task's successes and valid samples.

    The chance that k of a task's samples, drawn without replacement, hold a success (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", equation 1), or that all succeed (Yao et al. 2024, "τ-bench", section 5).

    For each k up to `samples`, which is how often tasks were played; beyond 256 for powers of two and `samples`.
    """
    some = {*(2**power for power in range(samples.bit_length())), samples}
    wanted = range(1, samples + 1) if samples <= _ALL else sorted(some)
    values: dict[int, list[tuple[float, int]]] = {k: [] for k in wanted}
    for (won, valid), count in Counter(tasks).items():
        for k, all_alike in _choice_shares(won if kind == "hat" else valid - won, valid):
            if k in values:
                values[k].append((all_alike if kind == "hat" else 1 - all_alike, count))
    return {k: _mean_pass(k, known, tasks) for k, known in values.items()}


def _choice_shares(alike: int, valid: int) -> Iterator[tuple[int, float]]:
    """C(alike, k) / C(valid, k) for k = 1, 2, …: whole numbers until the one division, so that it is exact."""
    above, below = 1, 1
    for k in range(1, valid + 1):
        above = above * (alike - k + 1) // k if k <= alike else 0
        below = below * (valid - k + 1) // k
        yield k, above / below


def _mean_pass(k: int, known: Sequence[tuple[float, int]], tasks: Sequence[tuple[int, int]]) -> PassAtK:
    count = sum(number for _, number in known)
    if not count:
        return PassAtK(None, 0, len(tasks))
    value = math.fsum(one * number for one, number in known) / count
    held = [task for task in tasks if task[1] >= k]
    if k == 1 and len({valid for _, valid in held}) == 1:
        interval = clustered_counts(held)  # a share of samples: pass@1 and the success rate are one figure
    else:
        clusters = [(one, 1) for one, number in known for _ in range(number)]
        # A mean over all choices of k samples of n varies by k / n of what one choice varies, at most (Hoeffding 1948).
        # Near 0 and 1, where few tasks show how much, the variance between tasks alone is too small too often.
        interval = score_interval(clusters, 0.0, 1.0, most=sum(valid for _, valid in held) / k)
    return PassAtK(value, count, len(tasks) - count, interval)
