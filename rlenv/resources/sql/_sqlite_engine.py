"""SQLite in a worker process: files that are shared and read, and the image of one private copy at a time."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, Final

from rlenv.errors import ResourceError, ToolFailed, told_as
from rlenv.resources.sql import Rows, read
from rlenv.resources.sql._sqlite_connection import SqliteConnection

_MAX_FILES: Final = 8


class SqliteStatements:
    """Statements on SQLite files and images."""

    def __init__(self) -> None:
        self._open: dict[str, SqliteConnection] = {}
        self._copy: SqliteConnection | None = None
        self._copy_key = ""

    @property
    def holds(self) -> str:
        """The key of the private copy whose image is here."""
        return self._copy_key

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a statement, and the image of a copy that it changed."""
        try:
            if asked["may_write"]:
                return self._run_on_copy(asked, fd)
            return _run(self._shared(asked, fd), asked).as_json(), None
        except sqlite3.Error as error:  # of what is done around the statement
            found = f"the database cannot be read: {error}"[:300]
            # A private copy was whole when its episode got it.
            raise (ToolFailed(found) if asked["may_write"] else ResourceError(found)) from error

    def _run_on_copy(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        copy = self._private(asked, fd)
        self._copy_key = ""
        try:
            answer = _run(copy, asked).as_json()
        except ToolFailed:
            # What fails while it runs is undone; not so where only its result cannot be given.
            self._copy_key = "" if copy.has_written else asked["key"]
            raise
        image = None
        if copy.has_written:
            image = copy.image()
            answer["rowid"], answer["changes"] = copy.last()
            answer["has_new_schema"] = copy.has_new_schema
        self._copy_key = asked["key"] if image is None else asked["next"]
        return answer, image

    def _shared(self, asked: dict[str, Any], fd: int | None) -> SqliteConnection:
        found = self._open.pop(asked["key"], None)
        if found is None:
            while len(self._open) >= _MAX_FILES:
                self._open.pop(next(iter(self._open))).close()
            with told_as(ResourceError, "the database cannot be opened:", sqlite3.Error):
                raw = _load(fd) if fd is not None else sqlite3.connect(asked["file"], uri=True, cached_statements=0)
                found = SqliteConnection(raw, may_write=False)
        self._open[asked["key"]] = found
        return found

    def _private(self, asked: dict[str, Any], fd: int | None) -> SqliteConnection:
        if self._copy is not None and self._copy_key == asked["key"]:
            return self._copy
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        if fd is None:
            raise ResourceError("the image of the database did not come with the statement")
        self._copy = SqliteConnection(_load(fd), may_write=True, max_bytes=asked["max_bytes"])
        self._copy.prime(asked["rowid"], asked["changes"])
        return self._copy


def _load(fd: int) -> sqlite3.Connection:
    raw = sqlite3.connect(":memory:", cached_statements=0)
    raw.deserialize(read(fd))
    return raw


def _run(connection: SqliteConnection, asked: dict[str, Any]) -> Rows:
    return connection.run(
        asked["sql"],
        until=time.monotonic() + asked["wall_s"],
        max_rows=asked["max_rows"],
        max_size=asked["max_size"],
        cpu_s=asked["cpu_s"],
    )
