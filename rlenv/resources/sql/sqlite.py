"""The `sqlite` resource: a database file that episodes read, or of which each has a copy of its own.

Read-only files are opened as unchanging and shared through a pool of connections. With `access: copy` the file's
image is kept in memory and each episode gets a private database from it, so that writes never cross episodes.

Only statements that are plain and end at once run here, on the event loop; all others run in a worker process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Final, Literal

from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text
from rlenv.resources.sql._sqlite_connection import NotQuick
from rlenv.resources.sql._sqlite_copy import SqliteCopy
from rlenv.resources.sql._sqlite_file import SqliteFile, off_the_loop, plainness, run_briefly
from rlenv.resources.sql.engine import Limits, Opened, Rows
from rlenv.resources.sql.resource import DatabaseSpec, SqlResource
from rlenv.resources.sql.workers import Request, SqlWorkers

__all__ = ["KIND", "SqliteEngine", "SqliteSpec", "workers"]

workers: Final = SqlWorkers("rlenv.resources.sql._sqlite_engine")
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

    def __init__(self, file: SqliteFile) -> None:
        self.about = file

    async def run(self, sql: str, limits: Limits) -> Rows:
        file = self.about
        if file.is_quick and plainness(sql) == "read":
            try:
                return run_briefly(file.run, sql, limits)
            except NotQuick:
                pass
        image = file.shared_image if file.image is not None else None
        return Rows.of((await workers.run(Request(sql, limits, file.where(), key=file.key, image=image))).told)

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

    def source(self, path: Path) -> SqliteFile:
        """The database of a file, whose schema is read now."""
        return SqliteFile(path, is_script=self._is_script, is_copied=self._is_copied, is_kept=self._is_kept)

    def forget(self, source: SqliteFile) -> None:
        """Closes the connections that nobody uses."""
        source.close()

    async def open(self, source: SqliteFile) -> Opened:
        """The shared database, or a private copy."""
        if not self._is_copied:
            return _Shared(source)
        size = 0 if source.has_idle else source.size
        return await off_the_loop(lambda: SqliteCopy(source, workers), size=size)

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
        raise UsageError(
            "a database that is read only needs none", key="isolation", hint="write access: copy, or remove it"
        )
    given = {key: path for key, path in (("path", spec.path), ("init", spec.init)) if path is not None}
    if len(given) != 1:
        raise UsageError("expected either path or init", hint="name one of them")
    ((key, path),) = given.items()
    is_copied, is_kept = spec.access == "copy", spec.isolation == "savepoint"
    engine = SqliteEngine(is_script=key == "init", is_copied=is_copied, is_kept=is_kept)
    return SqlResource(name, spec, context, key=key, path=path, engine=engine)


KIND = Kind(SqliteSpec, compile_sqlite)
