"""The sources of a run's reward: its terms over the steps, and the episodes where reward and success part ways.

How far two terms agree over the same episodes: kappa and rank correlations, with intervals over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.figures.query import parse
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import kept_points, step_means

_BINS: Final = 40
_POINTS: Final = 300
_ERRORS: Final = 10
_LISTED: Final = 20
_LAST: Final = 32


@np.errstate(over="ignore", invalid="ignore")
def term_figures(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Each term of `Snapshot.term_names` over the rows at some places: its weight, the mean of its valid values, how
    often it was invalid or skipped, its mean by step, and the most frequent errors."""
    step = rows.numbers("step").astype(np.int64)[places]
    found = []
    for name in rows.term_names:
        values, states = rows.term(name)
        values, states = values[places], states[places]
        valid = ~np.isnan(values)
        steps, at = np.unique(step[valid], return_inverse=True)
        by_step = step_means(values[valid], at, len(steps))["mean"]
        found.append(
            {
                "name": name,
                "weight": _last_weight(rows, name),
                "mean": float(values[valid].mean()) if valid.any() else None,
                **{state: int((states == state).sum()) for state in ("valid", "invalid", "skipped")},
                "by_step": [
                    {"step": int(steps[place]), "mean": by_step[place]}
                    for place in kept_points(len(steps), _POINTS, by_step)
                ],
                "errors": _term_errors(rows, name, places),
            }
        )
    return found


def _last_weight(rows: Snapshot, name: str) -> float | None:
    """The weight of the term's last entries, since a spec may change between attempts; None where rows give it."""
    weights = np.unique(rows.terms.numbers("weight")[rows.places_of(name)[-_LAST:]])
    return float(weights[0]) if len(weights) == 1 and not np.isnan(weights[0]) else None


