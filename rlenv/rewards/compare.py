"""Equality of values that tools return: plain, JSON (read so that whole numbers keep all digits), numbers and texts.

Rows of a query are in `rows`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from rlenv._base.strict_json import DuplicateKey, count_keys, has_keys, unique

__all__ = ["MAX_JSON", "DuplicateKey", "holds", "is_number", "loads", "near", "same_json"]

_NOISE = 1e-9
_MAX_NOISE = 0.01
_FLOAT_WHOLE = 2.0**53


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def near(mine: float, gold: float, *, relative: float, absolute: float) -> bool:
    """Whether two numbers are the same, up to a difference that only fractions may have.

    Whole numbers are equal or not: identifiers, counts and years are no measurements. A fraction that is a whole
    number but for the noise of floating point is that number; two fractions may differ by `relative` of the larger
    one, or by `absolute`.
    """
    if mine == gold:
        return True
    if not (relative or absolute):
        return False
    try:
        if _is_whole(mine) and _is_whole(gold):
            # Beyond that a float holds whole numbers alone, and sums of fractions end on one.
            is_float = isinstance(mine, float) and isinstance(gold, float) and abs(mine) >= _FLOAT_WHOLE
            return is_float and math.isclose(mine, gold, rel_tol=_NOISE)
        if _is_whole(mine) or _is_whole(gold):
            return abs(mine - gold) < _MAX_NOISE and math.isclose(mine, gold, rel_tol=_NOISE, abs_tol=_NOISE)
        return math.isclose(mine, gold, rel_tol=relative, abs_tol=absolute)
    except OverflowError:  # an integer that no float holds, and another
        return False


def _is_whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()


def same_json(mine: Any, gold: Any, *, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, true is not 1, keys have no order, lists have one.

    Args:
        mine: one value.
        gold: the other.
        tolerance: numbers may differ by this share of the larger one, or by this much near zero; whole numbers may
            not.
    """
    return _same(mine, gold, tolerance, subset=False)


def holds(mine: Any, gold: Any, *, tolerance: float = 0.0) -> bool:
    """Whether `mine` equals `gold` where objects of `mine` may have more keys."""
    return _same(mine, gold, tolerance, subset=True)


def _same(mine: Any, gold: Any, tolerance: float, *, subset: bool) -> bool:
    # An explicit stack: a policy may nest its JSON deeper than Python's recursion goes.
    pairs = [(mine, gold)]
    while pairs:
        a, b = pairs.pop()
        if is_number(a) and is_number(b):
            if not near(a, b, relative=tolerance, absolute=tolerance):
                return False
        elif isinstance(a, Mapping) and isinstance(b, Mapping):
            if (len(a) != len(b) and not subset) or any(key not in a for key in b):
                return False
            pairs.extend((a[key], b[key]) for key in b)
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif type(a) is not type(b) or a != b:
            return False
    return True


MAX_JSON = 131_072
"""What a policy wrote is read as JSON up to this length, which takes some milliseconds on the event loop."""

# A float holds 15 to 17 digits; a run of fewer is read the same by everybody.
_LONG = re.compile(r"\d{16}")


def loads(text: str) -> Any:
    """The value of a JSON text, strictly read: no NaN, nothing beyond a float, nothing nested past 1,000 levels.

    Raises:
        ValueError: it is not JSON, or too deep; DuplicateKey where an object has a key twice.
    """
    value = orjson.loads(text)
    keys = count_keys(value, 1_000) if isinstance(value, (dict, list)) else 0
    if has_keys(text, keys) and _LONG.search(text) is None:
        return value
    try:  # what the strict reader took, where it makes floats of integers beyond 64 bit and keeps the last of two keys
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        return value
