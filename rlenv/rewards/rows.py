"""Equality of query results, and whether a query orders them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.rewards.compare import is_number

__all__ = ["Table", "orders_rows", "read_table", "same_rows"]

# Both bound the time that a comparison may hold the event loop.
_MAX_ORDERINGS = 720
_MAX_SEARCHED = 200

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A query's result. `is_cut` is true where the tool left rows out."""

    rows: tuple[Row, ...]
    is_cut: bool = False


def read_table(value: Any) -> Table | None:
    """A tool's value as a table, None where it is none.

    Read are an object or mapping with `rows` (and `truncated`), and a list of rows; a row is a list, a tuple or a
    mapping, whose values count in their order.
    """
    cut = False
    if isinstance(value, Mapping):
        cut, value = bool(value.get("truncated", False)), value.get("rows")
    elif hasattr(value, "rows"):
        cut, value = bool(getattr(value, "truncated", False)), value.rows
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return None
    rows: list[Row] = []
    for row in value:
        if isinstance(row, Mapping):
            rows.append(tuple(row.values()))
        elif isinstance(row, (list, tuple)):
            rows.append(tuple(row))
        else:
            return None
    return Table(tuple(rows), cut)


def same_rows(
    mine: Sequence[Row],
    gold: Sequence[Row],
    *,
    ordered: bool,
    tolerance: float = 1e-6,
    any_column_order: bool = False,
) -> bool:
    """Whether two results hold the same rows, as often as each other, and in the same order where `ordered`.

    NULLs are equal, 1 is 1.0, numbers may differ by `tolerance` (relative, or absolute near zero), texts and bytes
    must be identical. With `any_column_order`, some one order of the columns has to make them equal.
    """
    if len(mine) != len(gold):
        return False
    if not gold:
        return True
    width = len(gold[0])
    if any(len(row) != width for row in mine) or any(len(row) != width for row in gold):
        return False
    if _match(mine, gold, ordered, tolerance):
        return True
    if not any_column_order or width < 2:
        return False
    for order in _orders(mine, gold, width, tolerance):
        if _match([tuple(row[index] for index in order) for row in mine], gold, ordered, tolerance):
            return True
    return False


def _orders(mine: Sequence[Row], gold: Sequence[Row], width: int, tolerance: float) -> Sequence[tuple[int, ...]]:
    # Only columns with equal contents can stand for each other, which leaves few orders to try.
    fits = [
        [
            source
            for source in range(width)
            if _match([(row[source],) for row in mine], [(row[target],) for row in gold], False, tolerance)
        ]
        for target in range(width)
    ]
    twins: dict[Row, list[int]] = {}
    for source in range(width):
        twins.setdefault(tuple(_hashable(row[source]) for row in mine), []).append(source)
    # Columns that are equal in every row are interchangeable: they are taken from left to right only.
    before = {twin: group[:index] for group in twins.values() for index, twin in enumerate(group)}
    orders: list[tuple[int, ...]] = [()]
    for target in range(width):
        orders = [
            (*order, source)
            for order in orders
            for source in fits[target]
            if source not in order and all(twin in order for twin in before[source])
        ]
        orders = orders[:_MAX_ORDERINGS]
    return orders


def _match(mine: Sequence[Row], gold: Sequence[Row], ordered: bool, tolerance: float) -> bool:
    if ordered:
        return all(_near(a, b, tolerance) for a, b in zip(mine, gold, strict=True))
    left, right = Counter(map(_key, mine)), Counter(map(_key, gold))
    if left == right:
        return True
    if not tolerance:
        return False
    # What is not identical may still be near: pair those rows off.
    open_mine, open_gold = list((left - right).elements()), list((right - left).elements())
    if len(open_mine) > _MAX_SEARCHED:
        pairs = zip(sorted(open_mine, key=_order), sorted(open_gold, key=_order), strict=True)
        return all(_near(a, b, tolerance) for a, b in pairs)
    for row in open_mine:
        for index, other in enumerate(open_gold):
            if _near(row, other, tolerance):
                del open_gold[index]
                break
        else:
            return False
    return True


def _key(row: Row) -> Row:
    return tuple(_hashable(value) for value in row)


def _hashable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None  # SQL knows no NaN; it stores NULL
    if isinstance(value, (list, dict)):
        return repr(value)
    return value


def _order(row: Row) -> tuple[tuple[int, float, str], ...]:
    return tuple(
        (0, 0.0, "") if value is None else (1, value, "") if is_number(value) else (2, 0.0, repr(value))
        for value in row
    )


def _near(mine: Row, gold: Row, tolerance: float) -> bool:
    for a, b in zip(mine, gold, strict=True):
        if a == b:
            continue
        if is_number(a) and is_number(b):
            if not math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance):
                return False
        elif _hashable(a) != _hashable(b):
            return False
    return True


def orders_rows(query: str) -> bool:
    """Whether a SQL query has an ORDER BY of its own, outside parentheses, strings, quoted names and comments.

    Only then does the order of its rows mean something: one inside a subquery or a window does not order the result.
    """
    depth = 0
    previous = ""
    index, end = 0, len(query)
    while index < end:
        char = query[index]
        if char in "'\"`" or char == "[":
            index = _after_quoted(query, index, "]" if char == "[" else char)
            previous = ""
        elif query.startswith("--", index):
            stop = query.find("\n", index)
            index = end if stop < 0 else stop + 1
        elif query.startswith("/*", index):
            stop = query.find("*/", index + 2)
            index = end if stop < 0 else stop + 2
        elif char.isalpha() or char == "_":
            start = index
            while index < end and (query[index].isalnum() or query[index] in "_$"):
                index += 1
            word = query[start:index].lower()
            if depth == 0 and previous == "order" and word == "by":
                return True
            previous = word
        else:
            if char == "(":
                depth += 1
            elif char == ")":
                depth = max(0, depth - 1)
            if not char.isspace():
                previous = ""
            index += 1
    return False


def _after_quoted(query: str, index: int, closing: str) -> int:
    index += 1
    while (stop := query.find(closing, index)) >= 0:
        # A doubled quote stands for itself; brackets have no such form.
        if closing == "]" or query[stop + 1 : stop + 2] != closing:
            return stop + 1
        index = stop + 2
    return len(query)
