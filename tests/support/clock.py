"""A clock that a test need not wait for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_STUCK_S = 60.0


class _Skipping(selectors.DefaultSelector):
    """Where nothing is ready, time goes on at once to when the next timer is due."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # nothing is due: something outside of the loop is waited for, such as a thread
            ready = super().select(_STUCK_S)
            assert ready, f"nothing happened for {_STUCK_S:g} s, and no timer is set"
            return ready
        ready = super().select(0)
        if not ready:
            self.skipped += max(timeout, 0.0)
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` stands still while anything can run, and jumps to the next timer where nothing can.

    For code that waits on timers and on other coroutines alone: a socket or a thread that takes real time finds all
    timers expired. `time.monotonic()` is not its clock.
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped


def run_skipping(work: Coroutine[Any, Any, _T]) -> _T:
    """What `work` gives, in an event loop that does not wait for timers."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(work)


async def passes(seconds: float) -> None:
    """Lets so much of the loop's own time go by, none of it real under `run_skipping`."""
    loop = asyncio.get_running_loop()
    due: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, due.set_result, None)
    try:
        await due
    finally:
        timer.cancel()
