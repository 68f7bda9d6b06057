"""Worker processes for functions that have to be stopped: each is killed, and replaced, when a call does not end.

A worker talks through a socket of its own, so nothing that a function prints is in the way. Nothing here belongs to
an event loop between calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any

from rlenv.concurrency.deadline import Expired
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.messages import Image
from rlenv.tools._pipes import ended
from rlenv.tools._worker_wire import MAX_BYTES, unpacked
from rlenv.tools.base import ToolContext, ToolOutput

__all__ = ["Workers"]

_START_S = 60.0
_SOONER_S = 0.05
_LARGE = 256_000
_TICKS = os.sysconf("SC_CLK_TCK")
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_PIECE = 262_144
# The path comes first: rlenv itself may stand on a folder that only this process knows of.
_PROGRAM = (
    "import json, sys; told = json.load(sys.stdin); sys.path[:] = told['path']; "
    "from rlenv.tools._worker import serve; serve(told)"
)


class FunctionRaised(Exception):
    """A function raised something undeclared; the message is its traceback, for the author's log."""


class _Gone(Exception):
    """The worker ended, or broke its socket."""


class _Worker:
    """One process. `is_usable` is False while it owes an answer: a worker left then has to be ended."""

    def __init__(self, name: str, told: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        try:
            with TemporaryFile() as given:
                fd = theirs.fileno()
                given.write(json.dumps({**told, "fd": fd, "path": [str(entry) for entry in sys.path]}).encode())
                given.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM], stdin=given, pass_fds=(fd,), start_new_session=True
                )
        except OSError as error:
            ours.close()
            raise EpisodeError(f"tool '{name}': no worker process can be started: {error}", reason="worker") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self._name = name
        self._socket = ours
        self._received = bytearray()
        self._started = time.monotonic()
        self.is_ready = False
        self.is_usable = True

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, to be reaped after `kill`."""
        return self._process

    async def ready(self) -> None:
        """Waits until the function is imported. Cancelled, it may be called again: the worker goes on starting.

        Raises:
            EpisodeError: the worker ended, or the function cannot be imported there.
        """
        if self.is_ready:
            return
        try:
            async with asyncio.timeout(self._started + _START_S - time.monotonic()):
                answer, _ = unpacked(await self._frame())
            message = "" if answer["is_ready"] else answer["message"]
        except TimeoutError:
            message = f"it was not ready within {_START_S:g} s"
        except (_Gone, ValueError, KeyError):
            message = f"it ended ({await self._how()})"
        if message:
            self.is_usable = False
            raise EpisodeError(f"a worker process of tool '{self._name}' did not start: {message}", reason="worker")
        self.is_ready = True

    async def call(self, request: bytes) -> ToolOutput:
        """What the function returned.

        Raises:
            ToolFailed, EpisodeError: the function raised it; or ToolFailed, the process ended.
            FunctionRaised: the function raised anything else.
        """
        self.is_usable = False
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, len(request).to_bytes(8, "big") + request)
            frame = await self._frame()
            answer, text = unpacked(frame) if len(frame) <= _LARGE else await asyncio.to_thread(unpacked, frame)
            result = _output(answer, text)
        except (_Gone, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            details = {"process": await self._how()}
            # The call may have ended its process, also by a signal that usually comes from outside.
            status = self._process.poll()
            was_killed = status is not None and -status in _FROM_OUTSIDE
            raise ToolFailed(
                f"the tool {self._name} failed: its process ended",
                reason="killed" if was_killed else "crashed",
                retryable=was_killed,
                details=details,
            ) from error
        self.is_usable = True
        if isinstance(result, Exception):
            raise result
        return result

    async def _frame(self) -> bytes:
        """The next frame; what was read of it stays where the wait is cancelled."""
        if (frame := self._taken()) is not None:
            return frame
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            try:
                piece = self._socket.recv(_PIECE)
                self._received += piece
                frame = self._taken()
            except BlockingIOError:
                return
            except (OSError, _Gone):
                piece, frame = b"", None
            if done.done() or (piece and frame is None):
                return
            if frame is not None:
                done.set_result(frame)
            else:
                done.set_exception(_Gone())

        def end() -> None:
            while not done.done():  # a whole answer may lie in the socket still
                before = len(self._received)
                read()
                if len(self._received) == before and not done.done():
                    done.set_exception(_Gone())

        loop.add_reader(self._socket, read)
        try:
            with _watched(self._process.pid, end):
                return await done
        finally:
            loop.remove_reader(self._socket)

    def _taken(self) -> bytes | None:
        if len(self._received) < 8:
            return None
        size = int.from_bytes(self._received[:8], "big")
        if size > MAX_BYTES:
            raise _Gone
        if len(self._received) < 8 + size:
            return None
        frame = bytes(memoryview(self._received)[8 : 8 + size])
        self._received.clear()  # nothing follows an answer: a worker is asked one thing at a time
        return frame

    def why_late(self, since: float, cpu_before: float) -> str:
        """What the time of a call went to that has not ended, in the words of `rlenv._base.reasons`."""
        state, cpu_s = self.at_work()
        if state in "Tt":
            return "stopped"
        if cpu_s - cpu_before >= (time.monotonic() - since) / 2:
            return "timeout"
        return "stalled" if state == "R" else "late"

    def at_work(self) -> tuple[str, float]:
        """The process's state, as one letter of `ps`, and the processor time that it has used; "?" where unknown."""
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            # utime, stime and those of children that have ended (proc(5))
            return fields[0], sum(map(int, fields[11:15])) / _TICKS
        except (OSError, ValueError, IndexError):
            return "?", 0.0

    async def _how(self) -> str:
        """How the process ended, for the author."""
        for _ in range(100):  # the end of the socket is seen a little before the end of the process
            if (status := self._process.poll()) is not None:
                if status < 0 and -status in set(signal.Signals):
                    return signal.Signals(-status).name
                return f"status {status}"
            await asyncio.sleep(0.005)
        return "it closed its socket"

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kills the process and what it started and kept in its group; does not wait."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextmanager
def _watched(pid: int, on_end: Callable[[], None]) -> Iterator[None]:
    """Calls `on_end` when the process ends: a child that it forked may hold its socket open."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one: the end of the socket has to do
        yield
        return
    loop = asyncio.get_running_loop()

    def tell() -> None:
        loop.remove_reader(fd)
        on_end()

    loop.add_reader(fd, tell)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _output(answer: Mapping[str, Any], text: str) -> ToolOutput | Exception:
    kind = answer["kind"]
    if kind == "ok":
        images = tuple(Image(mime, base64) for mime, base64 in answer["images"])
        return ToolOutput(text, text if answer["is_text"] else answer["value"], images, answer["details"])
    if kind == "failed":
        return ToolFailed(text, reason=answer["reason"], retryable=answer["retryable"], details=answer["details"])
    if kind == "episode":
        return EpisodeError(text, reason=answer["reason"])
    return FunctionRaised(text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value and cannot be handed to another process")


class Workers:
    """At most `limit` workers of one tool, started when they are needed; calls beyond them wait their turn."""

    def __init__(self, name: str, told: Mapping[str, Any], *, limit: int) -> None:
        self._name = name
        self._told = told
        self._places = asyncio.Semaphore(limit)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._dying: list[subprocess.Popen[bytes]] = []

    async def run(self, arguments: Mapping[str, Any], call: ToolContext, *, with_task: bool) -> ToolOutput:
        """Calls the function in a worker; cancelled, or at the call's deadline, the worker is killed.

        Raises:
            ToolFailed: the function declared a failure, or its process ended.
            Expired: the deadline passed; with what the time went to.
            EpisodeError: the function raised it, or no worker could be started.
        """
        asked = {"arguments": arguments, "task": call.task if with_task else {}, "seed": call.seed}
        left = max(0.0, call.deadline - time.monotonic())
        reason = "busy"
        try:
            # A little before the executor ends the call, which does not know what the time went to.
            async with asyncio.timeout(left - min(_SOONER_S, left / 20)), self._places:
                worker = self._taken()
                try:
                    reason = "worker"
                    await worker.ready()
                    asked["seconds"] = call.deadline - time.monotonic()
                    since, (_, cpu_s) = time.monotonic(), worker.at_work()
                    try:
                        return await worker.call(json.dumps(asked, default=_plain).encode())
                    except asyncio.CancelledError:
                        reason = worker.why_late(since, cpu_s)
                        raise
                finally:
                    self._give_back(worker)
        except TimeoutError as error:
            raise Expired(reason=reason) from error

    def _taken(self) -> _Worker:
        self._dying = [process for process in self._dying if process.poll() is None]
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            self._end(worker)
        worker = _Worker(self._name, self._told)
        self._all.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        if worker not in self._all:  # closed meanwhile
            return
        if not worker.is_usable:
            self._end(worker)
        elif worker.is_ready:
            self._idle.append(worker)
        else:
            self._idle.insert(0, worker)  # the last to be taken

    def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        worker.kill()
        self._dying.append(worker.process)

    async def aclose(self) -> None:
        """Kills all workers and waits until they are gone."""
        self._idle.clear()
        for worker in list(self._all):
            self._end(worker)
        while self._dying:
            process = self._dying.pop()
            if process.poll() is None:
                await ended(process)
