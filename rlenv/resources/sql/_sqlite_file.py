"""A SQLite file as the event loop has it: its schema, connections for what is quick, and the image of its copies.

What runs here is plain (`plainness`) and ends at once, or is stopped.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from rlenv._base.paths import read_file
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import ResourceError, told_as
from rlenv.resources.sql import Rows, StatementLimits, written
from rlenv.resources.sql._sqlite_connection import NotQuick, SqliteConnection

_T = TypeVar("_T")
_QUICK_FILE_BYTES: Final = 16_000_000
_SMALL_BYTES: Final = 1_000_000  # up to this size an image is made, or opened, at once
_MAX_IDLE: Final = 4
_MAX_IDLE_BYTES: Final = 256_000_000
_MAX_WORDS: Final = 500
_OTHER_FILES: Final = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)  # VACUUM INTO attaches as well
_numbers: Final = itertools.count()
_threads: Final = ThreadPool(size=8)


_QUICK_S: Final = 0.002
_PAUSE_S: Final = 0.02


class _Pause:
    """Until when nothing is tried on the event loop, after a statement there took too long.

    Many slow statements at once thus hold the loop for a tenth of the time at most.
    """

    until = 0.0


_pause: Final = _Pause()


def run_briefly(run: Callable[..., Rows], sql: str, limits: StatementLimits) -> Rows:
    """The rows of a plain SELECT that runs on the event loop.

    Raises:
        NotQuick: it was stopped, or not tried as others just took too long.
    """
    now = time.monotonic()
    if now < _pause.until:
        raise NotQuick
    try:
        return run(sql, until=min(limits.deadline, now + _QUICK_S), max_rows=limits.max_rows)
    finally:
        ended = time.monotonic()
        if ended > now + _QUICK_S:
            _pause.until = ended + _PAUSE_S


def unique(prefix: str) -> str:
    """A key that no other file or copy of any process has."""
    return f"{prefix}.{next(_numbers)}"


def memory_for(size: int) -> int:
    """The bytes that a process may use for statements on an image of `size` bytes, or on a file (0)."""
    return 512_000_000 + 4 * size


async def off_the_loop(work: Callable[[], _T], *, size: int) -> _T:
    """The result of `work` on `size` bytes, done in a thread unless that is little; it is never left in the middle."""
    return work() if size <= _SMALL_BYTES else await _threads.finish(work)


class SqliteFile:
    """One database file, or the result of one script: its image or its pool of connections, and its schema."""

    def __init__(self, path: Path, *, is_script: bool, is_copied: bool, is_kept: bool) -> None:
        self.path = path
        self.is_copied = is_copied
        self.is_kept = is_kept
        self.key = unique(str(os.getpid()))
        self.version: tuple[str, int, int] | None = None
        self._is_closed = False
        self.image: bytes | None = None
        self._idle: list[SqliteConnection] = []
        self._words: list[str] | None = None
        self._file: HeldImage | None = None
        try:
            if not path.is_file():
                raise ResourceError(f"there is no database file {path}")
            if not is_copied:
                state = path.stat()
                self.version = (str(path.resolve()), state.st_mtime_ns, state.st_size)
            with closing(_build_image(path) if is_script else sqlite3.connect(_address(path), uri=True)) as raw:
                self.schema = _schema(raw)
                if is_script or is_copied:
                    self.image = raw.serialize()
        except (sqlite3.Error, sqlite3.Warning, OSError, UnicodeDecodeError) as error:
            raise ResourceError(f"the database {path} cannot be opened: {error}") from error
        self.size = len(self.image) if self.image is not None else path.stat().st_size
        # A read of memory ends when it is told to; one of a disk when the disk gives it.
        schema = self.schema.upper()
        self.is_quick = (is_copied or self.size <= _QUICK_FILE_BYTES) and "CREATE VIRTUAL" not in schema
        # What rolls a transaction back takes with it what the episode wrote before.
        self.is_written_quickly = self.is_quick and "ROLLBACK" not in schema

    def connect(self) -> SqliteConnection:
        """A connection of its own, for the event loop: to the file, or to a fresh copy of the image."""
        with told_as(ResourceError, f"the database {self.path} cannot be opened:", sqlite3.Error):
            if self.image is None:
                raw = sqlite3.connect(_address(self.path), uri=True, check_same_thread=False, cached_statements=0)
            else:
                raw = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
                if self.is_kept:
                    # Unlike a deserialized one, it can be serialized with what its transaction wrote.
                    with closing(sqlite3.connect(":memory:")) as first:
                        first.deserialize(self.image)
                        first.backup(raw)
                else:
                    raw.deserialize(self.image)
            return SqliteConnection(raw, may_write=self.is_copied, is_quick=True)

    def run(self, sql: str, *, until: float, max_rows: int) -> Rows:
        """The rows of a quick statement on the shared file."""
        connection = self._idle.pop() if self._idle else self.connect()
        try:
            return connection.run(sql, until=until, max_rows=max_rows)
        finally:
            if len(self._idle) < _MAX_IDLE and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    def where(self) -> dict[str, Any]:
        """The place at which a worker finds the shared file; it opens it once."""
        if self.image is not None:
            return {"file": "", "may_write": False, "memory": memory_for(self.size)}
        return {"file": _address(self.path), "may_write": False, "memory": memory_for(0)}

    @asynccontextmanager
    async def shared_image(self) -> AsyncIterator[int]:
        """A descriptor of the image as it was at first."""
        image = self.image
        assert image is not None
        file = self._file
        if file is None:
            file = await off_the_loop(lambda: HeldImage(image), size=self.size)
        self._file = None if self._is_closed else self._file or file
        yield file.fd

    def lend(self) -> SqliteConnection:
        """A private copy that may be written, for one episode."""
        if not self.is_kept:
            return self.connect()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connect()
        connection.begin()
        return connection

    def give_back(self, connection: SqliteConnection) -> None:
        """Takes a private copy back, without what was written into it, or closes it."""
        room = max(_MAX_IDLE, _MAX_IDLE_BYTES // max(1, self.size))
        if self.is_kept and connection.roll_back() and not self._is_closed and len(self._idle) < room:
            self._idle.append(connection)
        else:
            connection.close()

    @property
    def has_idle(self) -> bool:
        """True where a connection is there that nobody uses."""
        return bool(self._idle)

    def close(self) -> None:
        """Closes what nobody uses; what is in use is closed when nothing refers to it any more."""
        self._is_closed, self._file = True, None
        while self._idle:
            self._idle.pop().close()

    def words(self) -> list[str]:
        """The names of tables and columns, in the order of the schema; of very many the first."""
        if self._words is None:
            with closing(self.connect()) as connection:
                self._words = connection.words(_MAX_WORDS)
        return self._words


class HeldImage:
    """A descriptor that is closed with the object that has it."""

    def __init__(self, image: bytes) -> None:
        self.fd = written(image)
        weakref.finalize(self, os.close, self.fd)


def _address(path: Path) -> str:
    # Unchanging files need no locks and no look at the disk; one with a write-ahead log has to be read with it.
    log = path.with_name(path.name + "-wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"


def _build_image(script: Path) -> sqlite3.Connection:
    """A database in memory from a script, which reaches no other file: a row may name it."""
    with ExitStack() as unless_built:
        raw = unless_built.enter_context(closing(sqlite3.connect(":memory:")))
        raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in _OTHER_FILES else sqlite3.SQLITE_OK)
        raw.executescript(read_file(script).decode())
        raw.set_authorizer(None)
        unless_built.pop_all()
    return raw


def _schema(raw: sqlite3.Connection) -> str:
    found = raw.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
    )
    return "\n".join(f"{row[0]};" for row in found)


_MAX_CHARS: Final = 1_000
_MAX_SELECTS: Final = 3
_MAX_STARS: Final = 6
_MAX_TABLES: Final = 8
# Looked for anywhere in the text, quoted names and strings included: a wrong guess costs a tenth of a millisecond.
_ODD: Final = ("WITH", "VALUES", "TRIM", "--", "/*", "INDEXED", "NATURAL", "USING")
_WINDOW: Final = re.compile(r"\bOVER\b|\bWINDOW\b")
_NAME: Final = r"(?:[A-Z_][A-Z_0-9]*|\"[^\"]+\")"
_INSERT: Final = re.compile(rf"\s*INSERT\s+INTO\s+{_NAME}\s*(?:\([^()]*\)\s*)?VALUES\s*\(")
_CHANGE: Final = re.compile(rf"\s*(?:UPDATE\s+{_NAME}\s+SET\s|DELETE\s+FROM\s+{_NAME}\s*(?:WHERE\s|;?\s*$))")
_NOT_IN_WRITES: Final = ("SELECT", "WITH", "TRIM", "RETURNING", "CONFLICT", "STRFTIME", "--", "/*")
_FORMAT: Final = re.compile(r"STRFTIME\s*\(\s*'[^']{0,64}'\s*,")  # a column may hold one of thousands of parts


def plainness(sql: str) -> Literal["read", "insert", "change", ""]:
    """The kind of a plain statement, one that SQLite prepares and runs in no time; "" for any other.

    Preparing a statement cannot be stopped, and some texts of a few hundred characters take seconds and gigabytes: each
    level of a WITH, of a subquery in FROM or of a view can double what the one below it holds. So the text alone
    decides, against whatever it does not know; a worker process runs the rest (see `workers.py`).

    read      a SELECT of few tables without a subquery in FROM, a WITH or a window
    insert    rows written out in the statement
    change    an UPDATE or DELETE of one table without subqueries; all that it says is done for each row
    ""        anything else
    """
    if len(sql) > _MAX_CHARS:
        return ""
    text = sql.upper()
    selects = text.count("SELECT")
    if not selects:
        return _write(text)
    if selects > _MAX_SELECTS or not text.lstrip().startswith("SELECT"):
        return ""
    for word in _ODD:
        if word in text:
            return ""
    if text.count("*") > _MAX_STARS or (("OVER" in text or "WINDOW" in text) and _WINDOW.search(text)):
        return ""
    if "STRFTIME" in text and text.count("STRFTIME") > len(_FORMAT.findall(text)):
        return ""
    if text.count("JOIN") + text.count(",") >= _MAX_TABLES and _tables(text) > _MAX_TABLES:
        return ""
    if selects > 1:
        close = "".join(text.split())
        if "FROM(" in close or "JOIN(" in close or ",(SELECT" in close:
            return ""
    return "read"


def _tables(text: str) -> int:
    """At least as many as the tables that the FROM clauses name."""
    found = text.count("JOIN")
    for clause in text.split("FROM")[1:]:
        found += 1 + clause.partition("WHERE")[0].count(",")
    return found


def _write(text: str) -> Literal["insert", "change", ""]:
    for word in _NOT_IN_WRITES:
        if word in text:
            return ""
    if _INSERT.match(text):
        return "insert"
    if _CHANGE.match(text) and (text.lstrip().startswith("DELETE") or "FROM" not in text):
        return "change"
    return ""
