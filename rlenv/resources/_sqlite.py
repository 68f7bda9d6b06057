"""One SQLite connection with bounds that the engine keeps: what a statement may do, how long and how much.

Nothing is decided by reading the statement's text. The authorizer refuses what is not allowed while the statement is
prepared, the progress handler stops it in time, and limits bound the size of single values.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rlenv.errors import ResourceError, ToolFailed

__all__ = ["Connection", "NotQuick", "Rows"]

_READS: Final = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
_WRITES: Final = {
    sqlite3.SQLITE_ALTER_TABLE: "ALTER TABLE",
    sqlite3.SQLITE_ANALYZE: "ANALYZE",
    sqlite3.SQLITE_CREATE_INDEX: "CREATE INDEX",
    sqlite3.SQLITE_CREATE_TABLE: "CREATE TABLE",
    sqlite3.SQLITE_CREATE_TEMP_INDEX: "CREATE INDEX",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "CREATE TABLE",
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER: "CREATE TRIGGER",
    sqlite3.SQLITE_CREATE_TEMP_VIEW: "CREATE VIEW",
    sqlite3.SQLITE_CREATE_TRIGGER: "CREATE TRIGGER",
    sqlite3.SQLITE_CREATE_VIEW: "CREATE VIEW",
    sqlite3.SQLITE_DELETE: "DELETE",
    sqlite3.SQLITE_DROP_INDEX: "DROP INDEX",
    sqlite3.SQLITE_DROP_TABLE: "DROP TABLE",
    sqlite3.SQLITE_DROP_TEMP_INDEX: "DROP INDEX",
    sqlite3.SQLITE_DROP_TEMP_TABLE: "DROP TABLE",
    sqlite3.SQLITE_DROP_TEMP_TRIGGER: "DROP TRIGGER",
    sqlite3.SQLITE_DROP_TEMP_VIEW: "DROP VIEW",
    sqlite3.SQLITE_DROP_TRIGGER: "DROP TRIGGER",
    sqlite3.SQLITE_DROP_VIEW: "DROP VIEW",
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_REINDEX: "REINDEX",
    sqlite3.SQLITE_UPDATE: "UPDATE",
}
_NEVER: Final = {
    sqlite3.SQLITE_ATTACH: "ATTACH or VACUUM",
    sqlite3.SQLITE_CREATE_VTABLE: "CREATE VIRTUAL TABLE",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_DROP_VTABLE: "DROP VIRTUAL TABLE",
    sqlite3.SQLITE_SAVEPOINT: "SAVEPOINT",
    sqlite3.SQLITE_TRANSACTION: "a transaction",
}
_PRAGMAS: Final = frozenset(
    ("foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list", "table_xinfo")
)
_FORBIDDEN: Final = frozenset(("load_extension", "edit", "readfile", "writefile", "fts3_tokenizer", "total_changes"))
# Functions whose single call is short whatever it is given; one call of another (LIKE, replace, randomblob) can take
# long, and the engine cannot be stopped inside it, so that statements with such a call leave the event loop.
_SHORT: Final = frozenset(
    (
        *("abs", "avg", "ceil", "coalesce", "count", "cume_dist", "date", "datetime", "dense_rank", "first_value"),
        *("floor", "ifnull", "iif", "julianday", "lag", "last_value", "lead", "length", "likelihood", "likely"),
        *("lower", "ltrim", "max", "min", "mod", "nth_value", "ntile", "nullif", "percent_rank", "pow", "power"),
        *("rank", "round", "row_number", "rtrim", "sign", "sqrt", "strftime", "substr", "substring", "sum", "time"),
        *("total", "trim", "trunc", "typeof", "unicode", "unixepoch", "unlikely", "upper"),
    )
)
# After these a connection that was used before looks like a new one to last_insert_rowid() and changes().
_BEGIN: Final = (
    "SAVEPOINT episode",
    "CREATE TEMP TABLE rlenv_start (a)",
    "INSERT INTO temp.rlenv_start (rowid) VALUES (0)",
    "DELETE FROM temp.rlenv_start WHERE 0",
    "DROP TABLE temp.rlenv_start",
)
_BROKEN: Final = frozenset(
    (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL)
)
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_STEPS = 1_000
"""Instructions of the engine between two looks at the clock; tens of microseconds."""
_BATCH = 256
_QUICK_ROWS = 512
_MAX_BYTES = 8_000_000
_lenient = partial(str, encoding="utf-8", errors="replace")


class NotQuick(Exception):
    """The statement may take long and has to be run off the event loop; it has changed nothing."""


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


class Connection:
    """A connection that runs one statement at a time; which thread runs it does not matter."""

    __slots__ = ("_is_empty", "_is_own", "_is_quick", "_is_slow", "_may_write", "_raw", "_refused", "_until")

    def __init__(self, raw: sqlite3.Connection, *, may_write: bool) -> None:
        self._raw = raw
        self._may_write = may_write
        self._is_empty = True
        self._is_own = False
        self._is_quick = False
        self._is_slow = False
        self._refused = ""
        self._until = float("inf")
        raw.isolation_level = None  # no BEGIN behind the statement's back
        raw.text_factory = _lenient
        for limit, value in _LIMITS.items():
            raw.setlimit(limit, value)
        if not may_write:
            raw.execute("PRAGMA query_only = 1")
        raw.set_authorizer(self._authorize)
        raw.set_progress_handler(self._is_over, _STEPS)

    def close(self) -> None:
        """Closes the connection; a private database is gone with it."""
        self._raw.close()

    def interrupt(self) -> None:
        """Stops the running statement, from any thread."""
        self._raw.interrupt()

    def begin(self) -> None:
        """Starts what `roll_back` undoes.

        Raises:
            ResourceError: the database is at fault.
        """
        self._is_own = True
        try:
            for statement in _BEGIN:
                self._raw.execute(statement)
        except sqlite3.Error as error:
            raise ResourceError(f"the database cannot be written: {error}") from error
        finally:
            self._is_own = False

    @property
    def has_begun(self) -> bool:
        """True while all that was changed since `begin` can be rolled back.

        A write that is stopped in its time ends the whole transaction (https://www.sqlite.org/c3ref/interrupt.html).
        """
        return self._raw.in_transaction

    def roll_back(self) -> bool:
        """Undoes all that was changed since `begin`; False where that is not possible any more."""
        self._is_own = True
        try:
            if not self.has_begun:
                return False
            self._raw.execute("ROLLBACK TO episode")
            self._raw.execute("RELEASE episode")
            return not self.has_begun
        except sqlite3.Error:
            return False
        finally:
            self._is_own = False

    def run(self, sql: str, *, until: float, max_rows: int, is_quick: bool = False) -> Rows:
        """Runs one statement.

        Args:
            until: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are fetched at most.
            is_quick: give up as soon as it is not sure to end in time.

        Raises:
            NotQuick: with `is_quick`, it may take longer; nothing has changed.
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """
        self._is_quick, self._is_slow, self._is_empty, self._refused, self._until = is_quick, False, True, "", until
        try:
            cursor = self._raw.execute(sql)
            try:
                if self._is_empty:  # nothing was asked for while it was prepared
                    raise ToolFailed("the statement is empty")
                if cursor.description is None:
                    return Rows((), [], changed=max(cursor.rowcount, 0))
                return self._fetch(cursor, max_rows)
            finally:
                cursor.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            if self._is_slow or (is_quick and self._is_timeout(error)):
                raise NotQuick from None
            raise self._converted(error) from error
        except (ValueError, MemoryError) as error:  # lone surrogates, null characters; a value that is too large
            raise ToolFailed(f"the statement cannot be run: {str(error)[:200] or 'out of memory'}") from error
        finally:
            self._until = float("inf")

    def _fetch(self, cursor: sqlite3.Cursor, max_rows: int) -> Rows:
        columns = tuple(column[0] for column in cursor.description)
        rows: list[list[Any]] = []
        size = 0
        while batch := cursor.fetchmany(_BATCH):
            for row in map(list, batch):
                for index, cell in enumerate(row):
                    if isinstance(cell, str):
                        size += len(cell)
                    elif isinstance(cell, bytes):
                        size += 2 * len(cell)
                        row[index] = f"x'{cell.hex().upper()}'"
                rows.append(row)
            if self._is_quick:
                if len(rows) >= _QUICK_ROWS:
                    raise NotQuick
            elif time.monotonic() > self._until:
                raise ToolFailed("the query did not end within its time", reason="timeout")
            if len(rows) > max_rows or size > _MAX_BYTES:
                return Rows(columns, rows[:max_rows], truncated=True)
        return Rows(columns, rows)

    def _is_over(self) -> bool:
        return time.monotonic() > self._until

    def _authorize(self, action: int, first: str | None, second: str | None, _db: str | None, _by: str | None) -> int:
        self._is_empty = False
        if action in _READS or self._is_own:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            if name in _FORBIDDEN:
                self._refused = f"the function {name}"
                return sqlite3.SQLITE_DENY
            if self._is_quick and name not in _SHORT:
                self._is_slow = True
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
            return sqlite3.SQLITE_OK
        # A table-valued pragma asks to write here although it does not; the engine itself refuses all real writes.
        if first == "sqlite_master" and not self._may_write:
            return sqlite3.SQLITE_OK
        if self._may_write and action in _WRITES:
            self._is_slow = self._is_quick
            return sqlite3.SQLITE_DENY if self._is_quick else sqlite3.SQLITE_OK
        word = "this PRAGMA" if action == sqlite3.SQLITE_PRAGMA else _WRITES.get(action) or _NEVER.get(action)
        self._refused = word or "this statement"
        return sqlite3.SQLITE_DENY

    def _is_timeout(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT

    def _converted(self, error: Exception) -> ToolFailed | ResourceError:
        if self._is_timeout(error):
            return ToolFailed("the query did not end within its time", reason="timeout")
        if self._refused:
            allowed = "" if self._may_write else "; the database is read only"
            return ToolFailed(f"{self._refused} is not allowed{allowed}")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            return ResourceError(f"the database cannot be read: {error}")
        message = str(error)
        if "one statement at a time" in message:
            return ToolFailed("found several statements; one is run at a time")
        if "number of bindings" in message:
            return ToolFailed("the statement has a placeholder (?); write the value itself")
        return ToolFailed(message if len(message) <= 300 else message[:299] + "…", reason="failed")
