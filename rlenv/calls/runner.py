"""One run of one tool: a place for it, alone or over processes, its time limit, and what is left behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import stat
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import CoroutineType
from typing import Any
from weakref import WeakValueDictionary, finalize

from rlenv.concurrency.deadline import CallSlots, Expired, Waited, drive, waited_s
from rlenv.concurrency.threads import ThreadJob, ThreadPool
from rlenv.errors import ResourceError, ToolFailed
from rlenv.tools.base import Tool, ToolContext

_WHOLE = 0.9
_FIRST_S = 0.002
_LONGEST_S = 0.05


# A place is one byte of a file, locked by the process that has it (POSIX record locks, `fcntl`). The system gives a
# process's locks back however it ends, SIGKILL included, and a forked child inherits none.
class SharedPlaces:
    """At most `limit` places taken at once by all processes that name the same file.

    One object a file and process: closing any descriptor of a file gives all of the process's locks on it back.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._process = os.getpid()
        try:
            _make_own(path.parent.parent)
            _make_own(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise ResourceError(f"shared_concurrency: cannot open {path}: {error.strerror}") from error
        finalize(self, os.close, self._file)

    def try_take(self) -> int | None:
        """A place, or None where all are taken."""
        with self._lock:
            if os.getpid() != self._process:  # a forked child has none of its parent's places
                self._taken = set()
                self._process = os.getpid()
            first = random.randrange(self.limit)
            for offset in range(self.limit):
                place = (first + offset) % self.limit
                if place in self._taken:
                    continue
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except OSError:
                    continue
                self._taken.add(place)
                return place
            return None

    async def take(self, *, until: float) -> int | None:
        """A place once there is one; None where none is free until then (on the clock of `time.monotonic()`)."""
        pause = _FIRST_S
        while (place := self.try_take()) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(pause * 1.5, _LONGEST_S)
        return place

    def free(self, place: int) -> None:
        """Gives a place back."""
        with self._lock:
            if place in self._taken:
                self._taken.discard(place)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _make_own(folder: Path) -> None:
    """Makes a folder that is this user's alone; in a folder for all, others may have made it first.

    Raises:
        ResourceError: it is another user's, a link, or open to others.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ResourceError(
            f"shared_concurrency: {folder} is not a folder that only this user can write; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )


_open: WeakValueDictionary[Path, SharedPlaces] = WeakValueDictionary()
_open_lock = threading.Lock()


def shared_places(name: str, *, limit: int) -> SharedPlaces:
    """The places that all processes of this user and machine share under `name`.

    Raises:
        ResourceError: the file of the locks cannot be made.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(folder) / "rlenv" if folder else Path(tempfile.gettempdir()) / f"rlenv-{os.getuid()}"
    # The limit is part of the name: processes that disagree on it do not share.
    path = root / "places" / f"{name}-{limit}"
    with _open_lock:
        found = _open.get(path)
        if found is None:
            found = _open[path] = SharedPlaces(path, limit=limit)
        return found


class Runner:
    """Runs one tool for all episodes of a process.

    Args:
        places: of calls at once in this process; the others wait in order.
        shared: places for calls at once on this machine, looked for by a call that has one in this process.
        whole_s: the time of one run, where nothing else bounds it.
        pool: the threads that blocking calls run in.
    """

    __slots__ = ("_pool", "_shared", "places", "tool", "whole_s")

    def __init__(
        self, tool: Tool, *, places: CallSlots, shared: SharedPlaces | None, pool: ThreadPool, whole_s: float
    ) -> None:
        self.tool = tool
        self.whole_s = whole_s
        self.places = places
        self._shared = shared
        self._pool = pool

    async def run(self, arguments: Mapping[str, Any], context: ToolContext, until: float, held_s: float = 0.0) -> Any:
        """The tool's return value. A call held for `held_s` seconds first has its place meanwhile.

        Raises:
            Expired: it has not ended by `until`, the wait for a place included.
            BaseException: whatever the tool raises.
        """
        if (turn := self.places.take()) is not None:
            await self.places.wait(turn, until=until)
        began, waited = time.monotonic(), waited_s()
        # A reward gives each call its time anew, and what changes state is not asked again: what it used up is its own.
        is_bound = context.turn < 0 or self.tool.mutates
        whole_s = min(self.whole_s, context.deadline - began) if is_bound else self.whole_s
        try:
            within = context.until(until)
            if self._shared is not None:
                return await self._run_shared(arguments, within, held_s, self._shared, context.deadline - until)
            if held_s:
                await _hold(held_s, until)
            # Asked for here too: one coroutine less for the usual tool.
            run = self._run_async if self.tool.mode == "async" else self._run
            return await run(arguments, within, context.deadline - until)
        except Expired as expired:
            own_s = time.monotonic() - began - (waited_s() - waited)
            # Whoever has worked all of a moment that was left of its time has not used it up.
            if expired.reason == "timeout" and own_s < _WHOLE * whole_s:
                raise Expired from expired
            raise
        except ToolFailed as failed:
            # Nor has a statement or a program whose own limit was a share of such a moment.
            if failed.reason == "timeout" and until - began < _WHOLE * whole_s:
                raise ToolFailed(failed.text, reason="late", retryable=True, details=failed.details) from failed
            raise
        finally:
            self.places.free()

    async def _run_shared(
        self, arguments: Mapping[str, Any], context: ToolContext, held_s: float, shared: SharedPlaces, spare_s: float
    ) -> Any:
        limit = context.deadline
        with Waited():
            place = await shared.take(until=limit)
        if place is None:
            raise Expired(reason="busy")
        try:
            await _hold(held_s, limit)
            return await self._run(arguments, context, spare_s)
        finally:
            shared.free(place)

    async def _run(self, arguments: Mapping[str, Any], context: ToolContext, spare_s: float) -> Any:
        mode = self.tool.mode
        if mode == "async":
            return await self._run_async(arguments, context, spare_s)
        if mode == "thread":
            return await self._run_in_thread(arguments, context)
        return self.tool.run(arguments, context)

    async def _run_async(self, arguments: Mapping[str, Any], context: ToolContext, spare_s: float) -> Any:
        coroutine = self.tool.run(arguments, context)
        if type(coroutine) is not CoroutineType and not isinstance(coroutine, Coroutine):
            raise TypeError(f"an async tool's run returned a {type(coroutine).__name__}, not a coroutine")
        seconds = context.deadline - time.monotonic()
        return await drive(coroutine, seconds, spare_s=spare_s, on_stray=self._count_stray)

    def _count_stray(self, stray: asyncio.Task[Any]) -> None:
        self._leave_behind()
        stray.add_done_callback(self._has_ended)

    async def _run_in_thread(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        began = time.monotonic()
        job = self._pool.submit(self.tool.run, arguments, context)
        # The limit and the call's end wake the same future: what it was is asked of the job.
        timer = job.done.get_loop().call_later(context.deadline - began, _wake, job.done)
        try:
            await job.done
        finally:
            timer.cancel()
            if not job.is_ended:  # at its limit, or the episode that waited was cancelled
                self._abandon(job)
        if not job.is_ended:
            # A thread that was at work most of the time has used it up; one that waited, or got no processor, has not.
            was_at_work = job.cpu_s() >= (time.monotonic() - began) / 2
            raise Expired(reason="timeout" if was_at_work else "late" if job.has_begun else "busy")
        if isinstance(job.error, (KeyboardInterrupt, GeneratorExit)):
            # No Ctrl-C ends up in a thread: the tool raised it itself.
            raise RuntimeError(f"the tool {self.tool.name} raised {type(job.error).__name__}") from job.error
        if job.error is not None:
            raise job.error
        return job.result

    def _abandon(self, job: ThreadJob) -> None:
        # Counted first: the call may end, and count itself out, as soon as it is given up.
        self._leave_behind()
        if not self._pool.give_up(job, after=self._has_ended):
            self._has_ended()

    def _leave_behind(self) -> None:
        with self.places.lock:
            self.places.left_behind += 1

    def _has_ended(self, _: object = None) -> None:
        # From the loop for a coroutine, from its own thread for a blocking call.
        with self.places.lock:
            self.places.left_behind -= 1


async def _hold(seconds: float, limit: float) -> None:
    """Waits for `seconds`, until `limit` at the latest; raises Expired there."""
    if seconds:
        await asyncio.sleep(min(seconds, max(limit - time.monotonic(), 0)))
    if time.monotonic() >= limit:
        raise Expired(reason="injected" if seconds else "late")


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
