"""The body grammar `json`: one object that names a tool and gives its arguments, read strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

__all__ = ["MAX_DEPTH", "escaped_strings", "json_call_reader", "load", "missing_brackets", "shaper", "with_ids"]

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
    shaped = shaper(name_key=name_key, arguments_keys=(arguments_key,))

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
                    if has_keys(body, keys):
                        return name, arguments
        value = exact(body, read)
        return value if isinstance(value, str) else shaped(value[0])

    return read_call


def shaper(
    *, name_key: str, arguments_keys: Sequence[str], arguments_as_text: bool = False
) -> Callable[[Any], tuple[str, dict[str, Any]] | str]:
    """A function of a JSON value to the tool's name and its arguments, or to the reason why it has none.

    Args:
        arguments_as_text: also accept arguments given as a JSON text, as OpenAI's wire format has them.
    """
    shown = arguments_keys[0]
    expected = f'{{"{name_key}": …, "{shown}": {{…}}}}'

    def shaped(read: Any) -> tuple[str, dict[str, Any]] | str:
        if type(read) is not dict:
            return f"the call is {kind_of(read)}; expected one object: {expected}"
        name = read.get(name_key)
        if type(name) is not str or not name:
            if name_key not in read:
                return f'"{name_key}" is missing; expected {expected}'
            found = "empty" if name == "" else kind_of(name)
            return f'"{name_key}" is {found}; expected the name of a tool as a string'
        key = next((key for key in arguments_keys if key in read), shown)
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

    return shaped


def with_ids(text: str, key: str, read: list[tuple[Any, str | None]]) -> list[tuple[Any, str | None]]:
    """The calls with the ids that stand under `key` beside their names."""
    value = load(text)
    items = value[0] if isinstance(value, tuple) else ()
    items = [items] if isinstance(items, dict) else items
    if len(items) != len(read):  # read with a leniency
        return read
    ids = [item.get(key) if isinstance(item, dict) else None for item in items]
    known = [given if isinstance(given, str) and given else None for given in ids]
    return [(call, given) for (call, _), given in zip(read, known, strict=True)]


def escaped_strings(text: str) -> str:
    """A JSON text with the control characters in its strings escaped."""
    return _STRING.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """A string with its control characters escaped."""
    return _CONTROL.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\u{ord(found[0]):04x}", match[0])
