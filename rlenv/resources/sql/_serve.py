"""What runs in a process for SQL: one statement after another, until the other end of the socket closes.

A frame is eight bytes with its length and then that many bytes of JSON; a descriptor may come with the first byte. The
process keeps no state that a statement of another episode could see: files are opened to be read, and the image of a
private copy is only kept under the number that its owner gives it. It ends itself where nobody is there to end it: the
system's own timers kill it a little after the processor time or the time of its statement.

Started by `_worker.py` without the rest of the package, so that it is there in a few hundredths of a second.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import traceback
from typing import Any, Protocol

import orjson

from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.sql._memory_file import written

__all__ = ["ENDED_FULL", "READY", "Engine", "serve"]

READY = b'{"ready":true}'
"""What a process says once its engine is there."""
ENDED_FULL = 3
"""The exit status of a process that has no memory left to say so."""
_IDLE_S = 60.0
_MAX_TRACE = 20_000
_CPU_GRACE_S = 0.1
_WALL_GRACE_S = 1.0
_MAX_RESIDENT = 400_000_000
_MAPPED, _RESIDENT = 0, 1
"""Fields of /proc/self/statm: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html"""


class Engine(Protocol):
    """What a module that runs here has under the name `Engine`."""

    @property
    def holds(self) -> str:
        """The key of the private copy that is open here, or whose image is; empty for none."""

    def run(self, asked: dict[str, Any], fd: int | None) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a statement, and the image of a copy that it changed.

        Raises:
            ToolFailed: the statement is at fault.
            ResourceError: the database is.
        """


def _answer(engine: Engine, asked: dict[str, Any], fd: int | None) -> tuple[bytes, bytes | None]:
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


def serve(told: dict[str, Any]) -> None:
    """Answers until the other end of the socket closes, or nobody has asked for a while."""
    host = socket.socket(fileno=told["fd"])
    _limit()
    try:
        engine: Engine = importlib.import_module(told["engine"]).Engine()
    except Exception:  # a library that is broken, say: the author is told, and nobody starts another process for it
        _send(host, orjson.dumps({"raised": traceback.format_exc()[-_MAX_TRACE:]}), None)
        return
    gc.freeze()
    own = _memory(_MAPPED)
    _send(host, READY, None)
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
        is_full = _memory(_RESIDENT) > _MAX_RESIDENT
        host.settimeout(None)
        _send(host, body, image)
        if is_full:  # the next one starts with what the system has
            return
        del body, image, asked
        host.settimeout(_IDLE_S)


def _within(engine: Engine, asked: dict[str, Any], fd: int | None, own: int) -> tuple[bytes, bytes | None]:
    soft(resource.RLIMIT_AS, max(own, _memory(_MAPPED)) + asked["memory"])
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
