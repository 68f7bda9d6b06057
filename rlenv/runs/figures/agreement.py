"""How far two terms agree over the same episodes: kappa and rank correlations, with intervals over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Agreement",
    "Estimate",
    "agreements",
    "between",
    "kendalls_tau",
    "spearmans_rho",
    "table_of",
    "weighted_kappa",
]

_DRAWS: Final = 1_000
_SEED: Final = 7
_CELLS: Final = 40_000
"""Pairs of distinct values up to which Kendall's tau is drawn again a thousand times: 200 values on each side."""

_BINARY: Final = np.array([0.0, 1.0])

Values = NDArray[np.float64]
Table = NDArray[np.float64]
"""How many episodes have the i-th distinct value of one side and the j-th of the other, both in rising order."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None where it cannot be said.

    The interval is a percentile one of a bootstrap over tasks, each with all of its episodes (Efron 1979; Field and
    Welsh 2007 for clusters), which are no independent ones. None for fewer than two tasks, and where half of the draws
    or more leave the figure open.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    def excludes(self, number: float) -> bool:
        """Whether the interval is known and does not hold `number`."""
        return self.low is not None and self.high is not None and not self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two terms over the `episodes` in which both have a value.

    `kappa` is None where one of them is not binary, and has no value where one of them never varies.
    """

    a: str
    b: str
    episodes: int
    kappa: Estimate | None
    spearman: Estimate
    kendall: Estimate


def agreements(columns: Mapping[str, Sequence[float | None]], tasks: Sequence[Hashable]) -> list[Agreement]:
    """Every pair of terms, each given by its value in each episode (None where it has none); `tasks` are theirs."""
    return [between(a, columns[a], b, columns[b], tasks) for a, b in combinations(columns, 2)]


def between(
    a: str, first: Sequence[float | None], b: str, second: Sequence[float | None], tasks: Sequence[Hashable]
) -> Agreement:
    """How far two terms agree over the same episodes."""
    known = [
        (float(one), float(other), task)
        for one, other, task in zip(first, second, tasks, strict=True)
        if one is not None and other is not None
    ]
    if not known:
        nothing = Estimate(None)
        return Agreement(a, b, 0, None, nothing, nothing)
    left, i = np.unique([one for one, _, _ in known], return_inverse=True)
    right, j = np.unique([other for _, other, _ in known], return_inverse=True)
    numbers: dict[Hashable, int] = {}
    at = np.array([numbers.setdefault(task, len(numbers)) for _, _, task in known], dtype=np.int64)
    drawn = _Drawn(i, j, at, (len(left), len(right)))
    kappa = None
    if {*left.tolist(), *right.tolist()} <= {0.0, 1.0}:
        # A term that never varies agrees with nothing and disagrees with nothing: the formula's 0 would look like
        # knowledge. A sample of the tasks in which one does not vary is one of those that the interval is made of.
        binary = _Drawn(left[i].astype(np.int64), right[j].astype(np.int64), at, (2, 2))
        varies = len(left) == len(right) == 2
        kappa = binary.estimate(partial(weighted_kappa, left=_BINARY, right=_BINARY)) if varies else Estimate(None)
    tau = drawn.estimate(kendalls_tau, again=len(left) * len(right) <= _CELLS)
    return Agreement(a, b, len(known), kappa, drawn.estimate(spearmans_rho), tau)


