"""Some processes of one program, shared by whoever asks: in turn, until a deadline, each replaced once it is killed."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rlenv.concurrency.deadline import CallSlots, Countdown, Expired, Waited, bounded_by_itself, running_under, stopped
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed, await_end

_T = TypeVar("_T")
MARGIN_S: Final = 0.05
"""Whoever waits gives up at the deadline; the kill that comes later is for those who do not."""
_TRIES: Final = 3


class Pool:
    """Processes of one program, started when they are needed; what comes beyond them waits its turn.

    Safe to use from several event loops, one after another or at once, and after a fork.

    Args:
        limit: how many at once; as many as there are processors where it is not given, two at least.
    """

    def __init__(self, program: Program, *, limit: int | None = None) -> None:
        self._program = program
        is_told = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if is_told else (os.cpu_count() or 1)
        self.limit = limit or max(2, cores)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._dying: list[subprocess.Popen[bytes]] = []
        self._places = CallSlots(self.limit)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run now."""
        return [process.process.pid for process in list(self._all)]

    def holds(self, key: str) -> bool:
        """True where a process without work holds `key`."""
        return any(process.holds == key for process in self._idle)

    async def run(
        self,
        work: Callable[[Process], Awaitable[_T]],
        *,
        until: float | None = None,
        key: str = "",
        is_urgent: bool = False,
        is_patient: bool = False,
    ) -> _T:
        """The result of `work` for a process that is ready. One that is cancelled says what its time went to.

        A process that ended before it was asked, or was ended from outside while it started, is replaced. Its start
        counts for no limit but its own; `left_s` says in `work` how much time it has.

        Args:
            until: the deadline, of `time.monotonic`, later by what does not count; the process is killed soon after.
            key: a process that holds it is preferred.
            is_patient: waiting for a place counts for no limit either.

        Raises:
            Gone, StartFailed: the process ended, or none could be started.
            Expired: the deadline has passed; with what the time went to.
        """
        reason, loop = "busy", asyncio.get_running_loop()
        limit = Countdown(None if until is None else until - time.monotonic())

        def ends_at() -> float | None:
            return None if until is None else loop.time() + limit.left_s + MARGIN_S

        try:
            with running_under(limit):
                async with asyncio.timeout_at(None if is_patient else ends_at()) as timer:
                    with bounded_by_itself() if is_patient else contextlib.nullcontext():
                        await self._take(is_urgent)
                    try:
                        for is_last in (*[False] * (_TRIES - 1), True):
                            process = self._next(key)
                            try:
                                await _await_ready(process, timer)
                                timer.reschedule(ends_at())
                                return await work(process)
                            except Gone as error:
                                if is_last or (process.is_busy and not process.went_home(error)):
                                    raise
                            except asyncio.CancelledError:
                                reason = process.why_late()
                                raise
                            finally:
                                self._give_back(process)
                    finally:
                        self._places.free()
        except TimeoutError as error:
            raise Expired(reason=reason) from error
        except asyncio.CancelledError as error:
            raise stopped(reason) from error
        raise AssertionError("the last try returns or raises")

    async def _take(self, is_urgent: bool) -> None:
        if os.getpid() != self._process:  # processes of the parent are not ours
            self._process = os.getpid()
            self._lock = threading.Lock()
            for process in self._all:
                process.socket.close()
            self._reset()
        if (turn := self._places.take(is_urgent=is_urgent)) is not None:
            await self._places.wait(turn)

    def _next(self, key: str) -> Process:
        self._dying = [process for process in self._dying if process.poll() is None]
        while True:
            with self._lock:
                idle = [process for process in self._idle if key and process.holds == key] or self._idle[-1:]
                if not idle:
                    break
                self._idle.remove(idle[0])
            if idle[0].process.poll() is None:
                return idle[0]
            self._end(idle[0])
        return self._start()

    def _give_back(self, process: Process) -> None:
        if process not in self._all:  # closed meanwhile
            return
        if not process.is_busy and process.process.poll() is None:
            with self._lock:
                # One that is not ready yet is the last to be taken.
                self._idle.insert(len(self._idle) if process.is_ready else 0, process)
            return
        self._end(process)
        if process.is_ready and self._program.is_bare and len(self._all) < self.limit:
            # Started now, it is there when the next one comes.
            with contextlib.suppress(StartFailed):
                started = self._start()
                with self._lock:
                    self._idle.insert(0, started)

    def _start(self) -> Process:
        process = Process(self._program)
        self._all.add(process)
        return process

    def _end(self, process: Process) -> None:
        self._all.discard(process)
        process.kill()
        if process.process.poll() is None:
            self._dying.append(process.process)

    def close(self, *, waits: bool = True) -> None:
        """Kills all processes, and waits for their end; what is asked later starts new ones."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._idle.clear()
        for process in list(self._all):
            self._end(process)
        while waits and self._dying:
            self._dying.pop().wait()

    async def aclose(self) -> None:
        """As `close`, and the event loop goes on meanwhile."""
        self.close(waits=False)
        while self._dying:
            process = self._dying.pop()
            if process.poll() is None:
                await await_end(process)


async def _await_ready(process: Process, timer: asyncio.Timeout) -> None:
    """Waits until it is ready, which has a limit of its own."""
    if not process.is_ready:
        timer.reschedule(None)
        with Waited(), bounded_by_itself():
            await process.ready()


_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
