"""The recorder and the player of a run's requests: the two tapes of `rlenv.concurrency.lanes`."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from rlenv._base.bounded import cut_end
from rlenv._base.text import shared_length
from rlenv.concurrency.lanes import POLICY, Event, Heard, Lane, Sleep
from rlenv.errors import CassetteError, UsageError
from rlenv.runs.events import COMPARED, Reel, content_of, dump_events, ordered_json, parse_events
from rlenv.runs.locks.files import to_lock
from rlenv.secrets import redact_value

__all__ = ["Player", "Recorder"]

_SHOWN_CHARS: Final = 4_000
"""The most characters of one text in a request as it is kept for people."""
_QUOTED: Final = 80
_COUNTED: Final = 64
"""Differences that are counted to find the nearest request."""


class Recorder:
    """Keeps what is asked and answered, in memory until the episode is kept.

    Args:
        wants_local: keep also what tools of this process give, and what the policy asks.
    """

    is_offline = False
    sleep: Sleep | None = None

    def __init__(self, *, wants_local: bool = False) -> None:
        self.wants_local, self.lock = wants_local, ""
        self._events: dict[str, list[Event]] = {}
        self._counts: dict[str, Counter[tuple[str, str]]] = {}

    def lane(self) -> Lane:
        """The root of an episode that begins."""
        return Lane(self, secrets.token_hex(8))

    def take_events(self, lane: Lane, *, lock: str | None = None) -> bytes:
        """The events of the episode of a lane, which has ended, as its body holds them, made by a lock."""
        self._counts.pop(lane.episode, None)
        return self._dump_events(self._events.pop(lane.episode, ()), lock)

    def drop_lane(self, lane: Lane) -> None:
        """Forgets an episode that nobody keeps, and what was asked in its lane after it was taken."""
        self._counts.pop(lane.episode, None)
        self._events.pop(lane.episode, None)

    def take_rest(self, *episodes: str, lock: str | None = None) -> str:
        """The events that nobody has taken yet, of all episodes or of some; "" where there are none."""
        held = [one for id in episodes or tuple(self._events) for one in self._events.pop(id, ())]
        return self._dump_events(held, lock).decode() if held else ""

    def _dump_events(self, events: Iterable[Event], lock: str | None) -> bytes:
        return dump_events(one._replace(lock=self.lock if lock is None else lock) for one in events)

    def look(self, lane: Lane, asked: Event) -> Event:
        """The request without an answer: whoever asks has to ask."""
        return _with_ordinal(self._counts, lane, asked)

    def keep(self, lane: Lane, event: Event) -> None:
        """Takes an event of an episode.

        What the policy asks is left out by default: a replay takes its recorded actions, and each of its requests
        repeats the conversation so far.
        """
        if self.wants_local or not event.place.startswith(POLICY):
            response, took = redact_value(event.response), max(time.time() - event.started, 0.0)
            self._add(lane, event._replace(request=_readable_request(event.request), response=response, seconds=took))

    def _add(self, lane: Lane, event: Event) -> None:
        self._events.setdefault(lane.episode, []).append(event)
        for base, heard in lane.ears:
            heard.append([lane.place[base:], dump_events([event._replace(request=None)]).decode()])

    def copy_heard(self, lane: Lane, heard: Heard) -> None:
        """Takes what another lane had asked as events of this one too, without the request that people read."""
        for place, text in heard:
            own, (event,) = replace(lane, place=lane.place + place), parse_events(text.encode(), "what a cache keeps")
            self._add(own, _with_ordinal(self._counts, own, event)._replace(seconds=0.0))

    def lets_out(self, tool: str) -> bool:
        """Nothing is held back."""
        return False

    def missed_request(self, episode: str) -> str:
        """Nothing is missed."""
        return ""


class Player:
    """Answers from a reel: the entry of the same lane, content and ordinal, each once.

    Where equal content may be answered alike anywhere, such as that of a tool which depends on its arguments alone, the
    first entry of that content in any lane does too, since one answer may have served many when it was recorded.

    Args:
        by_content: lanes are others than those that were recorded, as with another policy: answers are found by content
            alone, for what may be answered alike and for requests to endpoints. The policy itself is asked.
        live: tools that are called all the same.
        all_tools: tools of this process are answered too, in place of being run.
        asks: what the tape has no answer to is asked, and kept by `recorder`.
        recorder: keeps what is asked in spite of the tape.
        copies: it keeps what the tape answers as well.
        sleep: waits before each answer for as many seconds as it took when it was recorded; None gives it at once.

    Attributes:
        missed_locks: by the episode that missed, the lock of the entry that was nearest, "" where none is known.
    """

    def __init__(
        self,
        reel: Reel,
        *,
        by_content: bool = False,
        live: frozenset[str] = frozenset(),
        all_tools: bool = False,
        asks: bool = False,
        recorder: Recorder | None = None,
        copies: bool = False,
        sleep: Sleep | None = None,
    ) -> None:
        self.missed_locks: dict[str, str] = {}
        self._reel, self.sleep = reel, sleep
        self._by_content, self._live, self._all_tools = by_content, live, all_tools
        self._recorder, self._copies, self.is_offline = recorder, copies, not asks
        self.wants_local = all_tools or (copies and recorder is not None and recorder.wants_local)
        self._counts: dict[str, Counter[tuple[str, str]]] = {}
        self._missed: dict[str, str] = {}

    def lane(self, episode: str = "") -> Lane:
        """The root of the episode that was kept under an id; of a new one without."""
        return Lane(self, episode or secrets.token_hex(8))

    def lets_out(self, tool: str) -> bool:
        """True if a tool, or "" for the policy, is asked all the same."""
        return tool in self._live if tool else self._by_content

    def missed_request(self, episode: str) -> str:
        """The first request of an episode that the tape has no answer to, in words."""
        return self._missed.get(episode, "")

    def look(self, lane: Lane, asked: Event) -> Event:
        """The request with its answer; without one where it has to be made.

        Raises:
            CassetteError: the tape has none; with the nearest request of the lane and the first difference from it.
        """
        event = _with_ordinal(self._counts, lane, asked)
        to_keep = event if self._recorder is None else self._recorder.look(lane, event)
        if lane.is_live or (asked.is_local and not self._all_tools):
            return to_keep
        try:
            if (found := self._find_answer(lane, event)) is not None:
                answered = to_keep.ended(found.outcome, _restore_echo(found, asked.echo), found.reason)
                if self._recorder is not None and self._copies:
                    self._recorder.keep(lane, answered)
                return answered._replace(seconds=found.seconds if self.sleep is not None else 0.0)
            if not self.is_offline:
                return to_keep
            message = self._describe_miss(lane, event)
        except (UsageError, ValueError) as error:  # ValueError: of JSON
            message = f"{lane.place or 'compiling'}: the tape cannot be read: {error}"
        self._missed.setdefault(lane.episode, message)
        raise CassetteError(message)

    def keep(self, lane: Lane, event: Event) -> None:
        """Takes what was asked in spite of the tape."""
        is_missing = not (lane.is_live or event.is_local)
        if self._recorder is not None and (self._copies or is_missing):
            self._recorder.keep(lane, event)

    def copy_heard(self, lane: Lane, heard: Heard) -> None:
        """Takes what was asked for another lane, where what the tape answers is kept as well."""
        if self._recorder is not None and self._copies:
            self._recorder.copy_heard(lane, heard)

    def _find_answer(self, lane: Lane, event: Event) -> Event | None:
        placed = self._reel.events_at(lane.episode, lane.place)
        own = [one for one in placed if one.content == event.content]
        if event.kind == "list" and not own:  # a server that has moved
            return placed[0] if placed else None
        if same := next((one for one in own if one.ordinal == event.ordinal), None):
            return same
        if event.kind == "judge" and own:
            return None  # it was asked again less often than it is now
        if not (event.is_shared or (self._by_content and event.kind != "tool")):
            return None
        # The next of equal requests is the next one of whoever made them then: a judge that is asked again.
        equal = self._reel.keys_by_content.get(event.content, ())
        key = next((one for one in equal if one.ordinal == event.ordinal), equal[0] if equal else None)
        return None if key is None else self._reel.event(key)

    def _describe_miss(self, lane: Lane, asked: Event) -> str:
        """The message for a missing entry, with the nearest event and the first difference."""
        what = f"{lane.place or 'compiling'}: the tape has no answer to this request of {asked.kind} '{asked.name}'"
        near = self._nearby_events(lane, asked)
        if not near:
            whose = "of this episode" if lane.episode else "of servers"
            where = "of this kind" if self._by_content else whose
            return f"{what}: nothing {where} was recorded"
        if equal := sum(one.content == asked.content for one in near):
            if asked.kind == "tool" and not asked.is_shared and (self._by_content or near[0].place != lane.place):
                return (
                    f"{what} but from another place, and the tool counts as depending on the episode: "
                    f"if it depends on its arguments alone, add 'cache: {{key: arguments}}' to its entry"
                )
            return f"{what}: it was made {equal} times, and now {asked.ordinal + 1}"
        new = _readable_request(asked.request)
        compared = [(one, [*islice(_differences(one.request, new), _COUNTED)]) for one in near[:COMPARED]]
        nearest, told = min(compared, key=lambda pair: len(pair[1]))
        which = f"the nearest, request {nearest.ordinal} of {nearest.place}, differs"
        self.missed_locks.setdefault(lane.episode, nearest.lock)
        if not told:
            return f"{what}; {which} beyond what is kept of its texts"
        path, old, now = told[0]
        return f"{what}; {which} at {path}: {_quote_value(old, now)} before, {_quote_value(now, old)} now"

    def _nearby_events(self, lane: Lane, asked: Event) -> Sequence[Event]:
        """The events at the same place; where there are none, those of the same party."""
        if found := self._reel.events_at(lane.episode, lane.place):
            return found
        if self._by_content:
            return self._reel.similar_events(asked.kind, asked.name)
        own = self._reel.events(lane.episode)
        return [*islice((one for one in own if (one.kind, one.name) == (asked.kind, asked.name)), COMPARED)]


def _with_ordinal(counts: dict[str, Counter[tuple[str, str]]], lane: Lane, asked: Event) -> Event:
    """A request where its lane is and now, with the number of equal ones of the lane before it.

    Its content is known without secrets, so that a replay needs none.
    """
    content = asked.content or content_of(asked.kind, redact_value(asked.request))
    mine = counts.setdefault(lane.episode, Counter())
    ordinal = mine[lane.place, content]
    mine[lane.place, content] += 1
    return asked._replace(place=lane.place, content=content, ordinal=ordinal, started=time.time())


def _restore_echo(event: Event, echo: str) -> Any:
    """The recorded answer, with what is drawn anew in the place of what it repeats."""
    if not (echo and event.echo):
        return event.response
    return json.loads(ordered_json(event.response).replace(event.echo, echo))


def _readable_request(content: Any) -> Any:
    """A request for people: without secrets, and of a long text its head and what tells it from others.

    Of an entry's options stands what a lock holds of them: an author may have written a key out.
    """
    shown = redact_value(content)
    if isinstance(shown, dict) and "options" in shown:
        shown = {**shown, "options": to_lock(shown["options"], hides=True)}
    return _abridge(shown)


def _abridge(value: Any) -> Any:
    # Every request that is kept goes this way: `with_texts`, which changes keys too, takes a fifth longer.
    if isinstance(value, str):
        if len(value) <= _SHOWN_CHARS:
            return value
        digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{value[:_SHOWN_CHARS]}… ({len(value):,} characters, {digest})"
    if isinstance(value, dict):
        return {key: _abridge(item) for key, item in value.items()}
    return [_abridge(item) for item in value] if isinstance(value, (list, tuple)) else value


_NOTHING: Final = object()


def _differences(old: Any, new: Any, path: str = "$") -> Iterator[tuple[str, Any, Any]]:
    """The differences between two JSON values, from the first on: the path, and the value in each."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key, _NOTHING), new.get(key, _NOTHING), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            one, other = (value[index] if index < len(value) else _NOTHING for value in (old, new))
            yield from _differences(one, other, f"{path}[{index}]")
    elif old is _NOTHING or new is _NOTHING or old != new:
        yield path, old, new


def _quote_value(value: Any, other: Any) -> str:
    """A value in a message; of a long text the part where it begins to differ from `other`."""
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, str) and isinstance(other, str) and len(value) > _QUOTED:
        start = max(0, shared_length(value, other) - _QUOTED // 4)
        value = f"{'…' if start else ''}{value[start : start + _QUOTED]}"
    return cut_end(repr(value), 2 * _QUOTED)
