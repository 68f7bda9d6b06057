"""JSON that a model wrote, read strictly and without a lost digit or key, with reasons that lead to the fix.

JSON from outside, bounded before it is parsed: by bytes, by values, by depth and by the length of its numbers.

Parsing turns one byte into as much as a hundred, so that a few megabytes of `{},{},…` are gigabytes of objects and
seconds of work. What is counted here is counted on the bytes, in time that grows with their number alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import orjson

from rlenv._base.bounded import encodable

MAX_DEPTH: Final = 128
"""Arguments nested deeper than this are refused, so that nothing downstream meets a recursion limit."""

_UNSURE: Final = -1
_DEEP: Final = -2
EXACT: Final = 2.0**63  # a float this large may stand for an integer that the C parser could not keep
_COMPLETE: Final = "expected a complete value"
_WORDS: Final = {
    "N": "null stands for no value, and NaN is not JSON",
    "I": "Infinity is not JSON",
    "T": "true and false are written in lower case",
    "F": "true and false are written in lower case",
    "u": "null stands for no value",
    "`": "write the bare JSON without a code fence",
    "'": 'names and strings stand in double quotes (")',
}
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+("?)|[][{}]', re.DOTALL)
# Its template may have written <think> in the prompt; what begins as JSON, or as a block of it, is none.
THINKING: Final = re.compile(r"\A\s*(?![\s{`]).*?</think>", re.DOTALL)
_REPLY_BYTES: Final = 400_000
_LONE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class DuplicateKey(ValueError):
    """A key that stands twice in one object; `key` is that key."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the key {_quote(key)} stands twice in one object; expected it once")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of some pairs, for parsers that take a hook; raises DuplicateKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKey(key)
            seen.add(key)
    return found


_careful = json.JSONDecoder(object_pairs_hook=unique)


def missing_brackets(text: str) -> str | None:
    """The characters that close the strings and brackets left open at the end of `text`; None where too many are
    open.
    """
    is_text, stack = _open_brackets(text)
    return '"' * is_text + "".join(reversed(stack)) if len(stack) <= MAX_DEPTH else None


def _open_brackets(text: str) -> tuple[bool, list[str]]:
    """True where `text` ends within a string, and the brackets that close those left open, the innermost last."""
    stack: list[str] = []
    is_text = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] == '"':
            is_text = not match[1]
        elif token in "{[":
            stack.append("}" if token == "{" else "]")
        elif stack:
            stack.pop()
    return is_text, stack


def load(body: str) -> tuple[Any] | str:
    """The JSON value of `body` in a tuple of one, or the reason why there is none; never raises."""
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return reason_of(body, error.pos)
    return exact(body, read)


def value_fault(value: Any) -> str:
    """The reason why a value that came as data, and not as text, is not JSON; "" where it is."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"they hold what JSON cannot ({str(error)[:80]}); expected finite numbers, texts, lists and objects"
    read = load(text)
    return read if isinstance(read, str) else ""


def stopped_at(body: str) -> int:
    """The position at which a strict parser of `body` stops; -1 where it does not."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return error.pos
    return -1


def has_keys(body: str, keys: int) -> bool:
    """True only where the objects of `body` have `keys` keys in all, counted as written; False where that is unsure.

    Every key brings a colon, and mostly one right behind a quote.
    """
    if body.count(":") == keys:
        return True
    return (
        body.count('":') == keys
        and '\\":' not in body
        and " :" not in body
        and "\n:" not in body
        and "\t:" not in body
        and "\r:" not in body
    )


def exact(body: str, read: Any) -> tuple[Any] | str:
    """The value of what `read` gives, without a lost digit or key, or the reason why it is refused."""
    keys = count_keys(read) if type(read) in (dict, list) else _UNSURE
    if keys == _DEEP:
        return f"the JSON is nested more than {MAX_DEPTH} levels deep; expected a flatter object"
    if keys >= 0 and has_keys(body, keys):
        return (read,)
    try:
        return (_careful.decode(body),)
    except DuplicateKey as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"the JSON cannot be read ({type(error).__name__}); expected one object"


