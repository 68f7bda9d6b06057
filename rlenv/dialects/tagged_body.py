"""The body grammar `tagged`: a name, then parameters in tags or as keys and values, typed by the tool's schema."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from rlenv.dialects.base import tool_call
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.json_text import load
from rlenv.dialects.literals import Broken, literal, value_at
from rlenv.dialects.reading import Outcome, Reading, RefusedValue, malformed, skip_blank, typed
from rlenv.dialects.schema import Shape
from rlenv.dialects.values import tree_at, value_of
from rlenv.language.dialect import CallSpec

_CDATA: Final = ("<![CDATA[", "]]>")
_NAME: Final = re.compile(r"[^\s<>{}\"'=()\[\]]{1,256}")


class _Fault(Exception):
    def __init__(self, reason: str, at: int, *, behind: Literal["marks", "calls", "nothing"] = "marks") -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at
        self.behind = behind
        """What ends the call: its closing mark, the next call alone, or the text's end alone."""


class TaggedForm:
    """Parameters between tags, or as pairs of key and value; nothing but white space stands between them.

    A value runs to the first of its closing marks. Its type is the one in the tool's schema.
    """

    def __init__(self, spec: CallSpec, *, stops: tuple[str, ...], lenient: frozenset[str]) -> None:
        loose = "spellings" in lenient
        self.opens = marks_of(spec.open) + (spec.spellings if loose else ())
        self.next_calls = self.opens
        """What begins the next call: an opening mark, or that of a section, which whoever knows of one adds."""
        self.at_start = spec.at_start
        self._spec = spec
        self._closes = marks_of(spec.close)
        self._keys = marks_of(spec.key_open) + (spec.key_spellings if loose else ())
        self._key_spellings = frozenset(spec.key_spellings) - frozenset(marks_of(spec.key_open))
        self._stops = tuple(dict.fromkeys((*self.opens, *stops)))
        self._value_opens = sorted(spec.value_open.items(), key=lambda item: -len(item[0]))
        self._none = spec.values != "json"
        self._other = literal if spec.values == "python" else None

    def begins(self, text: str, begin: int) -> bool:
        if not self._spec.starts:
            return True
        at = skip_blank(text, begin)
        return at < len(text) and text[at] in self._spec.starts

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text = reading.text
        name = ""
        try:
            name, at = self._name(reading, begin)
            arguments: dict[str, Any] = {}
            while True:
                at = skip_blank(text, at)
                if any(text.startswith(mark, at) for mark in self._closes):
                    break
                mark = next((mark for mark in self._keys if text.startswith(mark, at)), None)
                if mark is None:
                    break
                if mark in self._key_spellings:
                    reading.used.append("spellings")
                at = self._parameter(reading, name, at + len(mark), arguments)
            close = next((mark for mark in self._closes if text.startswith(mark, at)), None)
            end = at + len(close or "")
            if close is None and not (at >= self._cut(reading, at) and reading.allows("open_calls")):
                wanted = " or ".join((*self._keys, *self._closes))
                raise _Fault(f"expected {wanted}; found {text[at : at + 20]!r}", at)
            end = len(text) if close is None and at >= self._cut(reading, at) else end
        except _Fault as fault:
            ends = {"marks": (self._closes, self._stops), "calls": ((), self.next_calls), "nothing": ((), ())}
            end, is_cut = reading.recover(max(fault.at, begin), *ends[fault.behind])
            return [malformed(text, fault.reason, start, end, name)], end, is_cut
        unwrapped = self._unwrap(reading, arguments, reading.shape(name))
        reason = self._unknown_reason(reading, name, unwrapped)
        if reason:
            return [malformed(text, reason, start, end, name)], end, False
        return [tool_call(name, unwrapped, None, start, end)], end, False

    def _cut(self, reading: Reading, begin: int) -> int:
        return reading.without_cut_mark((*self._closes, *self._keys, self._spec.value_close), begin)

    def _name(self, reading: Reading, begin: int) -> tuple[str, int]:
        text, spec = reading.text, self._spec
        ends = (spec.name_close,) if spec.name_close else (*self._keys, *self._closes, "\n")
        at = skip_blank(text, begin) if not spec.name_close else begin
        place, mark = reading.first(ends, at)
        stop, opened = reading.first((*self._closes, *self._stops), at)
        line = text.find("\n", at, at + 512) if spec.name_close else -1
        if spec.name_close and line >= 0 and (place < 0 or line < place) and reading.allows("open_tags"):
            place, mark = line, "\n"
        if place < 0 and stop < 0 and not spec.name_close and "open_calls" in reading.lenient:
            place, mark = self._cut(reading, at), ""
        if place < 0 or (0 <= stop < place):
            wanted = spec.name_close or " or ".join(self._keys)
            found = f"; found {opened} before it" if opened else ""
            raise _Fault(f"the name is not closed; expected {wanted}{found}", at)
        name = text[at:place].strip().strip("\"'").strip()
        if spec.before_name:
            name = name.removeprefix(spec.before_name)
        if _NAME.fullmatch(name) is None:
            raise _Fault(f"{name[:40]!r} is no name; expected the name of a tool", at)
        end = place + (len(mark) if spec.name_close else 0)
        if spec.skip_to:
            skipped = text.find(spec.skip_to, end, end + 128)
            if skipped < 0 or "\n" in text[end:skipped]:
                raise _Fault(f"the name is not closed; expected {spec.skip_to} behind it", end)
            end = skipped + len(spec.skip_to)
        return name, end

    def _parameter(self, reading: Reading, name: str, at: int, arguments: dict[str, Any]) -> int:
        """Reads one parameter whose key starts at `at`, and gives its end."""
        text, spec = reading.text, self._spec
        place = reading.find(spec.key_close, at)
        if place < 0 or place - at > 512:
            raise _Fault(f"a parameter's name is not closed; expected {spec.key_close}", at)
        key = text[at:place].strip().strip("\"'").strip()
        if not key or "<" in key or "\n" in key:
            raise _Fault(f"{key[:40]!r} is no name of a parameter", at)
        at = place + len(spec.key_close)
        kind = ""
        if spec.type_open:
            inner = skip_blank(text, at)
            if text.startswith(spec.type_open, inner):
                place = reading.find(spec.type_close, inner)
                if place < 0:
                    raise _Fault(f"a type is not closed; expected {spec.type_close}", inner)
                kind = text[inner + len(spec.type_open) : place].strip()
                at = place + len(spec.type_close)
        how = "schema"
        if self._value_opens:
            inner = skip_blank(text, at) if self._value_opens[0][0].startswith("<") else at
            mark = next((mark for mark, _ in self._value_opens if text.startswith(mark, inner)), None)
            if mark is None:
                wanted = " or ".join(mark for mark, _ in self._value_opens)
                raise _Fault(f"the value of {key[:40]!r} is missing; expected {wanted}", at)
            how = spec.value_open[mark]
            at = inner + len(mark)
        if spec.nested:
            return self._nested(reading, name, key, at, arguments)
        value, at = self._value(reading, key, at)
        if key in arguments:
            raise _Fault(f"the parameter {key[:40]!r} is given twice; expected it once", at)
        try:
            arguments[key] = self._read_typed(reading, name, key, value, how, kind)
        except RefusedValue as error:
            raise _Fault(f"in the value of {key[:40]!r}: {error}", at) from error
        return at

    def _nested(self, reading: Reading, name: str, key: str, at: int, arguments: dict[str, Any]) -> int:
        """Reads a value that may be tags inside its tag, and gives its end."""
        try:
            tree, end = tree_at(reading, self._spec, key, at)
            value = value_of(reading, tree, reading.parameter(name, key))
        except Broken as error:
            raise _Fault(error.reason, max(error.at, at)) from error
        except RefusedValue as error:
            raise _Fault(f"in the value of {key[:40]!r}: {error}", at) from error
        if key not in arguments:
            arguments[key] = value
        elif not reading.allows("repeated_tags"):
            raise _Fault(f"the parameter {key[:40]!r} is given twice; expected it once", at)
        else:
            known = arguments[key]
            arguments[key] = [*known, value] if isinstance(known, list) else [known, value]
        return end

    def _value(self, reading: Reading, key: str, at: int) -> tuple[str, int]:
        text, spec = reading.text, self._spec
        if spec.cdata:
            inner = skip_blank(text, at)
            if text.startswith(_CDATA[0], inner):
                place = reading.find(_CDATA[1], inner)
                close = skip_blank(text, place + 3) if place >= 0 else -1
                if place < 0 or not text.startswith(spec.value_close, close):
                    reason = f"a CDATA section is not closed; expected {_CDATA[1]}{spec.value_close}"
                    is_cut = place < 0 or spec.value_close.startswith(text[close:])
                    raise _Fault(reason, inner, behind="nothing" if is_cut else "marks")
                return text[inner + len(_CDATA[0]) : place], close + len(spec.value_close)
        close_mark = spec.value_close.replace("{key}", key)
        place = reading.find(close_mark, at)
        if "open_parameters" in reading.lenient:
            # Only where the value would swallow the next parameter, the end of the call or the next call.
            other, _ = reading.first((*self._keys, *self._closes, *self.opens), at)
            if other >= 0 and (place < 0 or other < place) and reading.allows("open_parameters"):
                return self._trim(text[at:other], space=True), other
        if place < 0:
            if reading.allows("open_calls"):
                end = reading.without_cut_mark((close_mark, *self._closes), at)
                return self._trim(text[at:end]), len(text)
            # Such a value goes on to the text's end, and may hold the marks that close calls.
            raise _Fault(f"the value of {key[:40]!r} is not closed; expected {close_mark}", at, behind="calls")
        opened, _ = reading.first(self._stops, at)
        if 0 <= opened < place and 0 <= reading.first(self._keys, opened)[0] < place:
            # Not a text about a mark: the next call begins here, and its first value would end this one.
            raise _Fault(f"the value of {key[:40]!r} is not closed before the next call; expected {close_mark}", at)
        return self._trim(text[at:place]), place + len(close_mark)

    def _trim(self, value: str, *, space: bool = False) -> str:
        if self._spec.trim == "space" or (space and self._spec.trim == "nothing"):
            return value.strip()
        if self._spec.trim == "lines" and len(value) > 1 and value[0] == value[-1] == "\n":
            return value[1:-1]
        return value.removeprefix("\n").removesuffix("\n") if self._spec.trim == "newline" else value

    def _read_typed(self, reading: Reading, name: str, key: str, value: str, how: str, kind: str) -> Any:
        shape = reading.parameter(name, key)
        if kind and kind != "any":
            base = kind.partition("[")[0].strip()
            named = Shape({"type": base}).kinds
            if shape is None or (len(shape.kinds) > 1 and set(named) <= set(shape.kinds)):
                shape = Shape({"type": base})
        if how == "text":
            if shape is not None and "schema_over_mark" in reading.lenient:
                changed = typed(value, shape)
                if changed != value and reading.allows("schema_over_mark"):
                    return changed
            return value
        untyped = "json" if how == "json" else self._spec.untyped
        return typed(value, shape, untyped=untyped, none=self._none, other=self._other)

    def _unwrap(self, reading: Reading, arguments: dict[str, Any], shape: Shape | None) -> dict[str, Any]:
        if "unwrap" not in reading.lenient or len(arguments) != 1 or shape is None:
            return arguments
        ((key, value),) = arguments.items()
        if key in shape.keys or key not in ("arguments", "properties", "parameters", "input"):
            return arguments
        if isinstance(value, str):
            loaded = load(value)
            if isinstance(loaded, str) and "python_literals" in reading.lenient:
                try:
                    found, end = value_at(Reading(value, None, reading.lenient), 0)
                    loaded = (found,) if not value[end:].strip() else loaded
                except Broken:
                    return arguments
                reading.used.append("python_literals")
            value = None if isinstance(loaded, str) else loaded[0]
        return value if isinstance(value, dict) and reading.allows("unwrap") else arguments

    def _unknown_reason(self, reading: Reading, name: str, arguments: dict[str, Any]) -> str:
        """The reason why a call of an unknown tool or parameter is none, for families where that decides."""
        known = self._spec.known
        if known == "anything" or not reading.tools:
            return ""
        shape = reading.shape(name)
        if shape is None:
            return f"there is no tool {name[:40]!r}"
        if known == "parameters":
            keys = shape.keys
            extra = [key for key in arguments if key not in keys]
            if extra and reading.allows("extra_parameters"):
                for key in extra:
                    del arguments[key]
            elif extra:
                return f"{name} has no parameter {extra[0][:40]!r}; expected {', '.join(keys) or 'none'}"
            lacking = [key for key in shape.required if key not in arguments]
            if lacking:
                return f"{name} is called without {lacking[0][:40]!r}, which it requires"
        return ""
