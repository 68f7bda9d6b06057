"""A thread pool whose hung threads can be left behind.

`concurrent.futures` joins its threads at interpreter exit and never replaces one that hangs. Here threads are
daemons, spawned when needed and gone after a while without work; a job that is given up frees its place for a new
thread, and its own thread ends when the job does. Many results that are ready at once wake the loop once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rlenv.errors import ResourceError

_IDLE_S = 30.0
_T = TypeVar("_T")


class ThreadJob:
    """One function call in a thread. `done` resolves, on the loop, when the call has ended or was given up.

    After `done`: `is_ended` says whether the call came to its end; then `error` is what it raised, or None and
    `result` what it returned. `after(job)` is called in the worker thread when a given-up call ends after all.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], done: asyncio.Future[None]) -> None:
        self.function = function
        self.arguments = arguments
        self.done = done
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_ended = False
        self.is_running = False
        self.is_withdrawn = False
        self.is_left_behind = False
        self.after: Callable[[], None] | None = None
        self._clock: int | None = None
        self._cpu_began = 0.0

    @property
    def has_begun(self) -> bool:
        """True once a thread has taken the call up."""
        return self._clock is not None

    def begin(self) -> None:
        """Called in the thread that runs the call, as it takes it up."""
        self._cpu_began = time.thread_time()
        self._clock = time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else 0

    def outcome(self) -> Any:
        """The call's return value, or raises what it raised; once it has ended."""
        if self.error is not None:
            raise self.error
        return self.result

    def cpu_s(self) -> float:
        """Processor seconds that the call has used, from any thread; 0.0 before it began and where nobody counts them.

        The clock of a thread that has ended is gone, so that only one that runs can be asked.
        """
        if not self._clock or not self.is_running or self.is_ended:
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._cpu_began
        except OSError:
            return 0.0


