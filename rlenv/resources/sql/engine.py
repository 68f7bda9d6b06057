"""The seam between a database's engine and all that databases have in common: limits, rows, and what opens a file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

import orjson

from rlenv.errors import ToolFailed

__all__ = [
    "CPU_SHARE",
    "MAX_SIZE",
    "MAX_SQL",
    "About",
    "Engine",
    "Opened",
    "Rows",
    "StatementLimits",
    "cell_size",
    "columns_of",
    "columns_size",
    "limits_for",
]

MAX_SQL: Final = 100_000
"""Characters of a statement."""
MAX_SIZE: Final = 8_000_000
"""Of a result's cells together, in characters as JSON."""


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Until when, on the clock of `time.monotonic()`, how much processor time, and how much may come of it."""

    deadline: float
    cpu_s: float
    max_rows: int
    max_size: int
    is_urgent: bool = False
    """Before others in the queue: what a reward asks for."""


CPU_SHARE: Final = 0.25
"""How much of its time limit a statement may use as processor time."""
_LEAST_CPU_S: Final = 0.02


def limits_for(
    deadline: float, *, cpu_s: float | None, max_rows: int, max_size: int, is_urgent: bool = False
) -> StatementLimits:
    """The limits of a statement that is given now; without `cpu_s` a quarter of its time is for the processor."""
    if cpu_s is None:
        cpu_s = max((deadline - time.monotonic()) * CPU_SHARE, _LEAST_CPU_S)
    return StatementLimits(deadline, cpu_s, max_rows, max_size, is_urgent)


_MAX_COLUMNS: Final = 200
_CELL_SIZE: Final = 30


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a statement gave.

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
        """The rows in a worker's answer."""
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
    """The number of characters that the names take, as JSON.

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


_S = TypeVar("_S")


class About(Protocol):
    """The facts of a database that are known without a statement of the policy's.

    `schema` is the text of its CREATE statements. `version` is equal where equal statements give equal rows: the file
    and when it was changed; None for a private copy, which may be written.
    """

    schema: str
    version: tuple[str, int, int] | None

    def words(self) -> Sequence[str]:
        """The names of tables and columns; of very many the first."""


class Opened(Protocol):
    """A database as one episode has it."""

    @property
    def about(self) -> About:
        """The facts that are known of it."""

    async def run(self, sql: str, limits: StatementLimits) -> Rows:
        """The rows of one statement of at most `MAX_SQL` characters. Of a private copy's statements one runs at a time.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """

    async def close(self) -> None:
        """Gives back what `open` took; a private copy is gone then. No statement runs any more."""


class Engine(Protocol[_S]):
    """One compiled entry's engine: how its files are opened. `dialect` is the name of its SQL, `title` its own."""

    dialect: ClassVar[str]
    title: ClassVar[str]

    def source(self, path: Path) -> _S:
        """The database of a file, which many episodes may open, one after another and at once.

        Raises:
            ResourceError: the file is missing or is no database; `open` may find that too.
        """

    def forget(self, source: _S) -> None:
        """Called where no episode will open `source` again; some may still have it open."""

    async def open(self, source: _S) -> Opened:
        """The database for one episode: shared, or a private copy.

        Raises:
            ResourceError: it cannot be opened.
        """

    def missing(self, message: str) -> tuple[str, str] | None:
        """The name that a failure's message says is not there, and the message without proposals; None without one."""
