"""A token bucket for the calls of one tool in one process, usable from any event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Rate"]

_BURST_S = 0.1


class Rate:
    """At most `per_s` calls a second; a tenth of a second's calls (at least one) may come at once.

    A place in the queue is taken when it is asked for, so that calls go in the order in which they came.
    """

    __slots__ = ("_burst_s", "_clock", "_free_at", "_lock", "_step_s")

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._step_s = 1.0 / per_s
        self._burst_s = max(_BURST_S - self._step_s, 0.0)
        self._clock = clock
        self._free_at = float("-inf")
        self._lock = threading.Lock()

    def take(self, *, until: float) -> float | None:
        """Seconds to wait before the call; None where that would be past `until`, and nothing is taken."""
        with self._lock:
            now = self._clock()
            due = max(self._free_at, now - self._burst_s)
            if due > now and due >= until:
                return None
            self._free_at = due + self._step_s
            return max(due - now, 0.0)
