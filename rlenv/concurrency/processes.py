"""Processes that can be killed: what runs in them may take any time and memory, crash, or never end.

A process is started, asked over a socket one thing at a time, measured by its processor time, and judged by how it
ended, by one table for all. `rlenv.concurrency.pool` keeps some of one program, and `rlenv.concurrency.served` is the
other end. Nothing here belongs to an event loop between calls.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, Final, Literal

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Work:
    """`state` is the letter of proc(5): R, S, D, T, Z. `cpu_s` counts all threads, `children_s` the children that
    have ended, both to a hundredth of a second; `delayed_s` is how long the first thread was ready and got no
    processor; `age_s` is counted from its start. `threads` are those that have not ended; the first one counts
    until all have."""

    state: str
    cpu_s: float
    delayed_s: float
    age_s: float
    threads: int = 1
    children_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        """True where nothing of it runs. One whose first thread alone has ended is a zombie too, and goes on."""
        return self.state == "Z" and self.threads <= 1

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"

    @property
    def own_s(self) -> float:
        """The time that was its own: at work, or waiting for what it asked for itself."""
        return max(self.cpu_s, self.age_s - self.delayed_s)


def work_of(pid: int) -> Work | None:
    """None where the process is gone, or the system does not tell (it is not Linux)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, which stands in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        threads = int(fields[17])
        cpu_s, children_s = ((int(fields[at]) + int(fields[at + 1])) / _TICKS for at in (11, 13))
        age_s = time.clock_gettime(_CLOCK) - int(fields[19]) / _TICKS
    except (OSError, IndexError, ValueError):
        return None
    return Work(fields[0].decode(), cpu_s, delayed_s(pid), age_s, threads, children_s)


def delayed_s(pid: int) -> float:
    """The seconds that the first thread was ready and got no processor; 0.0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def child_pids(pid: int) -> list[int]:
    """The processes that `pid` has started; none where it has ended, or the system does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def only_child(pid: int) -> int | None:
    """The process that `pid` started; None where there is none, several, or the system does not tell."""
    return found[0] if len(found := child_pids(pid)) == 1 else None


class Delays:
    """The seconds since it was made in which a process, or its only child, was ready and got no processor."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before, self._of_child, self._last = pid, delayed_s(pid), 0.0, 0.0

    def __call__(self) -> float:
        child = only_child(self._pid)
        if child is not None:
            self._of_child = max(self._of_child, delayed_s(child))
        self._last = max(self._last, delayed_s(self._pid) - self._before + self._of_child)
        return self._last


Cause = Literal["exit", "crash", "processor", "time", "outside"]

SELF_MADE: Final[Mapping[Cause, tuple[str, ...]]] = MappingProxyType(
    {
        "crash": ("SIGSEGV", "SIGBUS", "SIGSYS", "SIGTRAP", "SIGABRT", "SIGFPE", "SIGILL", "SIGPIPE", "SIGXFSZ"),
        "processor": ("SIGPROF", "SIGVTALRM"),
        "time": ("SIGALRM",),
    }
)
"""The signals that a process brings upon itself, by what it does or by limits that it was given here. All others come
from outside: from the system, where memory is short, from a person, or from a batch system (SIGXCPU)."""
_START_S: Final = 60.0
_ENOUGH: Final = 0.9
_PIECE: Final = 262_144
_MAX_FRAME: Final = 96_000_000
_PACKAGE: Final = Path(__file__).resolve().parents[1]
# The path comes first: rlenv itself may stand on a folder that only this process knows of.
_WHOLE: Final = (
    "import json, sys; told = json.load(sys.stdin); sys.path[:] = told['path']; "
    "from rlenv.concurrency.served import begin; begin(told)"
)
# The package without its __init__, which brings in more than an engine needs.
_BARE: Final = _WHOLE.replace(
    "from rlenv",
    "import types; package = types.ModuleType('rlenv'); package.__path__ = [told['package']]; "
    "sys.modules['rlenv'] = package; from rlenv",
)
_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "TMPDIR")


def cause_of(status: int) -> Cause:
    """The cause of a process's end, by its status; negative for a signal."""
    if status >= 0:
        return "exit"
    name = ending_text(status)
    return next((cause for cause, names in SELF_MADE.items() if name in names), "outside")


