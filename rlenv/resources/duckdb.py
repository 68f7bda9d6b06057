"""The `duckdb` resource: a database file that episodes read, or of which each has a copy of its own.

The engine runs in worker processes alone: a statement that does not end, or that brings the engine down, is one
process's end and nobody else's. A read-only file is shared, with a connection for each statement, so that nothing of
one statement reaches the next. With `access: copy` each episode gets a copy of the file in a folder that is removed
with it. Files are taken not to change while the process runs; their schemas are read once.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from rlenv._threads import ThreadPool
from rlenv.errors import MissingExtra, ResourceError, ToolFailed, UsageError
from rlenv.paths import RefusedPath
from rlenv.registry import Kind
from rlenv.resources._sql_workers import Answer, SqlWorkers, cores, encoded, limits_for
from rlenv.resources._sqlite import MAX_SIZE, MAX_SQL, Rows
from rlenv.resources.base import ResourceContext
from rlenv.spec import ResourceSpec, Text
from rlenv.templates import Template, TemplateError, template_of
from rlenv.tools.base import CompileContext

__all__ = ["KIND", "DuckdbDatabase", "DuckdbResource", "DuckdbSpec"]

_MAX_SOURCES = 64
_MEMORY_BYTES = 1_600_000_000
"""Of a worker beside what it has at its start; the engine itself keeps to 1 GB."""
_MAX_GROWTH_BYTES = 500_000_000
_OPEN_S = 60.0
_MAX_WORD_CHARS = 60
_UNKNOWN: Final = re.compile(
    r"(?:Table with name (?P<table>.+?) does not exist|"
    r"Referenced column \"(?P<column>.+?)\" not found|does not have a column named \"(?P<member>.+?)\")"
)
_workers: Final = SqlWorkers("duckdb", limit=max(2, cores()))
_threads: Final = ThreadPool(size=8)  # for copying files


class DuckdbSpec(ResourceSpec):
    """A DuckDB database (extra `duckdb`)."""

    kind: Literal["duckdb"]
    path: Text
    """The file, relative to the spec; a template over `task` and `vars`."""
    access: Literal["read_only", "copy"] = "read_only"
    """`read_only`: nothing can be written; `copy`: a private copy that may be written and is thrown away."""


class _Source:
    """One database file: its schema and its names, read once by a worker."""

    def __init__(self, path: Path, *, may_write: bool) -> None:
        self.path = path
        self.may_write = may_write
        self.version: tuple[str, int, int] | None = None
        self.schema = ""
        self.words: list[str] = []
        self._size = 0
        self._is_open = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Reads what is known of the file.

        Raises:
            ResourceError: it cannot be opened.
        """
        if self._is_open:
            return
        if not self.path.is_file():
            raise ResourceError(f"there is no database file {self.path}")
        try:
            state = self.path.stat()
            told = (await self.ask("describe", "", deadline=time.monotonic() + _OPEN_S, cpu_s=_OPEN_S)).told
        except ToolFailed as error:
            raise ResourceError(f"the database {self.path} cannot be read: {error}") from error
        self.schema, self.words, self._size = told["schema"], told["words"], state.st_size
        if not self.may_write:
            self.version = (str(self.path.resolve()), state.st_mtime_ns, state.st_size)
        self._is_open = True

    async def ask(
        self,
        what: str,
        sql: str,
        *,
        deadline: float,
        max_rows: int = 0,
        max_size: int = 0,
        cpu_s: float | None = None,
        is_urgent: bool = False,
    ) -> Answer:
        """What a worker answers."""
        limits = limits_for(deadline, cpu_s=cpu_s, max_rows=max_rows, max_size=max_size, is_urgent=is_urgent)
        asked = {
            "op": what,
            "sql": encoded(sql),
            "file": str(self.path.absolute()),
            "may_write": self.may_write,
            "memory": _MEMORY_BYTES,
            "max_bytes": self._size + _MAX_GROWTH_BYTES if self.may_write else 0,
        }
        key = str(self.path.absolute()) if self.may_write else ""
        return await _workers.run(asked, limits, key=key, image=None, next_key=key)

    async def release(self) -> None:
        """Has the worker that holds the copy open close it."""
        if _workers.holds(str(self.path.absolute())):
            with suppress(ToolFailed, ResourceError):
                await self.ask("release", "", deadline=time.monotonic() + _OPEN_S, cpu_s=_OPEN_S)


class DuckdbDatabase:
    """An opened database, with the attributes and the method of a `sqlite` one; `dialect` is `duckdb`."""

    dialect: ClassVar[str] = "duckdb"
    __slots__ = ("_source", "_turn")

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._turn = asyncio.Lock() if source.may_write else None

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
        """What one statement gives; the event loop is not held.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are given at most.
            max_size: how many characters their cells may take together, as JSON.
            cpu_s: how much processor time it may use; a quarter of the time to the deadline otherwise.
            is_urgent: before others where several wait, for what a reward asks.

        Raises:
            ToolFailed: the statement is at fault (DuckDB's message, shortened), or ran out of time; `reason` says
                whether it used its time up (`timeout`) or did not get it (`stalled`, `busy`, `worker`).
            ResourceError: the database is.
        """
        if len(sql) > MAX_SQL:
            raise ToolFailed(f"the statement is longer than {MAX_SQL} characters", reason="too_large")

        async def work() -> Rows:
            answer = await self._source.ask(
                "query", sql, deadline=deadline, max_rows=max_rows, max_size=max_size, cpu_s=cpu_s, is_urgent=is_urgent
            )
            told = answer.told
            return Rows(tuple(told["columns"]), told["rows"], told["truncated"], told["changed"])

        try:
            if self._turn is None:
                return await work()
            async with self._turn:
                return await work()
        except ToolFailed as error:
            raise self._with_hint(error) from error

    def _with_hint(self, error: ToolFailed) -> ToolFailed:
        match = _UNKNOWN.search(error.text)
        if match is None:
            return error
        # The engine's own proposals may be names of its system tables.
        text = re.split(r"!|\s*(?:Did you mean|Candidate)", error.text)[0].strip()
        name = (match["table"] or match["column"] or match["member"]).rpartition(".")[2].lower()
        if len(name) > _MAX_WORD_CHARS:
            return ToolFailed(text, reason=error.reason)
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
        await source.open()
        yield DuckdbDatabase(source)

    @asynccontextmanager
    async def _copy(self, path: Path) -> AsyncIterator[DuckdbDatabase]:
        folder = Path(tempfile.mkdtemp(prefix=f"rlenv-{self.name}-"))
        source = _Source(folder / path.name, may_write=True)

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

        try:
            await _finished(start)
            await source.open()
            yield DuckdbDatabase(source)
        finally:
            try:
                await source.release()
            finally:
                await _finished(lambda: shutil.rmtree(folder, ignore_errors=True))


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
        raise UsageError(
            "one copy for all episodes would carry writes from one to the next", key="scope", hint="use scope: episode"
        )
    template = template_of(spec.path, key="path", names=("task", "vars"))
    if spec.scope == "process" and "task" in template.names:
        raise UsageError(
            "a resource of scope process is opened once and cannot depend on the task",
            key="path",
            hint="set scope: episode",
        )
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
