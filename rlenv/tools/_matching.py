"""Comparison of a value that a policy's code gave with the expected one; runs in the tests' sandbox.

This file imports nothing of rlenv. Both values are plain data by then (see `_exchange`): no method of the code's is
called.
"""

from __future__ import annotations

import collections
import contextlib
import decimal
import fractions
import math
from collections.abc import Set
from typing import Any


def matches(found: Any, expected: Any, by: str, tolerance: float, relative: float) -> bool:
    """True if a value is the expected one.

    `exact` asks for the same types at every depth; `equal` takes a tuple for a list, a whole float for an integer, and
    NaN where NaN is expected; `unordered` is `equal` in which the order of the outermost list does not count. Numbers
    may differ by `tolerance`, or by `relative` times the expected one.
    """
    if by == "unordered" and isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        return _same_items(list(found), expected, tolerance, relative)
    numbers = (int, float, complex, decimal.Decimal, fractions.Fraction)
    if by == "exact" and type(found) is not type(expected):
        return False
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, numbers) and isinstance(expected, numbers):
        return _is_near(found, expected, tolerance, relative)
    inner = "exact" if by == "exact" else "equal"
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(
            matches(mine, gold, inner, tolerance, relative) for mine, gold in zip(found, expected, strict=True)
        )
    if isinstance(found, dict) and isinstance(expected, dict):
        return _same_keys(found.keys(), expected.keys()) and all(
            matches(found[key], gold, inner, tolerance, relative) for key, gold in expected.items()
        )
    if isinstance(expected, (set, frozenset)):
        return type(found) is type(expected) and _same_keys(found, expected)
    return bool(type(found) is type(expected) and found == expected)


def _same_keys(found: Set[Any], expected: Set[Any]) -> bool:
    """Equal, and `True` is not 1."""
    return found == expected and sum(key is True or key is False for key in found) == sum(
        key is True or key is False for key in expected
    )


def _same_items(found: list[Any], expected: Any, tolerance: float, relative: float) -> bool:
    if len(found) != len(expected):
        return False
    if not (tolerance or relative):
        # What is equal goes first, by a table: else all permutations of seven, backwards, take more than a test's time.
        found, expected = _unmatched_items(found, expected), _unmatched_items(expected, found)
    for gold in expected:
        for place, mine in enumerate(found):
            if matches(mine, gold, "equal", tolerance, relative):
                del found[place]
                break
        else:
            return False
    return True


def _unmatched_items(items: Any, others: Any) -> list[Any]:
    """The items that have no equal among the others, as often as it stands there."""
    paired = collections.Counter(map(_equality_key, others))
    left = []
    for item in items:
        key = _equality_key(item)
        if key is not None and paired[key]:
            paired[key] -= 1
        else:
            left.append(item)
    return left


def _equality_key(value: Any) -> Any:
    """Equal only for values that match each other with `equal`; None for what has none, and for what holds it."""
    if isinstance(value, (list, tuple)):
        keys = tuple(map(_equality_key, value))
        return None if None in keys else (list, keys)
    if isinstance(value, (bool, str, bytes)):
        return type(value), value
    if isinstance(value, (int, float)) and value == value:
        return float, value
    return None


def _is_near(found: Any, expected: Any, tolerance: float, relative: float) -> bool:
    if found == expected or (found != found and expected != expected):
        return True
    if not (tolerance or relative):
        return False
    with contextlib.suppress(OverflowError, TypeError, ValueError, decimal.InvalidOperation):
        apart = abs(complex(found) - complex(expected))
        return bool(math.isfinite(apart) and apart <= max(tolerance, relative * abs(complex(expected))))
    return False


def short_repr(value: Any) -> str:
    """A value in a message."""
    try:
        return repr(value)[:200]
    except ValueError:  # an integer of more digits than Python writes
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