def count_keys(read: Any, levels: int = MAX_DEPTH) -> int:
    """The keys of all objects in `read`; `_UNSURE` where a number may have lost digits, `_DEEP` beyond `levels`."""
    keys = 0
    level: Sequence[Any] = (read,)
    for _ in range(levels):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                keys += len(item)
                item = item.values()
            for value in item:
                kind = type(value)
                if kind is str or kind is int:
                    continue
                if kind is dict or kind is list:
                    below.append(value)
                elif kind is float and not -EXACT < value < EXACT:
                    return _UNSURE
        if not below:
            return keys
        level = below
    return _DEEP


def kind_of(value: Any) -> str:
    """The kind of a JSON value, in words that a reason can go on with."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _quote(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else text[:40] + "…", ensure_ascii=False)


def reason_of(body: str, position: int) -> str:
    """The reason why a strict parser stopped at `position`, in words that lead to the fix; characters are counted from
    1.
    """
    try:
        body.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} of the JSON is not valid Unicode (a lone surrogate)"
    stripped = body.strip(" \t\r\n")
    if not stripped:
        return "the call is empty; expected one JSON object"
    offset = len(body) - len(body.lstrip(" \t\r\n"))
    at = min(max(position - offset, 0), len(stripped))
    place = f"at character {at + 1}"
    if at >= len(stripped):
        return f"the JSON ends too early {place}; {_missing_end(stripped)}"
    if stripped[at] in "0123456789-":
        return f"the number {place} cannot be read; it is out of range or not written as JSON writes numbers"
    found, before = stripped[at], stripped[:at].rstrip(" \t\r\n")[-1:]
    near = _quote(stripped[at : at + 12])
    if found < " ":
        return (
            f"a string holds a line break or control character {place}; expected it escaped, as \\n writes a line break"
        )
    if position > MAX_DEPTH and stripped[:at].count("[") + stripped[:at].count("{") > 1000:
        return f"the JSON {place} is nested too deep; expected at most {MAX_DEPTH} levels"
    if found in _WORDS:
        return f"unexpected {near} {place}; {_WORDS[found]}"
    if found == "\\" and _LONE_ESCAPE.match(stripped, at):
        return f"the string holds half a surrogate pair {place}; expected both halves or the character itself"
    if found == "\\":
        return f'a string holds {near} {place}; expected one of \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX'
    if found == "," and stripped[at + 1 :].lstrip(" \t\r\n")[:1] in ("}", "]"):
        return f"a comma stands behind the last item {place}; expected none before a closing bracket"
    if found == "," or before == ",":
        return f"unexpected {near} {place}; expected one value or key between commas"
    if before in ("}", "]") and _missing_end(stripped[:at]) == _COMPLETE:
        return f"unexpected {near} {place}, after the JSON has ended; expected nothing behind it"
    return f"unexpected {near} {place}; {_expected_next(before)}"


def _missing_end(text: str) -> str:
    """The end that an unfinished text still needs: that of a string, or its closing brackets."""
    is_text, stack = _open_brackets(text)
    if is_text:
        return 'expected the closing " of a string'
    if not stack:
        return _COMPLETE
    closing = "".join(reversed(stack[-8:]))
    return f"expected {closing} to close it" if len(stack) <= 8 else f"expected {len(stack)} closing brackets"


def _expected_next(before: str) -> str:
    if before == "{":
        return "expected a key in double quotes"
    if before in (":", "["):
        return "expected a value"
    return 'expected one JSON object that starts with "{"' if before == "" else "expected , or a closing bracket"


MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 100
"""Deeper than anything that is meant, and shallower than any reader's own limit."""
_MAX_DIGITS: Final = 1_000

