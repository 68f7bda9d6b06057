"""The state that grammars share while they read one message: positions, schemas, values and the count of leniencies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from rlenv.dialects.base import malformed_call
from rlenv.dialects.json_text import Strings, load
from rlenv.dialects.schema import Shape, by_name, parameters_of, shape_of
from rlenv.messages import MalformedCall, ToolCall

__all__ = ["Call", "Form", "MarkPositions", "Outcome", "Reading", "RefusedValue", "by_name", "malformed", "refusal"]
__all__ += ["skip_blank", "skip_space", "typed", "typed_strings"]

Call = ToolCall | MalformedCall
Outcome = tuple[list[Call], int, bool]
"""The calls, where reading goes on, and whether the text's end left the call open."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BLANK: Final = re.compile(r"\s*")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_LONE: Final = re.compile(r"[\ud800-\udfff]")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_MOST_DIGITS: Final = 308
_MOST_CHARS: Final = 400
"""No number that is meant is written longer."""


class RefusedValue(ValueError):
    """A value that JSON cannot hold; the message is the reason, written for the model."""


class Form(Protocol):
    """One way of writing calls. `read` is total, and linear over all calls of a message."""

    opens: tuple[str, ...]
    at_start: bool

    def begins(self, text: str, begin: int) -> bool:
        """True if what stands at `begin`, behind an opening mark, can be a call."""
        ...

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        """The calls whose mark stands at `start` and whose body starts at `begin`."""
        ...


class MarkPositions:
    """Positions of marks in a text that is read from left to right; no text is searched twice for one mark."""

    __slots__ = ("_found", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, tuple[int, int]] = {}

    def find(self, mark: str, at: int) -> int:
        """The first place of `mark` from `at` on, -1 where there is none."""
        last = self._found.get(mark)
        if last is not None and last[0] <= at and (last[1] < 0 or last[1] >= at):
            return last[1]
        place = self.text.find(mark, at)
        self._found[mark] = (at, place)
        return place

    def first(self, marks: Iterable[str], at: int) -> tuple[int, str]:
        """The place and text of the first of several marks (the longest at one place); -1 and "" without any."""
        best, first_mark = -1, ""
        for mark in marks:
            place = self.find(mark, at)
            if place >= 0 and (best < 0 or place < best or (place == best and len(mark) > len(first_mark))):
                best, first_mark = place, mark
        return best, first_mark


class Reading(MarkPositions):
    """One message while it is read; used by one parse."""

    __slots__ = ("_shapes", "_strings", "has_surrogates", "lenient", "limit", "tools", "used")

    def __init__(self, text: str, tools: Any, lenient: frozenset[str]) -> None:
        super().__init__(text)
        self.tools = tools  # by name, or as they were given until a tool is looked for
        self.lenient = lenient
        self.used: list[str] = []
        # Where a lenient reading of a string ends at the latest: at the next call, or it would read to the text's end
        # once for each call.
        self.limit = len(text)
        # Half a surrogate pair cannot be written as UTF-8; without one in the message no call holds one.
        self.has_surrogates = not text.isascii() and _LONE.search(text) is not None
        self._strings: dict[Any, Strings] = {}
        self._shapes: dict[str, Shape | None] = {}

    def strings(self, form: Any = None, *, raw: bool = False) -> Strings:
        """The text's JSON strings, with what `form` knows of them; the same each time."""
        found = self._strings.get(form)
        if found is None:
            found = self._strings[form] = Strings(self.text, raw=raw)
        return found

    def recover(self, at: int, closes: tuple[str, ...], opens: tuple[str, ...]) -> tuple[int, bool]:
        """The position at which reading goes on after a broken call: behind its closing mark, before the next call, at
        the end.
        """
        close, mark = self.first(closes, at)
        next_call, _ = self.first(opens, at)
        if close >= 0 and (next_call < 0 or close <= next_call):
            return close + len(mark), False
        return (next_call, False) if next_call >= 0 else (len(self.text), True)

    def allows(self, leniency: str) -> bool:
        """True if a leniency is on; its use is counted."""
        if leniency not in self.lenient:
            return False
        self.used.append(leniency)
        return True

    def without_cut_mark(self, marks: Iterable[str], begin: int) -> int:
        """The end of the text without a beginning of one of `marks` at its end."""
        text, end = self.text, len(self.text)
        for mark in marks:
            for size in range(min(len(mark) - 1, end - begin), 0, -1):
                if text.endswith(mark[:size]):
                    end = min(end, len(text) - size)
                    break
        return end

    def shape(self, name: str) -> Shape | None:
        """The schema of a tool's parameters, None where the tool is not known."""
        if not self.tools:
            return None
        if name in self._shapes:
            return self._shapes[name]
        if not isinstance(self.tools, Mapping):
            self.tools = by_name(self.tools)
        tool = self.tools.get(name)
        shape = self._shapes[name] = None if tool is None else shape_of(parameters_of(tool))
        return shape

    def parameter(self, name: str, key: str) -> Shape | None:
        """The schema of one parameter of a tool, None where there is none."""
        shape = self.shape(name)
        return None if shape is None else shape.at_key(key)

    def properties(self, name: str) -> Mapping[str, Shape | None] | None:
        """The parameters of a tool by name, None where the tool is not known."""
        shape = self.shape(name)
        return None if shape is None else {key: shape.at_key(key) for key in shape.keys}

    def only_parameter(self, name: str) -> str | None:
        """The tool's only parameter, or the only one that it requires."""
        shape = self.shape(name)
        if shape is None:
            return None
        for keys in (shape.keys, shape.required):
            if len(keys) == 1:
                return keys[0]
        return None


