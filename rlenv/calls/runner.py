"""One run of one tool: a place for it, its time limit, and what is left behind once that has passed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from rlenv.calls.places import Places
from rlenv.concurrency.deadline import Expired, drive
from rlenv.concurrency.threads import Job, ThreadPool
from rlenv.concurrency.waits import Waited
from rlenv.tools.base import Tool, ToolContext

if TYPE_CHECKING:
    from rlenv.calls.shared import SharedPlaces

__all__ = ["Runner", "retrieve"]


class Runner:
    """Runs one tool for all episodes of a process.

    Args:
        concurrency: calls at once in this process; the others wait in order.
        shared: places for calls at once on this machine, looked for by a call that has one in this process.
        pool: the threads that blocking calls run in.

    Attributes:
        left_behind: calls that were given up and have not ended.
    """

    __slots__ = ("_lock", "_places", "_pool", "_shared", "left_behind", "tool")

    def __init__(self, tool: Tool, *, concurrency: int, shared: SharedPlaces | None, pool: ThreadPool) -> None:
        self.tool = tool
        self.left_behind = 0
        self._places = Places(concurrency)
        self._shared = shared
        self._pool = pool
        self._lock = threading.Lock()

    async def run(self, arguments: Mapping[str, Any], context: ToolContext, until: float, held_s: float = 0.0) -> Any:
        """What the tool returns. A call held for `held_s` seconds first has its place meanwhile.

        Raises:
            Expired: it has not ended by `until`, the wait for a place included.
            BaseException: whatever the tool raises.
        """
        turn = self._places.take()
        if turn is not None:
            with Waited():
                await self._places.wait(turn, until=until)
        try:
            within = context.until(until)
            if self._shared is not None:
                return await self._run_shared(arguments, within, held_s, self._shared)
            if held_s:
                await _hold(held_s, until)
            # Asked for here too: one coroutine less for the usual tool.
            return await (self._async if self.tool.mode == "async" else self._run)(arguments, within)
        finally:
            self._places.free()

    async def _run_shared(
        self, arguments: Mapping[str, Any], context: ToolContext, held_s: float, shared: SharedPlaces
    ) -> Any:
        limit = context.deadline
        with Waited():
            place = await shared.take(until=limit)
        if place is None:
            raise Expired(reason="busy")
        try:
            await _hold(held_s, limit)
            return await self._run(arguments, context)
        finally:
            shared.free(place)

    async def _run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        mode = self.tool.mode
        if mode == "async":
            return await self._async(arguments, context)
        if mode == "thread":
            return await self._in_thread(arguments, context)
        return self.tool.run(arguments, context)

    async def _async(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        coroutine = self.tool.run(arguments, context)
        if type(coroutine) is not CoroutineType and not isinstance(coroutine, Coroutine):
            raise TypeError(f"an async tool's run returned a {type(coroutine).__name__}, not a coroutine")
        return await drive(coroutine, context.deadline - time.monotonic(), on_stray=self._counted)

    def _counted(self, stray: asyncio.Task[Any]) -> None:
        self._leave_behind()
        stray.add_done_callback(self._has_ended)

    async def _in_thread(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
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

    def _abandon(self, job: Job) -> None:
        # Counted first: the call may end, and count itself out, as soon as it is given up.
        self._leave_behind()
        if not self._pool.give_up(job, after=self._has_ended):
            self._has_ended()

    def _leave_behind(self) -> None:
        with self._lock:
            self.left_behind += 1

    def _has_ended(self, _: object = None) -> None:
        # From the loop for a coroutine, from its own thread for a blocking call.
        with self._lock:
            self.left_behind -= 1


async def _hold(seconds: float, limit: float) -> None:
    """Waits for `seconds`, until `limit` at the latest; raises Expired there."""
    if seconds:
        await asyncio.sleep(min(seconds, max(limit - time.monotonic(), 0)))
    if time.monotonic() >= limit:
        raise Expired(reason="injected" if seconds else "late")


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Takes note of how a task ended that nobody waits for, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
