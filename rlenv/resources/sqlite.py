"""The `sqlite` resource: a database file that episodes read, or of which each has a copy of its own.

Read-only files are opened as unchanging and shared through a pool of connections. With `access: copy` the file's
image is kept in memory and each episode gets a private database from it, so that writes never cross episodes.
Files are taken not to change while the process runs; their schemas are read once.

Only statements that are plain and end at once run here, on the event loop. All others run in a worker process, which
opens the file itself, or gets the image of a private copy and gives back what became of it. A statement that is stopped
there, or whose process is killed, leaves the copy as it was.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import sqlite3
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, TypeVar

from rlenv._threads import ThreadPool
from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.paths import RefusedPath, read_file
from rlenv.registry import Kind
from rlenv.resources._memory_file import read, written
from rlenv.resources._plain_sql import plainness
from rlenv.resources._sql_workers import Answer, Image, Limits, encoded, limits_for, sqlite_workers
from rlenv.resources._sqlite import MAX_SIZE, MAX_SQL, Connection, NotQuick, Rows
from rlenv.resources.base import ResourceContext
from rlenv.spec import ResourceSpec, Text
from rlenv.templates import Template, TemplateError, template_of
from rlenv.tools.base import CompileContext

__all__ = ["KIND", "Database", "SqliteResource", "SqliteSpec"]

_QUICK_S = 0.002
_QUICK_FILE_BYTES = 16_000_000
_CHANGED_BYTES = 256_000
"""Up to this size of a copy an UPDATE or DELETE that looks at all of it is over at once."""
_SMALL_BYTES = 1_000_000
_MAX_GROWTH_BYTES = 32_000_000
_MEMORY_BYTES = 512_000_000
_MAX_SOURCES = 256
_MAX_IDLE = 4
_MAX_IDLE_BYTES = 256_000_000
_MAX_WORDS = 500
_MAX_WORD_CHARS = 60
_PAUSE_S = 0.02
_OTHER_FILES = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)  # VACUUM INTO attaches as well
_keys: Final = itertools.count()
_workers: Final = sqlite_workers
_T = TypeVar("_T")


class _Pause:
    """Until when nothing is tried on the event loop, after a statement there took too long.

    Many slow statements at once thus hold the loop for a tenth of the time at most.
    """

    until = 0.0

    def after(self, began: float) -> None:
        """Looks how long a statement took that was tried at `began`."""
        now = time.monotonic()
        if now > began + _QUICK_S:
            self.until = now + _PAUSE_S


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
        self.key = f"{os.getpid()}.{next(_keys)}"
        self.version: tuple[str, int, int] | None = None
        self._is_closed = False
        self.image: bytes | None = None
        self._idle: list[Connection] = []
        self._words: list[str] | None = None
        self._file: _Image | None = None
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
        self.size = len(self.image) if self.image is not None else path.stat().st_size
        # A read of memory ends when it is told to; one of a disk when the disk gives it.
        schema = self.schema.upper()
        self.is_quick = (is_copied or self.size <= _QUICK_FILE_BYTES) and "CREATE VIRTUAL" not in schema
        # What rolls a transaction back takes with it what the episode wrote before.
        self.is_written_quickly = self.is_quick and "ROLLBACK" not in schema

    def connect(self) -> Connection:
        """A connection of its own, for the event loop: to the file, or to a fresh copy of the image."""
        try:
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
            return Connection(raw, may_write=self.is_copied, is_quick=True)
        except sqlite3.Error as error:
            raise ResourceError(f"the database {self.path} cannot be opened: {error}") from error

    def run(self, sql: str, *, until: float, max_rows: int) -> Rows:
        """What a quick statement on the shared file gives."""
        connection = self._idle.pop() if self._idle else self.connect()
        try:
            return connection.run(sql, until=until, max_rows=max_rows)
        finally:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def asked(self) -> dict[str, Any]:
        """Where a worker finds the shared file; it opens it once."""
        return {"file": "" if self.image is not None else _address(self.path)}

    @asynccontextmanager
    async def shared_image(self) -> AsyncIterator[int]:
        """A descriptor of the image as it was at first."""
        image = self.image
        assert image is not None
        if self._file is None:
            file = await _done(lambda: _Image(image), is_short=self.size <= _SMALL_BYTES)
            self._file = self._file or file
        yield self._file.fd

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
        """Closes the idle connections; those in use are closed when nothing refers to them any more."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def words(self) -> list[str]:
        """The names of tables and columns, in the order of the schema; of very many the first."""
        if self._words is None:
            with closing(self.connect()) as connection:
                self._words = connection.words(_MAX_WORDS)
        return self._words


