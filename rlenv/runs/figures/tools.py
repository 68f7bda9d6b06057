"""The figures of a run's tools: failures, durations and waits, and the calls to look at.

What a run has asked of models, by role and model: the sums of its rows.

The samples of one task side by side, and how the samples of every task came out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import cut_end
from rlenv.endpoints.account import merge_usage
from rlenv.runs.figures import pass_curve
from rlenv.runs.figures.query import Condition, Query
from rlenv.runs.figures.snapshot import Snapshot, sorted_by
from rlenv.runs.figures.steps import clusters, kept_points, step_means
from rlenv.runs.schema import USAGE
from rlenv.trajectory import ModelUsage

_RAN: Final = ("ok", "failed", "timeout")
"""Outcomes of calls that reached their tool, and so took time."""
_LISTED: Final = 10
_POINTS: Final = 300
_MOST: Final = 200


def tool_figures(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Figures of each tool over the rows at some places, the most called first.

    Seconds are at the 50th, 90th and 99th percentile (nearest rank) of calls that reached the tool, waiting included;
    None where there were none. `slowest` and `failing` name calls: the longest, and the last ones that failed.
    """
    calls = rows.calls
    calls.load("tool", "outcome", "seconds", "waited", "turn", "index")
    chosen = rows.chosen_mask(places)
    codes, names = calls.words("tool")
    order, starts = sorted_by(codes, len(names))
    step, seconds = rows.numbers("step").astype(np.int64), calls.numbers("seconds")
    waited, row = np.nan_to_num(calls.numbers("waited")), calls.rows("tool")
    found = []
    for code, name in enumerate(names):
        at = order[starts[code] : starts[code + 1]]
        at = at[chosen[row[at]]]
        if len(at):
            found.append((name, at))
    found.sort(key=lambda one: -len(one[1]))
    outcomes = calls.words("outcome")
    return [
        {"tool": name, **_figures_of_tool(rows, at, outcomes, seconds[at], waited[at], step[row[at]])}
        for name, at in found[:_MOST]
    ]


def _figures_of_tool(
    rows: Snapshot,
    at: NDArray[np.int64],
    outcomes: tuple[NDArray[np.int32], list[str]],
    seconds: NDArray[np.float64],
    waited: NDArray[np.float64],
    steps: NDArray[np.int64],
) -> dict[str, Any]:
    """Figures of one tool's calls, which stand at `at`."""
    words = [*outcomes[1], ""]  # the code of null is -1
    outcome = outcomes[0][at]
    ran, is_error = (np.array([word in few for word in words])[outcome] for few in (_RAN, set(words) - {"ok"}))
    sizes = np.bincount(outcome + 1, minlength=len(words))
    counted = {words[code - 1]: int(size) for code, size in enumerate(sizes.tolist()) if size}
    slowest = _largest_places(np.where(ran, seconds, -1.0))
    failing = np.nonzero(is_error)[0][::-1]
    failing = failing[_largest_places(steps[failing])]
    return {
        "calls": len(at),
        "errors": int(is_error.sum()),
        "outcomes": dict(sorted(counted.items(), key=lambda one: (-one[1], one[0]))),
        **{f"p{share}": _rank(seconds[ran], share / 100) for share in (50, 90, 99)},
        "waited_p50": _rank(waited[ran], 0.5),
        "slowest": [_call(rows, int(at[one])) for one in slowest if ran[one]],
        "failing": [_call(rows, int(at[one])) for one in failing],
        "by_step": _figures_by_step(steps, is_error, seconds, ran),
    }


def _largest_places(values: NDArray[Any]) -> NDArray[np.int64]:
    """The places of the largest values, the first ones of equal ones first."""
    if len(values) > _LISTED:
        least = np.partition(values, len(values) - _LISTED)[len(values) - _LISTED]
        places = np.nonzero(values >= least)[0]
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind="stable")][:_LISTED]


def _rank(values: NDArray[np.float64], share: float) -> float | None:
    """The nearest rank: a value that was measured."""
    if not len(values):
        return None
    at = max(0, int(np.ceil(share * len(values))) - 1)
    return float(np.partition(values, at)[at])


def _call(rows: Snapshot, at: int) -> dict[str, Any]:
    calls = rows.calls
    outcomes, words = calls.words("outcome")
    return {
        "id": rows.table["id"][int(calls.rows("tool")[at])].as_py(),
        "turn": calls.value("turn", at),
        "index": calls.value("index", at),
        "seconds": calls.value("seconds", at),
        "outcome": [*words, None][outcomes[at]],
    }


