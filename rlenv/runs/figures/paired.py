"""Two runs over the same tasks: only what both have played is compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.figures.snapshot import Snapshot

__all__ = ["Change", "Pair", "compared", "mcnemar", "paired_change", "pairs"]

_DRAWS: Final = 2_000
_SEED: Final = 7
_MOST: Final = 5_000
"""Pairs that are listed, the broken and the fixed ones first."""
_KINDS: Final = ("broken", "fixed", "worse", "better", "same")


@dataclass(frozen=True, slots=True)
class Pair:
    """The places, in two runs, of one task played with one seed."""

    split: str
    task: int
    seed: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Change:
    """Means over pairs of which both sides are known, and the change with its 95 % interval; None for no pairs."""

    a: float | None
    b: float | None
    change: float | None
    low: float | None
    high: float | None


def pairs(a: Snapshot, b: Snapshot) -> tuple[list[Pair], int, int]:
    """What both runs have played, by (split, task, seed), and how many episodes of each have no partner.

    Rows that were given themselves (`task` -1) have none: nothing says that two of them are the same.
    Of a task that a run has played with one seed at several steps its last step counts; of equal ones the first of one
    run belongs to the first of the other, in the order in which they were kept.
    """
    first, second = _last(a), _last(b)
    found = []
    for key, places in first.items():
        split, task, seed = key
        found += [Pair(split, task, seed, *both) for both in zip(places, second.get(key, ()), strict=False)]
    alone = [sum(map(len, one.values())) - len(found) for one in (first, second)]
    unknown = [int((rows.numbers("task") < 0).sum()) for rows in (a, b)]
    return found, alone[0] + unknown[0], alone[1] + unknown[1]


def _last(rows: Snapshot) -> dict[tuple[str, int, int], list[int]]:
    columns = [rows.table[name].to_pylist() for name in ("split", "task", "seed", "step")]
    found: dict[tuple[str, int, int], list[int]] = {}
    steps: dict[tuple[str, int, int], int] = {}
    for place, (split, task, seed, step) in enumerate(zip(*columns, strict=True)):
        key = (split, task, seed)
        if task < 0 or (key in steps and step < steps[key]):
            continue
        if step > steps.get(key, step - 1):
            found[key], steps[key] = [], step
        found[key].append(place)
    return found


def mcnemar(fixed: int, broken: int) -> float:
    """The two-sided exact p of McNemar's test: of `fixed + broken` fair coins, so uneven a split or a more uneven one.

    Source: McNemar 1947; exact by the binomial distribution. 1 where nothing changed.
    """
    count, few = fixed + broken, min(fixed, broken)
    if not count:
        return 1.0
    tail = sum(math.comb(count, one) for one in range(few + 1))
    p: float = 2 * tail / 2**count
    return min(1.0, p)


@np.errstate(over="ignore", invalid="ignore")
def paired_change(
    a: NDArray[np.float64], b: NDArray[np.float64], tasks: NDArray[np.int64], *, draws: int = _DRAWS
) -> Change:
    """The change of a mean over pairs, with a percentile interval of 95 % by bootstrap.

    Tasks are drawn, with all of their pairs: samples of one task are no independent ones. The seed is fixed, so that
    the same runs give the same interval. Pairs with a side that is not known (not a number) are left out.
    """
    known = ~np.isnan(a) & ~np.isnan(b)
    if not known.any():
        return Change(None, None, None, None, None)
    a, b = a[known], b[known]
    _, at = np.unique(tasks[known], return_inverse=True)
    sums, sizes = np.bincount(at, b - a), np.bincount(at)
    random = np.random.default_rng(_SEED)
    means = np.empty(draws)
    for start in range(0, draws, 50):  # 50 draws of a million tasks are 400 MB
        drawn = random.integers(0, len(sums), (min(50, draws - start), len(sums)))
        means[start : start + 50] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Change(float(a.mean()), float(b.mean()), float((b - a).mean()), float(low), float(high))


def compared(a: Snapshot, b: Snapshot) -> dict[str, Any]:
    """What changed from run `a` to run `b`: success, reward, and each pair."""
    found, alone_a, alone_b = pairs(a, b)
    at_a = np.array([pair.a for pair in found], dtype=np.int64)
    at_b = np.array([pair.b for pair in found], dtype=np.int64)
    names: dict[tuple[str, int], int] = {}
    tasks = np.array([names.setdefault((pair.split, pair.task), len(names)) for pair in found], dtype=np.int64)
    success = (a.numbers("success")[at_a], b.numbers("success")[at_b])
    reward = (a.numbers("reward")[at_a], b.numbers("reward")[at_b])
    kinds = [_kind(*one) for one in zip(*success, *reward, strict=True)]
    counted = {kind: kinds.count(kind) for kind in _KINDS}
    valid = int((~np.isnan(success[0]) & ~np.isnan(success[1])).sum())
    fixed, broken = counted["fixed"], counted["broken"]
    by_kind = sorted(range(len(found)), key=lambda place: _KINDS.index(kinds[place]))[:_MOST]
    return {
        "pairs": len(found),
        "unpaired": {"a": alone_a, "b": alone_b},
        "success": {
            **_fields(paired_change(*success, tasks)),
            "p": mcnemar(fixed, broken),
            "fixed": fixed,
            "broken": broken,
            "same": valid - fixed - broken,
        },
        "reward": _fields(paired_change(*reward, tasks)),
        "tasks": [_listed(a, b, found[place], kinds[place]) for place in by_kind],
        "left_out": max(0, len(found) - _MOST),
    }


def _kind(before: float, after: float, reward: float, now: float) -> str:
    if not (math.isnan(before) or math.isnan(after)) and before != after:
        return "fixed" if after > before else "broken"
    if math.isnan(reward) or math.isnan(now) or math.isclose(reward, now, rel_tol=1e-9, abs_tol=1e-9):
        return "same"
    return "better" if now > reward else "worse"


def _fields(change: Change) -> Mapping[str, float | None]:
    return {name: getattr(change, name) for name in Change.__dataclass_fields__}


def _listed(a: Snapshot, b: Snapshot, pair: Pair, kind: str) -> dict[str, Any]:
    sides: Sequence[tuple[str, Snapshot, int]] = (("a", a, pair.a), ("b", b, pair.b))
    shown = {
        side: {name: rows.table[name][place].as_py() for name in ("id", "reward", "success")}
        for side, rows, place in sides
    }
    return {"split": pair.split, "task": pair.task, "seed": pair.seed, **shown, "kind": kind}
