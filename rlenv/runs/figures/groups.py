"""The samples of one task side by side, and how the samples of every task came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import cut_end
from rlenv.runs.figures.query import Condition, Query
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import clusters, kept_points
from rlenv.runs.statistics.intervals import pass_curve

__all__ = ["aligned", "by_task", "drawn", "group_of", "members", "over_steps", "spread"]

MOST: Final = 64
"""Samples of one group that are shown side by side; figures are over all of them."""
_TEXT, _ACTION = 400, 4_000
_TASKS: Final = 2_000
_PASSES: Final[tuple[Literal["at", "hat"], ...]] = ("at", "hat")


def group_of(row: Mapping[str, Any]) -> str:
    """The name of an episode's group; `SPLIT/TASK` where it was given none."""
    return row["group"] or (f"{row['split']}/{row['task']}" if row["task"] >= 0 else row["id"])


def members(rows: Snapshot, step: int, group: str) -> NDArray[np.int64]:
    """The places of a group's episodes at a step, the highest reward first, invalid ones last."""
    found = np.nonzero(_is_of(rows, group) & (rows.numbers("step") == step))[0]
    reward = rows.numbers("reward")[found]
    order = np.lexsort((rows.numbers("sample")[found], -np.where(np.isnan(reward), -np.inf, reward)))
    return found[order]


def drawn(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The members of a group that are shown: of more than `MOST` the first and the last ones."""
    return places if len(places) <= MOST else np.concatenate([places[: MOST // 2], places[-MOST // 2 :]])


def _is_of(rows: Snapshot, group: str) -> NDArray[np.bool_]:
    found = Query((Condition("group", "=", (group,), 1),)).mask(rows)
    if found.any():
        return found
    split, _, task = group.rpartition("/")
    if task.isdecimal():
        conditions = (
            Condition("group", "=", ("none",), 1),
            Condition("split", "=", (split,), 1),
            Condition("task", "=", (task,), 1),
        )
        return Query(conditions).mask(rows)
    return Query((Condition("id", "=", (group,), 1),)).mask(rows)


def over_steps(rows: Snapshot, places: NDArray[np.int64], *, points: int = 300) -> list[dict[str, Any]]:
    """The mean reward of the task of some rows at each step: `step`, `mean` and `n`, None where nothing is valid.

    Rows that were given themselves have no number of a task, and are followed no further than they are.
    """
    if not len(places):
        return []
    first = int(places[0])
    split, task = rows.table["split"][first].as_py(), rows.table["task"][first].as_py()
    same = (Condition("split", "=", (split,), 1), Condition("task", "=", (str(task),), 1))
    of_task = places if task < 0 else np.nonzero(Query(same).mask(rows))[0]
    reward = rows.numbers("reward")[of_task]
    steps, at = np.unique(rows.numbers("step")[of_task].astype(np.int64), return_inverse=True)
    valid = ~np.isnan(reward)
    sizes = np.bincount(at[valid], minlength=len(steps))
    sums = np.bincount(at[valid], reward[valid], minlength=len(steps))
    means: list[float | int | None] = [
        total / count if count else None for total, count in zip(sums.tolist(), sizes.tolist(), strict=True)
    ]
    kept = kept_points(len(steps), points, means)
    return [{"step": int(steps[place]), "mean": means[place], "n": int(sizes[place])} for place in kept]


@np.errstate(over="ignore", invalid="ignore")
def by_task(rows: Snapshot, places: NDArray[np.int64]) -> dict[str, Any]:
    """How the samples of each task came out, over the rows at some places.

    `tasks` are the tasks, those with the fewest successes first: how many samples `n`, how many `valid` and `won`, the
    mean `reward`, and the `step` and `group` of their page; `more` counts those that are left out. `spread` says how
    many tasks won how many of their valid samples, the smallest share first. `pass_at` and `pass_hat` are pass@k and
    pass^k by k, empty where each task was played once, and `pass_of` the tasks with k valid samples that they are of.
    """
    if not len(places):
        return {"tasks": [], "more": 0, "spread": [], "pass_at": {}, "pass_hat": {}, "pass_of": {}}
    success, reward = rows.numbers("success")[places], rows.numbers("reward")[places]
    group = clusters(rows)[places]
    keys = rows.numbers("step")[places].astype(np.int64) * (int(group.max()) + 1) + group
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    played, valid = np.bincount(of), np.bincount(of, ~np.isnan(success)).astype(int)
    won = np.bincount(of, np.nan_to_num(success)).astype(int)
    means = np.bincount(of, np.nan_to_num(reward)) / np.bincount(of, ~np.isnan(reward))
    share = np.where(valid > 0, won / np.maximum(valid, 1), -1.0)
    order = np.lexsort((first, np.nan_to_num(means, nan=-np.inf), share))
    names = ("split", "task", "group", "step", "title", "id")
    listed = rows.table.select(names).take(places[first[order[:_TASKS]]]).to_pylist()
    pairs = list(zip(won.tolist(), valid.tolist(), strict=True))
    most = int(played.max())
    passes = {kind: pass_curve(kind, pairs, samples=most) if most > 1 else {} for kind in _PASSES}
    return {
        "tasks": [
            {
                **row,
                "group": group_of(row),
                "n": int(played[at]),
                "valid": int(valid[at]),
                "won": int(won[at]),
                "reward": float(means[at]) if np.isfinite(means[at]) else None,
            }
            for row, at in zip(listed, order.tolist(), strict=False)
        ],
        "more": max(0, len(order) - _TASKS),
        "spread": [{"won": one, "valid": of, "n": n} for (one, of), n in sorted(Counter(pairs).items(), key=_share)],
        **{f"pass_{kind}": {k: one.value for k, one in found.items()} for kind, found in passes.items()},
        "pass_of": {k: one.tasks for k, one in passes["at"].items()},
    }


def _share(counted: tuple[tuple[int, int], int]) -> tuple[float, int]:
    (won, valid), _ = counted
    return (won / valid if valid else -1.0), valid


@np.errstate(over="ignore", invalid="ignore")
def spread(rewards: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (of the population) of the rewards that are numbers; None where none is."""
    known = rewards[~np.isnan(rewards)]
    return (float(known.mean()), float(known.std())) if len(known) else (None, None)


def aligned(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record's turns, cut short: `action`, what it said beside its calls (`say`), and the results of the calls."""
    return [
        {
            "action": cut_end(str(turn["action"]), _ACTION),
            "say": cut_end(str(turn["parsed"].get("content", "")), _TEXT),
            "calls": [_call(call) for call in turn["parsed"].get("calls", ())],
            "results": [
                {"name": one["name"], "outcome": one["outcome"], "text": cut_end(str(one["text"]), _TEXT)}
                for one in turn["results"]
            ],
        }
        for turn in record["turns"]
    ]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call.get("name"), "arguments": call.get("arguments", call.get("text"))}
