"""A circuit breaker: what keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

__all__ = ["Breaker"]

_MOST_CALLERS = 2


class Breaker:
    """Shut while calls succeed; open after `failures` in a row; then one call in `reset_s` seconds tries again.

    Failures that may be the caller's own do not open it where they all are one caller's: no episode takes a tool from
    the others. Where one failure is enough, it opens for whose ever it is.

    Ask `admits()` before a call and report every call that was admitted with `succeeded`, `failed` or `abandoned`.
    """

    __slots__ = ("_callers", "_clock", "_failures", "_in_a_row", "_is_trying", "_lock", "_opened_at", "_reset_s")

    def __init__(self, *, failures: int, reset_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._reset_s = reset_s
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._callers: set[Hashable] = set()
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
            self._callers.clear()
            self._opened_at = None
            self._is_trying = False

    def failed(self, caller: Hashable = None) -> None:
        """The tool broke, hung, or said that it was not there.

        Args:
            caller: whose call it was, where the call may have brought it about; None where it cannot have.
        """
        with self._lock:
            self._in_a_row += 1
            if len(self._callers) < _MOST_CALLERS:
                self._callers.add(caller)
            is_one_callers = self._failures > 1 and None not in self._callers and len(self._callers) < 2
            if self._is_trying or (self._opened_at is None and self._in_a_row >= self._failures and not is_one_callers):
                self._opened_at = self._clock()
            self._is_trying = False

    def abandoned(self) -> None:
        """The call was cancelled and says nothing about the tool."""
        with self._lock:
            self._is_trying = False
