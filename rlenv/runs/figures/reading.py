"""The episodes of a run to read first.

What the rows of a list have in common: values of a column with how often each stands there.

A text looked for in whole episodes: prompts, actions, results, evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv.errors import UsageError
from rlenv.runs.figures.rewards import high_reward
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import clusters, main_mode, recent
from rlenv.runs.figures.tools import group_of
from rlenv.runs.journal import loads

_EACH: Final = 3


def reading_list(rows: Snapshot) -> list[dict[str, Any]]:
    """Episodes that say most about how a run is now, each with `why`: the worst and the best, those of the groups that
    differ most, the newest failures, and high rewards without a success; of each kind at most one episode of a task.

    Of the last steps (`rlenv.runs.figures.steps.recent`); of failures and of rewards without success, of the whole
    run, the newest. Groups are those of training where the run's main mode plays each task once.
    """
    chosen = recent(rows, main_mode(rows))
    reward, success, step = rows.numbers("reward"), rows.numbers("success"), rows.numbers("step")
    valid = chosen & ~np.isnan(reward)
    by_reward = np.nonzero(valid)[0]
    by_reward = by_reward[np.argsort(reward[by_reward], kind="stable")]
    task = clusters(rows)
    worst = _of_each(by_reward, task)
    found = [("worst", place) for place in worst]
    found += [("best", place) for place in _of_each(by_reward[::-1], task) if place not in worst]
    high = high_reward(rows)
    if high is not None:
        hacked = np.nonzero((success == 0) & (reward >= high))[0]
        found += [("reward without success", place) for place in _of_each(_newest(hacked, step), task)]
    found += [("failure", place) for place in _of_each(_newest(np.nonzero(np.isnan(reward))[0], step), task)]
    listed = [_entry(rows, why, place) for why, place in found]
    # A validation that plays each task once has no groups: those of training are read then.
    wide = widest_groups(rows, np.nonzero(valid)[0])
    return [*listed, *(wide or widest_groups(rows, np.nonzero(recent(rows, "train") & ~np.isnan(reward))[0]))]


def _of_each(places: NDArray[np.int64], task: NDArray[np.int64]) -> list[int]:
    """The first places, one a task: three samples of one task say little more than one."""
    _, first = np.unique(task[places], return_index=True)
    return [int(place) for place in places[np.sort(first)[:_EACH]]]


def _newest(places: NDArray[np.int64], step: NDArray[np.float64]) -> NDArray[np.int64]:
    # Rows of one step stand in the order in which they were kept: from behind.
    places = places[::-1]
    return places[np.argsort(-step[places], kind="stable")]


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


_WORDS: Final = ("split", "mode", "reason", "failure", "fate", "why")
_MOST: Final = 50
"""Values of one column that are given, the most frequent ones."""
_STEPS: Final = 24

Facet = list[dict[str, Any]]


def facets(rows: Snapshot, places: NDArray[np.int64]) -> dict[str, Facet]:
    """For the rows at some places how many have each value, the most frequent first.

    Steps stand in up to 24 ranges of equal width (`0..9`), in order; tools and outcomes count episodes, not calls.
    Values are as `rlenv.runs.figures.query` reads them.
    """
    found = {name: _sorted({word: n for word, n in rows.counted(name, places).items() if word}) for name in _WORDS}
    success = rows.numbers("success")[places]
    named = (("true", success == 1), ("false", success == 0), ("none", np.isnan(success)))
    found["success"] = _sorted({name: int(holds.sum()) for name, holds in named})
    for name, column in (("tool", "tool"), ("outcome", "outcome")):
        found[name] = _called(rows, column, places)
    found["step"] = _ranges(rows.numbers("step")[places].astype(np.int64))
    return found


def _sorted(counts: dict[str, int]) -> Facet:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [{"value": value, "count": count} for value, count in ordered if count][:_MOST]


def _called(rows: Snapshot, column: str, places: NDArray[np.int64]) -> Facet:
    codes, words = rows.calls.words(column)
    if not words:
        return []
    of = rows.calls.rows(column)
    is_chosen = rows.chosen(places)[of] & (codes >= 0)
    of, codes = of[is_chosen], codes[is_chosen]
    # A policy may make up any number of names: of those that were called most the episodes are counted.
    often = np.argsort(-np.bincount(codes, minlength=len(words)), kind="stable")[:_MOST]
    found = {}
    for code in often.tolist():
        seen = np.zeros(len(rows), dtype=bool)
        seen[of[codes == code]] = True
        found[words[code]] = int(seen.sum())
    return _sorted(found)


def _ranges(steps: NDArray[np.int64]) -> Facet:
    if not len(steps):
        return []
    low, high = int(steps.min()), int(steps.max())
    width = max(1, -(-(high - low + 1) // _STEPS))
    sizes = np.bincount((steps - low) // width)
    found = []
    for index, size in enumerate(sizes.tolist()):
        first, last = low + index * width, min(low + (index + 1) * width - 1, high)
        if size:
            found.append({"value": str(first) if first == last else f"{first}..{last}", "count": size})
    return found


_AROUND: Final = 60
_HITS: Final = 3
"""Hits of one episode that are given."""
_LEAST: Final = 2


@dataclass(frozen=True, slots=True)
class Hit:
    """A place in an episode: `where` is the dotted path of its text, the rest what stands there and around it."""

    id: str
    where: str
    before: str
    hit: str
    after: str


def searched(records: Iterable[tuple[str, bytes]], text: str) -> Iterator[list[Hit]]:
    """The hits of each record, in any case of letters; an empty list for one without, so that its reader may stop.

    A record is read as bytes first, and parsed only where the text may stand in it.

    Raises:
        UsageError: the text is shorter than two characters.
    """
    if len(text) < _LEAST:
        raise UsageError(f"a text of {_LEAST} characters or more is expected")
    needles = {
        json.dumps(text.lower(), ensure_ascii=is_ascii)[1:-1].encode(errors="replace") for is_ascii in (False, True)
    }
    # Letters beyond ASCII have no lower case as bytes: a text with such is looked for in every record.
    is_told = text.isascii() or text.lower() == text.upper()
    for id, record in records:
        lowered = record.lower() if is_told else record
        if is_told and not any(needle in lowered for needle in needles):
            yield []
            continue
        yield hits(id, loads(record), text)


def hits(id: str, record: Mapping[str, Any], text: str) -> list[Hit]:
    """The first three places of a text in a record."""
    found: list[Hit] = []
    wanted = text.lower()
    for where, held in _texts(record):
        lowered = held.lower()
        # Lowering may change a text's length (U+0130), after which places do not fit: it is then found as it stands.
        at = lowered.find(wanted) if len(lowered) == len(held) else held.find(text)
        if at >= 0:
            end = at + len(text)
            parts = (held[max(0, at - _AROUND) : at], held[at:end], held[end : end + _AROUND])
            found.append(Hit(id, where, *parts))
            if len(found) == _HITS:
                break
    return found


def _texts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a record that people read, by their paths; what stands twice is given once."""
    for index, message in enumerate(record.get("messages", ())):
        if message.get("role") not in ("system", "user"):
            break  # what follows stands with its turn
        yield f"messages.{index}.content", str(message.get("content", ""))
    for index, turn in enumerate(record.get("turns", ())):
        yield f"turns.{index}.action", str(turn.get("action", ""))
        for number, result in enumerate(turn.get("results", ())):
            yield f"turns.{index}.results.{number}.name", str(result.get("name", ""))
            yield f"turns.{index}.results.{number}.text", str(result.get("text", ""))
        observation = turn.get("observation") or {}
        if not turn.get("results"):
            for number, message in enumerate(observation.get("messages", ())):
                yield f"turns.{index}.observation.messages.{number}.content", str(message.get("content", ""))
    yield "answer", str(record.get("answer") or "")
    for name, term in record.get("reward", {}).get("terms", {}).items():
        yield f"reward.terms.{name}.evidence", str(term.get("evidence") or "")
        yield f"reward.terms.{name}.error", str(term.get("error") or "")
    failure = record.get("failure") or {}
    yield "failure.message", str(failure.get("message", ""))
