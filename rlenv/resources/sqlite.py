"""The `sqlite` resource: a database file that episodes read, or of which each has a copy of its own.

Read-only files are opened as unchanging and shared through a pool of connections. With `access: copy` the file's
image is kept in memory and each episode gets a private database from it, so that writes never cross episodes.
Files are taken not to change while the process runs; their schemas are read once.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal

from rlenv._threads import Job, ThreadPool
from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.paths import RefusedPath, read_file
from rlenv.registry import Kind
from rlenv.resources._sqlite import Connection, NotQuick, Rows
from rlenv.resources.base import ResourceContext
from rlenv.spec import ResourceSpec, Text
from rlenv.templates import Template, TemplateError, compile_template
from rlenv.tools.base import CompileContext

__all__ = ["KIND", "Database", "SqliteResource", "SqliteSpec"]

_QUICK_S = 0.002
_MARGIN_S = 0.05
_QUICK_FILE_BYTES = 16_000_000
_SMALL_IMAGE_BYTES = 2_000_000
_MAX_SOURCES = 256
_MAX_IDLE = 4
_MAX_IDLE_BYTES = 256_000_000
_PAUSE_S = 0.02
_OTHER_FILES = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)  # VACUUM INTO attaches as well
# Shared by all databases: a statement always ends at its deadline, so threads come back.
_threads = ThreadPool(size=64)


class _Pause:
    """Until when nothing is tried on the event loop, after a statement there took too long.

    Many slow statements at once thus hold the loop for a tenth of the time at most.
    """

    until = 0.0


_pause = _Pause()


class SqliteSpec(ResourceSpec):
    """A SQLite database."""

    kind: Literal["sqlite"]
    path: Text | None = None
    """The file, relative to the spec; a template over `task` and `vars`."""
    init: Text | None = None
    """Instead of a path: a file of SQL statements that makes the database; a template as well."""
    access: Literal["read_only", "copy"] = "read_only"
    """`read_only`: nothing can be written; `copy`: a private copy that may be written and is thrown away."""
    isolation: Literal["deserialize", "savepoint"] | None = None
    """With `copy`: `deserialize` makes each copy anew (the default); `savepoint` keeps copies and rolls them back after
    each episode, which is quicker for databases of many megabytes."""


class _Source:
    """One database file, or the result of one script: its image or its pool of connections, and its schema."""

    def __init__(self, path: Path, *, is_script: bool, is_copied: bool, is_kept: bool) -> None:
        self.path = path
        self.is_copied = is_copied
        self.is_kept = is_kept
        self.version: tuple[str, int, int] | None = None
        self._is_closed = False
        self.image: bytes | None = None
        self._idle: list[Connection] = []
        self._words: list[str] | None = None
        try:
            if not path.is_file():
                raise ResourceError(f"there is no database file {path}")
            if not is_copied:
                state = path.stat()
                self.version = (str(path.resolve()), state.st_mtime_ns, state.st_size)
            with closing(_built(path) if is_script else sqlite3.connect(_address(path), uri=True)) as raw:
                self.schema = _schema(raw)
                if is_script or is_copied:
                    self.image = raw.serialize()
        except (sqlite3.Error, sqlite3.Warning, OSError, UnicodeDecodeError) as error:
            raise ResourceError(f"the database {path} cannot be opened: {error}") from error
        self.is_small = (len(self.image) if self.image is not None else path.stat().st_size) <= _QUICK_FILE_BYTES

    def connect(self) -> Connection:
        """A connection of its own: to the file, or to a fresh copy of the image."""
        try:
            if self.image is None:
                raw = sqlite3.connect(_address(self.path), uri=True, check_same_thread=False, cached_statements=0)
            else:
                raw = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
                raw.deserialize(self.image)
            return Connection(raw, may_write=self.is_copied)
        except sqlite3.Error as error:
            raise ResourceError(f"the database {self.path} cannot be opened: {error}") from error

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """A connection that nobody else uses meanwhile."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connect()
        try:
            yield connection
        finally:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def lend(self) -> Connection:
        """A private copy that may be written, for one episode."""
        if not self.is_kept:
            return self.connect()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connect()
        connection.begin()
        return connection

    def give_back(self, connection: Connection) -> None:
        """Takes a private copy back, without what was written into it, or closes it."""
        room = max(_MAX_IDLE, _MAX_IDLE_BYTES // max(1, len(self.image or b"")))
        if self.is_kept and connection.roll_back() and not self._is_closed and len(self._idle) < room:
            self._idle.append(connection)
        else:
            connection.close()

    @property
    def has_idle(self) -> bool:
        """True where a connection is there that nobody uses."""
        return bool(self._idle)

    def close(self) -> None:
        """Closes the idle connections; those in use are closed when nothing refers to them any more."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def words(self) -> list[str]:
        """The names of all tables and columns, in the order of the schema."""
        if self._words is None:
            with closing(self.connect()) as connection:
                found = connection.run(
                    "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
                    "WHERE m.type IN ('table', 'view')",
                    until=time.monotonic() + 1,
                    max_rows=10_000,
                )
            self._words = list(dict.fromkeys(word for row in found.rows for word in row))
        return self._words


class Database:
    """An opened database.

    `schema` is the text of its CREATE statements, `dialect` the name of its SQL (`sqlite`). `version` is equal where
    equal statements give equal rows: the file and when it was changed. It is None for a copy, which may be written.
    """

    dialect: ClassVar[str] = "sqlite"
    __slots__ = ("_own", "_source", "_stuck", "_turn")

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._own = source.lend() if source.is_copied else None
        self._turn = asyncio.Lock() if source.is_copied else None
        self._stuck: Job | None = None

    @property
    def schema(self) -> str:
        return self._source.schema

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._source.version

    async def query(self, sql: str, *, deadline: float, max_rows: int = 10_000) -> Rows:
        """What one statement gives; the event loop is held for a few milliseconds at most.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are fetched at most.

        Raises:
            ToolFailed: the statement is at fault (SQLite's message, shortened), or ran out of time.
            ResourceError: the database is.
        """
        if self._turn is None:
            return await self._query(sql, deadline, max_rows)
        async with self._turn:
            self._check_changes()
            try:
                return await self._query(sql, deadline, max_rows)
            except ToolFailed:
                self._check_changes()
                raise

    async def _query(self, sql: str, deadline: float, max_rows: int) -> Rows:
        try:
            now = time.monotonic()
            if self._source.is_small and now >= _pause.until:
                try:
                    with self._borrowed() as connection:
                        until = min(deadline, now + _QUICK_S)
                        return connection.run(sql, until=until, max_rows=max_rows, is_quick=True)
                except NotQuick:
                    if time.monotonic() > now + _QUICK_S:
                        _pause.until = time.monotonic() + _PAUSE_S
            return await self._in_thread(sql, deadline, max_rows)
        except ToolFailed as error:
            raise self._with_hint(error) from error

    async def _in_thread(self, sql: str, deadline: float, max_rows: int) -> Rows:
        running: list[Connection] = []
        guard = threading.Lock()

        def work() -> Rows:
            with self._borrowed() as connection:
                running.append(connection)
                try:
                    # Whoever waits gives up at the deadline; this is for those who do not.
                    return connection.run(sql, until=deadline + _MARGIN_S, max_rows=max_rows)
                finally:
                    with guard:  # an interrupt must not meet the connection's next user
                        running.clear()

        job = _threads.submit(work)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            with guard:
                for connection in running:
                    connection.interrupt()
            await asyncio.wait((job.done,), timeout=_MARGIN_S)
            if not job.is_ended and _threads.give_up(job):
                self._stuck = job
            raise
        if job.error is not None:
            raise job.error
        rows: Rows = job.result
        return rows

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        if not self._source.is_copied:
            with self._source.borrowed() as connection:
                yield connection
        elif self._stuck is not None and not self._stuck.is_ended:
            raise ToolFailed("the database is still busy with an earlier statement", reason="timeout")
        else:
            assert self._own is not None
            yield self._own

    def _with_hint(self, error: ToolFailed) -> ToolFailed:
        match = re.match(r"no such (?:table|column): \"?(.+?)\"?$", error.text)
        if match is None:
            return error
        words = {word.lower(): word for word in self._source.words()}
        close = get_close_matches(match[1].rpartition(".")[2].lower(), list(words), n=1)
        return ToolFailed(f"{error.text}; did you mean {words[close[0]]}?", reason=error.reason) if close else error

    def _check_changes(self) -> None:
        is_busy = self._stuck is not None and not self._stuck.is_ended
        if self._source.is_kept and self._own is not None and not is_busy and not self._own.has_begun:
            raise ResourceError(
                "a statement that wrote was stopped in its time, and with it all that the episode had written is lost; "
                "isolation: deserialize keeps it"
            )

    def close(self) -> None:
        """Gives a private copy back; shared connections go back to their pool by themselves."""
        if self._own is not None and (self._stuck is None or self._stuck.is_ended):
            self._source.give_back(self._own)
        self._own = None


class SqliteResource:
    """A compiled `sqlite` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ("schema", "dialect")

    def __init__(
        self,
        name: str,
        *,
        scope: Literal["episode", "process"],
        access: Literal["read_only", "copy"],
        template: Template,
        find: Callable[[str], Path],
        is_script: bool,
        is_kept: bool,
    ) -> None:
        self.name = name
        self.scope = scope
        self.access = access
        self._template = template
        self._find = find
        self._is_script = is_script
        self._is_kept = is_kept
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def open(self, context: ResourceContext) -> _Opening:
        """Opens the database of the context's task.

        Raises:
            ResourceError: on entering, where the file is missing or is no database.
        """
        return _Opening(self, context)

    def source(self, context: ResourceContext) -> _Source:
        """The source that the task names, from the cache where it was opened before."""
        try:
            written = self._template.text(task=context.task, vars=context.vars)
        except TemplateError as error:
            raise ResourceError(f"resource '{self.name}': its path cannot be filled in: {error}") from error
        source = self._sources.get(written)
        if source is None:
            try:
                path = self._find(written)
            except RefusedPath as error:
                raise ResourceError(f"resource '{self.name}': {error}") from error
            if len(self._sources) >= _MAX_SOURCES:
                self._sources.popitem(last=False)[1].close()
            is_copied = self.access == "copy"
            source = _Source(path, is_script=self._is_script, is_copied=is_copied, is_kept=self._is_kept)
            self._sources[written] = source
        else:
            self._sources.move_to_end(written)
        return source


class _Opening:
    __slots__ = ("_context", "_database", "_resource")

    def __init__(self, resource: SqliteResource, context: ResourceContext) -> None:
        self._resource = resource
        self._context = context
        self._database: Database | None = None

    async def __aenter__(self) -> Database:
        source = self._resource.source(self._context)
        is_large = source.image is not None and len(source.image) > _SMALL_IMAGE_BYTES
        if is_large and not (source.is_kept and source.has_idle):
            job = _threads.submit(Database, source)
            await job.done
            if job.error is not None:
                raise job.error
            self._database = job.result
        else:
            self._database = Database(source)
        assert self._database is not None
        return self._database

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _address(path: Path) -> str:
    # Unchanging files need no locks and no look at the disk; one with a write-ahead log has to be read with it.
    log = path.with_name(path.name + "-wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"


def _built(script: Path) -> sqlite3.Connection:
    """A database in memory from a script, which reaches no other file: a row may name it."""
    raw = sqlite3.connect(":memory:")
    raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in _OTHER_FILES else sqlite3.SQLITE_OK)
    raw.executescript(read_file(script).decode())
    raw.set_authorizer(None)
    return raw


def _schema(raw: sqlite3.Connection) -> str:
    found = raw.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
    )
    return "\n".join(f"{row[0]};" for row in found)


def compile_sqlite(name: str, spec: SqliteSpec, context: CompileContext) -> SqliteResource:
    """The resource of one entry.

    Raises:
        UsageError: path and init do not fit, or the path of a shared database depends on the task.
    """
    if (spec.path is None) == (spec.init is None):
        raise UsageError("expected either path or init")
    if spec.isolation is not None and spec.access != "copy":
        raise UsageError("isolation: a database that is read only needs none; write access: copy, or remove it")
    if spec.access == "copy" and spec.scope == "process":
        raise UsageError("scope: one copy for all episodes would carry writes from one to the next; use scope: episode")
    key, written = ("path", spec.path) if spec.path is not None else ("init", spec.init)
    assert written is not None
    try:
        template = compile_template(written)
    except TemplateError as error:
        raise UsageError(f"{key}: {error}") from error
    if unknown := template.names - {"task", "vars"}:
        raise UsageError(f"{key}: there is no '{sorted(unknown)[0]}' here; expected task or vars")
    if spec.scope == "process" and "task" in template.names:
        raise UsageError(f"{key}: a resource of scope process is opened once and cannot depend on the task")
    return SqliteResource(
        name,
        scope=spec.scope,
        access=spec.access,
        template=template,
        find=context.finder(key, template, vars=context.vars),
        is_script=spec.init is not None,
        is_kept=spec.isolation == "savepoint",
    )


KIND = Kind(SqliteSpec, compile_sqlite)