_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (_MAX_DIGITS + 1))
_NOT_BRACKETS: Final = bytes(code for code in range(256) if code not in b"[]{}")
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class TooMuchJson(ValueError):
    """A text is over a limit; the message says which, and ends in no punctuation."""


def check_json(data: bytes, *, max_bytes: int, max_values: int = MAX_VALUES, max_depth: int = _MAX_DEPTH) -> None:
    """Looks at a JSON text without parsing it. What is no JSON passes: whoever parses it says so.

    Raises:
        TooMuchJson: it is longer than `max_bytes`, holds more than about `max_values` values, is nested deeper than
            `max_depth`, or has a number of more than a thousand digits.
    """
    if len(data) > max_bytes:
        raise TooMuchJson(f"it is longer than {max_bytes:,} bytes")
    opened = data.count(b"[") + data.count(b"{")
    if opened + data.count(b",") < max_values and opened <= max_depth and len(data) <= _MAX_DIGITS:
        return
    # A value is at most two texts with its key, so that more quotes than these are too many values already.
    escaped = data.count(b"\\")
    if data.count(b'"') - escaped > 4 * max_values + 4:
        raise TooMuchJson(f"it holds more than {max_values:,} values")
    if escaped:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if data.count(b'"') > 4 * max_values + 4:
        raise TooMuchJson(f"it holds more than {max_values:,} values")
    bare = b"".join(data.split(b'"')[::2])  # what stands between the texts
    opened = bare.count(b"[") + bare.count(b"{")
    if opened + bare.count(b",") >= max_values:
        raise TooMuchJson(f"it holds more than {max_values:,} values")
    if opened > max_depth:
        brackets = bare.translate(None, _NOT_BRACKETS)
        if max(accumulate(map(_STEP.__getitem__, brackets))) > max_depth:
            raise TooMuchJson(f"it is nested deeper than {max_depth} levels")
    if len(bare) > _MAX_DIGITS and _LONG_NUMBER.search(bare):
        raise TooMuchJson(f"it holds a number of more than {_MAX_DIGITS:,} digits")


def read_json(data: bytes, *, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON text that is within the limits; of a key that comes twice the last value counts.

    Raises:
        TooMuchJson: see `check_json`.
        ValueError: it is not JSON (RFC 8259): NaN and lone surrogates are refused.
    """
    check_json(data, max_bytes=max_bytes, max_values=max_values)
    return orjson.loads(data)


MOST_BEYOND_JSON: Final = 500_000
"""So much is read of what Python writes and no JSON has: its own reader holds the event loop ten times as long."""


def read_sent(data: bytes, *, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """As `read_json`, of what clients pass on of a model's words in JSON that is none: Python's writes halves of
    surrogate pairs, NaN and Infinity.

    Raises:
        TooMuchJson: see `check_json`; or it is no JSON, and longer than `MOST_BEYOND_JSON`.
        ValueError: it is nothing that Python's JSON reads either.
    """
    try:
        return read_json(data, max_bytes=max_bytes, max_values=max_values)
    except TooMuchJson:
        raise
    except ValueError as error:
        if len(data) > MOST_BEYOND_JSON:
            raise TooMuchJson(f"it is long, and no JSON: {error}") from error
        try:
            return json.loads(data.decode())
        except (ValueError, RecursionError):
            raise error from None


def object_in(reply: str) -> dict[str, Any]:
    """The JSON object in a model's reply, thinking before it and words around it left out.

    Raises:
        ValueError: there is none; the message says what was found, for the model as well.
    """
    text = THINKING.sub("", reply)
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise ValueError("the reply holds no JSON object")
    data = encodable(text[start : end + 1]).encode()
    try:
        check_json(data, max_bytes=_REPLY_BYTES)
        read: dict[str, Any] = orjson.loads(data)  # what begins with a brace is an object
    except TooMuchJson as error:
        raise ValueError(f"the reply's JSON is too much: {error}") from error
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the reply is not one JSON object: {error}") from error
    return read
