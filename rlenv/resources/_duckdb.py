"""One DuckDB database with bounds that the engine keeps: what a statement may do, how long and how much.

The engine's own parser says how many statements a text has and of which kind; its configuration, locked when the file
is opened, keeps statements from files, the network and extensions.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources._sqlite import Rows

if TYPE_CHECKING:
    import duckdb

__all__ = ["Statement", "connect", "schema", "words"]

# https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview
_CONFIG: Final[Mapping[str, Any]] = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "lock_configuration": True,
    "memory_limit": "1GB",
    "python_enable_replacements": False,  # or a statement could read Python's variables as tables
    "temp_directory": "",
    "threads": 1,
}
_READS: Final = frozenset(("EXPLAIN", "SELECT"))
_WRITES: Final = frozenset(("ALTER", "ANALYZE", "CREATE", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"))
_ZONED: Final = "TIMESTAMP WITH TIME ZONE"
_BATCH = 256
_MAX_BYTES = 8_000_000
_MAX_SQL = 100_000
_LARGEST: Final = 2**63
_AGAIN_S = 0.05


def connect(path: Path, *, may_write: bool) -> duckdb.DuckDBPyConnection:
    """Opens a file.

    Raises:
        ResourceError: it is missing or cannot be opened.
    """
    import duckdb

    if not path.is_file():
        raise ResourceError(f"there is no database file {path}")
    try:
        return duckdb.connect(str(path), read_only=not may_write, config=dict(_CONFIG))
    except duckdb.Error as error:
        raise ResourceError(f"the database {path} cannot be opened: {error}") from error


def schema(raw: duckdb.DuckDBPyConnection) -> str:
    """The CREATE statements of all tables and views, one a line."""
    tables = raw.execute("SELECT sql FROM duckdb_tables() WHERE NOT internal ORDER BY table_oid").fetchall()
    views = raw.execute("SELECT sql FROM duckdb_views() WHERE NOT internal ORDER BY view_oid").fetchall()
    return "\n".join(row[0].strip() for row in tables + views)


def words(raw: duckdb.DuckDBPyConnection) -> list[str]:
    """The names of all tables and columns."""
    found = raw.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    return list(dict.fromkeys(word for row in found for word in row))


class Statement:
    """One statement on its way through a connection, which a watch interrupts at its deadline."""

    __slots__ = ("_guard", "_is_over", "_may_write", "_raw", "_sql", "_until")

    def __init__(self, sql: str, *, until: float, may_write: bool) -> None:
        self._sql = sql
        self._until = until
        self._may_write = may_write
        self._guard = threading.Lock()
        self._is_over = threading.Event()
        self._raw: duckdb.DuckDBPyConnection | None = None

    def interrupt(self) -> None:
        """Stops the statement, from any thread; nothing where it has ended or has not begun."""
        with self._guard:  # an interrupt must not meet the connection's next statement
            if self._raw is not None:
                self._raw.interrupt()

    def run(self, raw: duckdb.DuckDBPyConnection, *, max_rows: int) -> Rows:
        """What the statement gives.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """
        import duckdb

        try:
            statement = self._parsed(raw)
            if time.monotonic() > self._until:
                raise ToolFailed("the query did not end within its time", reason="timeout")
            self._raw = raw
            threading.Thread(target=self._watch, name="rlenv-duckdb-watch", daemon=True).start()
            try:
                raw.execute(statement)
                return self._fetched(raw, max_rows)
            finally:
                self._is_over.set()
                with self._guard:
                    self._raw = None
        except duckdb.Error as error:
            raise _converted(error) from error
        except (ValueError, OverflowError, MemoryError) as error:  # lone surrogates; a value that Python cannot hold
            raise ToolFailed(f"the statement cannot be run: {str(error)[:200] or 'out of memory'}") from error

    def _watch(self) -> None:
        # Again and again, as the engine forgets an interrupt that comes just before a statement begins.
        while not self._is_over.wait(max(self._until - time.monotonic(), _AGAIN_S)):
            if time.monotonic() >= self._until:
                self.interrupt()

    def _parsed(self, raw: duckdb.DuckDBPyConnection) -> duckdb.Statement:
        if len(self._sql) > _MAX_SQL:
            raise ToolFailed(f"the statement is longer than {_MAX_SQL} characters")
        self._sql.encode()  # the engine names no reason where it cannot
        found = raw.extract_statements(self._sql)
        if not found:
            raise ToolFailed("the statement is empty")
        if len(found) > 1:
            raise ToolFailed("found several statements; one is run at a time")
        statement = found[0]
        kind = statement.type.name
        if kind not in _READS and not (self._may_write and kind in _WRITES):
            allowed = "" if self._may_write else "; the database is read only"
            word = "this statement" if kind in ("MULTI", "INVALID") else kind.replace("_", " ")
            raise ToolFailed(f"{word} is not allowed{allowed}")
        if statement.named_parameters:
            raise ToolFailed("the statement has a placeholder (?); write the value itself")
        return statement

    def _fetched(self, raw: duckdb.DuckDBPyConnection, max_rows: int) -> Rows:
        described = raw.description or []
        columns = tuple(column[0] for column in described)
        for name, kind, *_ in described:
            if _ZONED in str(kind):  # read only where pytz is installed, and then in the machine's zone
                raise ToolFailed(f"the column {name} is a {_ZONED}; cast it to VARCHAR or TIMESTAMP")
        rows: list[list[Any]] = []
        size = 0
        while batch := raw.fetchmany(_BATCH):
            for row in batch:
                cells = [_json(cell) for cell in row]
                size += sum(len(cell if isinstance(cell, str) else str(cell)) for cell in cells)
                rows.append(cells)
            if time.monotonic() > self._until:
                raise ToolFailed("the query did not end within its time", reason="timeout")
            if len(rows) > max_rows or size > _MAX_BYTES:
                return Rows(columns, rows[:max_rows], truncated=True)
        if self._may_write and columns in (("Count",), ("Success",)) and len(rows) <= 1:
            return Rows((), [], changed=int(rows[0][0]) if rows else 0)
        return Rows(columns, rows)


def _json(cell: Any) -> Any:
    if cell is None or isinstance(cell, str | bool):
        return cell
    if isinstance(cell, int):
        return cell if -_LARGEST <= cell < _LARGEST else str(cell)
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else str(cell)
    if isinstance(cell, Decimal):
        # A number where a double writes the same digits, else the digits.
        number = float(cell)
        return number if math.isfinite(number) and Decimal(repr(number)) == cell else str(cell)
    if isinstance(cell, bytes):
        return f"x'{cell.hex().upper()}'"
    if isinstance(cell, list | tuple):
        return [_json(item) for item in cell]
    if isinstance(cell, dict):
        return {str(key): _json(item) for key, item in cell.items()}
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return cell.isoformat()
    return str(cell)


def _converted(error: duckdb.Error) -> ToolFailed | ResourceError:
    import duckdb

    message = re.sub(r"\s+", " ", str(error).partition("\n\nLINE ")[0]).strip()
    if isinstance(error, duckdb.InterruptException):
        return ToolFailed("the query did not end within its time", reason="timeout")
    if isinstance(error, duckdb.OutOfMemoryException):
        return ToolFailed(f"the query needs more memory than {_CONFIG['memory_limit']}")
    if isinstance(error, duckdb.PermissionException):
        return ToolFailed("files, the network and extensions are out of reach of a statement")
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.InternalException):
        return ResourceError(f"the database cannot be read: {message}")
    return ToolFailed(message if len(message) <= 300 else message[:299] + "…", reason="failed")
