"""What a run has asked of models, by role and model: the sums of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.endpoints.account import merged
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.schema import USAGE
from rlenv.trajectory import ModelUsage

__all__ = ["asked", "asked_in"]

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
