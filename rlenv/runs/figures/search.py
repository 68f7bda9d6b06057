"""A text looked for in whole episodes: prompts, actions, results, evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlenv.errors import UsageError
from rlenv.runs.journal import loads

__all__ = ["Hit", "hits", "searched"]

_AROUND: Final = 60
_EACH: Final = 3
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
            if len(found) == _EACH:
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
