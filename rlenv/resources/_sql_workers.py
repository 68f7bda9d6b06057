"""Processes in which SQL statements run that may take long: each can be killed, and whose failure it was is measured.

Nothing of a statement runs in this process, so that it can be stopped wherever it is, in the engine's parser too, and
its memory is not ours. A statement may use a quarter of its time limit as processor time, which is the same on a busy
machine; the rest is for a machine that has other work. One that used it up was too slow by itself
(`timeout`, the policy's); one that did not get it, because its process was stopped, starved or killed from outside,
says nothing about the policy (`stalled`, `worker`).

Nothing here belongs to an event loop between calls.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import orjson

from rlenv._deadline import stopped
from rlenv.errors import ResourceError, ToolFailed

__all__ = ["CPU_SHARE", "Answer", "Image", "Limits", "SqlWorkers", "cores", "encoded", "limits_for", "sqlite_workers"]

_PACKAGE: Final = Path(__file__).resolve().parent.parent
# The package without its __init__, which brings in more than the engine needs.
_PROGRAM: Final = (
    "import json, sys, types; told = json.load(sys.stdin); sys.path[:] = told['path']; "
    "package = types.ModuleType('rlenv'); package.__path__ = [told['package']]; sys.modules['rlenv'] = package; "
    "from rlenv.resources._sql_worker import serve; serve(told)"
)
_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "TMPDIR")
_ENDED_FULL: Final = 3
_START_S: Final = 60.0
_MARGIN_S: Final = 0.05
"""Whoever waits gives up at the deadline; the kill that comes later is for those who do not."""
_MAX_FRAME: Final = 96_000_000
CPU_SHARE: Final = 0.25
"""How much of its time limit a statement may use as processor time."""
_LEAST_CPU_S: Final = 0.02
_OUT_OF_TIME: Final = "the query did not end within its time"
_CRASHES: Final = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))


@dataclass(frozen=True, slots=True)
class Limits:
    """What one statement may use: until when, on the clock of `time.monotonic()`, and how much processor time."""

    deadline: float
    cpu_s: float
    max_rows: int
    max_size: int
    is_urgent: bool = False
    """Before others in the queue: what a reward asks for."""


def limits_for(
    deadline: float, *, cpu_s: float | None, max_rows: int, max_size: int, is_urgent: bool = False
) -> Limits:
    """The limits of a statement that is given now; without `cpu_s` a quarter of its time is for the processor."""
    if cpu_s is None:
        cpu_s = max((deadline - time.monotonic()) * CPU_SHARE, _LEAST_CPU_S)
    return Limits(deadline, cpu_s, max_rows, max_size, is_urgent)


def encoded(sql: str) -> str:
    """The statement as it can be handed over.

    Raises:
        ToolFailed: it holds what no text in UTF-8 can.
    """
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(f"the statement cannot be run: {error.reason}") from error
    return sql


@dataclass(slots=True)
class Answer:
    """What a worker says, and the image of a copy that the statement changed, as a descriptor to be closed."""

    told: dict[str, Any]
    fd: int | None = None


Image = Callable[[], AbstractAsyncContextManager[int]]


class _Gone(Exception):
    """The process ended, or broke its socket."""


class _Worker:
    def __init__(self, engine: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            with TemporaryFile() as given:
                told = {
                    "engine": engine,
                    "fd": theirs.fileno(),
                    "package": str(_PACKAGE),
                    "path": [str(entry) for entry in sys.path],
                }
                given.write(json.dumps(told).encode())
                given.seek(0)
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM],
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise ToolFailed(
                f"no process for SQL can be started: {error.strerror}", reason="worker", retryable=True
            ) from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours
        self.is_ready = False
        self.is_busy = False
        """It owes an answer."""
        self.holds = ""
        """The key of the private copy whose image it has."""
        self._received = bytearray()
        self._fd: int | None = None

    async def ready(self, started: float) -> None:
        """Waits until the process answers.

        Raises:
            _Gone: it ended first.
            ToolFailed: it takes too long.
        """
        if self.is_ready:
            return
        try:
            async with asyncio.timeout(max(started + _START_S - time.monotonic(), 0)):
                await self._frame()
        except TimeoutError as error:
            raise ToolFailed("a process for SQL did not start", reason="worker", retryable=True) from error
        self.is_ready = True

    async def ask(self, asked: Mapping[str, Any], fd: int | None) -> Answer:
        """What the process answers.

        Raises:
            _Gone: it ended first.
        """
        body = orjson.dumps(asked)
        frame = len(body).to_bytes(8, "big") + body
        try:
            if fd is not None:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                sent = self.socket.sendmsg([frame], ancillary)
            else:
                sent = self.socket.send(frame)
            if sent < len(frame):
                await asyncio.get_running_loop().sock_sendall(self.socket, frame[sent:])
        except OSError as error:
            raise _Gone from error
        body = await self._frame()
        fd, self._fd = self._fd, None
        try:
            told = orjson.loads(body)
            told["holds"]
            return Answer(told, fd)
        except (ValueError, TypeError, KeyError) as error:
            if fd is not None:
                os.close(fd)
            raise _Gone from error

    async def _frame(self) -> bytes:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            try:
                piece, fds, _, _ = socket.recv_fds(self.socket, 262_144, 1)
            except BlockingIOError:
                return
            except OSError:
                piece, fds = b"", []
            if fds:
                self._fd = fds[0]
            self._received += piece
            size = int.from_bytes(self._received[:8], "big") if len(self._received) >= 8 else None
            if done.done():
                return
            if not piece or (size is not None and size > _MAX_FRAME):
                done.set_exception(_Gone())
            elif size is not None and len(self._received) >= 8 + size:
                frame = bytes(memoryview(self._received)[8 : 8 + size])
                self._received = bytearray()  # nothing follows an answer
                done.set_result(frame)

        loop.add_reader(self.socket, read)
        try:
            return await done
        finally:
            loop.remove_reader(self.socket)

    def cpu_s(self) -> float | None:
        """Processor seconds that the process has used; None where nobody counts them or it is gone."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | 2)
        except (OSError, AttributeError):
            return None

    @property
    def state(self) -> str:
        """The letter by which Linux says what the process does: R runs, S sleeps, T is stopped, D waits for a disk."""
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0].decode()
        except (OSError, IndexError):
            return "?"

    def kill(self) -> None:
        self.socket.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


