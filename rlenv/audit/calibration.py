"""How far a judge's scores can be read as labels: by bins of scores, and by the lines that lead from one to the other.

What is found here is reported and applied nowhere: a reward that is to be calibrated is another reward, which its
author writes down (`range`, `clip`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bin", "Calibration", "calibration", "isotonic", "line"]

Pairs = Sequence[tuple[float, float]]
"""(label, score) of one anchor each."""

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
    sorted_in: list[list[tuple[float, float]]] = [[] for _ in range(_BINS)]
    for label, score in pairs:
        sorted_in[min(_BINS - 1, max(0, int((score - low) / width)))].append((label, score))
    bins = tuple(_bin(low + place * width, low + (place + 1) * width, held) for place, held in enumerate(sorted_in))
    distances = [
        one.count * abs(one.score - one.label) for one in bins if one.score is not None and one.label is not None
    ]
    error = math.fsum(distances) / len(pairs) / (high - low) if pairs else None
    return Calibration(bins, error, line(pairs), isotonic(pairs))


def _bin(low: float, high: float, held: Pairs) -> Bin:
    if not held:
        return Bin(low, high, 0, None, None)
    labels, scores = zip(*held, strict=True)
    return Bin(low, high, len(held), math.fsum(scores) / len(held), math.fsum(labels) / len(held))


def line(pairs: Pairs) -> tuple[float, float] | None:
    """(intercept, slope) of the least-squares line from score to label; None where there is one score only."""
    if not pairs:
        return None
    label, score = (math.fsum(side) / len(pairs) for side in zip(*pairs, strict=True))
    spread = math.fsum((b - score) ** 2 for _, b in pairs)
    if not spread:
        return None
    slope = math.fsum((a - label) * (b - score) for a, b in pairs) / spread
    return label - slope * score, slope


def isotonic(pairs: Pairs) -> tuple[tuple[float, float], ...]:
    """For each score, rising, the label of the isotonic regression; equal scores are one, with their mean label.

    Source: the pool-adjacent-violators algorithm, Barlow et al. 1972, "Statistical inference under order restrictions".
    """
    by_score: dict[float, list[float]] = {}
    for label, score in pairs:
        by_score.setdefault(score, []).append(label)
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