class Database:
    """An opened database.

    `schema` is the text of its CREATE statements, `dialect` the name of its SQL (`sqlite`). `version` is equal where
    equal statements give equal rows: the file and when it was changed. It is None for a copy, which may be written.
    """

    dialect: ClassVar[str] = "sqlite"
    __slots__ = ("_copy", "_source")

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._copy = _Copy(source) if source.is_copied else None

    @property
    def schema(self) -> str:
        return self._source.schema

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._source.version

    async def query(
        self,
        sql: str,
        *,
        deadline: float,
        max_rows: int = 10_000,
        max_size: int = MAX_SIZE,
        cpu_s: float | None = None,
        is_urgent: bool = False,
    ) -> Rows:
        """What one statement gives; the event loop is held for a few milliseconds at most.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are given at most.
            max_size: how many characters their cells may take together, as JSON.
            cpu_s: how much processor time it may use; a quarter of the time to the deadline otherwise.
            is_urgent: before others where several wait, for what a reward asks.

        Raises:
            ToolFailed: the statement is at fault (SQLite's message, shortened), or ran out of time; `reason` says
                whether it used its time up (`timeout`) or did not get it (`stalled`, `busy`, `worker`).
            ResourceError: the database is.
        """
        if len(sql) > MAX_SQL:
            raise ToolFailed(f"the statement is longer than {MAX_SQL} characters", reason="too_large")
        limits = limits_for(deadline, cpu_s=cpu_s, max_rows=max_rows, max_size=max_size, is_urgent=is_urgent)
        try:
            if self._copy is not None:
                return await self._copy.query(sql, limits)
            return await self._read(sql, limits)
        except ToolFailed as error:
            raise self._with_hint(error) from error

    async def _read(self, sql: str, limits: Limits) -> Rows:
        source = self._source
        if source.is_quick and plainness(sql) == "read" and (now := time.monotonic()) >= _pause.until:
            try:
                return source.run(sql, until=min(limits.deadline, now + _QUICK_S), max_rows=limits.max_rows)
            except NotQuick:
                pass
            finally:
                _pause.after(now)
        asked = {**_asked(sql, source), **source.asked(), "may_write": False}
        image = source.shared_image if source.image is not None else None
        return _rows(await _workers.run(asked, limits, key=source.key, image=image))

    def _with_hint(self, error: ToolFailed) -> ToolFailed:
        match = re.match(r"no such (?:table|column): \"?(.+?)\"?$", error.text)
        if match is None:
            return error
        name = match[1].rpartition(".")[2].lower()
        if len(name) > _MAX_WORD_CHARS:
            return error
        words = {word.lower(): word for word in self._source.words()}
        close = get_close_matches(name, list(words), n=1)
        return ToolFailed(f"{error.text}; did you mean {words[close[0]]}?", reason=error.reason) if close else error

    def close(self) -> None:
        """Gives a private copy back; shared connections go back to their pool by themselves."""
        if self._copy is not None:
            self._copy.close()


