"""JSON from outside, bounded before it is parsed: by bytes, by values, by depth and by the length of its numbers.

Parsing turns one byte into as much as a hundred, so that a few megabytes of `{},{},…` are gigabytes of objects and
seconds of work. What is counted here is counted on the bytes, in time that grows with their number alone.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final

import orjson

__all__ = ["MAX_VALUES", "_MAX_DEPTH", "TooMuchJson", "check_json", "read_json"]

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


def read_json(data: bytes, *, max_bytes: int, max_values: int = MAX_VALUES, max_depth: int = _MAX_DEPTH) -> Any:
    """The value of a JSON text that is within the limits; of a key that comes twice the last value counts.

    Raises:
        TooMuchJson: see `check_json`.
        ValueError: it is not JSON (RFC 8259): NaN and lone surrogates are refused.
    """
    check_json(data, max_bytes=max_bytes, max_values=max_values, max_depth=max_depth)
    return orjson.loads(data)
