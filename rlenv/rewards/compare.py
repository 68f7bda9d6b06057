"""Equality of values that tools return: plain, JSON, numbers and texts. Rows of a query are in `rows`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["holds", "is_number", "same_json"]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same_json(mine: Any, gold: Any, *, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, true is not 1, keys have no order, lists have one.

    Args:
        mine: one value.
        gold: the other.
        tolerance: numbers may differ by this share of the larger one, or by this much near zero.
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
            if a != b and not (tolerance and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)):
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
