"""What a run's tools did: how often they failed, how long they took and waited, and which calls to look at.

What a run has asked of models, by role and model: the sums of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.endpoints.account import merged
from rlenv.runs.figures.entries import sorted_by
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import kept_points
from rlenv.runs.schema import USAGE
from rlenv.trajectory import ModelUsage

__all__ = ["asked", "asked_in", "tools"]

_RAN: Final = ("ok", "failed", "timeout")
"""Outcomes of calls that reached their tool, and so took time."""
_LISTED: Final = 10
_POINTS: Final = 300
_MOST: Final = 200


def tools(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Figures of each tool over the rows at some places, the most called first.

    Seconds are at the 50th, 90th and 99th percentile (nearest rank) of calls that reached the tool, waiting included;
    None where there were none. `slowest` and `failing` name calls: the longest, and the last ones that failed.
    """
    calls = rows.calls
    calls.load("tool", "outcome", "seconds", "waited", "turn", "index")
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[places] = True
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
        {"tool": name, **_figures(rows, at, outcomes, seconds[at], waited[at], step[row[at]])}
        for name, at in found[:_MOST]
    ]


def _figures(
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
    slowest = _last(np.where(ran, seconds, -1.0))
    failing = np.nonzero(is_error)[0][::-1]
    failing = failing[_last(steps[failing])]
    return {
        "calls": len(at),
        "errors": int(is_error.sum()),
        "outcomes": dict(sorted(counted.items(), key=lambda one: (-one[1], one[0]))),
        **{f"p{share}": _rank(seconds[ran], share / 100) for share in (50, 90, 99)},
        "waited_p50": _rank(waited[ran], 0.5),
        "slowest": [_call(rows, int(at[one])) for one in slowest if ran[one]],
        "failing": [_call(rows, int(at[one])) for one in failing],
        "by_step": _by_step(steps, is_error, seconds, ran),
    }


def _last(values: NDArray[Any]) -> NDArray[np.int64]:
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


def _by_step(
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
    """What the rows at some places, by default all, have asked for: one entry for each role and model, in the order in
    which a role first asked, and for what was recorded apart."""
    entries = rows.usage
    entries.load(*USAGE)
    of, (roles, role_words), (models, model_words) = entries.rows("role"), entries.words("role"), entries.words("model")
    chosen = np.ones(len(rows), dtype=bool)
    if places is not None:
        chosen[:] = False
        chosen[places] = True
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
    """The same of rows, or records, as they stand in a file: of each its list `usage`."""
    return merged(
        ModelUsage(**{name: held[name] for name in USAGE if held.get(name) is not None})
        for row in rows
        for held in row.get("usage") or ()
    )
