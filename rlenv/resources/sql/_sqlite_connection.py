"""One SQLite connection with bounds that the engine keeps: what a statement may do, how long and how much.

The authorizer refuses what is not allowed while the statement is prepared, the progress handler stops it in time, and
limits bound the size of single values. The same connection runs in two places: on the event loop, for statements that
are plain (`plainness`) and turn out to be quick, and in a worker process for all others.
"""

from __future__ import annotations

import math
import sqlite3
import time
import weakref
from functools import partial
from typing import Any, Final

from rlenv._base.bounded import cut_end
from rlenv.errors import ResourceError, ToolFailed, told_as
from rlenv.resources.sql import MAX_SIZE, MAX_SQL, Rows, cell_size, columns_of, columns_size

_READS: Final = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
_WRITES: Final = {
    getattr(sqlite3, f"SQLITE_{word.replace(' ', '_')}"): word
    for word in (
        *("ALTER TABLE", "ANALYZE", "CREATE INDEX", "CREATE TABLE", "CREATE TRIGGER", "CREATE VIEW", "DELETE"),
        *("DROP INDEX", "DROP TABLE", "DROP TRIGGER", "DROP VIEW", "INSERT", "REINDEX", "UPDATE"),
    )
}
_NEVER: Final = {
    sqlite3.SQLITE_ATTACH: "ATTACH or VACUUM",
    # A copy travels as the image of its one database; whatever stands beside it would be lost on the way.
    sqlite3.SQLITE_CREATE_TEMP_INDEX: "a TEMP index",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "a TEMP table (one without TEMP is kept as long)",
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER: "a TEMP trigger",
    sqlite3.SQLITE_CREATE_TEMP_VIEW: "a TEMP view",
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
_NEVER_READ: Final = frozenset(("sqlite_dbpage", "sqlite_stmt", "bytecode", "tables_used"))
# Tables that a function makes up: reading one is a call, and can take as long.
_MADE_UP: Final = frozenset(("dbstat", "fts3tokenize", "generate_series", "json_each", "json_tree"))
# Functions whose single call is short whatever it is given (within the limit of a value on the loop); one call of
# another (LIKE, replace, randomblob) can take long, and the engine cannot be stopped inside it.
_SHORT: Final = frozenset(
    "abs avg ceil changes coalesce count cume_dist date datetime dense_rank first_value floor ifnull iif julianday lag"
    " last_insert_rowid last_value lead length likelihood likely lower max min mod nth_value ntile nullif percent_rank"
    " pow power rank round row_number sign sqrt strftime substr substring sum time total trunc typeof unicode unixepoch"
    " unlikely upper".split()
)
# After these a connection that was used before looks like a new one to last_insert_rowid() and changes().
_BEGIN: Final = (
    "CREATE TEMP TABLE rlenv_start (a)",
    "INSERT INTO temp.rlenv_start (rowid) VALUES (0)",
    "DELETE FROM temp.rlenv_start WHERE 0",
    "DROP TABLE temp.rlenv_start",
)
_PLAIN_WRITES: Final = frozenset((sqlite3.SQLITE_DELETE, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE))
_MAX_TOLD = 10_000


def _priming_statements(rowid: int, changes: int) -> tuple[str, ...]:
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {min(changes, _MAX_TOLD)})"
    return (
        "CREATE TEMP TABLE rlenv_start (a)",
        f"{numbers} INSERT INTO temp.rlenv_start SELECT i FROM n",
        f"INSERT OR REPLACE INTO temp.rlenv_start (rowid) VALUES ({rowid})",
        f"UPDATE temp.rlenv_start SET a = 0 WHERE {changes} > 0 AND rowid IN (SELECT rowid FROM temp.rlenv_start "
        f"LIMIT {min(changes, _MAX_TOLD)})",
        "DROP TABLE temp.rlenv_start",
    )


_BROKEN: Final = frozenset(
    (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL)
)
# What the loop leaves to a worker, which has more room and says what is wrong.
_NOT_FOR_THE_LOOP: Final = _BROKEN | {sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_NOMEM}
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_QUICK_LIMITS: Final = {**_LIMITS, sqlite3.SQLITE_LIMIT_LENGTH: 65_536, sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000}
_STEPS = 1_000  # instructions of the engine between two looks at the clock; tens of microseconds
_QUICK_STEPS = 200
_QUICK_ROWS = 512
_QUICK_SIZE = 32_000
_ROW_SIZE = 4
_lenient = partial(str, encoding="utf-8", errors="replace")


def _is_blank(sql: str) -> bool:
    """True if a text that asked for nothing when it was prepared (as DROP IF EXISTS may) has no statement at all."""
    rest = sql.lstrip(" \t\r\n\f;")
    while rest.startswith(("--", "/*")):
        rest = rest.partition("\n" if rest.startswith("--") else "*/")[2].lstrip(" \t\r\n\f;")
    return not rest


class NotQuick(Exception):
    """The statement may take long and has to be run off the event loop; it has changed nothing."""


