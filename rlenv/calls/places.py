"""Places for calls that run at once: the next one goes to whoever has waited longest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress

from rlenv.concurrency.deadline import Expired

__all__ = ["Places"]


class Places:
    """At most `limit` calls at once; those that wait are served in the order they came, on any event loop."""

    __slots__ = ("limit", "lock", "taken", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self.waiting: deque[asyncio.Future[bool]] = deque()
        self.lock = threading.Lock()

    def take(self) -> asyncio.Future[bool] | None:
        """Takes a place and returns None, or returns what to hand to `wait`."""
        with self.lock:
            if self.taken < self.limit:
                self.taken += 1
                return None
            turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            return turn

    async def wait(self, turn: asyncio.Future[bool], *, until: float) -> None:
        """Returns once the place is taken.

        Raises:
            Expired: it was not by `until`, on the clock of `time.monotonic()`.
        """
        timer = turn.get_loop().call_later(until - time.monotonic(), _expire, turn)
        try:
            has_place = await turn
        except asyncio.CancelledError:
            # An episode that is given up may have been handed its place in the same pass of the loop.
            if turn.done() and not turn.cancelled() and turn.result():
                self.free()
            else:
                turn.cancel()
            raise
        finally:
            timer.cancel()
        if not has_place:
            raise Expired(reason="busy")

    def free(self) -> None:
        """Gives a place back, to the one that has waited longest."""
        with self.lock:
            while self.waiting:
                turn = self.waiting.popleft()
                loop = turn.get_loop()
                if loop is asyncio.get_running_loop():
                    if not turn.done():
                        turn.set_result(True)
                        return
                else:
                    # Its own loop has to wake it. By then it may have stopped waiting, which only that loop can see.
                    with suppress(RuntimeError):  # that loop was closed, and who waited in it is gone
                        loop.call_soon_threadsafe(self._hand_over, turn)
                        return
            self.taken -= 1

    def _hand_over(self, turn: asyncio.Future[bool]) -> None:
        if turn.done():
            self.free()
        else:
            turn.set_result(True)


def _expire(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)
