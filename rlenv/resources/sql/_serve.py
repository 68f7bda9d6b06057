"""The SQL worker's process: it runs one statement after another, within the limits that come with it.

The process keeps no state that a statement of another episode could see: files are opened to be read, and the image of
a private copy is only kept under the number that its owner gives it.
"""

from __future__ import annotations

import importlib
import os
import socket
import tempfile
import traceback
from typing import Any, Protocol

import orjson

from rlenv.concurrency import served
from rlenv.errors import ResourceError, ToolFailed

__all__ = ["WorkerEngine", "read", "serve", "written"]

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
