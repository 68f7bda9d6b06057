"""A circuit breaker: a tool that keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Shut while calls succeed; open after `failures` in a row; then one call in `reset_s` tries the tool again.

    Ask `admits()` before a call and report every call that was admitted with `succeeded`, `failed` or `abandoned`.
    """

    __slots__ = ("_clock", "_failures", "_in_a_row", "_is_trying", "_lock", "_opened_at", "_reset_s")

    def __init__(self, *, failures: int, reset_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._reset_s = reset_s
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._is_trying = False

    def admits(self) -> bool:
        """False where the call has to be refused at once."""
        with self._lock:
            if self._opened_at is None:
                return True
            if self._is_trying or self._clock() - self._opened_at < self._reset_s:
                return False
            self._is_trying = True
            return True

    def succeeded(self) -> None:
        """The tool answered, be it with a failure that was the model's own."""
        with self._lock:
            self._in_a_row = 0
            self._opened_at = None
            self._is_trying = False

    def failed(self) -> None:
        """The tool broke, hung, or said that it was not there."""
        with self._lock:
            self._in_a_row += 1
            if self._is_trying or (self._opened_at is None and self._in_a_row >= self._failures):
                self._opened_at = self._clock()
            self._is_trying = False

    def abandoned(self) -> None:
        """The call was cancelled and says nothing about the tool."""
        with self._lock:
            self._is_trying = False
