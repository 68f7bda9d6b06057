"""DuckDB in a worker process, with bounds that the engine keeps: what a statement may do, how long and how much.

The engine's own parser says how many statements a text has and of which kind; its configuration, locked when the file
is opened, keeps statements from files, the network and extensions. What the engine makes of a statement, a fault of its
own included, is over with that statement: the file is opened anew for the next.
"""

from __future__ import annotations

import errno
import math
import os
import re
import resource
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.bounded import cut_end
from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.sql import Rows, cell_size, columns_of, columns_size

if TYPE_CHECKING:
    import duckdb

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
# Each statement writes what it leaves itself: closing a copy would do so in the time of whoever is next at the worker,
# and after a kill the engine cannot repeat all that stands in its log.
_COPY_CONFIG: Final = {**_CONFIG, "wal_autocheckpoint": "0B"}
_READS: Final = frozenset(("EXPLAIN", "SELECT"))
_WRITES: Final = frozenset(("ALTER", "ANALYZE", "CREATE", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"))
# Functions that act on the engine or on memory addresses, run SQL that is not seen here, or sleep. Looked for anywhere
# in the text, as a name may be quoted and a text may be run.
_NEVER: Final = re.compile(
    r"sleep_ms|\bquery\b[\s\"]*\(|json_execute_serialized_sql|arrow_scan|pandas_scan|python_map|u&[\"']|"
    r"(?:enable|disable)_\w+|verify_\w+|write_log|duckdb_logs|duckdb_log_contexts|force_checkpoint|"
    r"\bcheckpoint\b[\s\"]*\(|copy_database|import_database|external_resource|add_parquet_key",
    re.IGNORECASE,
)
# Possessive: several comments can be read as one in a power of two of ways.
_EXPLAIN: Final = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*+EXPLAIN(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*+(?:ANALYZE\b)?\s*(?:\([^()]*\))?",
    re.IGNORECASE | re.DOTALL,
)
_TEMPORARY: Final = (
    "SELECT 1 FROM duckdb_tables() WHERE temporary UNION ALL SELECT 1 FROM duckdb_views() WHERE temporary AND NOT "
    "internal UNION ALL SELECT 1 FROM duckdb_sequences() WHERE temporary UNION ALL "
    "SELECT 1 FROM duckdb_functions() WHERE NOT internal AND database_name = 'temp' LIMIT 1"
)
_CORRUPT: Final = "IO Error: Corrupt database file"
# Where a transaction ends the engine wraps what the system said; no value of a statement's stands before the file.
_UNWRITTEN: Final = re.compile(
    r"(?:FATAL Error: [\w ,.]*\bFailed to create checkpoint[\w ]*|TransactionContext Error: Failed to commit): "
    r"Could not \w+ file \""
)
_LOCKED: Final = re.compile(r"lock on file", re.IGNORECASE)
_ZONED: Final = "TIMESTAMP WITH TIME ZONE"
_LARGEST: Final = 2**63
_AGAIN_S = 0.05
_OPEN_S = 2.0
_MAX_FILES = 8
_MAX_WORDS = 500
_OUT_OF_TIME: Final = "the query did not end within its time"


def _connect(path: Path, *, may_write: bool) -> duckdb.DuckDBPyConnection:
    import duckdb

    if not path.is_file():
        raise ResourceError(f"there is no database file {path}")
    config, until = dict(_COPY_CONFIG if may_write else _CONFIG), time.monotonic() + _OPEN_S
    while True:
        try:
            return duckdb.connect(str(path), read_only=not may_write, config=config)
        except (duckdb.Error, duckdb.Warning) as error:
            if not may_write:
                raise ResourceError(f"the database {path} cannot be opened: {error}") from error
            # The process that had the copy open may just be closing it; else its own statements may stand in the way.
            if not (_LOCKED.search(str(error)) and time.monotonic() < until):
                raise
        time.sleep(0.01)


def _schema(raw: duckdb.DuckDBPyConnection) -> str:
    """The CREATE statements of all tables and views, one a line."""
    tables = raw.execute("SELECT sql FROM duckdb_tables() WHERE NOT internal ORDER BY table_oid").fetchall()
    views = raw.execute("SELECT sql FROM duckdb_views() WHERE NOT internal ORDER BY view_oid").fetchall()
    return "\n".join(row[0].strip() for row in tables + views)


def _schema_names(raw: duckdb.DuckDBPyConnection) -> list[str]:
    """The names of tables and columns; of very many the first."""
    found = raw.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    return list(dict.fromkeys(word for row in found for word in row))[:_MAX_WORDS]


class DuckdbStatements:
    """Statements on DuckDB files: some that are shared and read, and one private copy at a time."""

    def __init__(self) -> None:
        self._files: dict[str, duckdb.DuckDBPyConnection] = {}
        self._copy: duckdb.DuckDBPyConnection | None = None
        self._copy_path = ""

    @property
    def holds(self) -> str:
        """The path of the private copy that is open here."""
        return self._copy_path if self._copy is not None else ""

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        """The answer to one request: a statement, or `describe`, or `release`."""
        import duckdb

        path, may_write = asked["file"], asked["may_write"]
        self._close_copy(but=path)
        _limit_files(asked["max_bytes"])
        if asked["op"] == "release":
            self._close_copy()
            return Rows((), []).as_json(), None
        try:
            raw = self._open_cached(path, may_write=may_write)
            if asked["op"] == "describe":
                return {"schema": _schema(raw), "words": _schema_names(raw)}, None
            connection = raw if may_write else raw.cursor()
            try:
                found = _Statement(asked).run(connection)
            except BaseException:
                if may_write:
                    self._undo(connection)
                raise
            finally:
                if not may_write:
                    connection.close()
        except (duckdb.Error, duckdb.Warning) as error:
            if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.InternalException):
                self._forget(path, may_write=may_write)
            raise _convert_error(error, path) from error
        except _Temporary:
            self._close_copy()
            raise ToolFailed("what is TEMP is not kept from statement to statement; leave the word out") from None
        except (ValueError, OverflowError, RecursionError) as error:  # a value that Python cannot hold
            raise ToolFailed(f"the statement cannot be run: {str(error)[:200]}") from error
        return found.as_json(), None

    def _undo(self, copy: duckdb.DuckDBPyConnection) -> None:
        import duckdb

        try:
            copy.rollback()
        except (duckdb.Error, duckdb.Warning) as error:
            if not isinstance(error, duckdb.TransactionException):  # there is none: it had not begun
                self._close_copy()

    def _open_cached(self, path: str, *, may_write: bool) -> duckdb.DuckDBPyConnection:
        if may_write:
            if self._copy is None:
                self._copy, self._copy_path = _connect(Path(path), may_write=True), path
            return self._copy
        raw = self._files.pop(path, None)
        if raw is None:
            while len(self._files) >= _MAX_FILES:
                self._files.pop(next(iter(self._files))).close()
            raw = _connect(Path(path), may_write=False)
        self._files[path] = raw
        return raw

    def _forget(self, path: str, *, may_write: bool) -> None:
        import duckdb

        if may_write:
            self._close_copy()
        elif (raw := self._files.pop(path, None)) is not None:
            with suppress(duckdb.Error):
                raw.close()

    def _close_copy(self, *, but: str = "") -> None:
        import duckdb

        if self._copy is not None and self._copy_path != but:
            copy, self._copy = self._copy, None
            _limit_files(None)  # closing writes what its own statements left to be written
            with suppress(duckdb.Error):
                copy.close()


def _limit_files(most: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if most is None or (hard != resource.RLIM_INFINITY and most > hard):
        most = hard
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


class _Temporary(Exception):
    """The statement made something that does not outlive its connection."""


class _Statement:
    """One statement on its way through a connection, which a watch interrupts once it used up its time."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._sql: str = asked["sql"]
        self._may_write: bool = asked["may_write"]
        self._max_rows: int = asked["max_rows"]
        self._max_size: int = asked["max_size"]
        self._until = time.monotonic() + asked["wall_s"]
        self._cpu_until = time.process_time() + asked["cpu_s"]
        self._is_over = threading.Event()

    def run(self, raw: duckdb.DuckDBPyConnection) -> Rows:
        """The rows of the statement.

        Raises:
            ToolFailed: the statement is not one that may run, or its result cannot be given.
        """
        import duckdb

        statement = self._parse_statement(raw)
        watch = threading.Thread(target=self._watch, args=(raw,), daemon=True)
        watch.start()
        try:
            if self._may_write:
                raw.begin()
            raw.execute(statement)
            found = self._fetch_rows(raw, writes=statement.type.name in _WRITES)
            if statement.type.name == "CREATE" and raw.execute(_TEMPORARY).fetchone() is not None:
                raise _Temporary
            if self._may_write:
                raw.commit()
            return found
        except duckdb.InterruptException:
            reason = "timeout" if time.process_time() >= self._cpu_until else "stalled"
            raise ToolFailed(_OUT_OF_TIME, reason=reason) from None
        finally:
            self._is_over.set()
            watch.join()  # an interrupt must not meet the connection's next statement

    def _watch(self, raw: duckdb.DuckDBPyConnection) -> None:
        # Again and again, as the engine forgets an interrupt that comes just before a statement begins.
        wait = self._cpu_until - time.process_time()
        while not self._is_over.wait(max(wait, _AGAIN_S)):
            wait = self._cpu_until - time.process_time()
            if wait <= 0 or time.monotonic() >= self._until:
                raw.interrupt()

    def _parse_statement(self, raw: duckdb.DuckDBPyConnection) -> duckdb.Statement:
        if (found := _NEVER.search(self._sql)) is not None:
            raise ToolFailed(f"{found[0].rstrip('(').strip()[:40]} is not allowed")
        statement = self._single_statement(raw, self._sql)
        kind = statement.type.name
        if kind == "EXPLAIN" and (rest := _EXPLAIN.match(self._sql)) is not None:
            # It runs what it explains where it is told to, of whatever kind that is.
            kind = self._single_statement(raw, self._sql[rest.end() :]).type.name
        if kind not in _READS - {"EXPLAIN"} and not (self._may_write and kind in _WRITES):
            allowed = "" if self._may_write else "; the database is read only"
            word = "this statement" if kind in ("MULTI", "INVALID") else kind.replace("_", " ")
            raise ToolFailed(f"{word} is not allowed{allowed}")
        if statement.named_parameters:
            raise ToolFailed("the statement has a placeholder (?); write the value itself")
        return statement

    def _single_statement(self, raw: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
        found = raw.extract_statements(sql)
        if not found:
            raise ToolFailed("the statement is empty")
        if len(found) > 1:
            raise ToolFailed("found several statements; one is run at a time")
        return found[0]

    def _fetch_rows(self, raw: duckdb.DuckDBPyConnection, *, writes: bool) -> Rows:
        described = raw.description or []
        columns = columns_of(column[0] for column in described)
        for name, kind, *_ in described:
            if _ZONED in str(kind):  # read only where pytz is installed, and then in the machine's zone
                raise ToolFailed(f"the column {name} is a {_ZONED}; cast it to VARCHAR or TIMESTAMP")
        size = columns_size(columns, most=self._max_size)
        rows: list[list[Any]] = []
        while (row := raw.fetchone()) is not None:
            budget = _Budget(self._max_size - size)
            cells = [budget.json(cell) for cell in row]
            size = self._max_size - budget.left
            if budget.left < 0 or len(rows) == self._max_rows:
                return Rows(columns, rows, truncated=True)
            rows.append(cells)
        numbers = [row[0] for row in rows if isinstance(row[0], int)]  # RETURNING gives anything under any name
        if writes and columns in (("Count",), ("Success",)) and len(rows) == len(numbers) <= 1:
            return Rows((), [], changed=sum(numbers))
        return Rows(columns, rows)


class _Budget:
    """Writes cells as JSON values while `left` characters are left for them; what comes after is nothing."""

    def __init__(self, left: int) -> None:
        self.left = left - 4

    def json(self, cell: Any) -> Any:
        if self.left < 0:
            return None
        if isinstance(cell, bytes):
            self.left -= 2 * len(cell) + 8
            return f"x'{cell.hex().upper()}'" if self.left >= 0 else None
        if isinstance(cell, list | tuple):
            self.left -= 4
            return [self.json(item) for item in cell[: max(self.left, 0)]]
        if isinstance(cell, dict):
            self.left -= 4
            found = {}
            for key, item in cell.items():
                if self.left < 0:
                    break
                name = str(key)
                self.left -= cell_size(name)
                found[name] = self.json(item)
            return found
        value = _plain_cell(cell)
        self.left -= cell_size(value)
        return value


def _plain_cell(cell: Any) -> Any:
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
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return cell.isoformat()
    return str(cell)


def _convert_error(error: duckdb.Error | duckdb.Warning, path: str) -> ToolFailed | ResourceError:
    import duckdb

    message = re.sub(r"\s+", " ", str(error)[:10_000].partition("\n\nLINE ")[0]).strip()
    if isinstance(error, duckdb.OutOfMemoryException):
        return ToolFailed(f"the query needs more memory than {_CONFIG['memory_limit']}", reason="memory")
    if isinstance(error, duckdb.PermissionException):
        return ToolFailed("files, the network and extensions are out of reach of a statement")
    is_of_file = isinstance(error, duckdb.IOException) and (path in message or message.startswith(_CORRUPT))
    if is_of_file or _UNWRITTEN.match(message):
        # No statement can name a file, so that only the engine's own reading and writing has its path.
        if os.strerror(errno.EFBIG) in message:
            return ToolFailed("the database would grow larger than it may", reason="too_large")
        return ResourceError(f"the database cannot be read: {message}")
    if isinstance(error, duckdb.FatalException | duckdb.InternalException):
        return ToolFailed("the statement made the database engine fail")
    return ToolFailed(cut_end(message, 300), reason="failed")
