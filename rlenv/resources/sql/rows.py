"""What a statement gives, and how long it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rlenv.errors import ToolFailed

__all__ = ["Rows", "cell_size", "columns_of", "columns_size"]

_MAX_COLUMNS: Final = 200
_CELL_SIZE: Final = 30


@dataclass(frozen=True, slots=True)
class Rows:
    """What a statement gave.

    Cells are JSON values; bytes are written as SQLite writes them, `x'0AFF'`. `columns` is empty for a statement that
    gives no rows; then `changed` is how many it changed. `truncated` is true where there are more rows than the limits
    let through.
    """

    columns: tuple[str, ...]
    rows: list[list[Any]]
    truncated: bool = False
    changed: int = 0

    def told(self) -> dict[str, Any]:
        """As a worker sends it."""
        return {"columns": self.columns, "rows": self.rows, "truncated": self.truncated, "changed": self.changed}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Rows:
        """What a worker told."""
        return cls(tuple(told["columns"]), told["rows"], told["truncated"], told["changed"])


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of a result's columns.

    Raises:
        ToolFailed: there are too many.
    """
    columns = tuple(names)
    if len(columns) > _MAX_COLUMNS:
        raise ToolFailed(f"the result has {len(columns)} columns; at most {_MAX_COLUMNS} can be given, so name them")
    return columns


def columns_size(columns: tuple[str, ...], *, most: int) -> int:
    """How many characters the names take, as JSON.

    Raises:
        ToolFailed: more than `most`.
    """
    size = sum(map(cell_size, columns))
    if size > most:
        raise ToolFailed("the names of the columns are too long to be given", reason="too_large")
    return size


def cell_size(cell: Any) -> int:
    """At least as many characters as the cell takes as JSON, whatever it is."""
    if isinstance(cell, str):
        if len(cell) < 200 or not (cell.isascii() and cell.isprintable()):
            return len(orjson.dumps(cell)) + 2
        return len(cell) + cell.count('"') + cell.count("\\") + 4
    return _CELL_SIZE
