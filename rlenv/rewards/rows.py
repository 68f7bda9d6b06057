"""Equality of query results, and whether a query orders them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.rewards.normalise import is_number, near

# Both bound the time that a comparison takes.
_MAX_CELLS = 200_000
_MAX_SEARCHED = 10_000  # pairs of rows
_MAX_DEPTH = 100  # of lists and mappings in a cell

_DIRECTION = re.compile(r"\s(?:asc|desc)?\s*(?:nulls\s+(?:first|last))?\s*$", re.IGNORECASE)
_DOTTED = re.compile(r"[\w.]+")
_SPACE = re.compile(r"\s+")
_QUOTES = str.maketrans("", "", '"`[]')
_TAIL = re.compile(r"(?:limit|offset|fetch|for)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d]\w*|_\w*")

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A query's result. `is_cut` is true where the tool left rows out; `columns` are names, () where none are known."""

    rows: tuple[Row, ...]
    is_cut: bool = False
    columns: tuple[str, ...] = ()


def read_table(value: Any) -> Table | None:
    """A tool's value as a table, None where it is none.

    Read are an object or mapping with `rows` (and `truncated`), and a list of rows; a row is a list, a tuple or a
    mapping, whose values count in their order.
    """
    cut = False
    names: Any = ()
    if isinstance(value, Mapping):
        cut, names, value = bool(value.get("truncated", False)), value.get("columns"), value.get("rows")
    elif hasattr(value, "rows"):
        cut, names, value = bool(getattr(value, "truncated", False)), getattr(value, "columns", ()), value.rows
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return None
    rows: list[Row] = []
    for row in value:
        if isinstance(row, Mapping):
            names = names or tuple(row)
            rows.append(tuple(row.values()))
        elif isinstance(row, (list, tuple)):
            rows.append(tuple(row))
        else:
            return None
    columns = tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else ()
    return Table(tuple(rows), cut, columns)


def same_rows(
    mine: Sequence[Row],
    gold: Sequence[Row],
    *,
    ordered: bool,
    order_keys: Sequence[int] = (),
    tolerance: float = 1e-6,
    any_column_order: bool = False,
) -> bool:
    """True if two results hold the same rows, as often as each other, and in the same order where `ordered`.

    NULLs are equal, 1 is 1.0, fractions may differ by `tolerance` (relative; a thousandth of it near zero), whole
    numbers, texts and bytes must be identical. With `any_column_order`, some one order of the columns has to make
    them equal. `order_keys` are the columns of `gold` by which it is ordered: rows that are equal in all of them may
    stand in any order among themselves; without any, the order counts to the last row.
    """
    if len(mine) != len(gold):
        return False
    if not gold:
        return True
    width = len(gold[0])
    if any(len(row) != width for row in mine) or any(len(row) != width for row in gold):
        return False
    keys = order_keys if ordered else None
    if _match(mine, gold, keys, tolerance):
        return True
    if not any_column_order or width < 2:
        return False
    for order in _orders(mine, gold, width, tolerance):
        if _match([tuple(row[index] for index in order) for row in mine], gold, keys, tolerance):
            return True
    return False


