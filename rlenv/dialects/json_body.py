"""The body grammars `json` and `name_json`: calls whose arguments are a JSON object."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from rlenv._base.strict_json import missing_brackets, stopped_at
from rlenv.dialects import json_text
from rlenv.dialects.base import tool_call
from rlenv.dialects.literals import Broken, value_at
from rlenv.dialects.reading import Call, Outcome, Reading, RefusedValue, malformed, skip_space, typed, typed_strings
from rlenv.language.dialect import CallSpec
from rlenv.messages import MalformedCall

# A mark that may stand in JSON outside of its strings: up to a quote it has nothing that cannot.
_IN_JSON: Final = re.compile(r"[][{}:,\s0-9eE+.truefalsn-]*(?:\"|\Z)")
_ID: Final = re.compile(r"[\w.\-/: ]{0,128}")
_NAME: Final = re.compile(r"[\w.\-/:]{1,256}")
# What begins so is meant as JSON, also where text may stand.
_LIKE_JSON: Final = ("{", "[", "```json")


def marks_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """One mark or several as a tuple, without empty ones."""
    return tuple(mark for mark in ((value,) if isinstance(value, str) else value) if mark)


class JsonForm:
    """Calls with JSON between marks, or behind an opening mark, or alone at the message's start.

    A call ends at the first closing mark outside its JSON strings; without a closing mark it ends with its JSON.

    Args:
        stops: the marks of all forms of the dialect; none of them stands inside a call, except in a string.
    """

    def __init__(self, spec: CallSpec, *, stops: tuple[str, ...], lenient: frozenset[str]) -> None:
        self.opens = marks_of(spec.open) + (spec.spellings if "spellings" in lenient else ())
        self.at_start = spec.at_start
        self._spec = spec
        self._closes = marks_of(spec.close)
        self._stops = tuple(dict.fromkeys((*self.opens, *stops)))
        self._others = tuple(mark for mark in self._stops if mark not in self.opens)
        self._ends = (*self._closes, *self._stops)
        self._stand_apart = not any(_IN_JSON.match(mark) for mark in self._stops)
        self._raw = "raw_strings" in lenient
        self._extent = json_text.Extent(self._ends, raw=self._raw)
        self._whole, self._longest = self._extent.whole.match, self._extent.longest
        keys = marks_of(spec.arguments_key)
        as_text = "arguments_as_text" in lenient
        self._shape = json_text.shaper(name_key=spec.name_key, arguments_keys=keys)
        self._shape_loosely = (
            json_text.shaper(name_key=spec.name_key, arguments_keys=keys, arguments_as_text=True) if as_text else None
        )
        self.body_of: Callable[[str], tuple[str, dict[str, Any]] | str] | None = None
        if spec.shape == "object" and spec.body == "json" and not spec.by_name and len(keys) == 1:
            self.body_of = json_text.json_call_reader(name_key=spec.name_key, arguments_key=keys[0])
        self._starts = spec.starts
        self._after_name = marks_of(spec.after_name)
        self._name_ends_quoted = spec.body == "name_json" and any('"' in mark for mark in self._after_name)
        shown = "|".join(re.escape(key) for key in (spec.name_key, *keys))
        head = r'"' if spec.by_name else rf'"(?:{shown})"'
        # The beginning of one, where the message ends with it: no text is that.
        cut = "|".join(re.escape(key[:n]) for key in (spec.name_key, *keys) for n in range(len(key) + 1))
        cut = "" if spec.by_name else cut
        self._bare = re.compile(rf'\s*(?:\[\s*)?\{{\s*(?:{head}|(?:"(?:{cut}))?\Z)|\s*\[\s*\Z')
        self._name_of = re.compile(rf'"{re.escape(spec.name_key)}"[ \t\r\n]*:[ \t\r\n]*"([^"\\]{{1,256}})"')

    def begins(self, text: str, begin: int) -> bool:
        if self.at_start:
            return self._bare.match(text, begin) is not None
        if not self._starts:
            return True
        at = skip_space(text, begin)
        return at < len(text) and text[at] in self._starts

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        if not self._closes:
            return self._read_unmarked(reading, start, begin)
        text = reading.text
        stop = self._latest_end(reading, begin)
        for mark in self._closes:
            if text.startswith(mark, stop):
                end = stop + len(mark)
                return self._read_calls(reading, start, begin, stop, end), end, False
        opening_mark = next((mark for mark in self._stops if text.startswith(mark, stop)), "")
        closing_marks = " or ".join(self._closes)
        if opening_mark:
            if self._spec.close_is_optional:
                return self._read_calls(reading, start, begin, stop, stop), stop, False
            # Not closed before the next call.
            close, _ = reading.first(self._closes, stop)
            next_at = self._last_open(reading, stop, close)
            stop = max(stop, next_at)
            reason = f"the call is not closed; expected {closing_marks} before the next {opening_mark}"
            return [malformed(text, reason, start, stop, self._name_in(text, begin, stop))], stop, False
        if stop < len(text):
            # A string was broken off: the first closing mark behind the break ends the call. Where the text's end broke
            # it off, marks may stand in the string, and what follows too: all is the call's.
            close, next_at, mark, opening_mark = -1, -1, "", ""
            if not reading.strings().is_open(stop):
                close, mark = reading.first(self._closes, stop)
                next_at, opening_mark = reading.first(self._stops, stop)
            if close < 0 and next_at < 0:
                stop = len(text)
            elif next_at >= 0 and (close < 0 or next_at < close):
                next_at = max(next_at, self._last_open(reading, next_at, close))
                reason = f"the call is not closed; expected {closing_marks} before the next {opening_mark}"
                return [malformed(text, reason, start, next_at, self._name_in(text, begin, next_at))], next_at, False
            else:
                end = close + len(mark)
                return self._read_calls(reading, start, begin, close, end), end, False
        others = self._stops if self._spec.close_is_optional else ()
        marks = (*self._closes, self._spec.after_arguments, *self._marks_inside(), *others)
        end = reading.without_cut_mark(marks, begin)
        if self._spec.close_is_optional:
            calls = self._read_calls(reading, start, begin, end, len(text))
            is_cut = type(calls[-1]) is MalformedCall and self._is_left_open(text, begin, end)
            return calls, len(text), is_cut
        if reading.allows("open_calls"):
            return self._read_calls(reading, start, begin, end, len(text)), len(text), True
        read = self._read_body(reading, begin, end)
        reason = f"{read}, and {closing_marks} after it"
        if not isinstance(read, str):
            reason = f"the call is not closed; expected {closing_marks} after the JSON"
        return [malformed(text, reason, start, len(text), self._name_in(text, begin, len(text)))], len(text), True

    def _latest_end(self, reading: Reading, begin: int) -> int:
        """The latest end of the body at `begin`: a mark, or a string that is broken off."""
        text = reading.text
        if self._name_ends_quoted:  # what ends the name begins no string
            place, mark = reading.first(self._after_name, begin)
            if place >= 0 and not 0 <= reading.first(self._ends, begin)[0] < place:
                begin = place + len(mark)
        edge = begin + json_text.NEAR
        match = self._whole(text, begin, edge)
        stop = match.end() if match is not None else begin
        if edge >= len(text) or (stop + self._longest <= edge and text[stop] != '"'):
            return stop
        return self._extent.end(text, begin, reading.strings(self, raw=self._raw))

    def _is_left_open(self, text: str, begin: int, stop: int) -> bool:
        """True if the end of the body leaves a bracket, a string or what stands before the arguments open."""
        head = begin
        if self._spec.body == "name_json":
            if self._spec.skip_to and text.find(self._spec.skip_to, begin, stop) < 0:
                return True
            head += self._split(text[begin:stop])[3]
        return not text[head:stop].strip() or missing_brackets(text[head:stop]) != ""

    def _last_open(self, reading: Reading, at: int, close: int) -> int:
        """The position at which reading goes on behind a call that is not closed before the mark at `at`.

        Where several stand unclosed, the last one before the closing mark is read; reading each of them would take
        time for marks that a model repeats without end.
        """
        other, _ = reading.first(self._others, at)
        end = min([place for place in (close, other) if place >= 0], default=len(reading.text))
        return max((reading.text.rfind(mark, at, end) for mark in self.opens), default=at)

    def _marks_inside(self) -> tuple[str, ...]:
        spec = self._spec
        return (*self._after_name, spec.before_arguments, spec.id_mark) if spec.body == "name_json" else ()

    def _name_in(self, text: str, begin: int, stop: int) -> str | None:
        """The tool's name, where a broken call shows it."""
        if self._spec.body == "name_json":
            name, _, _, _ = self._split(text[begin:stop])
            return name if _NAME.fullmatch(name) else None
        match = self._name_of.search(text, begin, min(stop, begin + 1000))
        return match[1] if match is not None else None

    def _read_unmarked(self, reading: Reading, start: int, begin: int) -> Outcome:
        """Calls without a closing mark: JSON values, with separators between them where the family has some."""
        text, spec = reading.text, self._spec
        calls: list[Call] = []
        at, stop, searched_to, is_cut = begin, -1, -1, False
        while True:
            end = -1
            if stop < 0:
                end, stop, searched_to = self._end_before_marks(reading, begin, at)
            if end < 0:
                end, stop = self._end_of_value(reading, at, stop, searched_to)
                is_cut = (end < 0 or end == stop) and stop >= len(text) and self._is_left_open(text, at, stop)
            if end < 0:
                reason = self._read_body(reading, at, stop)
                reason = reason if isinstance(reason, str) else "the call cannot be read"
                calls.append(malformed(text, reason, start, stop, self._name_in(text, at, stop)))
                return calls, stop, is_cut
            more = self._read_calls(reading, start, at, end, max(end, start + 1))
            calls += more
            after = skip_space(text, end)
            if not spec.separator or not text.startswith(spec.separator, after):
                tail = text[after : after + len(spec.separator) + 1].rstrip()
                if tail and after + len(spec.separator) >= len(text) and spec.separator.startswith(tail):
                    return calls, len(text), True
                return calls, end, is_cut
            start = at = skip_space(text, after + len(spec.separator))
            stop = stop if stop >= 0 else self._latest_end(reading, begin)
            if at >= stop:
                return calls, at, is_cut

    def _end_before_marks(self, reading: Reading, begin: int, at: int) -> tuple[int, int, int]:
        """The end of the body at `at`, if its JSON is whole before any mark; otherwise -1 and the latest end.

        The third is the place up to which no JSON was found, -1 where none was looked for.

        Most calls are whole. What follows them is not looked at then: a stray quote behind one is no part of it.
        """
        text = reading.text
        bound, _ = reading.first(self._stops, at)
        bound = bound if bound >= 0 else len(text)
        quote = reading.find('"', at)
        if not 0 <= quote < bound:
            return -1, bound, -1
        searched_to, head = -1, at + (self._head_size(text, at, bound) if self._spec.body == "name_json" else 0)
        if self._stand_apart and quote >= head:
            end = json_text.value_end(text, skip_space(text, head), bound, raw="raw_strings" in reading.lenient)
            if end >= 0:
                return end, -1, -1
            searched_to = bound
        is_broken = reading.strings(self, raw=self._raw).is_broken(quote)
        return -1, quote if is_broken else self._latest_end(reading, begin), searched_to

    def _end_of_value(self, reading: Reading, at: int, stop: int, searched_to: int) -> tuple[int, int]:
        """The end of the body at `at`, -1 where it cannot be read, and the latest end of the call."""
        text, spec = reading.text, self._spec
        head = at
        if spec.body == "name_json":
            head += self._split(text[at:stop])[3] if stop - at <= json_text.NEAR else self._head_size(text, at, stop)
        head = skip_space(text, head)
        end = json_text.value_end(text, head, stop, raw="raw_strings" in reading.lenient) if stop != searched_to else -1
        if end < 0 and stop < len(text) and text[stop] == '"':
            # A string was broken off, by what JSON forbids in one or by the text's end: the call ends where it
            # would if strings could hold all, or at the next call.
            next_call, _ = reading.first(self._stops, stop)
            stop = next_call if next_call >= 0 and not reading.strings().is_open(stop) else len(text)
            whole = json_text.value_end(text, head, stop, raw=True)
            stop = whole if whole >= 0 else stop
        if end < 0 and (
            (spec.body == "name_json" and (head >= stop or spec.plain))
            or "python_literals" in reading.lenient
            or "open_bodies" in reading.lenient
        ):
            end = stop
        return end, stop

    def _read_body(self, reading: Reading, begin: int, stop: int) -> list[tuple[Any, str | None]] | str:
        """The pairs in the body, of a value (name and arguments, or a reason) and an id; or the reason why it holds
        none.
        """
        text = reading.text[begin:stop]
        if self._spec.body == "name_json":
            return self._read_name_json(reading, text)
        if self.body_of is not None:
            read = self.body_of(text)
            if not isinstance(read, str):
                return [(read, None)]
            if not reading.lenient:
                return read
        value = self._load(reading, text)
        if isinstance(value, str):
            return value
        loaded = value[0]
        if isinstance(loaded, list):
            if self._spec.shape == "object":
                return str(self._shape(loaded))
            if not loaded:
                return "the list is empty; expected at least one call"
            return [(self._read_item(reading, item), None) for item in loaded]
        if self._spec.shape == "list":
            return f"found {'an object' if isinstance(loaded, dict) else 'no list'}; expected a list of calls"
        return [(self._read_item(reading, loaded), None)]

    def _read_item(self, reading: Reading, value: Any) -> tuple[str, dict[str, Any]] | str:
        if not self._spec.by_name:
            read = self._shape(value)
            if isinstance(read, str) and self._shape_loosely is not None:
                read = self._shape_loosely(value)
                if not isinstance(read, str):
                    reading.used.append("arguments_as_text")
            return read
        if isinstance(value, dict) and len(value) == 1:
            ((name, arguments),) = value.items()
            if name and isinstance(arguments, dict):
                return name, arguments
        return "expected an object of one tool's name and its arguments: {name: {…}}"

    def _load(self, reading: Reading, text: str) -> tuple[Any] | str:
        value = json_text.load(text)
        if not isinstance(value, str) or not reading.lenient:
            return value
        if "raw_strings" in reading.lenient:
            repaired = json_text.load(json_text.escaped_strings(text))
            if not isinstance(repaired, str) and reading.allows("raw_strings"):
                return repaired
        if "open_bodies" in reading.lenient:
            closing = missing_brackets(text)
            repaired = json_text.load(text + closing) if closing else value
            if not isinstance(repaired, str) and reading.allows("open_bodies"):
                return repaired
        if "python_literals" in reading.lenient:
            try:
                literal, end = value_at(Reading(text, None, reading.lenient), 0)
            except Broken as error:
                return error.reason if error.at > stopped_at(text) else value
            if not text[end:].strip() and reading.allows("python_literals"):
                return (literal,)
        return value

    def _head_size(self, text: str, at: int, stop: int) -> int:
        """The length of the text before the arguments of the body at `at`; no more is read than that takes."""
        beginning = text[at : min(at + json_text.NEAR, stop)]
        size = self._split(beginning)[3]
        if size < len(beginning) and (not self._spec.skip_to or self._spec.skip_to in beginning):
            return size
        return self._split(text[at:stop])[3]

    def _split(self, body: str) -> tuple[str, str, str | None, int]:
        """Name, arguments, id and the place of the arguments in the body of a `name_json` call."""
        spec = self._spec
        lead = len(body) - len(body.lstrip())
        rest = body[lead:]
        call_id: str | None = None
        before, mark, after = rest.partition(spec.id_close) if spec.id_close else ("", "", "")
        if mark and _ID.fullmatch(before):
            lead, rest, call_id = lead + len(rest) - len(after), after, before.strip() or None
        skipped = len(spec.before_name) if spec.before_name and rest.startswith(spec.before_name) else 0
        at, size = len(rest), 0
        for mark in (*self._after_name, *((spec.id_mark,) if spec.id_mark else ())):
            place = rest.find(mark, skipped)
            if 0 <= place < at:
                at, size = place, 0 if mark == "{" else len(mark)
        name = rest[skipped:at].strip()
        if spec.id_mark and rest.startswith(spec.id_mark, at):
            ends = [place for mark in self._after_name if (place := rest.find(mark, at)) >= 0]
            end = min(ends, default=len(rest))
            call_id = rest[at + len(spec.id_mark) : end].strip() or None
            at = end
            size = next((len(mark) for mark in self._after_name if mark != "{" and rest.startswith(mark, end)), 0)
        if spec.indexed:
            call_id = (spec.before_name + name) or None
            name, colon, number = name.rpartition(":")
            if not colon or not number.isdigit() or len(number) > 9:
                name = ""
        place = rest.find(spec.skip_to, at) if spec.skip_to else -1
        at = place + len(spec.skip_to) if place >= 0 else at + size
        if spec.before_arguments:
            inner = rest[at:].lstrip()
            if inner.startswith(spec.before_arguments):
                at = len(rest) - len(inner) + len(spec.before_arguments)
        return name, rest[at:], call_id, lead + at

    def _read_name_json(self, reading: Reading, body: str) -> list[tuple[Any, str | None]] | str:
        spec = self._spec
        name, rest, call_id, _ = self._split(body)
        if not name or _NAME.fullmatch(name) is None:
            return f"the call has no readable name ({body.strip()[:24]!r}); expected the name of a tool"
        rest = rest.strip()
        if spec.after_arguments:
            rest = rest.removesuffix(spec.after_arguments.strip()).rstrip()
        if not rest:
            if reading.allows("missing_arguments"):
                return [((name, {}), call_id)]
            return "the arguments are missing; expected a JSON object, {} where the tool takes none"
        value = self._load(reading, rest)
        loaded = value if isinstance(value, str) else value[0]
        if spec.plain and not isinstance(loaded, dict) and not (isinstance(value, str) and rest.startswith(_LIKE_JSON)):
            key = reading.only_parameter(name)
            if key is not None:
                try:
                    argument = typed(rest, reading.parameter(name, key))
                except RefusedValue as error:
                    return f"in the value of {key!r}: {error}"
                return [((name, {key: argument}), call_id)]
        if isinstance(value, str):
            return value
        if not isinstance(loaded, dict):
            return 'the arguments are no JSON object; expected an object such as {"key": "value"}'
        return [((name, loaded), call_id)]

    def _read_calls(self, reading: Reading, start: int, begin: int, stop: int, end: int) -> list[Call]:
        """The calls of a body that is whole; each has a place of its own."""
        text = reading.text
        read = self._read_body(reading, begin, stop)
        if self._spec.body == "json" and "missing_arguments" in reading.lenient:
            read = self._allow_bare_names(reading, text[begin:stop], read)
        if isinstance(read, str):
            return [malformed(text, read, start, end, self._name_in(text, begin, stop))]
        if self._spec.id_key:
            read = json_text.with_ids(text[begin:stop], self._spec.id_key, read)
        if len(read) == 1:
            return [self._make_call(reading, read[0], start, end)]
        spans = list(json_text.elements(text, begin, stop))
        if len(spans) != len(read):  # a leniency has read what JSON does not count
            spans = [(start + i, start + i + 1) for i in range(len(read))]
        # A malformed call of a list has the place of its own text, without the marks around the list.
        if not isinstance(read[0][0], str):
            spans[0] = (start, spans[0][1])
        if not isinstance(read[-1][0], str):
            spans[-1] = (spans[-1][0], end)
        return [self._make_call(reading, item, *span) for item, span in zip(read, spans, strict=True)]

    def _allow_bare_names(
        self, reading: Reading, body: str, read: list[tuple[Any, str | None]] | str
    ) -> list[tuple[Any, str | None]] | str:
        """The calls, where one that has a name alone is a call without arguments."""
        if not isinstance(read, str) and not any(isinstance(value, str) for value, _ in read):
            return read
        loaded = json_text.load(body)
        items = loaded[0] if isinstance(loaded, tuple) else ()
        items = [items] if isinstance(items, dict) else items
        if not items or (isinstance(read, list) and len(items) != len(read)):
            return read
        pairs = [(read, None)] * len(items) if isinstance(read, str) else read
        keys = marks_of(self._spec.arguments_key)
        out: list[tuple[Any, str | None]] = []
        for item, (value, call_id) in zip(items, pairs, strict=True):
            name = item.get(self._spec.name_key) if isinstance(item, dict) else None
            is_bare = isinstance(name, str) and name and not any(item.get(key) is not None for key in keys)
            is_read = isinstance(value, str) and is_bare and reading.allows("missing_arguments")
            out.append(((name, {}) if is_read else value, call_id))
        return out if any(not isinstance(value, str) for value, _ in out) else read

    def _make_call(self, reading: Reading, item: tuple[Any, str | None], start: int, end: int) -> Call:
        value, call_id = item
        if isinstance(value, str):
            return malformed(reading.text, value, start, end)
        name, arguments = value
        if self._spec.known != "anything" and reading.tools and reading.shape(name) is None:
            return malformed(reading.text, f"there is no tool {name[:40]!r}", start, end, name)
        if "typed_strings" in reading.lenient and arguments:
            arguments = typed_strings(reading, name, arguments)
        return tool_call(name, arguments, call_id, start, end)
