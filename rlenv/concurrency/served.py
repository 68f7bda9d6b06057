"""The loop in a process of `rlenv.concurrency.processes`: one answer after another, until the socket closes.

A frame is eight bytes with its length and then that many bytes; a descriptor may come with the first of them. The first
frame is `null` once the program is there, or says as JSON why it cannot be. An engine's process is started without the
rest of the package, so that this file and what it imports stay light.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

ENDED_FULL: Final = 3
"""The exit status of a process that has no memory left to say so."""
READY: Final = b"null"
_IDLE_S: Final = 60.0
_MAX_TRACE: Final = 20_000
_MAX_RESIDENT: Final = 400_000_000
_CPU_GRACE_S: Final = 0.1
_WALL_GRACE_S: Final = 1.0
_MAPPED, _RESIDENT = 0, 1
"""Fields of /proc/self/statm: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html"""


def begin(told: dict[str, Any]) -> None:
    """Runs the program that is named; what it raises while it starts is told to whoever started it."""
    host = socket.socket(fileno=told["fd"])
    host.set_inheritable(False)
    soft_limit(resource.RLIMIT_CORE, 0)
    module, _, name = told["serve"].partition(":")
    try:
        serve: Callable[[socket.socket, dict[str, Any]], None] = getattr(importlib.import_module(module), name)
        serve(host, told["told"])
    except Exception:  # a library that is broken, say: the author is told, and nobody starts another process for it
        refuse(host, traceback.format_exc()[-_MAX_TRACE:])


def refuse(host: socket.socket, why: str) -> NoReturn:
    """Says why the program cannot be run, and ends the process."""
    with contextlib.suppress(OSError):
        send(host, json.dumps(why).encode())
    os._exit(1)


def answer(host: socket.socket, ask: Callable[[bytes, int | None], tuple[bytes, int | None]]) -> None:
    """Says that an engine is there, and answers until the socket closes, or nobody has asked for a while.

    Args:
        ask: the answer to a frame and to the descriptor that came with it, which stays the giver's; a descriptor that
            it gives is closed here.
    """
    _limit_self()
    gc.freeze()
    send(host, READY)
    host.settimeout(_IDLE_S)
    while True:
        try:
            body, given = receive_frame(host)
        except (TimeoutError, ConnectionError):
            return
        if body is None:
            return
        try:
            body, fd = ask(body, given)
        except MemoryError:
            os._exit(ENDED_FULL)
        finally:
            if given is not None:
                os.close(given)
        is_full = _memory_bytes(_RESIDENT) > _MAX_RESIDENT
        host.settimeout(None)
        try:
            send(host, body, fd)
        finally:
            if fd is not None:
                os.close(fd)
        if is_full:  # the next one starts with what the system has
            return
        del body
        host.settimeout(_IDLE_S)


class within:
    """Limits of one question, while it is entered; the system ends the process at them.

    They are for what even the engine's own limits do not stop: seconds of the processor, seconds of any time, bytes of
    memory beside what is mapped now.
    """

    def __init__(self, *, cpu_s: float, wall_s: float, memory: int) -> None:
        self._limits = cpu_s + _CPU_GRACE_S, wall_s + _WALL_GRACE_S, memory

    def __enter__(self) -> None:
        cpu_s, wall_s, memory = self._limits
        soft_limit(resource.RLIMIT_AS, _memory_bytes(_MAPPED) + memory)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s)

    def __exit__(self, *_error: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        soft_limit(resource.RLIMIT_AS, None)


def _limit_self() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's; the process ends with its parent's socket
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process goes first and not the trainer


def soft_limit(kind: int, limit: int | None) -> None:
    """Sets a limit that can be raised again, as far as the system has it; None for no more than the hard one."""
    hard = resource.getrlimit(kind)[1]
    if limit is None or (hard != resource.RLIM_INFINITY and limit > hard):
        limit = hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (limit, hard))


def _memory_bytes(field: int) -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field]) * resource.getpagesize()
    except OSError:
        return 0


def send(host: socket.socket, body: bytes, fd: int | None = None) -> None:
    """Sends a frame, with a descriptor where there is one."""
    frame = len(body).to_bytes(8, "big") + body
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sent = host.sendmsg([frame[:8]] if rights else [frame], rights)
    host.sendall(memoryview(frame)[sent:])


def receive_frame(host: socket.socket) -> tuple[bytes | None, int | None]:
    """The next frame and its descriptor; None at the end."""
    head, fds, _, _ = socket.recv_fds(host, 8, 1)
    if head and len(head) < 8:
        head += _read_exactly(host, 8 - len(head))
    size = int.from_bytes(head, "big")
    body = _read_exactly(host, size) if len(head) == 8 else b""
    return (body, fds[0] if fds else None) if len(head) == 8 and len(body) == size else (None, None)


def _read_exactly(host: socket.socket, size: int) -> bytes:
    """The next `size` bytes of a socket, or fewer at its end."""
    found = bytearray()
    while len(found) < size and (piece := host.recv(min(size - len(found), 1 << 20))):
        found += piece
    return bytes(found)