class _Mailbox:
    """Ended jobs of one loop: any number of them cost one wake-up."""

    __slots__ = ("ended", "is_awake", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended: deque[ThreadJob] = deque()
        self.is_awake = False

    def put(self, job: ThreadJob) -> None:
        self.ended.append(job)
        if not self.is_awake:
            self.is_awake = True
            try:
                self.loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:  # the loop was closed while the job ran: nobody waits for it any more
                self.ended.clear()

    def deliver(self) -> None:
        # Cleared first: a job put while this runs either is taken below or asks for another wake-up.
        self.is_awake = False
        while self.ended:
            job = self.ended.popleft()
            if not job.done.done():
                job.done.set_result(None)


@dataclass(slots=True)
class _State:
    """The state that the threads share with the pool; they do not hold the pool itself, so that it can be collected."""

    size: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    queue: SimpleQueue[tuple[ThreadJob, _Mailbox] | None] = field(default_factory=SimpleQueue)
    threads: int = 0
    """Threads in the pool: running a job that is still wanted, or waiting for one."""
    idle: int = 0
    """Threads that wait and have no job on its way to them."""
    backlog: int = 0
    """Jobs in the queue beyond the threads that wait."""
    spawned: int = 0


def _next_job(state: _State) -> tuple[ThreadJob, _Mailbox] | None:
    """The next job for a thread that counts as waiting, or None where the thread has to end."""
    while True:
        try:
            return state.queue.get(timeout=_IDLE_S)
        except Empty:
            with state.lock:
                # No idle thread left means that a job is on its way to each of those that wait, this one included.
                if state.idle:
                    state.idle -= 1
                    state.threads -= 1
                    return None


def _run(job: ThreadJob) -> None:
    job.begin()
    try:
        job.result = job.function(*job.arguments)
    except BaseException as error:  # handed to the caller whatever it is; a worker thread has nobody else to tell
        job.error = error
    job.is_ended = True


def _work_jobs(state: _State) -> None:
    while (taken := _next_job(state)) is not None:
        job, mailbox = taken
        with state.lock:
            is_wanted = job.is_running = not job.is_withdrawn
        if is_wanted:
            _run(job)
        with state.lock:
            job.is_running = False
            if not job.is_left_behind:
                if state.backlog:
                    state.backlog -= 1
                else:
                    state.idle += 1
        if job.is_left_behind:
            if job.after is not None:
                job.after()
            return  # another thread has taken this one's place
        if is_wanted:
            mailbox.put(job)
        del job, mailbox, taken  # an idle thread must not keep the last call's arguments alive


class ThreadPool:
    """Runs blocking calls in at most `size` daemon threads, spawned when needed.

    Safe to use from several event loops at once, and after a fork.
    """

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._state = _State(size)
        self._process = os.getpid()
        self._mailboxes: dict[int, _Mailbox] = {}

    @property
    def threads(self) -> int:
        """The number of threads that the pool counts as its own, without those left behind."""
        return self._state.threads

    def submit(self, function: Callable[..., Any], *arguments: Any) -> ThreadJob:
        """Runs `function(*arguments)` in a thread, in the order of submission. Await the job's `done`."""
        if os.getpid() != self._process:  # threads do not survive a fork
            self._state = _State(self._size)
            self._mailboxes = {}
            self._process = os.getpid()
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(id(loop))
        if mailbox is None or mailbox.loop is not loop:
            self._mailboxes = {key: box for key, box in self._mailboxes.items() if not box.loop.is_closed()}
            mailbox = self._mailboxes[id(loop)] = _Mailbox(loop)
        job = ThreadJob(function, arguments, loop.create_future())
        state = self._state
        with state.lock:
            if state.idle:
                state.idle -= 1
            elif state.threads >= state.size or not self._spawn():
                state.backlog += 1
            state.queue.put((job, mailbox))
        return job

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The return value of `function(*arguments)` in a thread; not called where who waits is cancelled before."""
        job = self.submit(function, *arguments)
        try:
            await job.done
        except asyncio.CancelledError:
            job.is_withdrawn = True
            raise
        return job.outcome()

    async def run(self, work: Callable[[], Any]) -> Any:
        """The return value of `work`, which is left behind where who waits is cancelled."""
        job = self.submit(work)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            self.give_up(job)
            raise
        return job.outcome()

    async def finish(self, work: Callable[[], _T]) -> _T:
        """The return value of `work`, or raises what it raises; whoever is cancelled meanwhile waits for its end."""
        job = self.submit(work)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            while not job.done.done():  # who waits may be cancelled again
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((job.done,))
            raise
        found: _T = job.outcome()
        return found

    def give_up(self, job: ThreadJob, *, after: Callable[[], None] | None = None) -> bool:
        """Stops waiting for `job`; False where it had not started, or has ended: then no thread is left behind.

        Its place goes to a new thread at once. `after` is called, in the job's thread, when the call ends after all.
        """
        state = self._state
        with state.lock:
            if not job.is_running or job.is_ended:
                job.is_withdrawn = True
                return False
            job.is_left_behind = True
            job.after = after
            state.threads -= 1
            if state.backlog and self._spawn():
                state.backlog -= 1
            return True

    def close(self) -> None:
        """Ends the threads that wait for work; a job submitted later starts new ones."""
        state = self._state
        if os.getpid() != self._process:
            return
        with state.lock:
            idle, state.idle = state.idle, 0
            state.threads -= idle
            for _ in range(idle):
                state.queue.put(None)

    def _spawn(self) -> bool:
        """Starts a thread; False where the system gives none but others are at work, which take its job later."""
        state = self._state
        thread = threading.Thread(target=_work_jobs, args=(state,), name=f"rlenv-tool-{state.spawned}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if state.threads:
                return False
            raise ResourceError(f"no thread can be started for a blocking tool: {error}") from error
        state.threads += 1
        state.spawned += 1
        return True


_P = ParamSpec("_P")


_lock: Final = threading.Lock()


@cache
def _shared_portal() -> BlockingPortal:
    stack = ExitStack()
    portal = stack.enter_context(start_blocking_portal(name="rlenv"))
    atexit.register(stack.close)
    return portal


def run_sync(function: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Runs an async function on the one event loop of the synchronous callers of a process, and waits for it.

    The loop stays, so that what one call opens (an environment, an episode, a policy) another one can use. It has a
    thread of its own: a caller inside of a running event loop may wait too. Where the wait is interrupted, the function
    is cancelled.
    """
    with _lock:
        portal = _shared_portal()
    future = portal.start_task_soon(lambda: function(*args, **kwargs))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
