"""What a run's tools did: how often they failed, how long they took and waited, and which calls to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import kept_points

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["tools"]

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
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = np.zeros(len(rows), dtype=bool)
    chosen[places] = True
    calls = rows.calls.filter(pa.array(chosen[rows.calls["row"].to_numpy()]))
    step = rows.numbers("step").astype(np.int64)
    coded = pc.dictionary_encode(calls["tool"].combine_chunks())
    codes, names = coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()
    sizes = np.bincount(codes, minlength=len(names))
    found = []
    for code in np.argsort(-sizes, kind="stable")[:_MOST].tolist():
        of_tool = calls.take(np.nonzero(codes == code)[0])
        found.append({"tool": names[code], **_figures(rows, of_tool, step)})
    return found


def _figures(rows: Snapshot, calls: pa.Table, step: NDArray[np.int64]) -> dict[str, Any]:
    import pyarrow.compute as pc

    outcome = calls["outcome"].to_numpy()
    seconds = pc.cast(calls["seconds"], "float64").to_numpy()
    waited = np.nan_to_num(pc.cast(calls["waited"], "float64").to_numpy())
    ran = np.isin(outcome, _RAN)
    is_error = outcome != "ok"
    words, counted = np.unique(outcome.astype(str), return_counts=True)
    steps = step[calls["row"].to_numpy()]
    slowest = np.argsort(-np.where(ran, seconds, -1.0), kind="stable")[:_LISTED]
    failing = np.nonzero(is_error)[0][::-1]
    failing = failing[np.argsort(-steps[failing], kind="stable")][:_LISTED]
    return {
        "calls": len(outcome),
        "errors": int(is_error.sum()),
        "outcomes": dict(sorted(zip(words.tolist(), counted.tolist(), strict=True), key=lambda one: -one[1])),
        **{f"p{share}": _rank(seconds[ran], share / 100) for share in (50, 90, 99)},
        "waited_p50": _rank(waited[ran], 0.5),
        "slowest": [_call(rows, calls, int(at)) for at in slowest if ran[at]],
        "failing": [_call(rows, calls, int(at)) for at in failing],
        "by_step": _by_step(steps, is_error, seconds, ran),
    }


def _rank(values: NDArray[np.float64], share: float) -> float | None:
    """The nearest rank: a value that was measured."""
    if not len(values):
        return None
    at = max(0, int(np.ceil(share * len(values))) - 1)
    return float(np.partition(values, at)[at])


def _call(rows: Snapshot, calls: pa.Table, at: int) -> dict[str, Any]:
    one: dict[str, Any] = calls.slice(at, 1).to_pylist()[0]
    named = {name: one[name] for name in ("turn", "index", "seconds", "outcome")}
    return {"id": rows.table["id"][one["row"]].as_py(), **named}


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
