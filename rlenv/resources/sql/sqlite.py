"""The `sqlite` resource: a database file that episodes read, or of which each has a copy of its own.

Read-only files are opened as unchanging and shared through a pool of connections. With `access: copy` the file's
image is kept in memory and each episode gets a private database from it, so that writes never cross episodes.

Only statements that are plain and end at once run on the event loop. All others run in a worker process, which gets the
copy's image and gives back what became of it. A statement that is stopped there, or whose process is killed, leaves the
copy as it was.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final, Literal

from rlenv.errors import ResourceError, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text
from rlenv.resources.sql import OpenDatabase, Rows, StatementLimits, read
from rlenv.resources.sql import _sqlite_file as files
from rlenv.resources.sql._sqlite_connection import NotQuick, SqliteConnection
from rlenv.resources.sql.resource import DatabaseSpec, Image, SqlResource, SqlWorkers, StatementRequest, WorkerAnswer

_CHANGED: Final = 16_000_000  # up to so many bytes of a copy times characters an UPDATE or DELETE is over at once
_MAX_GROWTH_BYTES: Final = 32_000_000


class SqliteCopy:
    """An episode's private database.

    It is a connection on the event loop as long as its schema is the author's. A statement that needs a worker takes
    the image there, and where it wrote, the image that comes back is the database from then on. After a statement that
    changed the schema only the image is kept: what the policy put there is never read on the loop.
    """

    def __init__(self, file: files.SqliteFile, workers: SqlWorkers) -> None:
        self.about = file
        self._workers = workers
        self._own: SqliteConnection | None = file.lend()
        self._held = -1
        """The descriptor of the image, where there is no connection."""
        self._last = (0, 0)
        self._key = files.unique(file.key)
        """What the copy is at the moment: the worker that has the same needs no image. Each change gets a key that was
        never asked for, since a worker may hold what a cancelled statement wrote and the copy never took."""
        self._size = file.size
        self._is_as_lent = True
        self._has_begun = file.is_kept

    async def run(self, sql: str, limits: StatementLimits) -> Rows:
        """The rows of one statement."""
        found = self._run_on_loop(sql, limits)
        return await self._in_worker(sql, limits) if found is None else found

    def _run_on_loop(self, sql: str, limits: StatementLimits) -> Rows | None:
        """The rows of a plain statement that ran on the event loop, or None."""
        own = self._own
        if own is None or not self.about.is_quick or not (kind := files.plainness(sql)):
            return None
        try:
            if kind == "read":
                return files.run_briefly(own.run, sql, limits)
            if not self.about.is_written_quickly or (kind == "change" and self._size * len(sql) > _CHANGED):
                return None
            # Never stopped: with it the engine would undo all that the episode wrote.
            found = own.run(sql, until=math.inf, max_rows=limits.max_rows)
        except NotQuick:
            self._check(own)
            return None
        self._key = files.unique(self.about.key)
        self._size += len(sql)
        self._is_as_lent = False
        return found

    def _check(self, own: SqliteConnection) -> None:
        """Sees to it that nothing of what the episode wrote was undone by the engine."""
        if not self._has_begun or own.has_begun:
            return
        if not self._is_as_lent:
            raise ResourceError("the engine had no memory for a statement, and what the episode had written is lost")
        own.close()
        self._own = self.about.lend()

    async def _in_worker(self, sql: str, limits: StatementLimits) -> Rows:
        rowid, changes = self._last if self._own is None else self._own.last()
        where = {
            "may_write": True,
            "memory": files.memory_for(self._size),
            "max_bytes": self.about.size + _MAX_GROWTH_BYTES,
            "rowid": rowid,
            "changes": changes,
        }
        image: Image = self.about.shared_image if self._is_as_lent else self._image
        next_key = files.unique(self.about.key)
        request = StatementRequest(sql, limits, where, key=self._key, image=image, next_key=next_key)
        answer = await self._workers.run(request)
        if answer.fd is not None:
            await self._adopt(answer, answer.fd, next_key)
        return Rows.of(answer.reply)

    @asynccontextmanager
    async def _image(self) -> AsyncIterator[int]:
        if self._own is None:
            yield self._held
            return
        own = self._own
        # Closed with its object, also where who waits for it is cancelled and never gets it.
        held = await files.off_the_loop(lambda: files.HeldImage(own.image()), size=self._size)
        yield held.fd

    async def _adopt(self, answer: WorkerAnswer, fd: int, key: str) -> None:
        """Takes the image in `fd` for the database, and the descriptor with it."""
        reply = answer.reply
        size = os.fstat(fd).st_size
        own: SqliteConnection | None = None
        try:
            if self._own is not None and not reply["has_new_schema"]:
                last = (reply["rowid"], reply["changes"])
                own = await files.off_the_loop(lambda: _open_image(fd, last), size=size)
        except BaseException:
            os.close(fd)
            raise
        self._leave()
        if own is not None:
            os.close(fd)
            self._own = own
        else:
            self._held, self._last = fd, (reply["rowid"], reply["changes"])
        self._key = key
        self._size = size
        self._is_as_lent = self._has_begun = False

    def _leave(self) -> None:
        if self._own is not None:
            self.about.give_back(self._own)
            self._own = None
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    async def close(self) -> None:
        """Gives the connection back, or closes it."""
        self._leave()


def _open_image(fd: int, last: tuple[int, int]) -> SqliteConnection:
    raw = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
    raw.deserialize(read(fd))
    connection = SqliteConnection(raw, may_write=True, is_quick=True)
    connection.prime(*last)
    return connection


workers: Final = SqlWorkers("rlenv.resources.sql._sqlite_engine:SqliteStatements")
_MISSING: Final = re.compile(r"no such (?:table|column): \"?(.+?)\"?$")


class SqliteSpec(DatabaseSpec):
    """A SQLite database."""

    kind: Literal["sqlite"]
    path: Text | None = None
    """The file, relative to the spec; a template over `task` and `vars`."""
    init: Text | None = None
    """Instead of a path: a file of SQL statements that makes the database; a template as well."""
    isolation: Literal["deserialize", "savepoint"] | None = None
    """With `copy`: `deserialize` makes each copy anew (the default); `savepoint` keeps copies and rolls them back after
    each episode, which is quicker for databases of many megabytes."""


class _Shared:
    """A database that is only read."""

    __slots__ = ("about",)

    def __init__(self, file: files.SqliteFile) -> None:
        self.about = file

    async def run(self, sql: str, limits: StatementLimits) -> Rows:
        file = self.about
        if file.is_quick and files.plainness(sql) == "read":
            try:
                return files.run_briefly(file.run, sql, limits)
            except NotQuick:
                pass
        image = file.shared_image if file.image is not None else None
        return Rows.of(
            (await workers.run(StatementRequest(sql, limits, file.where(), key=file.key, image=image))).reply
        )

    async def close(self) -> None:
        pass  # the file's connections are in its pool


class SqliteEngine:
    """SQLite for one entry.

    Args:
        is_script: its files are of SQL statements.
        is_copied: each episode gets a private copy.
        is_kept: copies are rolled back and lent again.
    """

    dialect: ClassVar[str] = "sqlite"
    title: ClassVar[str] = "SQLite"

    def __init__(self, *, is_script: bool, is_copied: bool, is_kept: bool) -> None:
        self._is_script = is_script
        self._is_copied = is_copied
        self._is_kept = is_kept

    def source(self, path: Path) -> files.SqliteFile:
        """The database of a file, whose schema is read now."""
        return files.SqliteFile(path, is_script=self._is_script, is_copied=self._is_copied, is_kept=self._is_kept)

    def forget(self, source: files.SqliteFile) -> None:
        """Closes the connections that nobody uses."""
        source.close()

    async def open(self, source: files.SqliteFile) -> OpenDatabase:
        """The shared database, or a private copy."""
        if not self._is_copied:
            return _Shared(source)
        size = 0 if source.has_idle else source.size
        return await files.off_the_loop(lambda: SqliteCopy(source, workers), size=size)

    def missing(self, message: str) -> tuple[str, str] | None:
        """The table or column that is not there."""
        found = _MISSING.match(message)
        return (found[1], message) if found is not None else None


def compile_sqlite(name: str, spec: SqliteSpec, context: CompileContext) -> SqlResource:
    """The resource of one entry.

    Raises:
        UsageError: path and init do not fit, or the path of a shared database depends on the task.
    """
    if spec.isolation is not None and spec.access != "copy":
        message = "a database that is read only needs none"
        raise UsageError(message, key="isolation", hint="write access: copy, or remove it")
    given = {key: path for key, path in (("path", spec.path), ("init", spec.init)) if path is not None}
    if len(given) != 1:
        raise UsageError("expected either path or init", hint="name one of them")
    ((key, path),) = given.items()
    is_copied, is_kept = spec.access == "copy", spec.isolation == "savepoint"
    engine = SqliteEngine(is_script=key == "init", is_copied=is_copied, is_kept=is_kept)
    return SqlResource(name, spec, context, key=key, path=path, engine=engine)


KIND = Kind(SqliteSpec, compile_sqlite)