def _term_errors(rows: Snapshot, name: str, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    at = rows.places_of(name)
    states, words = rows.terms.words("status")
    is_invalid = np.array([word == "invalid" for word in (*words, None)], dtype=bool)[states[at]]
    at = at[is_invalid & rows.chosen_mask(places)[rows.terms.rows("status")[at]]]
    errors, said = rows.terms.words("error")
    codes, counts = np.unique(errors[at], return_counts=True)
    ordered = np.argsort(-counts, kind="stable")[:_ERRORS]
    return [{"error": [*said, None][codes[one]], "count": int(counts[one])} for one in ordered]


@np.errstate(over="ignore", invalid="ignore")
def scatter(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The number of episodes with each reward (the middle of one of up to 40 bins) with success, without, or
    unknown.
    """
    reward, success = rows.numbers("reward")[places], rows.numbers("success")[places]
    valid = ~np.isnan(reward)
    reward, success = reward[valid], success[valid]
    if not len(reward):
        return []
    distinct = np.unique(reward)
    if len(distinct) <= _BINS:
        middles, at = distinct, np.searchsorted(distinct, reward)
    else:
        edges = np.linspace(distinct[0], distinct[-1], _BINS + 1)
        middles, at = (edges[:-1] + edges[1:]) / 2, np.clip(np.digitize(reward, edges) - 1, 0, _BINS - 1)
    found = []
    for value, holds in ((True, success == 1), (False, success == 0), (None, np.isnan(success))):
        sizes = np.bincount(at[holds], minlength=len(middles))
        found += [
            {"reward": float(middles[place]), "success": value, "n": int(sizes[place])}
            for place in np.nonzero(sizes)[0]
        ]
    return found


def high_reward(rows: Snapshot) -> float | None:
    """The reward from which an episode without success is worth a look: the least that nine of ten successes have."""
    reward, success = rows.numbers("reward"), rows.numbers("success")
    known = reward[(success == 1) & ~np.isnan(reward)]
    if len(known):
        return float(np.quantile(known, 0.1, method="lower"))
    valid = reward[~np.isnan(reward)]
    return float(np.quantile(valid, 0.9, method="lower")) if len(valid) else None


def quadrants(rows: Snapshot, places: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """The episodes where a reward may be hacked: their number, and the query that lists them."""
    from_reward = high_reward(rows)
    asked = {"success without a call": "success:true calls:0"}
    if from_reward is not None:
        asked = {"high reward, no success": f"success:false reward>={float(from_reward)!r}", **asked}
    return {name: {"n": int(parse(query).mask(rows)[places].sum()), "q": query} for name, query in asked.items()}


def invalid_reasons(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The reasons of invalid rewards, the most frequent first, each with the query that lists its episodes."""
    invalid = places[np.isnan(rows.numbers("reward"))[places]]
    found = sorted(rows.word_counts("failure", invalid).items(), key=lambda one: -one[1])
    return [
        {"reason": word, "n": size, "q": "invalid:true " + (f'failure:"{word}"' if word else "failure:none")}
        for word, size in found
    ]


def kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Cohen's kappa of two who judged the same (`weighted_kappa`); None for no pairs, or where nothing varies."""
    return weighted_kappa(*table_of(pairs)) if pairs else None


def judge_agreement(records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The agreement of judges, for each term that asked some: with each other where several were asked, and with
    success.

    A score at or above the middle of its scale counts as yes; with success it is the mean score that counts.
    `disagree` are the first episodes where the sides differ, of `disagreed`: their `id` and `title`, the `scores` and
    whether it was a `success`.
    """
    pairs: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    disagree: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for id, record in records:
        success = record.get("success")
        for name, term in record["reward"]["terms"].items():
            for against, found in _judge_verdicts(term, success):
                pairs.setdefault((name, against), []).extend(found)
                if any(one != other for one, other in found):
                    told = {"id": id, "title": record.get("title", ""), "scores": _scores(term), "success": success}
                    disagree.setdefault((name, against), []).append(told)
    return [
        {
            "name": of[0],
            "against": of[1],
            "kappa": kappa(one),
            "n": len(one),
            "disagreed": len(disagree.get(of, [])),
            "disagree": disagree.get(of, [])[:_LISTED],
        }
        for of, one in sorted(pairs.items())
    ]


def _scores(term: Mapping[str, Any]) -> list[Any]:
    """What each judge of a term gave; a term that was no judge's may hold anything in their place."""
    judges = (term.get("details") or {}).get("judges")
    return [one.get("score") for one in judges if isinstance(one, Mapping)] if isinstance(judges, list) else []


def _numbers(values: Any) -> list[float]:
    held = values if isinstance(values, list) else ()
    return [one for one in held if isinstance(one, (int, float)) and abs(one) < _MOST_SCORE]


def _judge_verdicts(term: Mapping[str, Any], success: bool | None) -> Iterator[tuple[str, list[tuple[bool, bool]]]]:
    scale = _numbers((term.get("details") or {}).get("scale"))
    if term.get("status") != "valid" or len(scale) != 2:
        return
    middle = (scale[0] + scale[1]) / 2
    scores = _numbers(_scores(term))
    if len(scores) > 1:
        yield "judges", list(combinations([score >= middle for score in scores], 2))
    if scores and success is not None:
        yield "success", [(sum(scores) / len(scores) >= middle, success)]


_MOST_SCORE: Final = 1e300
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
        """True if the interval is known and does not hold `number`."""
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
    return [agreement_of(a, columns[a], b, columns[b], tasks) for a, b in combinations(columns, 2)]


def agreement_of(
    a: str, first: Sequence[float | None], b: str, second: Sequence[float | None], tasks: Sequence[Hashable]
) -> Agreement:
    """The agreement of two terms over the same episodes."""
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
        value = figure(self._weighted_table(None))
        if value is None or self._count < 2 or not again or self._shape[0] * self._shape[1] > _CELLS:
            return Estimate(value)
        random = np.random.default_rng(_SEED)
        found = []
        for _ in range(_DRAWS):
            times = np.bincount(random.integers(0, self._count, self._count), minlength=self._count)
            if (one := figure(self._weighted_table(times[self._tasks].astype(np.float64)))) is not None:
                found.append(one)
        if len(found) <= _DRAWS // 2:
            return Estimate(value)
        low, high = np.quantile(found, (0.025, 0.975))
        return Estimate(value, float(low), float(high))

    def _weighted_table(self, weights: NDArray[np.float64] | None) -> Table:
        flat = np.zeros(self._shape[0] * self._shape[1])
        flat[self._cells] = np.bincount(self._at, weights, minlength=len(self._cells))
        return flat.reshape(self._shape)


def table_of(pairs: Sequence[tuple[float, float]]) -> tuple[Table, Values, Values]:
    """The table of some pairs, and the distinct values of its rows and of its columns."""
    left, i = np.unique([float(a) for a, _ in pairs], return_inverse=True)
    right, j = np.unique([float(b) for _, b in pairs], return_inverse=True)
    cells = np.bincount(i * len(right) + j, minlength=len(left) * len(right))
    return cells.reshape(len(left), len(right)).astype(np.float64), left, right


def weighted_kappa(table: Table, left: Values, right: Values) -> float | None:
    """Cohen's kappa with quadratic weights: 1 - Σ w·o / Σ w·e with w = (a - b)²; None where chance alone agrees fully.

    Source: Cohen 1968, "Weighted kappa", Psychological Bulletin 70(4). Of two values, 0 and 1, it is the kappa of Cohen
    1960, "A coefficient of agreement for nominal scales". Of scores as they are it is Lin's concordance too (Lin 1989,
    with 1/n variances).
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
