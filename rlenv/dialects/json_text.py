"""JSON in a text: where values stand, what stands outside their strings, and an object read strictly as a call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from rlenv._base.strict_json import (
    EXACT,
    MAX_DEPTH,
    count_keys,
    exact,
    has_keys,
    kind_of,
    load,
    missing_brackets,
    reason_of,
)

__all__ = ["DECODER", "MAX_DEPTH", "NEAR", "RAW_DECODER", "Extent", "Strings", "elements", "escaped_strings"]
__all__ += ["json_call_reader", "load", "missing_brackets", "shaper", "value_end", "with_ids"]

# One that is not closed goes on to the text's end, or it would be looked through once for each quote in it.
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_CONTROL: Final = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)
_PLAIN: Final = frozenset({str, int, bool, type(None)})


def json_call_reader(*, name_key: str, arguments_key: str) -> Callable[[str], tuple[str, dict[str, Any]] | str]:
    """A function of a call's body to the tool's name and its arguments, or to the reason why it has none.

    The function never raises and takes linear time; reasons are written for the model. Integers keep every digit, up
    to the 308 that a double's range allows. Refused are duplicate keys anywhere, NaN and infinities, numbers out of
    range, lone surrogates, more than `MAX_DEPTH` levels, a missing or empty name, and arguments that are no object.
    Keys beside the two are ignored.
    """
    shape = shaper(name_key=name_key, arguments_keys=(arguments_key,))

    def read_call(body: str) -> tuple[str, dict[str, Any]] | str:
        try:
            read = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return reason_of(body, error.pos)
        # The common call needs no further look: numbers of ordinary size, no key twice.
        if type(read) is dict and len(read) == 2:
            name, arguments = read.get(name_key), read.get(arguments_key)
            if type(name) is str and type(arguments) is dict and name:
                keys = 2 + len(arguments)
                for value in arguments.values():
                    kind = type(value)
                    if kind in _PLAIN:
                        continue
                    if kind is dict or kind is list:
                        inner = count_keys(value, MAX_DEPTH - 2)
                        if inner < 0:
                            break
                        keys += inner
                    elif not -EXACT < value < EXACT:
                        break
                else:
                    if body.count(":") == keys or has_keys(body, keys):
                        return name, arguments
        value = exact(body, read)
        return value if isinstance(value, str) else shape(value[0])

    return read_call


def shaper(
    *, name_key: str, arguments_keys: Sequence[str], arguments_as_text: bool = False
) -> Callable[[Any], tuple[str, dict[str, Any]] | str]:
    """A function of a JSON value to the tool's name and its arguments, or to the reason why it has none.

    Args:
        arguments_as_text: also accept arguments given as a JSON text, as OpenAI's wire format has them.
    """
    first_key = arguments_keys[0]
    expected = f'{{"{name_key}": …, "{first_key}": {{…}}}}'

    def shape(read: Any) -> tuple[str, dict[str, Any]] | str:
        if type(read) is not dict:
            return f"the call is {kind_of(read)}; expected one object: {expected}"
        name = read.get(name_key)
        if type(name) is not str or not name:
            if name_key not in read:
                return f'"{name_key}" is missing; expected {expected}'
            found = "empty" if name == "" else kind_of(name)
            return f'"{name_key}" is {found}; expected the name of a tool as a string'
        key = next((key for key in arguments_keys if key in read), first_key)
        arguments = read.get(key)
        if arguments_as_text and type(arguments) is str:
            inner = load(arguments)
            if isinstance(inner, str):
                return f'in the text of "{key}": {inner}'
            arguments = inner[0]
        if type(arguments) is not dict:
            if key not in read:
                return f'"{key}" is missing; expected {expected}, with {{}} where the tool takes none'
            return f'"{key}" is {kind_of(arguments)}; expected an object such as {{"key": "value"}}'
        return name, arguments

    return shape


def with_ids(text: str, key: str, read: list[tuple[Any, str | None]]) -> list[tuple[Any, str | None]]:
    """The calls with the ids that stand under `key` beside their names."""
    value = load(text)
    items = value[0] if isinstance(value, tuple) else ()
    items = [items] if isinstance(items, dict) else items
    if len(items) != len(read):  # read with a leniency
        return read
    ids = [item.get(key) if isinstance(item, dict) else None for item in items]
    texts = [call_id if isinstance(call_id, str) and call_id else None for call_id in ids]
    return [(call, call_id) for (call, _), call_id in zip(read, texts, strict=True)]


def escaped_strings(text: str) -> str:
    """A JSON text with the control characters in its strings escaped."""
    return _STRING.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    """A string with its control characters escaped."""
    return _CONTROL.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\u{ord(found[0]):04x}", match[0])


NEAR: Final = 1024
"""What stands so near is looked for at once."""
_BLOCK: Final = 64
DECODER: Final = json.JSONDecoder()
RAW_DECODER: Final = json.JSONDecoder(strict=False)
_STRICT: Final = re.compile(r'"(?>(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*)')
_RAW: Final = re.compile(r'"(?>(?:[^"\\]++|\\[\s\S])*)')
_VALUE: Final = re.compile(r'\[|\{[ \t\r\n]*(?:["}]|\Z)')
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{},]', re.DOTALL)


def _outside(marks: tuple[str, ...]) -> str:
    """A part of what stands outside strings, up to the first of `marks`."""
    if not marks:
        return '[^"]++'
    firsts = "".join(re.escape(first) for first in sorted({mark[0] for mark in marks}))
    whole = "|".join(map(re.escape, marks))
    return rf'[^"{firsts}]++|(?!{whole})[{firsts}]'


class Strings:
    """The JSON strings of one text, each looked through once.

    A string ends at its quote. Unless it may be `raw`, a control character, which JSON forbids in one, breaks it off,
    as the text's end does.
    """

    __slots__ = ("_broken", "_inside", "_text", "ends")

    def __init__(self, text: str, *, raw: bool) -> None:
        self._text = text
        self._inside = _RAW if raw else _STRICT
        self._broken = (0, 0)
        self.ends: dict[int, int] = {}
        """For `Extent`: where it ends, for places outside strings."""

    def end(self, quote: int) -> tuple[int, bool]:
        """The end of the string at `quote`, behind its closing quote if it is whole, and whether it is."""
        begin, end = self._broken
        if begin <= quote < end:  # a quote within a string that is not closed is escaped: what follows it is the same
            return end, False
        match = self._inside.match(self._text, quote)
        end = match.end() if match is not None else quote
        if self._text.startswith('"', end):
            return end + 1, True
        self._broken = (quote, end)
        return end, False

    def is_broken(self, quote: int) -> bool:
        """True if the string at `quote` is known to be broken off, without a look at the text."""
        begin, end = self._broken
        return begin <= quote < end

    def is_open(self, quote: int) -> bool:
        """True if the string at `quote` goes on to the text's end: nothing but its quote is missing so far."""
        end, is_whole = self.end(quote)
        return not is_whole and self._text[end:] in ("", "\\")


