"""The events of episodes: their requests to the outside with the answers, and the cassette that they are for a replay.

The events of an episode stand in its body, behind its record, and `rlenv.runs.writer` writes both at once. Those of no
kept episode, such as the listing of a server's tools, are facts of the run: they are written as what came later is,
under no id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from rlenv._base.bounded import plain
from rlenv.concurrency.lanes import Event
from rlenv.errors import UsageError
from rlenv.runs.folder import is_run, open_run
from rlenv.runs.journal import loads
from rlenv.runs.reader import RunReader

__all__ = ["COMPARED", "Key", "Reel", "canonical_json", "content_of", "dump_events", "is_recorded", "ordered_json"]
__all__ += ["parse_events"]

_HELD: Final = 256
"""Episodes whose events stay read: more than are played at once."""
COMPARED: Final = 256
"""Requests that are looked at to find the one that is nearest to another."""


class Key(NamedTuple):
    """The key of an event in a run: the id of its episode and its place among the events of that."""

    started: float
    ordinal: int
    episode: str
    at: int


_DEFAULTS: Final = {name: value for name, value in Event(outcome="ok")._asdict().items() if name != "is_local"}
"""What a body leaves out of an event, by its keys."""


def canonical_json(value: Any) -> str:
    """JSON that is equal for equal values: keys sorted, all but ASCII as escapes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def ordered_json(value: Any) -> str:
    """JSON in the order that the value has: a list of tools is shown to the policy in the order of its keys."""
    return json.dumps(value, separators=(",", ":"))


def content_of(kind: str, content: Any) -> str:
    """BLAKE2b-256 (hexadecimal) of a request."""
    return blake2b(canonical_json([kind, content]).encode("ascii"), digest_size=32).hexdigest()


def dump_events(events: Iterable[Event]) -> bytes:
    """Events as a body holds them: a list of JSON objects without what is at its default."""
    held = [{name: value for name in _DEFAULTS if (value := getattr(one, name)) != _DEFAULTS[name]} for one in events]
    try:
        return orjson.dumps(held)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        try:
            return ordered_json(held).encode("ascii")
        except (TypeError, ValueError, RecursionError):  # a plug-in's answer that is no JSON
            return ordered_json(plain(held)).encode("ascii")


def parse_events(text: bytes, where: str) -> list[Event]:
    """The events that a body holds.

    Raises:
        UsageError: they are none, or of a newer version; the message begins with `where`.
    """
    try:
        held = loads(text)
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, list):
        raise UsageError(f"{where}: these are no events", hint="bring the run back from a copy")
    return [_parse_event(one, where) for one in held]


def _parse_event(held: Any, where: str) -> Event:
    if not isinstance(held, dict):
        raise UsageError(f"{where}: this is no event", hint="without it, the others can be read")
    if new := sorted({*held} - {*_DEFAULTS}):
        hint = "read it with the version of rlenv that recorded it"
        raise UsageError(f"{where}: this version knows no {', '.join(new)} of an event", hint=hint)
    for name, value in held.items():
        kind, found = type(_DEFAULTS[name]), type(value)
        if _DEFAULTS[name] is not None and found is not kind and not (kind is float and found is int):
            raise UsageError(f"{where}: {name} is {found.__name__}, not {kind.__name__}")
    if not held.get("outcome", "ok"):  # else a replay would ask
        raise UsageError(f"{where}: this event has no outcome", hint="without it, the others can be read")
    return Event(**{**_DEFAULTS, **held})


def is_recorded(run: str | Path) -> bool:
    """True if a run holds the events of an episode: a later attempt may have recorded what the first did not."""
    return is_run(Path(run)) and open_run(run).has_events()


class Reel:
    """The events of a run, by the episode's id and place, and by content. Few episodes' are in memory at a time.

    Args:
        reader: the run; None where all events are loose.
        loose: events that stand in no body, by the id of their episode, "" where there is none.
    """

    def __init__(self, reader: RunReader | None, loose: Mapping[str, Sequence[Event]]) -> None:
        self._reader, self._loose = reader, loose
        kept = [] if reader is None else [row["id"] for row in reader.rows() if row["has_body"]]
        self.ids: Final = tuple(dict.fromkeys((*loose, *kept)))
        self._kept = frozenset(kept)
        self._held = lru_cache(_HELD)(self._read)

    @classmethod
    def of(cls, run: str | Path) -> Reel:
        """The events of a run, while it is written too.

        Raises:
            UsageError: it was not recorded, or what was recorded is damaged or of a newer version.
            MissingExtra: it is sealed, and pyarrow is not installed.
        """
        run, loose = Path(run), dict[str, list[Event]]()
        if not is_recorded(run):
            raise UsageError(f"{run} has no tape", hint="record one with: rlenv eval SPEC --record -o DIR")
        reader = open_run(run)
        for text in reader.facts_of_the_run():
            loose.setdefault("", []).extend(parse_events(text, f"{run / 'late'}"))
        return cls(reader, loose)

    def _read(self, id: str) -> tuple[Event, ...]:
        events = list(self._loose.get(id, ()))
        if self._reader is not None and id in self._kept:
            events += parse_events(self._reader.body(id).events or b"[]", f"{self._reader.run}: the body of '{id}'")
        return tuple(sorted(events, key=lambda one: (one.started, one.ordinal)))

    def events_at(self, id: str, place: str) -> list[Event]:
        """The events of an episode at one place, in their order."""
        return [one for one in self._held(id) if one.place == place]

    def events(self, id: str) -> Sequence[Event]:
        """All events of an episode in their order; () of one that the run has not.

        Raises:
            UsageError: they cannot be read.
        """
        return self._held(id)

    @property
    def keys_by_content(self) -> Mapping[str, Sequence[Key]]:
        """The keys of all episodes' events that have an answer, by the content of the request."""
        return self._index[0]

    def similar_events(self, kind: str, name: str) -> Sequence[Event]:
        """The first events of all episodes that are of a kind and asked of a name, `COMPARED` at most."""
        return [self.event(key) for key in self._index[1].get((kind, name), ())]

    @cached_property
    def _index(self) -> tuple[Mapping[str, Sequence[Key]], Mapping[tuple[str, str], Sequence[Key]]]:
        """Keys by what was asked, and by kind and name: the run is read once, whatever is looked for."""
        contents: dict[str, list[Key]] = {}
        named: dict[tuple[str, str], list[Key]] = {}
        for id in self.ids:
            for at, one in enumerate(self._read(id)):
                key = Key(one.started, one.ordinal, id, at)
                if one.outcome != "cancelled":  # its own lane is replayed; elsewhere nobody would end the wait
                    contents.setdefault(one.content, []).append(key)
                if len(alike := named.setdefault((one.kind, one.name), [])) < COMPARED:
                    alike.append(key)
        for keys in contents.values():
            keys.sort()
        return contents, named

    def event(self, key: Key) -> Event:
        """The event that a key finds."""
        return self._held(key.episode)[key.at]
