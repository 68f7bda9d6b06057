"""Processes in which SQL statements run that may take long: each can be killed, and whose failure it was is measured.

Nothing of a statement runs in this process, so that it can be stopped wherever it is, in the engine's parser too, and
its memory is not ours. A statement may use a quarter of its time limit as processor time, which is the same on a busy
machine; the rest is for a machine that has other work. One that used it up was too slow by itself
(`timeout`, the policy's); one that did not get it, because its process was stopped, starved or killed from outside,
says nothing about the policy (`stalled`, `worker`).

Nothing here belongs to an event loop between calls.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from rlenv.concurrency.deadline import stopped
from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.sql._serve import ENDED_FULL
from rlenv.resources.sql._worker import Answer, EngineRaised, Gone, Worker
from rlenv.resources.sql.limits import Limits

__all__ = ["Answer", "EngineRaised", "Image", "Request", "SqlWorkers"]

_MARGIN_S: Final = 0.05
"""Whoever waits gives up at the deadline; the kill that comes later is for those who do not."""
_OUT_OF_TIME: Final = "the query did not end within its time"
_CRASHES: Final = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))


Image = Callable[[], AbstractAsyncContextManager[int]]
"""A descriptor of the image, which stays the giver's, for as long as it is entered."""


@dataclass(frozen=True, slots=True)
class Request:
    """One statement on its way to a process.

    `where` is what the engine needs beside it: which file, and what may be done there. `key` stands for the file, or
    for the image of a private copy, which is only sent if the process has another one; `next_key` for what the copy is
    after a statement that wrote.
    """

    sql: str
    limits: Limits
    where: Mapping[str, Any]
    key: str = ""
    image: Image | None = None
    next_key: str = ""

    def told(self, left: float) -> dict[str, Any]:
        """As the process reads it, with so many seconds left."""
        return {
            **self.where,
            "sql": self.sql,
            "key": self.key,
            "next": self.next_key,
            "cpu_s": min(self.limits.cpu_s, left),
            "wall_s": left + _MARGIN_S,
            "max_rows": self.limits.max_rows,
            "max_size": self.limits.max_size,
        }


class SqlWorkers:
    """Processes of one engine: as many as there are processors, two at least; what comes beyond waits its turn.

    Args:
        engine: the module that has it (see `_serve.Engine`).
        can_sleep: whether a statement of it can wait for nothing but the time.
    """

    def __init__(self, engine: str, *, can_sleep: bool = False) -> None:
        self._engine = engine
        self._can_sleep = can_sleep
        self.limit = max(2, _cores())
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._reset()
        atexit.register(self.close)

    def _reset(self) -> None:
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
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

    async def run(self, request: Request) -> Answer:
        """What the statement gives.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time, or its process did.
            ResourceError: the database is at fault.
        """
        try:
            request.sql.encode()
        except UnicodeEncodeError as error:
            raise ToolFailed(f"the statement cannot be run: {error.reason}") from error
        await self._take(request.limits)
        worker: Worker | None = None
        started = time.monotonic()
        try:
            for _ in range(3):
                worker = self._next(request.key)
                try:
                    return _checked(await self._asked(worker, request, started))
                except Gone as error:
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

    async def _asked(self, worker: Worker, request: Request, started: float) -> Answer:
        began = cpu_before = None
        limits = request.limits
        timer = _Timer(limits.deadline + _MARGIN_S)
        try:
            with timer:
                await worker.ready(started)
                image = request.image if worker.holds != request.key else None
                async with contextlib.nullcontext() if image is None else image() as fd:
                    left = limits.deadline - time.monotonic()
                    if left <= 0:
                        raise ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
                    began, cpu_before = time.monotonic(), worker.cpu_s()
                    worker.is_busy, worker.holds = True, ""
                    answer = await worker.ask(request.told(left), fd)
                    worker.is_busy = False
                worker.holds = answer.told["holds"]
                return answer
        except asyncio.CancelledError as error:
            reason = self._verdict(worker, began, cpu_before, limits)
            if timer.settle():
                raise ToolFailed(_OUT_OF_TIME, reason=reason, retryable=reason != "timeout") from error
            raise stopped(reason) from error

    def _verdict(self, worker: Worker, began: float | None, before: float | None, limits: Limits) -> str:
        """What a statement that is stopped now spent its time on."""
        now = worker.cpu_s()
        if began is None:
            return "stalled"
        if now is None or before is None:
            return "late"
        if now - before >= 0.9 * limits.cpu_s:
            return "timeout"
        # One that sleeps without having been stopped does so because its statement says so.
        return "timeout" if self._can_sleep and worker.state == "S" else "stalled"

    async def _how(self, worker: Worker) -> ToolFailed | None:
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
        if status == ENDED_FULL:
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

    def _next(self, key: str) -> Worker:
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

    def _give_back(self, worker: Worker) -> None:
        if worker in self._all and not worker.is_busy:
            with self._lock:
                self._idle.append(worker)
        else:
            self._end(worker)

    def _end(self, worker: Worker, *, may_replace: bool = True) -> None:
        is_worn = worker.is_ready and worker in self._all
        self._all.discard(worker)
        worker.kill()
        if worker.process.poll() is None:
            self._dying.append(worker.process)
        if is_worn and may_replace and len(self._all) < self.limit:
            # Started now, it is there when the next statement comes.
            with contextlib.suppress(ToolFailed):
                self._start(is_idle=True)

    def _start(self, *, is_idle: bool = False) -> Worker:
        worker = Worker(self._engine)
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
    if "raised" in told:
        raise EngineRaised(told["raised"])
    if "failed" in told:
        reason = told["reason"]
        raise ToolFailed(told["failed"], reason=reason, retryable=reason == "stalled")
    return answer


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
