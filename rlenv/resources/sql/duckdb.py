"""The `duckdb` resource: a database file that episodes read, or of which each has a copy of its own.

The engine runs in worker processes alone: a statement that does not end, or that brings the engine down, is one
process's end and nobody else's. A read-only file is shared, with a connection for each statement, so that nothing of
one statement reaches the next. With `access: copy` each episode gets a copy of the file in a folder that is removed
with it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Literal

from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import MissingExtra, ResourceError, ToolFailed, told_as
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text
from rlenv.resources.sql import OpenDatabase, Rows, StatementLimits
from rlenv.resources.sql.resource import DatabaseSpec, SqlResource, SqlWorkers, StatementRequest, WorkerAnswer

_MEMORY_BYTES: Final = 1_600_000_000  # of a worker beside what it has at its start; the engine itself keeps to 1 GB
_MAX_GROWTH_BYTES: Final = 500_000_000
_OPEN_S: Final = 60.0
_MISSING: Final = re.compile(
    r"(?:Table with name (?P<table>.+?) does not exist|"
    r"Referenced column \"(?P<column>.+?)\" not found|does not have a column named \"(?P<member>.+?)\")"
)
_PROPOSALS: Final = re.compile(r"!|\s*(?:Did you mean|Candidate)")
workers: Final = SqlWorkers("rlenv.resources.sql._duckdb_engine:DuckdbStatements", can_sleep=True)
_threads: Final = ThreadPool(size=8)  # for copying files


class DuckdbSpec(DatabaseSpec):
    """A DuckDB database (extra `duckdb`)."""

    kind: Literal["duckdb"]
    path: Text
    """The file, relative to the spec; a template over `task` and `vars`."""


class _File:
    """One database file: its schema and its names, read once by a worker."""

    def __init__(self, path: Path, *, may_write: bool) -> None:
        self.path = path
        self.may_write = may_write
        self.version: tuple[str, int, int] | None = None
        self.schema = ""
        self._words: list[str] | None = None
        self._size = 0

    def words(self) -> list[str]:
        """The names of tables and columns; of very many the first."""
        return self._words or []

    async def read(self) -> None:
        """Learns what is known of the file, unless it is already.

        Raises:
            ResourceError: it cannot be opened.
        """
        if self._words is not None:
            return
        with told_as(ResourceError, f"the database {self.path} cannot be read:", OSError, ToolFailed):
            state = self.path.stat()
            reply = (await self.ask("describe")).reply
        self.schema, self._size = reply["schema"], state.st_size
        if not self.may_write:
            self.version = (str(self.path.resolve()), state.st_mtime_ns, state.st_size)
        self._words = reply["words"]

    async def ask(self, what: str, sql: str = "", limits: StatementLimits | None = None) -> WorkerAnswer:
        """The answer of a worker."""
        file = str(self.path.absolute())
        where = {
            "op": what,
            "file": file,
            "may_write": self.may_write,
            "memory": _MEMORY_BYTES,
            "max_bytes": self._size + _MAX_GROWTH_BYTES if self.may_write else 0,
        }
        limits = limits or StatementLimits(time.monotonic() + _OPEN_S, cpu_s=_OPEN_S, max_rows=0, max_size=0)
        key = file if self.may_write else ""
        return await workers.run(StatementRequest(sql, limits, where, key=key, next_key=key))

    async def release(self) -> None:
        """Has the worker that holds the copy open close it."""
        if workers.pool.holds(str(self.path.absolute())):
            with suppress(ToolFailed, ResourceError):
                await self.ask("release")


class _Database:
    """A file that is shared, or a copy of one with the folder that it lies in."""

    __slots__ = ("_folder", "about")

    def __init__(self, file: _File, folder: Path | None = None) -> None:
        self.about = file
        self._folder = folder

    async def run(self, sql: str, limits: StatementLimits) -> Rows:
        return Rows.of((await self.about.ask("query", sql, limits)).reply)

    async def close(self) -> None:
        if (folder := self._folder) is None:
            return
        try:
            await self.about.release()
        finally:
            await _threads.finish(lambda: shutil.rmtree(folder, ignore_errors=True))


class DuckdbEngine:
    """DuckDB for one entry."""

    dialect: ClassVar[str] = "duckdb"
    title: ClassVar[str] = "DuckDB"

    def __init__(self, *, is_copied: bool) -> None:
        self._is_copied = is_copied

    def source(self, path: Path) -> _File:
        """The database of a file, which is read when it is opened first."""
        if not path.is_file():
            raise ResourceError(f"there is no database file {path}")
        return _File(path, may_write=False)

    def forget(self, source: _File) -> None:
        """Nothing is kept here for it; a worker closes it in time."""

    async def open(self, source: _File) -> OpenDatabase:
        """The shared database, or a private copy of it."""
        if not self._is_copied:
            await source.read()
            return _Database(source)
        folder = Path(tempfile.mkdtemp(prefix="rlenv-duckdb-"))
        copy = _File(folder / source.path.name, may_write=True)
        opened = _Database(copy, folder)
        try:
            await _threads.finish(lambda: _copy(source.path, folder))
            await copy.read()
        except BaseException:
            await opened.close()
            raise
        return opened

    def missing(self, message: str) -> tuple[str, str] | None:
        """The table or column that is not there; the engine's own proposals may be names of its system tables."""
        found = _MISSING.search(message)
        if found is None:
            return None
        return found["table"] or found["column"] or found["member"], _PROPOSALS.split(message)[0].strip()


def _copy(path: Path, folder: Path) -> None:
    with told_as(ResourceError, f"the database {path} cannot be copied:", OSError):
        for file in (path, path.with_name(path.name + ".wal")):
            if file == path or file.is_file():
                shutil.copyfile(file, folder / file.name)


def compile_duckdb(name: str, spec: DuckdbSpec, context: CompileContext) -> SqlResource:
    """The resource of one entry.

    Raises:
        MissingExtra: duckdb is not installed.
        UsageError: the path does not compile, or that of a shared database depends on the task.
    """
    engine = DuckdbEngine(is_copied=spec.access == "copy")
    resource = SqlResource(name, spec, context, key="path", path=spec.path, engine=engine)
    with told_as(MissingExtra, "the resource duckdb", ImportError, extra="duckdb"):
        import duckdb  # noqa: F401
    return resource


KIND = Kind(DuckdbSpec, compile_duckdb)
