"""The `duckdb` resource: a database file that episodes read, or of which each has a copy of its own.

A read-only file is opened once and shared, with a connection for each statement, so that nothing of one statement
reaches the next. With `access: copy` each episode gets a copy of the file in a folder that is removed with it. Files
are taken not to change while the process runs; their schemas are read once. Statements always run in a thread.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from rlenv._threads import Job, ThreadPool
from rlenv.errors import MissingExtra, ResourceError, ToolFailed, UsageError
from rlenv.paths import RefusedPath
from rlenv.registry import Kind
from rlenv.resources._duckdb import Statement, connect, schema, words
from rlenv.resources._sqlite import Rows
from rlenv.resources.base import ResourceContext
from rlenv.spec import ResourceSpec, Text
from rlenv.templates import Template, TemplateError, compile_template
from rlenv.tools.base import CompileContext

if TYPE_CHECKING:
    import duckdb

__all__ = ["KIND", "DuckdbDatabase", "DuckdbResource", "DuckdbSpec"]

_MARGIN_S = 0.05
_MAX_SOURCES = 64
_UNKNOWN: Final = re.compile(
    r"(?:Table with name (?P<table>.+?) does not exist|"
    r"Referenced column \"(?P<column>.+?)\" not found|does not have a column named \"(?P<member>.+?)\")"
)
# Shared by all databases: a statement always ends at its deadline, so threads come back.
_threads: Final = ThreadPool(size=64)


class DuckdbSpec(ResourceSpec):
    """A DuckDB database (extra `duckdb`)."""

    kind: Literal["duckdb"]
    path: Text
    """The file, relative to the spec; a template over `task` and `vars`."""
    access: Literal["read_only", "copy"] = "read_only"
    """`read_only`: nothing can be written; `copy`: a private copy that may be written and is thrown away."""


class _Source:
    """One open database file: its connection, its schema and its names. All methods run in threads."""

    def __init__(self, path: Path, *, may_write: bool) -> None:
        self.path = path
        self.may_write = may_write
        self.version: tuple[str, int, int] | None = None
        self.schema = ""
        self.words: list[str] = []
        self._lock = threading.Lock()
        self._raw: duckdb.DuckDBPyConnection | None = None

    def open(self) -> None:
        """Opens the file, once.

        Raises:
            ResourceError: it cannot be opened.
        """
        import duckdb

        with self._lock:
            if self._raw is not None:
                return
            raw = connect(self.path, may_write=self.may_write)
            try:
                self.schema, self.words = schema(raw), words(raw)
                if not self.may_write:
                    state = self.path.stat()
                    self.version = (str(self.path.resolve()), state.st_mtime_ns, state.st_size)
            except (duckdb.Error, OSError) as error:
                raw.close()
                raise ResourceError(f"the database {self.path} cannot be read: {error}") from error
            self._raw = raw

    def run(self, statement: Statement, max_rows: int) -> Rows:
        """What a statement gives; on a shared file it has a connection of its own."""
        raw = self._raw
        if raw is None:
            raise ResourceError(f"the database {self.path} was closed after a fault of the engine")
        connection = raw if self.may_write else raw.cursor()
        try:
            return statement.run(connection, max_rows=max_rows)
        except ResourceError:
            self.close()  # the engine refuses everything after a fault of its own; the next episode opens it anew
            raise
        finally:
            if not self.may_write:
                connection.close()

    def close(self) -> None:
        """Closes the file; statements that run on connections of their own end first."""
        with self._lock:
            if self._raw is not None:
                self._raw.close()
                self._raw = None


class DuckdbDatabase:
    """An opened database, with the attributes and the method of a `sqlite` one; `dialect` is `duckdb`."""

    dialect: ClassVar[str] = "duckdb"
    __slots__ = ("_source", "_stuck", "_turn")

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._turn = asyncio.Lock() if source.may_write else None
        self._stuck: Job | None = None

    @property
    def schema(self) -> str:
        return self._source.schema

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._source.version

    @property
    def is_busy(self) -> bool:
        """True while a statement that was given up has not ended."""
        return self._stuck is not None and not self._stuck.is_ended

    async def query(self, sql: str, *, deadline: float, max_rows: int = 10_000) -> Rows:
        """What one statement gives; the event loop is not held.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are fetched at most.

        Raises:
            ToolFailed: the statement is at fault (DuckDB's message, shortened), or ran out of time.
            ResourceError: the database is.
        """
        try:
            if self._turn is None:
                return await self._query(sql, deadline, max_rows)
            async with self._turn:
                if self.is_busy:
                    raise ToolFailed("the database is still busy with an earlier statement", reason="timeout")
                return await self._query(sql, deadline, max_rows)
        except ToolFailed as error:
            raise self._with_hint(error) from error

    async def _query(self, sql: str, deadline: float, max_rows: int) -> Rows:
        statement = Statement(sql, until=deadline, may_write=self._source.may_write)
        job = _threads.submit(self._source.run, statement, max_rows)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            statement.interrupt()
            await asyncio.wait((job.done,), timeout=_MARGIN_S)
            if not job.is_ended and _threads.give_up(job):
                self._stuck = job
            raise
        if job.error is not None:
            raise job.error
        rows: Rows = job.result
        return rows

    def _with_hint(self, error: ToolFailed) -> ToolFailed:
        match = _UNKNOWN.search(error.text)
        if match is None:
            return error
        # The engine's own proposals may be names of its system tables.
        text = re.split(r"!|\s*(?:Did you mean|Candidate)", error.text)[0].strip()
        name = (match["table"] or match["column"] or match["member"]).rpartition(".")[2].lower()
        known = {word.lower(): word for word in self._source.words}
        close = get_close_matches(name, list(known), n=1)
        return ToolFailed(f"{text}; did you mean {known[close[0]]}?" if close else text, reason=error.reason)


class DuckdbResource:
    """A compiled `duckdb` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ("schema", "dialect")

    def __init__(
        self,
        name: str,
        *,
        scope: Literal["episode", "process"],
        access: Literal["read_only", "copy"],
        template: Template,
        find: Callable[[str], Path],
    ) -> None:
        self.name = name
        self.scope = scope
        self.access = access
        self._template = template
        self._find = find
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[DuckdbDatabase]:
        """The database of the context's task, for as long as it is entered.

        Raises:
            ResourceError: the file is missing or is no database.
        """
        try:
            written = self._template.text(task=context.task, vars=context.vars)
            path = self._find(written)
        except (TemplateError, RefusedPath) as error:
            raise ResourceError(f"resource '{self.name}': its path cannot be filled in: {error}") from error
        if self.access == "copy":
            async with self._copy(path) as database:
                yield database
            return
        source = self._sources.get(written)
        if source is None:
            if len(self._sources) >= _MAX_SOURCES:
                self._sources.popitem(last=False)  # closed when its last episode is gone
            source = self._sources[written] = _Source(path, may_write=False)
        else:
            self._sources.move_to_end(written)
        await _finished(source.open)
        yield DuckdbDatabase(source)

    @asynccontextmanager
    async def _copy(self, path: Path) -> AsyncIterator[DuckdbDatabase]:
        folder = Path(tempfile.mkdtemp(prefix=f"rlenv-{self.name}-"))
        source = _Source(folder / path.name, may_write=True)
        database = DuckdbDatabase(source)

        def start() -> None:
            try:
                if not path.is_file():
                    raise ResourceError(f"there is no database file {path}")
                shutil.copyfile(path, source.path)
                log = path.with_name(path.name + ".wal")
                if log.is_file():
                    shutil.copyfile(log, folder / log.name)
            except OSError as error:
                raise ResourceError(f"the database {path} cannot be copied: {error}") from error
            source.open()

        def end() -> None:
            try:
                if not database.is_busy:  # the engine cannot be closed under a statement
                    source.close()
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        try:
            await _finished(start)
            yield database
        finally:
            await _finished(end)


async def _finished(work: Callable[[], Any]) -> None:
    """Runs `work` in a thread to its end, cancelled or not, and raises what it raises."""
    job = _threads.submit(work)
    try:
        await asyncio.shield(job.done)
    except asyncio.CancelledError:
        with suppress(asyncio.CancelledError):
            await asyncio.wait((job.done,))
        raise
    if job.error is not None:
        raise job.error


def compile_duckdb(name: str, spec: DuckdbSpec, context: CompileContext) -> DuckdbResource:
    """The resource of one entry.

    Raises:
        MissingExtra: duckdb is not installed.
        UsageError: the path does not compile, or that of a shared database depends on the task.
    """
    if spec.access == "copy" and spec.scope == "process":
        raise UsageError("scope: one copy for all episodes would carry writes from one to the next; use scope: episode")
    try:
        template = compile_template(spec.path)
    except TemplateError as error:
        raise UsageError(f"path: {error}") from error
    if unknown := template.names - {"task", "vars"}:
        raise UsageError(f"path: there is no '{sorted(unknown)[0]}' here; expected task or vars")
    if spec.scope == "process" and "task" in template.names:
        raise UsageError("path: a resource of scope process is opened once and cannot depend on the task")
    try:
        import duckdb  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the resource duckdb", extra="duckdb") from error
    return DuckdbResource(
        name,
        scope=spec.scope,
        access=spec.access,
        template=template,
        find=context.finder("path", template, vars=context.vars),
    )


KIND = Kind(DuckdbSpec, compile_duckdb)
