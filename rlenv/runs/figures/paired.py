"""Two runs over the same tasks: only what both have played is compared.

The viewer, `rlenv runs report` and `rlenv compare` show what `compare_runs` says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import grouped, plain
from rlenv._base.paths import read_file
from rlenv.runs.figures.change import Spread, TaskCounts, fit_to_p, paired_change, sign_flips, spread_of, tasks_needed
from rlenv.runs.figures.snapshot import Snapshot

_MOST: Final = 5_000
"""Pairs that are listed, the broken and the fixed ones first."""
_TASKS: Final = 500
"""Tasks that are listed, those that changed most."""
_PAIRS: Final = 8
"""Pairs of one task that are listed."""
_KINDS: Final = ("broken", "fixed", "worse", "better", "same")


_Task = tuple[str, str, int]
"""Environment ("" where the runs share none), split and number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The places, in two runs, of one sample of a task, which has this number and seed in A."""

    of: _Task
    seed: int
    a: int
    b: int

    @property
    def split(self) -> str:
        """The task's split."""
        return self.of[1]

    @property
    def task(self) -> int:
        """The task's number in A."""
        return self.of[2]


def pairs(a: Snapshot, b: Snapshot) -> tuple[list[Pair], int, int]:
    """The samples of tasks that both runs have played, and how many episodes of each have no partner.

    A task is known by its environment, split and number. Where the rows of B are not known to be those of A, it is
    known by its prompt first (`rlenv.runs.schema.ROW`): by its number where no other task has the prompt.

    Of a task's samples those with one seed are pairs, and others in the order of their numbers, as in runs of two
    seeds: which of them are pairs says nothing, and intervals and tests count by task. Samples of training are so only
    where the runs share no seed, since each step has another. Rows that were given themselves (`task` -1) have none.
    """
    both = _environment_names(a) & _environment_names(b)
    first, second = _places_by_task(a, by_environment=bool(both)), _places_by_task(b, by_environment=bool(both))
    if not _are_same_rows(a, b):
        second = dict(_match_tasks(first, second, *(rows.table["asked"].to_pylist() for rows in (a, b))))
    seeds = [rows.numbers("seed").astype(np.int64).tolist() for rows in (a, b)]
    found: list[Pair] = []
    left: list[tuple[_Task, list[int], list[int]]] = []
    for task in sorted(first.keys() & second.keys()):
        same, ones, others = _pair_by_seed(first[task], second[task], *seeds)
        found += [Pair(task, seeds[0][one], one, other) for one, other in same]
        left.append((task, ones, others))
    modes = [rows.table["mode"].to_pylist() if found else [""] * len(rows) for rows in (a, b)]
    for task, *both_left in left:
        sides = ([at for at in some if mode[at] != "train"] for some, mode in zip(both_left, modes, strict=True))
        found += [Pair(task, seeds[0][one], one, other) for one, other in zip(*sides, strict=False)]
    found.sort(key=lambda pair: (pair.of, pair.a))
    alone = [
        sum(map(len, tasks.values())) - len(found) + int((rows.numbers("task") < 0).sum())
        for tasks, rows in ((first, a), (second, b))
    ]
    return found, alone[0], alone[1]