def malformed(text: str, reason: str, start: int, end: int, name: str | None = None) -> MalformedCall:
    """The broken call that stands from `start` to `end`."""
    return malformed_call(text[start:end], reason, start, end, name or None)


def _types_of(schema: Any) -> tuple[str, ...]:
    """The types that a parameter's schema allows, in the order in which they are tried; () where it does not say."""
    if schema is None:
        return ()
    return schema.kinds if isinstance(schema, Shape) else shape_of(schema).kinds


def typed(
    text: str,
    schema: Any,
    *,
    untyped: str = "text",
    none: bool = False,
    other: Callable[[str], tuple[Any] | str] | None = None,
) -> Any:
    """A value written as text, in the type that the parameter's schema asks for; the text itself where it fits none.

    Where the schema allows no text, a value that is JSON is what the JSON says. Whether it then fits the schema is not
    decided here: the call's arguments are checked before a tool runs.

    Args:
        schema: a schema, or its shape.
        untyped: how a value without a type is read: "text", or "json" where it is JSON.
        none: `None` stands for null, also where the schema allows a text.
        other: reads what is no JSON, as `load` does.

    Raises:
        Refused: it is meant as JSON and is what no value may be (see `refusal`), where the schema asks for no text.
    """
    kinds = _types_of(schema)
    if not kinds:
        if untyped == "text":
            return text
        value = _load_value(text, other)
        if isinstance(value, str):
            _refuse(text)
            return text
        return value[0]
    bare = text.strip()
    for kind in kinds:
        if kind == "null" and (bare.lower() == "null" or (bare.lower() == "none" and (none or "string" not in kinds))):
            return None
        if kind == "integer" and _INTEGER.fullmatch(bare) and _is_small(bare, kinds):
            return int(bare)
        if kind == "number" and _NUMBER.fullmatch(bare) and _is_small(bare, kinds):
            return int(bare) if _INTEGER.fullmatch(bare) else float(bare)
        if kind == "boolean" and bare.lower() in ("true", "false"):
            return bare.lower() == "true"
        if kind in ("object", "array"):
            value = _load_value(bare, other)
            if not isinstance(value, str) and isinstance(value[0], dict if kind == "object" else list):
                return value[0]
    if "string" not in kinds:
        value = load(bare)
        if not isinstance(value, str):
            return value[0]
        if "number" in kinds and _NOT_FINITE.fullmatch(bare):
            raise RefusedValue(f"{bare[:12]!r} is not JSON; expected a finite number")
        _refuse(bare)
    return text


def _is_small(number: str, kinds: tuple[str, ...]) -> bool:
    """True if a double's range holds the number; one that it does not is a text where the schema allows texts."""
    if len(number) <= _MOST_CHARS and (
        len(number.lstrip("+-")) <= _MOST_DIGITS if _INTEGER.fullmatch(number) else abs(float(number)) != float("inf")
    ):
        return True
    if "string" not in kinds:
        raise RefusedValue(f"the number {number[:12]!r} is out of range, or longer than {_MOST_DIGITS} digits")
    return False


def _refuse(text: str) -> None:
    """Raises `RefusedValue` where `text` is JSON but for what no value may be."""
    reason = refusal(text)
    if reason:
        raise RefusedValue(reason)


def refusal(text: str) -> str:
    """The reason to refuse a value that a careless reader would take for JSON; "" where such a reader takes none
    either.

    That is NaN, infinities, numbers out of range, keys that stand twice, lone surrogates and too many levels.
    """
    bare = text.strip()
    if not bare or bare[0] not in '{["0123456789-NI':
        return ""
    reason = load(bare)
    if not isinstance(reason, str):
        return ""
    try:
        json.loads(bare)
    except RecursionError:
        return reason
    except ValueError as error:
        return reason if str(error).startswith("Exceeds the limit") else ""
    return reason


def _load_value(text: str, other: Callable[[str], tuple[Any] | str] | None) -> tuple[Any] | str:
    value = load(text)
    return other(text) if other is not None and isinstance(value, str) else value


def as_text(value: Any) -> str:
    """A value as tagged formats write it: strings bare, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def skip_space(text: str, at: int) -> int:
    """The end of the white space at `at`, of the four signs that JSON allows."""
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at


def skip_blank(text: str, at: int) -> int:
    """The end of the white space at `at`, of any kind."""
    match = _BLANK.match(text, at)
    return match.end() if match is not None else at


def typed_strings(reading: Reading, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, in which a text that stands for another type is of the type that its schema asks for."""
    properties: Mapping[str, Any] = reading.properties(name) or {}
    out = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, str) and key in properties:
            with suppress(RefusedValue):  # it stays the string that it is in the JSON
                out[key] = typed(value, properties[key])
    if out != arguments:
        reading.used.append("typed_strings")
    return out