def _orders(mine: Sequence[Row], gold: Sequence[Row], width: int, tolerance: float) -> list[tuple[int, ...]]:
    """The orders of mine's columns that may make the rows equal; [] where there are more than can be looked at."""
    fits = _fits(mine, gold, width, tolerance)
    twins: dict[Row, list[int]] = {}
    for source in range(width):
        twins.setdefault(_column(mine, source), []).append(source)
    # Columns that are equal in every row are interchangeable: they are taken from left to right only.
    before = {twin: group[:index] for group in twins.values() for index, twin in enumerate(group)}
    looks = max(_MAX_CELLS // (len(gold) * width), 8)
    orders: list[tuple[int, ...]] = [()]
    for target in range(width):
        longer: list[tuple[int, ...]] = []
        for order in orders:
            for source in fits[target]:
                if source in order or not all(twin in order for twin in before[source]):
                    continue
                # What does not fit so far will not fit with more columns. One order alone is tried as a whole.
                if len(orders) * len(fits[target]) > 1:
                    looks -= 1
                    if looks < 0:
                        return []
                    if not _fits_so_far(mine, gold, (*order, source), tolerance):
                        continue
                longer.append((*order, source))
        orders = longer
    return orders


def _fits_so_far(mine: Sequence[Row], gold: Sequence[Row], order: tuple[int, ...], tolerance: float) -> bool:
    some = [tuple(row[index] for index in order) for row in mine]
    return _same_multiset(some, [row[: len(order)] for row in gold], tolerance)


def _fits(mine: Sequence[Row], gold: Sequence[Row], width: int, tolerance: float) -> list[list[int]]:
    """For each column of gold those of mine that hold the same cells."""
    known = [Counter(_column(mine, source)) for source in range(width)]
    fits: list[list[int]] = []
    looks = max(_MAX_CELLS // len(gold), 8)
    for target in range(width):
        cells = [(row[target],) for row in gold]
        counted = Counter(_column(gold, target))
        same = [source for source in range(width) if known[source] == counted]
        if not same and tolerance:
            for source in range(width):
                looks -= 1
                if looks >= 0 and _same_multiset([(row[source],) for row in mine], cells, tolerance):
                    same.append(source)
        if not same:
            return [[]] * width
        fits.append(same)
    return fits


def _column(rows: Sequence[Row], index: int) -> Row:
    return tuple(_hashable(row[index]) for row in rows)


def _match(mine: Sequence[Row], gold: Sequence[Row], order_keys: Sequence[int] | None, tolerance: float) -> bool:
    """True if the rows are the same; `order_keys` is None where their order does not count at all."""
    if order_keys is None:
        return _same_multiset(mine, gold, tolerance)
    if all(_near(a, b, tolerance) for a, b in zip(mine, gold, strict=True)):
        return True
    if not order_keys:
        return False
    # The keys go down both results alike; between two steps the rows are tied, and have no order.
    start = 0
    for index in range(len(gold)):
        if not all(_near_cell(mine[index][key], gold[index][key], tolerance) for key in order_keys):
            return False
        is_last = index + 1 == len(gold)
        if is_last or any(_hashable(gold[index][key]) != _hashable(gold[index + 1][key]) for key in order_keys):
            if not _same_multiset(mine[start : index + 1], gold[start : index + 1], tolerance):
                return False
            start = index + 1
    return True


def _same_multiset(mine: Sequence[Row], gold: Sequence[Row], tolerance: float) -> bool:
    left, right = Counter(map(row_key, mine)), Counter(map(row_key, gold))
    if left == right:
        return True
    if not tolerance:
        return False
    # What is not identical may still be near.
    open_mine, open_gold = list((left - right).elements()), list((right - left).elements())
    searched = 0
    for some, others in _clusters(open_mine, open_gold, tolerance):
        if len(some) != len(others):
            return False
        if searched <= _MAX_SEARCHED:
            searched += len(some) ** 2
            if not _paired(some, others, tolerance):
                return False
        elif not all(map(_near, some, others, [tolerance] * len(some))):
            return False
    return True


def _paired(some: Sequence[Row], others: Sequence[Row], tolerance: float) -> bool:
    left = list(others)
    for row in some:
        for index, other in enumerate(left):
            if _near(row, other, tolerance):
                del left[index]
                break
        else:
            return False
    return True


def _clusters(mine: list[Row], gold: list[Row], tolerance: float) -> list[tuple[list[Row], list[Row]]]:
    """Both sides cut into parts so that rows which are near stand in the same part, each in order.

    Column by column: what is ordered by a column is cut where two neighbours are not near. Floating noise stays
    within a part, and rows of different parts need never be compared.
    """
    parts = [[(row, True) for row in mine] + [(row, False) for row in gold]]
    for column in range(len(mine[0]) if mine else 0):
        finer: list[list[tuple[Row, bool]]] = []
        for part in parts:
            part.sort(key=lambda entry: _cell_order(entry[0][column]))
            start = 0
            for index in range(1, len(part) + 1):
                if index == len(part) or not _near_cell(part[index - 1][0][column], part[index][0][column], tolerance):
                    finer.append(part[start:index])
                    start = index
        parts = finer
    return [
        ([row for row, is_mine in part if is_mine], [row for row, is_mine in part if not is_mine]) for part in parts
    ]


def row_key(row: Row) -> Row:
    """A row that can be hashed; equal rows give equal ones."""
    return tuple(_hashable(value) for value in row)


def _hashable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None  # SQL knows no NaN; it stores NULL
    return _text(value) if isinstance(value, (list, dict)) else value


def _text(value: Any) -> str:
    """A cell's text. Raises RecursionError: it is nested deeper than any column, and to write it takes time by the
    square of its depth, from Python 3.13 on without an end."""
    parts = [value]
    for _ in range(_MAX_DEPTH):
        parts = [
            part
            for one in parts
            if isinstance(one, (list, tuple, dict))
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not parts:
            return repr(value)
    raise RecursionError("a cell is nested too deep")


def _cell_order(value: Any) -> tuple[int, float, str]:
    if _hashable(value) is None:
        return (0, 0.0, "")
    return (1, value, "") if is_number(value) else (2, 0.0, _text(value))


def _near(mine: Row, gold: Row, tolerance: float) -> bool:
    return all(_near_cell(a, b, tolerance) for a, b in zip(mine, gold, strict=True))


def _near_cell(mine: Any, gold: Any, tolerance: float) -> bool:
    if is_number(mine) and is_number(gold):
        return near(mine, gold, relative=tolerance, absolute=tolerance / 1_000) or _hashable(mine) == _hashable(gold)
    return bool(_hashable(mine) == _hashable(gold))


def order_keys(query: str, columns: Sequence[str]) -> tuple[int, ...]:
    """The places of the columns by which a query orders its rows; () where one of them is not in its result.

    Read are positions (`ORDER BY 2`), names and aliases, and expressions that stand in the result under their own
    text, as `COUNT(*)` does.
    """
    end = _after_order_by(query)
    if end < 0:
        return ()
    found: list[int] = []
    names = [_bare_name(column) for column in columns]
    for item in _items(query, end):
        place = _place_of(item, names)
        if place is None:
            return ()
        found.append(place)
    return tuple(found)


def _place_of(item: str, names: Sequence[str]) -> int | None:
    item = _DIRECTION.sub("", item.strip()).strip()
    if item.isdecimal():
        return int(item) - 1 if 0 < int(item[:9]) <= len(names) else None
    bare = _bare_name(item)
    for wanted in (bare, bare.rpartition(".")[2] if _DOTTED.fullmatch(bare) else bare):
        if names.count(wanted) == 1:
            return names.index(wanted)
    return None


def _bare_name(name: str) -> str:
    return _SPACE.sub("", name).translate(_QUOTES).lower()


def _items(query: str, start: int) -> list[str]:
    """The comma-separated expressions of an ORDER BY that ends with the query, a LIMIT or an OFFSET."""
    items, begin, depth = [], start, 0
    index, end = start, len(query)
    while index < end:
        char = query[index]
        if char in "'\"`[":
            index = _after_quoted(query, index, "]" if char == "[" else char)
            continue
        depth += (char in "(") - (char in ")")
        if depth == 0 and char == ",":
            items.append(query[begin:index])
            begin = index + 1
        elif depth == 0 and (char == ";" or (char.isalpha() and _TAIL.match(query, index))):
            end = index
            break
        elif char.isalpha() or char == "_":
            index = _WORD.match(query, index).end()  # type: ignore[union-attr]
            continue
        index += 1
    return [*items, query[begin:end]]


def orders_rows(query: str) -> bool:
    """True if a SQL query has an ORDER BY of its own, outside parentheses, strings, quoted names and comments.

    Only then does the order of its rows mean something: one inside a subquery or a window does not order the result.
    """
    return _after_order_by(query) >= 0


def _after_order_by(query: str) -> int:
    """The position at which the expressions of the query's own ORDER BY begin, -1 where it has none."""
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
                return index
            previous = word
        else:
            if char == "(":
                depth += 1
            elif char == ")":
                depth = max(0, depth - 1)
            if not char.isspace():
                previous = ""
            index += 1
    return -1


def _after_quoted(query: str, index: int, closing: str) -> int:
    index += 1
    while (stop := query.find(closing, index)) >= 0:
        # A doubled quote stands for itself; brackets have no such form.
        if closing == "]" or query[stop + 1 : stop + 2] != closing:
            return stop + 1
        index = stop + 2
    return len(query)