class _Drawn:
    """The table of two sides, and the tables of bootstrap draws; equal episodes give equal draws."""

    def __init__(self, i: NDArray[np.int64], j: NDArray[np.int64], tasks: NDArray[np.int64], shape: tuple[int, int]):
        self._shape, self._tasks = shape, tasks
        self._cells, self._at = np.unique(i * shape[1] + j, return_inverse=True)
        self._count = int(tasks.max()) + 1

    def estimate(self, figure: Callable[[Table], float | None], *, again: bool = True) -> Estimate:
        """The figure of all episodes, and its interval unless it is not to be drawn again."""
        value = figure(self._table(None))
        if value is None or self._count < 2 or not again or self._shape[0] * self._shape[1] > _CELLS:
            return Estimate(value)
        random = np.random.default_rng(_SEED)
        found = []
        for _ in range(_DRAWS):
            times = np.bincount(random.integers(0, self._count, self._count), minlength=self._count)
            if (one := figure(self._table(times[self._tasks].astype(np.float64)))) is not None:
                found.append(one)
        if len(found) <= _DRAWS // 2:
            return Estimate(value)
        low, high = np.quantile(found, (0.025, 0.975))
        return Estimate(value, float(low), float(high))

    def _table(self, weights: NDArray[np.float64] | None) -> Table:
        flat = np.zeros(self._shape[0] * self._shape[1])
        flat[self._cells] = np.bincount(self._at, weights, minlength=len(self._cells))
        return flat.reshape(self._shape)


def table_of(pairs: Sequence[tuple[float, float]]) -> tuple[Table, Values, Values]:
    """The table of some pairs, and the distinct values of its rows and of its columns."""
    left, i = np.unique([a for a, _ in pairs], return_inverse=True)
    right, j = np.unique([b for _, b in pairs], return_inverse=True)
    cells = np.bincount(i * len(right) + j, minlength=len(left) * len(right))
    return cells.reshape(len(left), len(right)).astype(np.float64), left, right


def weighted_kappa(table: Table, left: Values, right: Values) -> float | None:
    """Cohen's kappa with quadratic weights: 1 - Σ w·o / Σ w·e with w = (a - b)²; None where chance alone agrees fully.

    Source: Cohen 1968, "Weighted kappa", Psychological Bulletin 70(4). Of two values, 0 and 1, it is the kappa of Cohen
    1960, "A coefficient of agreement for nominal scales". Of scores as they are it is Lin's concordance too (Lin 1989,
    with 1/n variances).

    Args:
        left: the values that the rows stand for.
        right: those of the columns.
    """
    count = float(table.sum())
    if not count:
        return None
    apart = np.subtract.outer(left, right) ** 2
    by_chance = float(table.sum(axis=1) @ apart @ table.sum(axis=0)) / count**2
    return 1 - float((apart * table).sum()) / count / by_chance if by_chance else None


def spearmans_rho(table: Table) -> float | None:
    """Pearson's correlation of ranks, ties at their mean rank; None where one side has a single value.

    Source: Spearman 1904, "The proof and measurement of association between two things".
    """
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    count = float(table.sum())
    left, right = _ranks(rows) - (count + 1) / 2, _ranks(columns) - (count + 1) / 2
    spread = float(rows @ left**2) * float(columns @ right**2)
    return float(left @ table @ right) / math.sqrt(spread) if spread > 0 else None


def _ranks(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.cumsum(counts) - counts + (counts + 1) / 2)


def kendalls_tau(table: Table) -> float | None:
    """Tau-b: (P - Q) / √((n₀ - n₁)·(n₀ - n₂)) for P pairs in the same order, Q in opposite ones, n₁ and n₂ tied ones.

    None where one side has a single value. Source: Kendall 1945, "The treatment of ties in ranking problems".
    """
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    above = np.cumsum(np.cumsum(table[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    same = float((table[:-1, :-1] * above[1:, 1:]).sum())
    beside = np.cumsum(np.cumsum(table[::-1], axis=0), axis=1)[::-1]
    opposite = float((table[:-1, 1:] * beside[1:, :-1]).sum())
    pairs = _pairs(np.array([table.sum()]))
    spread = (pairs - _pairs(rows)) * (pairs - _pairs(columns))
    return (same - opposite) / math.sqrt(spread) if spread > 0 else None


def _pairs(counts: NDArray[np.float64]) -> float:
    return float((counts * (counts - 1) / 2).sum())