def _figures_by_step(
    steps: NDArray[np.int64], is_error: NDArray[np.bool_], seconds: NDArray[np.float64], ran: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    order = np.argsort(steps, kind="stable")
    known, first = np.unique(steps[order], return_index=True)
    ends = [*first[1:].tolist(), len(order)]
    errors: list[float | int | None] = []
    found = []
    for step, start, end in zip(known.tolist(), first.tolist(), ends, strict=True):
        part = order[start:end]
        errors.append(int(is_error[part].sum()))
        p90 = _rank(seconds[part][ran[part]], 0.9)
        found.append({"step": step, "calls": end - start, "errors": errors[-1], "p90": p90})
    return [found[place] for place in kept_points(len(found), _POINTS, errors)]


_COUNTS: Final = tuple(name for name, kind in USAGE.items() if kind == "int64")


def asked(rows: Snapshot, places: NDArray[np.int64] | None = None) -> tuple[ModelUsage, ...]:
    """The usage of models by the rows at some places, by default all: one entry for each role and model, in the order
    in which a role first asked, and for what was recorded apart.
    """
    entries = rows.usage
    entries.load(*USAGE)
    of, (roles, role_words), (models, model_words) = entries.rows("role"), entries.words("role"), entries.words("model")
    chosen = rows.chosen_mask(np.arange(len(rows)) if places is None else places)
    at = np.nonzero(chosen[of] & (roles >= 0) & (models >= 0))[0]
    if not len(at):
        return ()
    is_recorded = (entries.numbers("is_recorded")[at] == 1).astype(np.int64)
    keys = (roles[at].astype(np.int64) * len(model_words) + models[at]) * 2 + is_recorded
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    sums = {name: np.bincount(group, np.nan_to_num(entries.numbers(name)[at])) for name in (*_COUNTS, "seconds")}
    return tuple(
        ModelUsage(
            role_words[roles[at[first[one]]]],
            model_words[models[at[first[one]]]],
            is_recorded=bool(is_recorded[first[one]]),
            seconds=float(sums["seconds"][one]),
            **{name: int(sums[name][one]) for name in _COUNTS},
        )
        for one in np.argsort(first, kind="stable").tolist()
    )


def asked_in(rows: Iterable[Mapping[str, Any]]) -> tuple[ModelUsage, ...]:
    """As `asked`, for rows or records as a file holds them: the list `usage` of each."""
    return merge_usage(
        ModelUsage(**{name: held[name] for name in USAGE if held.get(name) is not None})
        for row in rows
        for held in row.get("usage") or ()
    )


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


def shown_of(places: NDArray[np.int64]) -> NDArray[np.int64]:
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


def over_steps(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
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
    found = step_means(reward, at, len(steps))
    kept = kept_points(len(steps), _POINTS, found["mean"])
    return [{"step": int(steps[place]), "mean": found["mean"][place], "n": found["n"][place]} for place in kept]


@np.errstate(over="ignore", invalid="ignore")
def outcomes(rows: Snapshot, places: NDArray[np.int64]) -> dict[str, Any]:
    """The outcomes of each task's samples, over the rows at some places.

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
    earned = np.bincount(of, np.nan_to_num(reward)) / np.bincount(of, ~np.isnan(reward))
    share = np.where(valid > 0, won / np.maximum(valid, 1), -1.0)
    order = np.lexsort((first, np.nan_to_num(earned, nan=-np.inf), share))
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
                "reward": float(earned[at]) if np.isfinite(earned[at]) else None,
            }
            for row, at in zip(listed, order.tolist(), strict=False)
        ],
        "more": max(0, len(order) - _TASKS),
        "spread": [{"won": one, "valid": of, "n": n} for (one, of), n in sorted(Counter(pairs).items(), key=_by_wins)],
        **{f"pass_{kind}": {k: one.value for k, one in found.items()} for kind, found in passes.items()},
        "pass_of": {k: one.tasks for k, one in passes["at"].items()},
    }


def _by_wins(counted: tuple[tuple[int, int], int]) -> tuple[float, int]:
    (won, valid), _ = counted
    return (won / valid if valid else -1.0), valid


@np.errstate(over="ignore", invalid="ignore")
def spread(rewards: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (of the population) of the rewards that are numbers; None where none is."""
    known = rewards[~np.isnan(rewards)]
    return (float(known.mean()), float(known.std())) if len(known) else (None, None)


def cut_turns(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record's turns, cut short: `action`, what it said beside its calls (`say`), and the results of the calls."""
    return [
        {
            "action": cut_end(str(turn["action"]), _ACTION),
            "say": cut_end(str(turn["parsed"].get("content", "")), _TEXT),
            "calls": [_call_of_group(call) for call in turn["parsed"].get("calls", ())],
            "results": [
                {"name": one["name"], "outcome": one["outcome"], "text": cut_end(str(one["text"]), _TEXT)}
                for one in turn["results"]
            ],
        }
        for turn in record["turns"]
    ]


def _call_of_group(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call.get("name"), "arguments": call.get("arguments", call.get("text"))}