def _pair_by_seed(
    ones: Sequence[int], others: Sequence[int], seeds: Sequence[int], more: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """The places with one seed as pairs, and those that are left of both."""
    waiting = grouped((more[other], other) for other in others)
    same, alone = [], []
    for one in ones:
        if partners := waiting.get(seeds[one]):
            same.append((one, partners.pop(0)))
        else:
            alone.append(one)
    met = {other for _, other in same}
    return same, alone, [other for other in others if other not in met]


def _places_by_task(rows: Snapshot, *, by_environment: bool = True) -> dict[_Task, list[int]]:
    """The places of each task's samples, in their order; of one that was played with one seed at several steps those
    of the last."""
    names = ("environment", "split", "task", "sample", "seed", "step")
    columns = [rows.table[name].to_pylist() for name in names]
    last: dict[tuple[_Task, int], int] = {}
    found: dict[tuple[_Task, int], list[tuple[int, int]]] = {}
    for place, (environment, split, task, sample, seed, step) in enumerate(zip(*columns, strict=True)):
        key = ((environment or "") if by_environment else "", split, task), seed
        if task < 0 or step < last.get(key, step):
            continue
        if step > last.get(key, step - 1):
            found[key], last[key] = [], step
        found[key].append((sample, place))
    tasks: dict[_Task, list[tuple[int, int, int]]] = {}
    for (of, seed), places in found.items():
        tasks.setdefault(of, []).extend((sample, seed, place) for sample, place in places)
    return {of: [place for *_, place in sorted(places)] for of, places in tasks.items()}


def _match_tasks(
    first: Mapping[_Task, list[int]], second: Mapping[_Task, list[int]], asked: Sequence[Any], other: Sequence[Any]
) -> Iterator[tuple[_Task, list[int]]]:
    """The tasks of B by the numbers that A has for what they ask; a task of A without its own prompt in B is the one of
    its number, unless that is another of A's."""
    prompts = [{of: told[places[0]] for of, places in some.items()} for some, told in ((first, asked), (second, other))]
    own = {of for of in first.keys() & second.keys() if prompts[0][of] == prompts[1][of]}
    free = grouped(((*of[:2], prompts[0][of]), of) for of in sorted(first.keys() - own))
    names = {of: of for of in own}
    for of in sorted(second.keys() - own):
        if partners := free.get((*of[:2], prompts[1][of])):
            names[of] = partners.pop(0)
    taken = set(names.values())
    for of, places in second.items():
        # A number that another task of B has by now is nobody's in A.
        yield names.get(of, of if of not in taken else (*of[:2], -1 - of[2])), places


def compare_runs(a: Snapshot, b: Snapshot) -> dict[str, Any]:
    """The changes from run `a` to run `b`: success, reward, and each pair.

    `unlike` says why the two cannot be compared as runs of the same tasks, "" where they can: they are of two
    environments, or all pairs were asked something else and nothing says that their rows are the same.
    """
    found, alone_a, alone_b = pairs(a, b)
    at_a = np.array([pair.a for pair in found], dtype=np.int64)
    at_b = np.array([pair.b for pair in found], dtype=np.int64)
    names: dict[_Task, int] = {}
    tasks = np.array([names.setdefault(pair.of, len(names)) for pair in found], dtype=np.int64)
    success = (a.numbers("success")[at_a], b.numbers("success")[at_b])
    reward = (a.numbers("reward")[at_a], b.numbers("reward")[at_b])
    kinds = [_change_kind(*one) for one in zip(*success, *reward, strict=True)]
    counted = {kind: kinds.count(kind) for kind in _KINDS}
    valid = int((~np.isnan(success[0]) & ~np.isnan(success[1])).sum())
    fixed, broken = counted["fixed"], counted["broken"]
    asked = _asked_otherwise(a, b, found)
    seeds = a.numbers("seed"), b.numbers("seed")
    places = a.numbers("task"), b.numbers("task")
    by_kind = sorted(range(len(found)), key=lambda place: _KINDS.index(kinds[place]))[:_MOST]
    return {
        "pairs": len(found),
        "paired_by": "seed" if (seeds[0][at_a] == seeds[1][at_b]).all() else "sample",
        "unpaired": {"a": alone_a, "b": alone_b},
        "asked_otherwise": asked,
        "renumbered": int((places[0][at_a] != places[1][at_b]).sum()),
        "unlike": _unlike_reason(a, b, len(found), asked),
        "success": {
            **_test_change(success, tasks, is_share=True),
            "fixed": fixed,
            "broken": broken,
            "same": valid - fixed - broken,
            "bounds": _change_bounds(*success),
        },
        "reward": _test_change(reward, tasks),
        "terms": {
            name: _test_change(values, tasks)
            for name in a.term_names
            if b.has_term(name)
            for values in [(a.term(name)[0][at_a], b.term(name)[0][at_b])]
        },
        "terms_unpaired": {
            "a": [name for name in a.term_names if not b.has_term(name)],
            "b": [name for name in b.term_names if not a.has_term(name)],
        },
        "tasks": [_pair_row(a, b, found[place], kinds[place]) for place in by_kind],
        "left_out": max(0, len(found) - _MOST),
        **_task_rows(a, b, found, kinds),
    }


def pilot_counts(a: Snapshot, b: Snapshot, difference: float) -> list[TaskCounts]:
    """The number of tasks of 1, 4 and 16 samples that a difference of success needs to be seen, by how these two
    runs vary (`tasks_needed`).

    Raises:
        UsageError: fewer than two tasks are valid in both.
    """
    found, *_ = pairs(a, b)
    before, after = a.numbers("success"), b.numbers("success")
    changes = [(pair.of, float(after[pair.b] - before[pair.a])) for pair in found]
    known = [(task, change) for task, change in changes if not math.isnan(change)]
    runs = (spread_of_run(a), spread_of_run(b))
    return tasks_needed((1, 4, 16), difference=difference, runs=runs, change=spread_of(known))


def spread_of_run(rows: Snapshot) -> Spread:
    """The variance of a run's successes between tasks and within them, over the episodes that a comparison pairs.

    Raises:
        UsageError: fewer than two tasks are valid.
    """
    success = rows.numbers("success")
    places = [(task, place) for task, found in _places_by_task(rows).items() for place in found]
    return spread_of((task, float(success[place])) for task, place in places if not math.isnan(success[place]))


def _asked_otherwise(a: Snapshot, b: Snapshot, found: Sequence[Pair]) -> int:
    """The number of pairs that were not asked the same, which a task's number alone does not tell."""
    asked = [rows.table["asked"].to_pylist() for rows in (a, b)]
    return sum(asked[0][pair.a] != asked[1][pair.b] for pair in found)


def _environment_names(rows: Snapshot) -> set[str]:
    return {name for name in rows.words("environment")[1] if name}


def _unlike_reason(a: Snapshot, b: Snapshot, pairs: int, asked: int) -> str:
    names = [sorted(_environment_names(rows)) for rows in (a, b)]
    if all(names) and not {*names[0]} & {*names[1]}:
        return f"A is of {', '.join(names[0])}, B of {', '.join(names[1])}"
    if pairs and asked == pairs and not _are_same_rows(a, b):
        return f"all {pairs} pairs were asked something else in B"
    return ""


def _are_same_rows(a: Snapshot, b: Snapshot) -> bool:
    """True if the locks of both say so, of every split that both have."""
    ones, others = _rows_of(a), _rows_of(b)
    both = set(a.words("split")[1]) & set(b.words("split")[1])
    return bool(both) and all(name in ones and ones[name] == others.get(name) for name in both)


def _rows_of(rows: Snapshot) -> dict[str, str]:
    """The digests of the splits by the locks of some rows; empty where one is missing or they differ."""
    found: dict[str, str] = {}
    for lock in rows.words("lock")[1]:
        try:
            data = json.loads(read_file(rows.run / "locks" / f"{lock}.json"))["data"]
            held = {name: split["sha256"] for name, split in data.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        if any(found.get(name, sha) != sha for name, sha in held.items()):
            return {}
        found |= held
    return found


def _change_bounds(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float] | None:
    """The least and the largest change of a share that the sides which are not known leave possible (Manski 1989)."""
    if not len(a):
        return None
    least = np.where(np.isnan(b), 0.0, b) - np.where(np.isnan(a), 1.0, a)
    most = np.where(np.isnan(b), 1.0, b) - np.where(np.isnan(a), 0.0, a)
    return float(least.mean()), float(most.mean())


def _test_change(
    values: tuple[NDArray[np.float64], NDArray[np.float64]], tasks: NDArray[np.int64], *, is_share: bool = False
) -> dict[str, Any]:
    chance = sign_flips(*values, tasks)
    change = fit_to_p(paired_change(*values, tasks, is_share=is_share), chance.p)
    return {**plain(change), "p": chance.p, "p_by": chance.method}


def _change_kind(before: float, after: float, reward: float, now: float) -> str:
    if not (math.isnan(before) or math.isnan(after)) and before != after:
        return "fixed" if after > before else "broken"
    if math.isnan(reward) or math.isnan(now) or math.isclose(reward, now, rel_tol=1e-9, abs_tol=1e-9):
        return "same"
    return "better" if now > reward else "worse"


def _task_rows(a: Snapshot, b: Snapshot, found: Sequence[Pair], kinds: Sequence[str]) -> dict[str, Any]:
    """The tasks of some pairs, the largest change of success first, then of reward: the question, the means of both
    sides and what changed, over the pairs whose sides are valid, and the first of these pairs."""
    places = grouped((pair.of, place) for place, pair in enumerate(found))
    columns = {name: (a.numbers(name), b.numbers(name)) for name in ("success", "reward")}
    changed = [
        (some, {name: _change_of(*values, [found[place] for place in some]) for name, values in columns.items()})
        for some in places.values()
    ]
    changed.sort(key=lambda one: [-abs(one[1][name]["change"] or 0.0) for name in columns])
    listed = [_task_row(a, b, [(found[place], kinds[place]) for place in some]) | one for some, one in changed[:_TASKS]]
    for task in listed:
        change, reward = task["success"]["change"] or 0.0, task["reward"]["change"]
        task["kind"] = _change_kind(0.0, change, 0.0, math.nan if reward is None else reward)
    return {"by_task": listed, "tasks_left_out": max(0, len(changed) - _TASKS)}


def _task_row(a: Snapshot, b: Snapshot, pairs: Sequence[tuple[Pair, str]]) -> dict[str, Any]:
    first = pairs[0][0]
    title, other = a.table["title"][first.a].as_py(), b.table["title"][first.b].as_py()
    shown = [_pair_row(a, b, pair, kind) for pair, kind in pairs[:_PAIRS]]
    return {
        "split": first.split,
        "task": first.task,
        "title": title,
        "other": other if other != title else None,
        "n": len(pairs),
        "pairs": sorted(shown, key=lambda one: _KINDS.index(one["kind"])),
    }


def _change_of(a: NDArray[np.float64], b: NDArray[np.float64], pairs: Sequence[Pair]) -> dict[str, float | None]:
    """The means of both sides over the pairs of which both are known, and their difference."""
    sides = np.array([(a[pair.a], b[pair.b]) for pair in pairs])
    known = sides[~np.isnan(sides).any(axis=1)]
    if not len(known):
        return {"a": None, "b": None, "change": None}
    before, after = known.mean(axis=0).tolist()
    return {"a": before, "b": after, "change": float((known[:, 1] - known[:, 0]).mean())}


def _pair_row(a: Snapshot, b: Snapshot, pair: Pair, kind: str) -> dict[str, Any]:
    sides: Sequence[tuple[str, Snapshot, int]] = (("a", a, pair.a), ("b", b, pair.b))
    shown = {
        side: {name: rows.table[name][place].as_py() for name in ("id", "reward", "success")}
        for side, rows, place in sides
    }
    return {"split": pair.split, "task": pair.task, "seed": pair.seed, **shown, "kind": kind}