class SqlWorkers:
    """At most `limit` processes of one engine; what comes beyond waits, what rewards ask for first."""

    def __init__(self, engine: str, *, limit: int) -> None:
        self._engine = engine
        self.limit = limit
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._reset()
        atexit.register(self.close)

    def _reset(self) -> None:
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._dying: list[subprocess.Popen[bytes]] = []
        self._taken = 0
        self._waiting: tuple[deque[asyncio.Future[bool]], deque[asyncio.Future[bool]]] = (deque(), deque())

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run now."""
        return [worker.process.pid for worker in list(self._all)]

    def holds(self, key: str) -> bool:
        """True where a process without work has the private copy of `key` open, or its image."""
        return any(worker.holds == key for worker in self._idle)

    async def run(
        self, asked: dict[str, Any], limits: Limits, *, key: str, image: Image | None, next_key: str = ""
    ) -> Answer:
        """What the statement gives.

        Args:
            asked: the statement and where it runs, for the process.
            key: stands for the file, or for the image of a private copy, which is only sent where it is not there yet.
            image: a descriptor of the image, which stays the giver's, for as long as it is entered.
            next_key: stands for what a private copy is after a statement that wrote.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time, or its process did.
            ResourceError: the database is at fault.
        """
        await self._take(limits)
        worker: _Worker | None = None
        started = time.monotonic()
        try:
            for _ in range(3):
                worker = self._next(key)
                try:
                    return _checked(await self._asked(worker, asked, limits, key, image, next_key, started))
                except _Gone as error:
                    failure = await self._how(worker)
                    was_asked = worker.is_busy
                    self._end(worker)
                    worker = None
                    # A process without work goes home; the statement may have met it at the door.
                    if failure is not None and was_asked:
                        raise failure from error
            raise _ended_from_outside("again and again")
        finally:
            if worker is not None:
                self._give_back(worker)
            self._free()

    async def _asked(
        self,
        worker: _Worker,
        asked: dict[str, Any],
        limits: Limits,
        key: str,
        image: Image | None,
        next_key: str,
        started: float,
    ) -> Answer:
        began = cpu_before = None
        timer = _Timer(limits.deadline + _MARGIN_S)
        try:
            with timer:
                await worker.ready(started)
                has_image = worker.holds == key or image is None
                async with contextlib.nullcontext() if has_image or image is None else image() as fd:
                    left = limits.deadline - time.monotonic()
                    if left <= 0:
                        raise ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
                    began, cpu_before = time.monotonic(), worker.cpu_s()
                    request = {
                        **asked,
                        "key": key,
                        "next": next_key,
                        "cpu_s": min(limits.cpu_s, left),
                        "wall_s": left + _MARGIN_S,
                        "max_rows": limits.max_rows,
                        "max_size": limits.max_size,
                    }
                    worker.is_busy, worker.holds = True, ""
                    answer = await worker.ask(request, fd)
                    worker.is_busy = False
                worker.holds = answer.told["holds"]
                return answer
        except asyncio.CancelledError as error:
            reason = self._verdict(worker, began, cpu_before, limits)
            if timer.settle():
                raise ToolFailed(_OUT_OF_TIME, reason=reason, retryable=reason != "timeout") from error
            raise stopped(reason) from error

    def _verdict(self, worker: _Worker, began: float | None, before: float | None, limits: Limits) -> str:
        """What a statement that is stopped now spent its time on."""
        now = worker.cpu_s()
        if began is None:
            return "stalled"
        if now is None or before is None:
            return "late"
        if now - before >= 0.9 * limits.cpu_s:
            return "timeout"
        # One that sleeps without having been stopped does so because its statement says so.
        return "timeout" if worker.state == "S" and self._engine == "duckdb" else "stalled"

    async def _how(self, worker: _Worker) -> ToolFailed | None:
        """How a process ended; None where it went by itself."""
        for _ in range(1_000):  # the end of the socket is seen a little before the end of the process
            if (status := worker.process.poll()) is not None:
                break
            await asyncio.sleep(0.001)
        else:
            return _ended_from_outside("it closed its socket")
        if status == 0:
            return None
        if status == -signal.SIGPROF:
            return ToolFailed(_OUT_OF_TIME, reason="timeout")
        if status == -signal.SIGALRM:
            return ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
        if status == _ENDED_FULL:
            return ToolFailed("the statement needs more memory than it may use", reason="memory")
        if -status in _CRASHES:
            return ToolFailed("the statement made the database engine fail", details={"process": _name(status)})
        return _ended_from_outside(_name(status))

    async def _take(self, limits: Limits) -> None:
        if os.getpid() != self._process:  # processes of the parent are not ours
            self._process = os.getpid()
            self._lock = threading.Lock()
            for worker in self._all:
                worker.socket.close()
            self._reset()
        with self._lock:
            if self._taken < self.limit:
                self._taken += 1
                return
            turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting[0 if limits.is_urgent else 1].append(turn)
        timer = turn.get_loop().call_later(limits.deadline + _MARGIN_S - time.monotonic(), _expire, turn)
        try:
            has_place = await turn
        except asyncio.CancelledError as error:
            if turn.done() and not turn.cancelled() and turn.result():
                self._free()
            raise stopped("busy") from error
        finally:
            timer.cancel()
        if not has_place:
            raise ToolFailed("no process for SQL was free in its time", reason="busy", retryable=True)

    def _free(self) -> None:
        with self._lock:
            for queue in self._waiting:
                while queue:
                    turn = queue.popleft()
                    if turn.done():
                        continue
                    loop = turn.get_loop()
                    try:
                        loop.call_soon_threadsafe(self._hand_over, turn)
                    except RuntimeError:  # that loop was closed
                        continue
                    return
            self._taken -= 1

    def _hand_over(self, turn: asyncio.Future[bool]) -> None:
        if turn.done():
            self._free()
        else:
            turn.set_result(True)

    def _next(self, key: str) -> _Worker:
        self._dying = [process for process in self._dying if process.poll() is None]
        while True:
            with self._lock:
                idle = [worker for worker in self._idle if key and worker.holds == key] or self._idle[-1:]
                if not idle:
                    break
                self._idle.remove(idle[0])
            if idle[0].process.poll() is None:
                return idle[0]
            self._end(idle[0], may_replace=False)
        return self._start()

    def _give_back(self, worker: _Worker) -> None:
        if worker in self._all and not worker.is_busy:
            with self._lock:
                self._idle.append(worker)
        else:
            self._end(worker)

    def _end(self, worker: _Worker, *, may_replace: bool = True) -> None:
        is_worn = worker.is_ready and worker in self._all
        self._all.discard(worker)
        worker.kill()
        if worker.process.poll() is None:
            self._dying.append(worker.process)
        if is_worn and may_replace and len(self._all) < self.limit:
            # Started now, it is there when the next statement comes.
            with contextlib.suppress(ToolFailed):
                self._start(is_idle=True)

    def _start(self, *, is_idle: bool = False) -> _Worker:
        worker = _Worker(self._engine)
        with self._lock:
            self._all.add(worker)
            if is_idle:
                self._idle.insert(0, worker)
        return worker

    def close(self) -> None:
        """Kills all processes; a statement given later starts new ones."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._idle.clear()
        for worker in list(self._all):
            self._end(worker, may_replace=False)
        while self._dying:
            self._dying.pop().wait()


class _Timer:
    """Cancels the current task at a time of `time.monotonic()`, while it is entered."""

    def __init__(self, until: float) -> None:
        self._until = until
        self.has_rung = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._handle = task.get_loop().call_later(self._until - time.monotonic(), self._ring)

    def _ring(self) -> None:
        self.has_rung = True
        self._task.cancel()

    def settle(self) -> bool:
        """Takes the timer's own cancellation back; True where nobody else cancelled the task."""
        return self.has_rung and self._task.uncancel() <= self._before

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()


def _expire(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _name(status: int) -> str:
    if status < 0 and -status in set(signal.Signals):
        return signal.Signals(-status).name
    return f"status {status}"


def _ended_from_outside(how: str) -> ToolFailed:
    return ToolFailed("the process of the query was ended", reason="worker", retryable=True, details={"process": how})


def _checked(answer: Answer) -> Answer:
    told = answer.told
    if "lost" in told:
        raise ResourceError(told["lost"])
    if "failed" in told:
        reason = told["reason"]
        raise ToolFailed(told["failed"], reason=reason, retryable=reason == "stalled")
    return answer


def cores() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


sqlite_workers: Final = SqlWorkers("sqlite", limit=max(2, cores()))
