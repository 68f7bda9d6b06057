"""Which episodes of a run to read first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.figures.groups import group_of
from rlenv.runs.figures.rewards import high_reward
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import clusters, main_mode, recent

__all__ = ["reading_list", "widest_groups"]

_EACH: Final = 3


def reading_list(rows: Snapshot) -> list[dict[str, Any]]:
    """Episodes that say most about how a run is now, each with `why`: the worst and the best, those of the groups that
    differ most, the newest failures, and high rewards without a success.

    Of the last steps (`rlenv.runs.figures.steps.recent`); of failures and of rewards without success, of the whole
    run, the newest.
    """
    chosen = recent(rows, main_mode(rows))
    reward, success, step = rows.numbers("reward"), rows.numbers("success"), rows.numbers("step")
    valid = chosen & ~np.isnan(reward)
    found: list[tuple[str, int]] = []
    by_reward = np.nonzero(valid)[0]
    by_reward = by_reward[np.argsort(reward[by_reward], kind="stable")]
    found += [("worst", int(place)) for place in by_reward[:_EACH]]
    found += [("best", int(place)) for place in by_reward[::-1][:_EACH] if int(place) not in by_reward[:_EACH]]
    high = high_reward(rows)
    if high is not None:
        hacked = np.nonzero((success == 0) & (reward >= high))[0]
        found += [("reward without success", place) for place in _newest(hacked, step)]
    found += [("failure", place) for place in _newest(np.nonzero(np.isnan(reward))[0], step)]
    listed = [_entry(rows, why, place) for why, place in found]
    return [*listed, *widest_groups(rows, np.nonzero(valid)[0])]


def _newest(places: NDArray[np.int64], step: NDArray[np.float64]) -> list[int]:
    # Rows of one step stand in the order in which they were kept: from behind.
    places = places[::-1]
    order = np.argsort(-step[places], kind="stable")
    return [int(place) for place in places[order][:_EACH]]


def _entry(rows: Snapshot, why: str, place: int) -> dict[str, Any]:
    row = {name: rows.table[name][place].as_py() for name in ("id", "step", "reward", "title", "failure")}
    return {"why": why, **row}


@np.errstate(over="ignore", invalid="ignore")
def widest_groups(rows: Snapshot, places: NDArray[np.int64], *, most: int = _EACH) -> list[dict[str, Any]]:
    """The groups, of those that have rows at some places, whose rewards differ most: from the widest one on."""
    if not len(places):
        return []
    step, reward = rows.numbers("step"), rows.numbers("reward")
    keys = np.stack([step[places], clusters(rows)[places]], axis=1)
    _, first, at = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    at = at.reshape(-1)
    sizes, sums = np.bincount(at), np.bincount(at, reward[places])
    spread = np.sqrt(np.bincount(at, (reward[places] - (sums / sizes)[at]) ** 2) / sizes)
    found = []
    for group in np.argsort(-spread, kind="stable")[:most].tolist():
        if spread[group] <= 0:
            break
        place = int(places[first[group]])
        row = {name: rows.table[name][place].as_py() for name in ("id", "split", "task", "group", "step", "title")}
        found.append(
            {
                "why": "widest group",
                "step": row["step"],
                "group": group_of(row),
                "reward": float(sums[group] / sizes[group]),
                "spread": float(spread[group]),
                "title": row["title"],
            }
        )
    return found
