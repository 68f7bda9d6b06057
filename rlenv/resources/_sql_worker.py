"""What runs in a process for SQL: one statement after another, until the other end of the socket closes.

A frame is eight bytes with its length and then that many bytes of JSON; a descriptor may come with the first byte. The
process keeps no state that a statement of another episode could see: files are opened to be read, and the image of a
private copy is only kept under the number that its owner gives it. It ends itself where nobody is there to end it: the
system's own timers kill it a little after the processor time or the time of its statement.

Started by `_sql_workers.py` without the rest of the package, so that it is there in a few hundredths of a second.
"""

from __future__ import annotations

import array
import contextlib
import gc
import os
import resource
import signal
import socket
import sqlite3
import time
from typing import Any, Protocol

import orjson

from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources._memory_file import read, written
from rlenv.resources._sqlite import Connection, Rows

__all__ = ["ENDED_FULL", "serve"]

ENDED_FULL = 3
"""The exit status of a process that has no memory left to say so."""
_IDLE_S = 60.0
_CPU_GRACE_S = 0.1
_WALL_GRACE_S = 1.0
_MAX_RESIDENT = 400_000_000
_MAX_FILES = 8


class _Engine(Protocol):
    @property
    def holds(self) -> str: ...

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]: ...


class Sqlite:
    """Statements on SQLite files and images."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._copy: Connection | None = None
        self._copy_key = ""

    @property
    def holds(self) -> str:
        """The key of the private copy whose image is here."""
        return self._copy_key

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a statement, and the image of a copy that it changed."""
        limits = {
            "until": time.monotonic() + asked["wall_s"],
            "cpu_s": asked["cpu_s"],
            "max_rows": asked["max_rows"],
            "max_size": asked["max_size"],
        }
        if not asked["may_write"]:
            return _told(self._shared(asked, fd).run(asked["sql"], **limits)), None
        copy = self._private(asked, fd)
        self._copy_key = ""
        try:
            found = copy.run(asked["sql"], **limits)
        except ToolFailed:
            # What fails while it runs is undone; not so where only its result cannot be given.
            self._copy_key = "" if copy.has_written else asked["key"]
            raise
        answer = _told(found)
        image = None
        if copy.has_written:
            image = copy.image()
            answer["rowid"], answer["changes"] = copy.last()
            answer["has_new_schema"] = copy.has_new_schema
        self._copy_key = asked["key"] if image is None else asked["next"]
        return answer, image

    def _shared(self, asked: dict[str, Any], fd: int | None) -> Connection:
        found = self._open.pop(asked["key"], None)
        if found is None:
            while len(self._open) >= _MAX_FILES:
                self._open.pop(next(iter(self._open))).close()
            try:
                raw = _read(fd) if fd is not None else sqlite3.connect(asked["file"], uri=True, cached_statements=0)
                found = Connection(raw, may_write=False)
            except sqlite3.Error as error:
                raise ResourceError(f"the database cannot be opened: {error}") from error
        self._open[asked["key"]] = found
        return found

    def _private(self, asked: dict[str, Any], fd: int | None) -> Connection:
        if self._copy is not None and self._copy_key == asked["key"]:
            return self._copy
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        if fd is None:
            raise ResourceError("the image of the database did not come with the statement")
        self._copy = Connection(_read(fd), may_write=True, max_bytes=asked["max_bytes"])
        self._copy.prime(asked["rowid"], asked["changes"])
        return self._copy


def _read(fd: int) -> sqlite3.Connection:
    raw = sqlite3.connect(":memory:", cached_statements=0)
    raw.deserialize(read(fd))
    return raw


def _told(found: Rows) -> dict[str, Any]:
    return {"columns": found.columns, "rows": found.rows, "truncated": found.truncated, "changed": found.changed}


def _engine(name: str) -> _Engine:
    if name == "sqlite":
        return Sqlite()
    from rlenv.resources._duckdb import Duckdb  # its library is there only with the extra

    return Duckdb()


def _answer(engine: _Engine, asked: dict[str, Any], fd: int | None) -> tuple[bytes, bytes | None]:
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
    except sqlite3.Error as error:  # of what is done around the statement
        # A private copy was whole when its episode got it.
        found = f"the database cannot be read: {error}"[:300]
        answer = {"failed": found, "reason": "failed"} if asked["may_write"] else {"lost": found}
    except Exception as error:
        answer = {"failed": f"the process of the query failed: {type(error).__name__}", "reason": "bug"}
    answer["holds"] = engine.holds
    try:
        return orjson.dumps(answer), image
    except orjson.JSONEncodeError as error:
        failed = {"failed": f"the result cannot be given: {error}"[:300], "reason": "failed", "holds": engine.holds}
        return orjson.dumps(failed), None


def serve(told: dict[str, Any]) -> None:
    """Answers until the other end of the socket closes, or nobody has asked for a while."""
    host = socket.socket(fileno=told["fd"])
    _limit()
    engine = _engine(told["engine"])
    gc.freeze()
    own = _mapped()
    _send(host, b'{"ready":true}', None)
    host.settimeout(_IDLE_S)
    while True:
        try:
            body, fd = _received(host)
        except (TimeoutError, ConnectionError):
            return
        if body is None:
            return
        asked = orjson.loads(body)
        try:
            body, image = _within(engine, asked, fd, own)
        finally:
            if fd is not None:
                os.close(fd)
        is_full = _resident() > _MAX_RESIDENT
        host.settimeout(None)
        _send(host, body, image)
        if is_full:  # the next one starts with what the system has
            return
        del body, image, asked
        host.settimeout(_IDLE_S)


def _within(engine: _Engine, asked: dict[str, Any], fd: int | None, own: int) -> tuple[bytes, bytes | None]:
    soft(resource.RLIMIT_AS, max(own, _mapped()) + asked["memory"])
    # What even the engine's own limits do not stop, the system does: these signals end the process.
    signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"] + _CPU_GRACE_S)
    signal.setitimer(signal.ITIMER_REAL, asked["wall_s"] + _WALL_GRACE_S)
    try:
        return _answer(engine, asked, fd)
    except MemoryError:
        os._exit(ENDED_FULL)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        soft(resource.RLIMIT_AS, None)


def _limit() -> None:
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 128)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's; the process ends with its parent's socket
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process goes first and not the trainer


def soft(kind: int, limit: int | None) -> None:
    """Sets a limit that can be raised again, as far as the system has it; None for no more than the hard one."""
    hard = resource.getrlimit(kind)[1]
    if limit is None or (hard != resource.RLIM_INFINITY and limit > hard):
        limit = hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (limit, hard))


def _mapped() -> int:
    return _memory(0)


def _resident() -> int:
    return _memory(1)


def _memory(field: int) -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field]) * resource.getpagesize()
    except OSError:
        return 0


def _send(host: socket.socket, body: bytes, image: bytes | None) -> None:
    frame = len(body).to_bytes(8, "big") + body
    if image is None:
        host.sendall(frame)
        return
    fd = written(image)
    try:
        sent = host.sendmsg([frame[:8]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        host.sendall(frame[sent:])
    finally:
        os.close(fd)


def _received(host: socket.socket) -> tuple[bytes | None, int | None]:
    head, fds, _, _ = socket.recv_fds(host, 8, 1)
    if not head:
        return None, None
    while len(head) < 8:
        if not (piece := host.recv(8 - len(head))):
            return None, None
        head += piece
    body = bytearray()
    size = int.from_bytes(head, "big")
    while len(body) < size:
        if not (piece := host.recv(min(size - len(body), 1 << 20))):
            return None, None
        body += piece
    return bytes(body), fds[0] if fds else None