def ending_text(status: int) -> str:
    """A status for people: `status 3`, or the name of a signal."""
    if status < 0 and -status in set(signal.Signals):
        return signal.Signals(-status).name
    return f"status {status}"


class Gone(Exception):
    """A process ended, with `status`, or broke its socket (None)."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.cause: Cause = "exit" if status is None else cause_of(status)
        super().__init__("it closed its socket" if status is None else ending_text(status))


class StartFailed(Exception):
    """No process could be started; `is_told` where it said itself what is wrong, in the message."""

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        self.is_told = is_told
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run in a process, and how the time of one that does not end is judged."""

    serve: str
    """`module:function`, called there with the socket and what it is told."""
    told: Mapping[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    """An engine of rlenv's own: started quickly, with nothing of the environment, and it goes home without work.
    Otherwise it may run an author's function, with all that this process has."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """What it means that a process does not work at its deadline, by its state (S: it waits for anything, D: for a
    disk, T: it was stopped); `stalled` where that is not said."""


class Process:
    """One process of a program.

    Raises:
        StartFailed: the system starts none.
    """

    def __init__(self, program: Program) -> None:
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        told = {"path": [str(entry) for entry in sys.path], "package": str(_PACKAGE), "serve": program.serve, "fd": fd}
        is_bare = program.is_bare
        try:
            with TemporaryFile() as given:
                given.write(json.dumps({**told, "told": dict(program.told)}).encode())
                given.seek(0)
                self.process = subprocess.Popen(
                    [sys.executable, *(("-I", "-S", "-c", _BARE) if is_bare else ("-c", _WHOLE))],
                    stdin=given,
                    stdout=subprocess.DEVNULL if is_bare else None,
                    stderr=subprocess.DEVNULL if is_bare else None,
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ} if is_bare else None,
                    pass_fds=(fd,),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise StartFailed(f"no process can be started: {error.strerror}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours
        self.is_ready = False
        self.is_busy = False
        """True while an answer is owed: a process that is left then has to be killed."""
        self.holds = ""
        """The key of what the process has open, in its user's words."""
        self._program = program
        self._started = time.monotonic()
        self._received = bytearray()
        self._fd: int | None = None
        self._asked: tuple[float, float | None, float | None] | None = None

    async def ready(self) -> None:
        """Waits until it answers. Cancelled, it may be called again: the process goes on starting.

        Raises:
            Gone: it was ended from outside.
            StartFailed: it cannot be started, or takes too long.
        """
        if self.is_ready:
            return
        try:
            async with asyncio.timeout(self._started + _START_S - time.monotonic()):
                body, _ = await self._read_frame()
        except TimeoutError as error:
            raise StartFailed(f"it was not ready within {_START_S:g} s") from error
        except Gone as error:
            if error.cause == "outside":
                raise
            raise StartFailed(f"it ended ({error})") from error
        said = json.loads(body)
        if said is not None:
            raise StartFailed(str(said), is_told=True)
        self.is_ready = True

    async def ask(self, body: bytes, fd: int | None = None, *, cpu_s: float | None = None) -> tuple[bytes, int | None]:
        """The process's answer, and a descriptor to be closed where one came with it.

        Args:
            cpu_s: the processor time that is its own; half of the time that it has, where that is not said.

        Raises:
            Gone: it ended first.
        """
        self._asked = (time.monotonic(), self.cpu_s(), cpu_s)
        self.is_busy, self.holds = True, ""
        frame = len(body).to_bytes(8, "big") + body
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            try:
                sent = self.socket.sendmsg([frame], rights)
            except BlockingIOError:
                sent = 0
            if sent < len(frame):
                await asyncio.get_running_loop().sock_sendall(self.socket, memoryview(frame)[sent:])
        except OSError as error:
            raise await self._gone_error() from error
        answer = await self._read_frame()
        self.is_busy = False
        return answer

    async def ask_json(self, asked: Mapping[str, Any], *, patience_s: float) -> dict[str, Any]:
        """Its answer to a question, both as JSON. Raises as `ask` does, and TimeoutError after so many seconds."""
        async with asyncio.timeout(patience_s):
            body, _ = await self.ask(json.dumps(asked).encode())
        said: dict[str, Any] = json.loads(body)
        return said

    async def _read_frame(self) -> tuple[bytes, int | None]:
        """The next frame; what was read of it stays where the wait is cancelled."""
        if not self._has_frame():
            await self._read_more()
        size = int.from_bytes(self._received[:8], "big")
        if not self._has_frame() or size > _MAX_FRAME:
            raise await self._gone_error()
        body = bytes(memoryview(self._received)[8 : 8 + size])
        self._received = bytearray()  # nothing follows an answer: a process is asked one thing at a time
        fd, self._fd = self._fd, None
        return body, fd

    def _has_frame(self) -> bool:
        found = self._received
        return len(found) >= 8 and len(found) >= 8 + min(int.from_bytes(found[:8], "big"), _MAX_FRAME)

    async def _read_more(self) -> None:
        """Reads until there is a frame, or there will be none."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def read() -> bool:
            try:
                piece, fds, _, _ = socket.recv_fds(self.socket, _PIECE, 1)
            except BlockingIOError:
                return False
            except OSError:
                piece, fds = b"", []
            if fds:
                self._fd = fds[0]
            self._received += piece
            if not done.done() and (not piece or self._has_frame()):
                done.set_result(None)
            return bool(piece)

        def end() -> None:
            loop.remove_reader(watched)
            while not done.done():  # a whole answer may lie in the socket still
                if not read() and not done.done():
                    done.set_result(None)

        # A child that it forked may hold its socket open.
        watched = _open_pidfd(self.process.pid) if not self._program.is_bare else -1
        loop.add_reader(self.socket, read)
        try:
            if watched >= 0:
                loop.add_reader(watched, end)
            await done
        finally:
            loop.remove_reader(self.socket)
            if watched >= 0:
                loop.remove_reader(watched)
                os.close(watched)

    async def _gone_error(self) -> Gone:
        """The way it ended; the end of the socket is seen a little before the end of the process."""
        for _ in range(500):
            if (status := self.process.poll()) is not None:
                return Gone(status)
            await asyncio.sleep(0.001)
        return Gone(None)

    def went_home(self, error: Gone) -> bool:
        """True where it ended for want of work: what it was asked meanwhile met it at the door."""
        return self._program.is_bare and error.status == 0

    def cpu_s(self) -> float | None:
        """Processor seconds that it has used, with children that have ended where it may have some; None where nobody
        counts them or it is gone."""
        try:
            own = time.clock_gettime((~self.process.pid << 3) | 2)
        except (OSError, AttributeError):
            return None
        if self._program.is_bare:
            return own
        work = work_of(self.process.pid)
        return own + (work.children_s if work is not None else 0.0)

    def why_late(self) -> str:
        """The reason why one is late that is given up now, in the words of `rlenv.errors.WHOSE`."""
        if self._asked is None or not self.is_busy:
            return "stalled" if self.is_ready else "worker"
        since, before, limit = self._asked
        now, work = self.cpu_s(), work_of(self.process.pid)
        if now is None or before is None or work is None:
            return "late"
        if work.is_stopped:
            return self._program.waits.get("T", "stalled")
        enough = (time.monotonic() - since) / 2 if limit is None else _ENOUGH * limit
        return "timeout" if now - before >= enough else self._program.waits.get(work.state, "stalled")

    def kill(self) -> None:
        """Ends it and what it started and kept in its group, and does not wait for it."""
        self.socket.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        # Also where it has ended: what it started may go on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _open_pidfd(pid: int) -> int:
    """A descriptor that can be read once the process has ended; -1 where there is none: not Linux, or an old one."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


async def await_end(process: subprocess.Popen[bytes]) -> int:
    """The status with which `process` ends, reaped; negative for a signal."""
    if (fd := _open_pidfd(process.pid)) < 0:
        return await asyncio.to_thread(process.wait)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if done.done() else done.set_result(None))
    try:
        await done
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.wait()
