"""Databases that episodes query, behind one seam: what an engine is, its limits and rows, and what opens a file.

The SQL worker's process, too: it runs one statement after another, within the limits that come with it. The process
keeps no state that a statement of another episode could see: files are opened to be read, and the image of a private
copy is only kept under the number that its owner gives it.
"""

from __future__ import annotations

import importlib
import os
import socket
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

import orjson

from rlenv.concurrency import served
from rlenv.errors import ResourceError, ToolFailed

MAX_SQL: Final = 100_000
"""Characters of a statement."""
MAX_SIZE: Final = 8_000_000
"""Of a result's cells together, in characters as JSON."""


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Until when, on the clock of `time.monotonic()`, how much processor time, and how much may come of it."""

    deadline: float
    cpu_s: float
    max_rows: int
    max_size: int
    is_urgent: bool = False
    """Before others in the queue: what a reward asks for."""


_MAX_COLUMNS: Final = 200
_CELL_SIZE: Final = 30


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a statement gave.

    Cells are JSON values; bytes are written as SQLite writes them, `x'0AFF'`. `columns` is empty for a statement that
    gives no rows; then `changed` is how many it changed. `truncated` is true where there are more rows than the limits
    let through.
    """

    columns: tuple[str, ...]
    rows: list[list[Any]]
    truncated: bool = False
    changed: int = 0

    def as_json(self) -> dict[str, Any]:
        """As a worker sends it."""
        return {"columns": self.columns, "rows": self.rows, "truncated": self.truncated, "changed": self.changed}

    @classmethod
    def of(cls, reply: dict[str, Any]) -> Rows:
        """The rows in a worker's answer."""
        return cls(tuple(reply["columns"]), reply["rows"], reply["truncated"], reply["changed"])


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of a result's columns.

    Raises:
        ToolFailed: there are too many.
    """
    columns = tuple(names)
    if len(columns) > _MAX_COLUMNS:
        raise ToolFailed(f"the result has {len(columns)} columns; at most {_MAX_COLUMNS} can be given, so name them")
    return columns


def columns_size(columns: tuple[str, ...], *, most: int) -> int:
    """The number of characters that the names take, as JSON.

    Raises:
        ToolFailed: more than `most`.
    """
    size = sum(map(cell_size, columns))
    if size > most:
        raise ToolFailed("the names of the columns are too long to be given", reason="too_large")
    return size


def cell_size(cell: Any) -> int:
    """At least as many characters as the cell takes as JSON, whatever it is."""
    if isinstance(cell, str):
        if len(cell) < 200 or not (cell.isascii() and cell.isprintable()):
            return len(orjson.dumps(cell)) + 2
        return len(cell) + cell.count('"') + cell.count("\\") + 4
    return _CELL_SIZE


_S = TypeVar("_S")


class About(Protocol):
    """The facts of a database that are known without a statement of the policy's.

    `schema` is the text of its CREATE statements. `version` is equal where equal statements give equal rows: the file
    and when it was changed; None for a private copy, which may be written.
    """

    schema: str
    version: tuple[str, int, int] | None

    def words(self) -> Sequence[str]:
        """The names of tables and columns; of very many the first."""


class OpenDatabase(Protocol):
    """A database as one episode has it."""

    @property
    def about(self) -> About:
        """The facts that are known of it."""

    async def run(self, sql: str, limits: StatementLimits) -> Rows:
        """The rows of one statement of at most `MAX_SQL` characters. Of a private copy's statements one runs at a time.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """

    async def close(self) -> None:
        """Gives back what `open` took; a private copy is gone then. No statement runs any more."""


class Engine(Protocol[_S]):
    """One compiled entry's engine: how its files are opened. `dialect` is the name of its SQL, `title` its own."""

    dialect: ClassVar[str]
    title: ClassVar[str]

    def source(self, path: Path) -> _S:
        """The database of a file, which many episodes may open, one after another and at once.

        Raises:
            ResourceError: the file is missing or is no database; `open` may find that too.
        """

    def forget(self, source: _S) -> None:
        """Called where no episode will open `source` again; some may still have it open."""

    async def open(self, source: _S) -> OpenDatabase:
        """The database for one episode: shared, or a private copy.

        Raises:
            ResourceError: it cannot be opened.
        """

    def missing(self, message: str) -> tuple[str, str] | None:
        """The name that a failure's message says is not there, and the message without proposals; None without one."""


_MAX_TRACE = 20_000


class WorkerEngine(Protocol):
    """The engine in a worker's process."""

    @property
    def holds(self) -> str:
        """The key of the private copy that is open here, or whose image is; empty for none."""

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a statement, and the image of a copy that it changed.

        Raises:
            ToolFailed: the statement is at fault.
            ResourceError: the database is.
        """


def _answer(engine: WorkerEngine, asked: dict[str, Any], fd: int | None) -> tuple[bytes, bytes | None]:
    """The body of the answer, and the image of a copy that the statement changed."""
    image = None
    try:
        answer, image = engine.run(asked, fd)
    except ToolFailed as error:
        answer = {"failed": error.text, "reason": error.reason}
    except ResourceError as error:
        answer = {"lost": str(error)}
    except MemoryError:
        answer = {"failed": "the statement needs more memory than it may use", "reason": "memory"}
    except Exception:  # a bug of the engine's; whoever asked shows it to the author
        answer = {"raised": traceback.format_exc()[-_MAX_TRACE:]}
    answer["holds"] = engine.holds
    try:
        return orjson.dumps(answer), image
    except orjson.JSONEncodeError as error:
        failed = {"failed": f"the result cannot be given: {error}"[:300], "reason": "failed", "holds": engine.holds}
        return orjson.dumps(failed), None


def serve(host: socket.socket, told: dict[str, Any]) -> None:
    """Runs statements on an engine, named as `module:class`."""
    module, _, name = told["engine"].partition(":")
    engine: WorkerEngine = getattr(importlib.import_module(module), name)()

    def ask(body: bytes, fd: int | None) -> tuple[bytes, int | None]:
        asked = orjson.loads(body)
        with served.within(cpu_s=asked["cpu_s"], wall_s=asked["wall_s"], memory=asked["memory"]):
            said, image = _answer(engine, asked, fd)
        return said, None if image is None else written(image)

    served.answer(host, ask)


def written(image: bytes) -> int:
    """A descriptor of a new file that holds `image`; to be closed by whoever asked."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rlenv-image", os.MFD_CLOEXEC)
    else:
        fd, name = tempfile.mkstemp()
        os.unlink(name)
    try:
        view = memoryview(image)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> bytes:
    """The contents of the file."""
    size = os.fstat(fd).st_size
    found = bytearray()
    while len(found) < size:
        if not (piece := os.pread(fd, size - len(found), len(found))):
            break
        if len(piece) == size:
            return piece
        found += piece
    return bytes(found)