class Extent:
    """Finds the end of a text that begins outside JSON strings: the first of `marks` outside them.

    A string that is broken off ends it too, at its first quote. `whole` runs there at once, once for each question.
    """

    def __init__(self, marks: tuple[str, ...], *, raw: bool) -> None:
        # An atomic group around the repeats, where a possessive repeat of a group says the same: up to Python 3.11.4
        # such a repeat runs past its end (https://github.com/python/cpython/issues/101955). It can go with Python 3.11.
        string = r'"(?:[^"\\]++|\\[\s\S])*+"' if raw else r'"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+"'
        self.whole = re.compile(f"(?>(?:{_outside(marks)}|{string})*)")
        self._outside = re.compile(f"(?>(?:{_outside(marks)})*)")
        self.longest = max(map(len, marks), default=0)

    def end(self, text: str, begin: int, strings: Strings) -> int:
        """That end, from `begin` on. With the same `strings`, all questions together take linear time."""
        # Whether a place stands in a string depends on where one begins to read; but two who are both outside at one
        # place go on alike. So the end is kept for one such place in each block.
        at, block, seen, known = begin, -1, list[int](), strings.ends
        while True:
            if at // _BLOCK != block:
                block = at // _BLOCK
                if (end := known.get(at, -1)) >= 0:
                    break
                seen.append(at)
            edge = (block + 1) * _BLOCK
            match = self._outside.match(text, at, edge + self.longest)
            end = match.end() if match is not None else at
            if edge <= end and edge < len(text):
                at = edge
                continue
            if not text.startswith('"', end):
                break
            at, is_whole = strings.end(end)
            if not is_whole:
                break
        known.update(dict.fromkeys(seen, end))
        return end


def value_end(text: str, at: int, stop: int, *, raw: bool) -> int:
    """The end of the JSON object or list at `at`, at `stop` at the latest; -1 where there is none."""
    if _VALUE.match(text, at) is None:
        return -1
    decoder = RAW_DECODER if raw else DECODER
    # In windows, so that many values in one text cost no more than their length.
    size = 4096
    while True:
        window = text[at : min(at + size, stop)]
        try:
            return at + decoder.raw_decode(window)[1]
        except json.JSONDecodeError as error:
            # What is wrong so far from the window's end stays wrong in a longer one; a string may go on.
            is_sure = error.pos + 16 < len(window) and not error.msg.startswith("Unterminated")
            if is_sure or at + size >= stop:
                return -1
        except (ValueError, RecursionError):
            return -1
        size *= 4


def elements(text: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """The places of the elements of the list in `text[begin:stop]`."""
    depth = 0
    first = -1
    for match in _TOKEN.finditer(text, begin, stop):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth == 1:
                first = match.end()
        elif token in "]}":
            depth -= 1
            if depth == 0:
                yield first, match.start()
                return
        elif token == "," and depth == 1:
            yield first, match.start()
            first = match.end()
