"""Figures of a run over its steps: shares with their intervals, means, and what a line of a list of runs says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import grouped
from rlenv.runs.figures import clustered_counts, mean_interval
from rlenv.runs.figures.snapshot import Snapshot

MODES: Final = ("train", "greedy", "sampled")
RECENT_STEPS: Final = 10
"""Steps of training that a run's one figure is taken over: a whole run's mean says nothing of its policy."""
_MEANS: Final = {"reward": "reward", "tokens": "tokens", "turns": "turns", "calls": "calls_n", "errors": "errors"}
_POINTS: Final = 1_000

Figures = dict[str, dict[str, list[float | int | None]]]


class Columns(Protocol):
    """Rows by columns: a `Snapshot`, or `Listed`."""

    def __len__(self) -> int: ...

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers, not a number where it is null."""
        ...

    def words(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A column of text as codes, and their words; the code of null is -1."""
        ...


class Listed:
    """Rows of a run by columns where pyarrow is not installed."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """See `Columns`."""
        return np.array([math.nan if row.get(name) is None else row[name] for row in self._rows], dtype=np.float64)

    def words(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """See `Columns`."""
        found: dict[str, int] = {}
        codes = [-1 if (word := row[name]) is None else found.setdefault(word, len(found)) for row in self._rows]
        return np.array(codes, dtype=np.int32), list(found)


@dataclass(frozen=True, slots=True)
class Overview:
    """The entry of a run in a list. `success`: the share of valid episodes, its 95 % interval (`clustered_interval`).

    It is that of `mode` (`main_mode`) over its last steps (`recent_rows`, `first_step` to `last_step`) and `splits`;
    None where nothing is valid. `invalid` counts over the whole run, `spark` is the success by step, thinned to 30
    points; where `mode` has one step alone, that of training.
    """

    episodes: int = 0
    step: int = 0
    success: float | None = None
    success_low: float | None = None
    success_high: float | None = None
    invalid: int = 0
    spark: tuple[float | None, ...] = ()
    mode: str = ""
    first_step: int = 0
    last_step: int = 0
    splits: tuple[str, ...] = ()


def main_mode(rows: Columns) -> str:
    """The mode whose success is the run's: greedy before sampled before train, of those that were played.

    A validation from before the first step of training says nothing of what was trained: it counts in a run without
    training, and in one whose training has not begun.
    """
    codes, words = rows.words("mode")
    steps = rows.numbers("step")
    last = {words[code]: steps[codes == code].max() for code in np.unique(codes).tolist() if code >= 0}
    trained = steps[_is_mode(rows, "train")]
    begun = trained.min() if len(trained) else -np.inf
    return next((mode for mode in ("greedy", "sampled", "train") if mode in last and last[mode] >= begun), "")


def recent_rows(rows: Columns, mode: str) -> NDArray[np.bool_]:
    """The rows of a mode that say how the policy is now: the last step, in training the last ten."""
    steps = rows.numbers("step")
    of_mode = _is_mode(rows, mode)
    if not of_mode.any():
        return of_mode
    last = np.unique(steps[of_mode])[-(RECENT_STEPS if mode == "train" else 1) :]
    found: NDArray[np.bool_] = of_mode & (steps >= last[0])
    return found


def _is_mode(rows: Columns, mode: str) -> NDArray[np.bool_]:
    codes, words = rows.words("mode")
    return codes == words.index(mode) if mode in words else np.zeros(len(rows), dtype=bool)


def clusters(rows: Columns) -> NDArray[np.int64]:
    """For each row the number of its cluster: the samples of a group, else those of a task."""
    groups, names = rows.words("group")
    splits, _ = rows.words("split")
    tasks = rows.numbers("task").astype(np.int64)
    empty = names.index("") if "" in names else -1
    is_grouped = (groups >= 0) & (groups != empty)
    by_task = len(names) + (splits.astype(np.int64) + 1) * (tasks.max(initial=0) + 1) + tasks
    # A row that was given itself is no row of a split: each one is a task of its own.
    by_task = np.where(tasks < 0, by_task.max(initial=0) + 1 + np.arange(len(rows)), by_task)
    whole = np.where(is_grouped, groups, by_task)
    return np.unique(whole, return_inverse=True)[1].astype(np.int64)


def overview(rows: Columns) -> Overview:
    """The one line of a run."""
    mode = main_mode(rows)
    chosen = recent_rows(rows, mode)
    success = rows.numbers("success")
    valid = chosen & ~np.isnan(success)
    share, low, high = None, None, None
    if valid.any():
        share = float(success[valid].mean())
        low, high = clustered_counts(_pairs(clusters(rows)[valid], success[valid]))
    step = rows.numbers("step")
    invalid = int(np.isnan(rows.numbers("reward")).sum())
    last = int(step.max()) if len(rows) else 0
    over = step[chosen] if chosen.any() else np.zeros(1)
    splits, names = rows.words("split")
    drawn = spark(rows, mode)
    return Overview(
        len(rows),
        last,
        share,
        low,
        high,
        invalid,
        tuple(drawn if len(drawn) > 1 or mode == "train" else spark(rows, "train") or drawn),
        mode,
        int(over.min()),
        int(over.max()),
        tuple(names[code] for code in np.unique(splits[chosen]).tolist() if code >= 0),
    )


def spark(rows: Columns, mode: str, *, points: int = 30) -> list[float | None]:
    """The success of a mode by step, as means of at most `points` stretches."""
    success, step = rows.numbers("success"), rows.numbers("step")
    valid = _is_mode(rows, mode) & ~np.isnan(success)
    steps, at = np.unique(step[valid], return_inverse=True)
    if not len(steps):
        return []
    shares = np.bincount(at, success[valid]) / np.bincount(at)
    return [float(part.mean()) for part in np.array_split(shares, min(points, len(shares)))]


def _pairs(cluster: NDArray[np.int64], success: NDArray[np.float64]) -> list[tuple[int, int]]:
    _, at = np.unique(cluster, return_inverse=True)
    return list(zip(np.bincount(at, success).astype(int).tolist(), np.bincount(at).tolist(), strict=True))


def series(rows: Snapshot, *, since: int | None = None, points: int = _POINTS) -> tuple[list[int], Figures]:
    """Figures by step: the steps, and for each figure lists that align with them, None where there is nothing.

    Figures are named `MODE/NAME`: `success` (a share with `low`, `high` and `n`), `invalid` (a share), `reward` with
    its 95 % interval (`mean_interval`), `tokens`, `turns`, `calls` and `errors` as means, and each term as `term.NAME`.

    Args:
        since: steps after this one alone.
        points: of each mode at most so many steps are kept: of every stretch of those in which it was played the ones
            with its smallest and its largest success.
    """
    step = rows.numbers("step").astype(np.int64)
    wanted = np.ones(len(rows), dtype=bool) if since is None else step > since
    steps, found = np.unique(step[wanted]), {}
    kept: set[int] = set()
    group = clusters(rows)
    for mode in MODES:
        chosen = np.nonzero(_is_mode(rows, mode) & wanted)[0]
        if not len(chosen):
            continue
        at = np.searchsorted(steps, step[chosen])
        found[f"{mode}/success"] = _success_shares(rows.numbers("success")[chosen], at, group[chosen], len(steps))
        invalid = np.isnan(rows.numbers("reward")[chosen]).astype(float)
        found[f"{mode}/invalid"] = step_means(invalid, at, len(steps))
        for name, column in _MEANS.items():
            values = rows.numbers(column)[chosen]
            # An episode of no tokens is one whose ids were not recorded: what an endpoint answers has none.
            values = np.where(values == 0, np.nan, values) if name == "tokens" else values
            found[f"{mode}/{name}"] = step_means(values, at, len(steps))
        found[f"{mode}/reward"] |= _mean_bands(rows.numbers("reward")[chosen], at, group[chosen], len(steps))
        for name in rows.term_names:
            found[f"{mode}/term.{name}"] = step_means(rows.term(name)[0][chosen], at, len(steps))
        played, shares = np.unique(at).tolist(), found[f"{mode}/success"]["mean"]
        kept |= {played[place] for place in kept_points(len(played), points, [shares[place] for place in played])}
    shown = sorted(kept)
    thinned = {
        name: {part: [values[place] for place in shown] for part, values in one.items()} for name, one in found.items()
    }
    return [int(steps[place]) for place in shown], thinned


def kept_points(count: int, most: int, values: list[float | int | None]) -> list[int]:
    """At most `most` of `count` points: of every stretch those with the smallest and the largest value; both ends."""
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    for part in np.array_split(np.arange(count), max(1, most // 2 - 1)):
        known = [(value, int(place)) for place in part if (value := values[place]) is not None]
        kept |= {min(known)[1], max(known)[1]} if known else {int(part[0])}
    return sorted(kept)


def _success_shares(
    success: NDArray[np.float64], at: NDArray[np.int64], cluster: NDArray[np.int64], count: int
) -> dict[str, list[float | int | None]]:
    """The share of successes at each step, with the interval that its clusters leave."""
    valid = ~np.isnan(success)
    success, at, cluster = success[valid], at[valid], cluster[valid]
    most = int(cluster.max(initial=0)) + 1
    keys, inverse = np.unique(at * most + cluster, return_inverse=True)
    wins = np.bincount(inverse, success, minlength=len(keys)).astype(int).tolist()
    sizes = np.bincount(inverse, minlength=len(keys)).tolist()
    groups = grouped(zip((keys // most).tolist(), zip(wins, sizes, strict=True), strict=True))
    found: dict[str, list[float | int | None]] = {name: [None] * count for name in ("mean", "low", "high")}
    found["n"] = [0] * count
    for place, pairs in groups.items():
        trials = sum(size for _, size in pairs)
        found["mean"][place] = sum(won for won, _ in pairs) / trials
        found["low"][place], found["high"][place] = clustered_counts(pairs)
        found["n"][place] = trials
    return found


@np.errstate(over="ignore", invalid="ignore")
def step_means(values: NDArray[np.float64], at: NDArray[np.int64], count: int) -> dict[str, list[float | int | None]]:
    """The mean at each of `count` steps, None for none, and the `n` numbers that it is of, whose steps are `at`."""
    valid = ~np.isnan(values)
    values, at = values[valid], at[valid]
    sizes = np.bincount(at, minlength=count)
    sums = np.bincount(at, values, minlength=count)
    means = np.divide(sums, sizes, out=np.full(count, np.nan), where=sizes > 0)
    return {"mean": [value if math.isfinite(value) else None for value in means.tolist()], "n": sizes.tolist()}


def _mean_bands(
    values: NDArray[np.float64], at: NDArray[np.int64], cluster: NDArray[np.int64], count: int
) -> dict[str, list[float | int | None]]:
    """The interval of the mean at each step that its clusters leave."""
    valid = ~np.isnan(values)
    steps: list[dict[int, list[float]]] = [{} for _ in range(count)]
    for place, own, value in zip(at[valid].tolist(), cluster[valid].tolist(), values[valid].tolist(), strict=True):
        steps[place].setdefault(own, []).append(value)
    found = [mean_interval(list(groups.values())) or (None, None) for groups in steps]
    return {"low": [low for low, _ in found], "high": [high for _, high in found]}


def count_words(rows: Snapshot, column: str) -> Mapping[str, int]:
    """The number of rows with each word of a column, the most frequent first; "" and null are left out."""
    found = [(word, n) for word, n in rows.word_counts(column, np.arange(len(rows))).items() if word]
    return dict(sorted(found, key=lambda one: -one[1]))