class SqliteConnection:
    """A connection that runs one statement at a time.

    Args:
        may_write: on a private copy.
        is_quick: on the event loop, for what has to end at once.
        max_bytes: how large the database may grow; 0 for no limit.
    """

    def __init__(self, raw: sqlite3.Connection, *, may_write: bool, is_quick: bool = False, max_bytes: int = 0) -> None:
        self._raw = raw
        self._may_write = may_write
        self._is_empty = True
        self._is_own = False
        self._is_quick = is_quick
        self._is_slow = False
        self._refused = ""
        self._until = self._cpu_until = math.inf
        self.has_written = self.has_new_schema = False
        """True where the last statement was one that writes."""
        raw.isolation_level = None  # no BEGIN behind the statement's back
        raw.text_factory = _lenient
        for limit, value in (_QUICK_LIMITS if is_quick else _LIMITS).items():
            raw.setlimit(limit, value)
        if not may_write:
            raw.execute("PRAGMA query_only = 1")
        if not is_quick:  # nothing of a large sort or of a large table is put on disk
            raw.execute("PRAGMA temp_store = MEMORY")
        if max_bytes:
            page = raw.execute("PRAGMA page_size").fetchone()[0]
            raw.execute(f"PRAGMA max_page_count = {max(max_bytes // page, 1)}")
        # Not self: what nobody refers to any more is closed at once, and not by the garbage collector with a warning.
        me = weakref.proxy(self)
        raw.set_authorizer(lambda *asked: me._authorize(*asked))
        raw.set_progress_handler(lambda: me._is_over(), _QUICK_STEPS if is_quick else _STEPS)
        weakref.finalize(self, raw.close).atexit = False

    def close(self) -> None:
        """Closes the connection; a private database is gone with it."""
        self._raw.close()

    def begin(self) -> None:
        """Starts what `roll_back` undoes.

        Raises:
            ResourceError: the database is at fault.
        """
        with told_as(ResourceError, "the database cannot be written:", sqlite3.Error):
            self._own("SAVEPOINT episode")
            self.prime(0, 0)

    def prime(self, rowid: int, changes: int) -> None:
        """Makes `last_insert_rowid()` and `changes()` give these from now on (of changes no more than can be told)."""
        for statement in _BEGIN if not rowid and not changes else _priming_statements(rowid, changes):
            self._own(statement)

    def last(self) -> tuple[int, int]:
        """The present results of `last_insert_rowid()` and `changes()`."""
        ((rowid, changes),) = self._own("SELECT last_insert_rowid(), changes()")
        return int(rowid), int(changes)

    def words(self, most: int) -> list[str]:
        """The names of tables and columns, in the order of the schema, at most so many."""
        try:
            found = self._own(
                "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
                f"WHERE m.type IN ('table', 'view') LIMIT {most}"
            )
        except sqlite3.Error:
            return []
        return list(dict.fromkeys(word for row in found for word in row))[:most]

    def _own(self, statement: str) -> list[Any]:
        """The rows of a statement of ours, to which nothing is forbidden."""
        self._is_own = True
        try:
            return self._raw.execute(statement).fetchall()
        finally:
            self._is_own = False

    @property
    def has_begun(self) -> bool:
        """True while all that was changed since `begin` can be rolled back."""
        return self._raw.in_transaction

    def roll_back(self) -> bool:
        """Undoes all that was changed since `begin`; False where that is not possible any more."""
        try:
            if not self.has_begun:
                return False
            self._own("ROLLBACK TO episode")
            self._own("RELEASE episode")
            return not self.has_begun
        except sqlite3.Error:
            return False

    def image(self) -> bytes:
        """The database as it stands; what `begin` started goes on.

        Raises:
            ResourceError: the database is at fault.
        """
        self._is_own = True  # serializing asks for the number of pages
        try:
            return bytes(self._raw.serialize())
        except sqlite3.Error as error:
            raise ResourceError(f"the database cannot be read: {error}") from error
        finally:
            self._is_own = False

    def run(self, sql: str, *, until: float, max_rows: int, max_size: int = MAX_SIZE, cpu_s: float = math.inf) -> Rows:
        """Runs one statement.

        Args:
            until: when to stop it, on the clock of `time.monotonic()`.
            max_size: how many characters their cells may take together, as JSON; no row is cut.
            cpu_s: processor time after which it is stopped.

        Raises:
            NotQuick: on the loop, it may take longer; nothing has changed.
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """
        self._is_slow, self._is_empty, self._refused, self._until = False, True, "", until
        self._cpu_until = time.process_time() + cpu_s if cpu_s < math.inf else math.inf
        self.has_written = self.has_new_schema = False
        try:
            cursor = self._raw.execute(sql)
            try:
                if self._is_empty and _is_blank(sql):
                    raise ToolFailed("the statement is empty")
                if cursor.description is None:
                    return Rows((), [], changed=max(cursor.rowcount, 0))
                return self._fetch(cursor, max_rows, max_size)
            finally:
                cursor.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            self.has_written = False  # the engine undoes what a statement did that fails
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if self._is_slow or (self._is_quick and (code in _NOT_FOR_THE_LOOP or type(error) is sqlite3.DataError)):
                raise NotQuick from None
            raise self._convert_error(error) from error
        except MemoryError as error:
            if self._is_quick:
                raise NotQuick from None
            raise ToolFailed("the statement needs more memory than it may use", reason="memory") from error
        except (ValueError, OverflowError) as error:  # lone surrogates, null characters
            raise ToolFailed(f"the statement cannot be run: {str(error)[:200]}") from error
        finally:
            self._until = self._cpu_until = math.inf

    def _fetch(self, cursor: sqlite3.Cursor, max_rows: int, max_size: int) -> Rows:
        columns = columns_of(column[0] for column in cursor.description)
        if self._is_quick:
            return self._fetch_quick(cursor, columns)
        size = columns_size(columns, most=max_size)
        rows: list[list[Any]] = []
        for found in cursor:
            size += _ROW_SIZE
            row = list(found)
            for index, cell in enumerate(row):
                if isinstance(cell, bytes):
                    # Counted before it is written out, which makes it twice as long.
                    size += 2 * len(cell) + _ROW_SIZE
                    row[index] = f"x'{cell.hex().upper()}'" if size <= max_size else ""
                else:
                    size += cell_size(cell)
                    if isinstance(cell, float) and not math.isfinite(cell):
                        row[index] = str(cell)
            if size > max_size or len(rows) == max_rows:
                return Rows(columns, rows, truncated=True)
            rows.append(row)
        return Rows(columns, rows)

    def _fetch_quick(self, cursor: sqlite3.Cursor, columns: tuple[str, ...]) -> Rows:
        rows: list[list[Any]] = []
        size = 0
        for found in cursor:
            row = list(found)
            size += 16 * len(row)
            for index, cell in enumerate(row):
                if isinstance(cell, str):
                    size += len(cell)
                elif isinstance(cell, bytes):
                    size += 2 * len(cell)
                    row[index] = f"x'{cell.hex().upper()}'"
                elif isinstance(cell, float) and not math.isfinite(cell):
                    row[index] = str(cell)
            rows.append(row)
            if len(rows) >= _QUICK_ROWS or size > _QUICK_SIZE:
                raise NotQuick
        return Rows(columns, rows)

    def _is_over(self) -> bool:
        return time.monotonic() > self._until or (self._cpu_until < math.inf and time.process_time() > self._cpu_until)

    def _authorize(self, action: int, first: str | None, second: str | None, _db: str | None, by: str | None) -> int:
        self._is_empty = False
        if self._is_own:
            return sqlite3.SQLITE_OK
        if action in _READS:
            return self._authorize_read(first, by) if action == sqlite3.SQLITE_READ else sqlite3.SQLITE_OK
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
            return self._left_to_worker()
        # A table-valued pragma asks to write here although it does not; the engine itself refuses all real writes.
        if first == "sqlite_master" and not self._may_write:
            return sqlite3.SQLITE_OK
        if self._may_write and action in _WRITES and (first or "").lower() not in _NEVER_READ:
            if self._is_quick and (action not in _PLAIN_WRITES or by is not None):
                return self._left_to_worker()
            self.has_written = True
            self.has_new_schema |= action not in _PLAIN_WRITES
            return sqlite3.SQLITE_OK
        word = "this PRAGMA" if action == sqlite3.SQLITE_PRAGMA else _WRITES.get(action) or _NEVER.get(action)
        self._refused = word or "this statement"
        return sqlite3.SQLITE_DENY

    def _authorize_read(self, table: str | None, by: str | None) -> int:
        if not self._is_quick:
            if (table or "").lower() not in _NEVER_READ:
                return sqlite3.SQLITE_OK
            self._refused = f"the table {table}"
            return sqlite3.SQLITE_DENY
        # A view or a trigger may do anything.
        name = (table or "").lower()
        if by is not None or name in _MADE_UP or name in _NEVER_READ:
            return self._left_to_worker()
        return sqlite3.SQLITE_OK

    def _left_to_worker(self) -> int:
        self._is_slow = self._is_quick
        return sqlite3.SQLITE_DENY if self._is_quick else sqlite3.SQLITE_OK

    def _convert_error(self, error: Exception) -> ToolFailed | ResourceError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            is_own_work = time.process_time() > self._cpu_until
            reason = "timeout" if is_own_work else "stalled"
            return ToolFailed("the query did not end within its time", reason=reason)
        if self._refused:
            allowed = "" if self._may_write else "; the database is read only"
            return ToolFailed(f"{self._refused} is not allowed{allowed}")
        if code == sqlite3.SQLITE_FULL and self._may_write:
            return ToolFailed("the database would grow larger than it may", reason="too_large")
        # Of a private copy only its own episode's statements can have made something that cannot be read.
        if code in _BROKEN and not self._may_write:
            return ResourceError(f"the database cannot be read: {error}")
        if code == sqlite3.SQLITE_TOOBIG:
            return ToolFailed(str(error)[:300], reason="too_large")
        message = str(error)
        if "one statement at a time" in message:
            return ToolFailed("found several statements; one is run at a time")
        if "number of bindings" in message:
            return ToolFailed("the statement has a placeholder (?); write the value itself")
        return ToolFailed(cut_end(message, 300), reason="failed")