class _Copy:
    """An episode's private database.

    It is a connection on the event loop as long as its schema is the author's. A statement that needs a worker takes
    the image there, and where it wrote, the image that comes back is the database from then on. After a statement that
    changed the schema only the image is kept: what the policy put there is never read on the loop.
    """

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._own: Connection | None = source.lend()
        self._held = -1
        """The descriptor of the image, where there is no connection."""
        self._name = f"{source.key}.{next(_keys)}"
        self._last = (0, 0)
        self._turn = asyncio.Lock()
        self._edition = 0
        """How often the copy was changed; the worker that has the latest needs no image."""
        self._size = source.size
        self._is_as_lent = True
        self._has_begun = source.is_kept
        self._is_closed = False

    async def query(self, sql: str, limits: Limits) -> Rows:
        async with self._turn:
            if self._is_closed:
                raise ResourceError("the database was closed")
            if (found := self._tried(sql, limits)) is not None:
                return found
            return await self._in_worker(sql, limits)

    def _tried(self, sql: str, limits: Limits) -> Rows | None:
        """What a plain statement gives on the event loop, or None."""
        own = self._own
        if own is None or not self._source.is_quick or not (kind := plainness(sql)):
            return None
        try:
            if kind == "read":
                now = time.monotonic()
                if now < _pause.until:
                    return None
                try:
                    return own.run(sql, until=min(limits.deadline, now + _QUICK_S), max_rows=limits.max_rows)
                finally:
                    _pause.after(now)
            if not self._source.is_written_quickly or (kind == "change" and self._size > _CHANGED_BYTES):
                return None
            # Never stopped: with it the engine would undo all that the episode wrote.
            found = own.run(sql, until=math.inf, max_rows=limits.max_rows)
        except NotQuick:
            self._check(own)
            return None
        self._edition += 1
        self._size += len(sql)
        self._is_as_lent = False
        return found

    def _check(self, own: Connection) -> None:
        """Sees to it that nothing of what the episode wrote was undone by the engine."""
        if not self._has_begun or own.has_begun:
            return
        if not self._is_as_lent:
            raise ResourceError("the engine had no memory for a statement, and what the episode had written is lost")
        own.close()
        self._own = self._source.lend()

    async def _in_worker(self, sql: str, limits: Limits) -> Rows:
        rowid, changes = self._last if self._own is None else self._own.last()
        asked = {
            **_asked(sql, self._source),
            "may_write": True,
            "memory": _MEMORY_BYTES + 4 * self._size,
            "max_bytes": self._source.size + _MAX_GROWTH_BYTES,
            "rowid": rowid,
            "changes": changes,
        }
        image: Image = self._source.shared_image if self._is_as_lent else self._image
        answer = await _workers.run(asked, limits, key=self._key(0), image=image, next_key=self._key(1))
        if answer.fd is not None:
            await self._adopt(answer, answer.fd)
        return _rows(answer)

    def _key(self, more: int) -> str:
        return f"{self._name}.{self._edition + more}"

    @asynccontextmanager
    async def _image(self) -> AsyncIterator[int]:
        if self._own is None:
            yield self._held
            return
        own = self._own
        fd = await _done(lambda: written(own.image()), is_short=self._size <= _SMALL_BYTES)
        try:
            yield fd
        finally:
            os.close(fd)

    async def _adopt(self, answer: Answer, fd: int) -> None:
        """Takes the image in `fd` for the database, and the descriptor with it."""
        told = answer.told
        size = os.fstat(fd).st_size
        own: Connection | None = None
        try:
            if self._own is not None and not told["has_new_schema"]:
                last = (told["rowid"], told["changes"])
                own = await _done(lambda: _opened(fd, last), is_short=size <= _SMALL_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._leave()
        if own is not None:
            os.close(fd)
            self._own = own
        else:
            self._held, self._last = fd, (told["rowid"], told["changes"])
        self._edition += 1
        self._size = size
        self._is_as_lent = self._has_begun = False

    def _leave(self) -> None:
        if self._own is not None:
            self._source.give_back(self._own)
            self._own = None
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def close(self) -> None:
        """Gives the connection back, or closes it."""
        self._is_closed = True
        if not self._turn.locked():  # a statement that was left behind may use it still
            self._leave()


class _Image:
    """A descriptor that is closed with the object that has it."""

    def __init__(self, image: bytes) -> None:
        self.fd = written(image)
        weakref.finalize(self, os.close, self.fd)


_threads: Final = ThreadPool(size=8)


async def _done(work: Callable[[], _T], *, is_short: bool) -> _T:
    """What `work` gives, off the event loop unless it is short; it is never left in the middle."""
    if is_short:
        return work()
    job = _threads.submit(work)
    try:
        await asyncio.shield(job.done)
    except asyncio.CancelledError:
        with suppress(asyncio.CancelledError):
            await asyncio.wait((job.done,))
        raise
    if job.error is not None:
        raise job.error
    found: _T = job.result
    return found


def _opened(fd: int, last: tuple[int, int]) -> Connection:
    raw = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
    raw.deserialize(read(fd))
    connection = Connection(raw, may_write=True, is_quick=True)
    connection.prime(*last)
    return connection


def _asked(sql: str, source: _Source) -> dict[str, Any]:
    return {"sql": encoded(sql), "memory": _MEMORY_BYTES + 4 * (source.size if source.image is not None else 0)}


def _rows(answer: Answer) -> Rows:
    told = answer.told
    return Rows(tuple(told["columns"]), told["rows"], truncated=told["truncated"], changed=told["changed"])


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
        is_quick = source.size <= _SMALL_BYTES or (source.is_kept and source.has_idle) or not source.is_copied
        self._database = Database(source) if is_quick else await _done(lambda: Database(source), is_short=False)
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
        raise UsageError("expected either path or init", hint="name one of them")
    if spec.isolation is not None and spec.access != "copy":
        raise UsageError(
            "a database that is read only needs none", key="isolation", hint="write access: copy, or remove it"
        )
    if spec.access == "copy" and spec.scope == "process":
        raise UsageError(
            "one copy for all episodes would carry writes from one to the next", key="scope", hint="use scope: episode"
        )
    key, written = ("path", spec.path) if spec.path is not None else ("init", spec.init)
    assert written is not None
    template = template_of(written, key=key, names=("task", "vars"))
    if spec.scope == "process" and "task" in template.names:
        raise UsageError(
            "a resource of scope process is opened once and cannot depend on the task",
            key=key,
            hint="set scope: episode",
        )
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
