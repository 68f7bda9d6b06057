"""A limit of time that stands still while what it bounds has a bound of its own, and pauses between tries."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

__all__ = ["Countdown", "bounded_by_itself", "left_s", "pause", "paused_for", "running_under"]

_LOOK_S = 1.0
_pace = 1.0
"""Seconds that a pause of one second takes; see `paused_for`."""
_current: Final[ContextVar[Countdown | None]] = ContextVar("rlenv_countdown", default=None)


class Countdown:
    """So many seconds from now, None for no limit.

    Seconds in which anything that runs under it is `bounded_by_itself` do not count.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._end = None if limit_s is None else time.monotonic() + limit_s
        self._holders = 0
        self._since = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the time is up; never while it stands still."""
        return self._end is not None and not self._holders and time.monotonic() >= self._end

    @property
    def look_s(self) -> float | None:
        """In how many seconds to ask again whether it is over."""
        if self._end is None:
            return None
        return _LOOK_S if self._holders else max(0.0, self._end - time.monotonic())

    @property
    def left_s(self) -> float:
        """Seconds until it is over, as far as can be said now; infinite without a limit."""
        return float("inf") if self._end is None else max(0.0, self._end - time.monotonic())

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """The time stands still while the block runs."""
        if not self._holders:
            self._since = time.monotonic()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders and self._end is not None:
                self._end += time.monotonic() - self._since


@contextlib.contextmanager
def running_under(countdown: Countdown) -> Iterator[None]:
    """What the block starts runs under this limit."""
    token = _current.set(countdown)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def bounded_by_itself() -> Iterator[None]:
    """The seconds of the block count for no limit that it runs under; it has to end by itself, however it is used."""
    countdown = _current.get()
    with contextlib.nullcontext() if countdown is None else countdown.standing():
        yield


def left_s() -> float:
    """Seconds until the limit is over that the caller runs under; infinite where there is none."""
    countdown = _current.get()
    return float("inf") if countdown is None else countdown.left_s


async def pause(seconds: float) -> None:
    """Waits before another try, as long as `seconds` say."""
    await asyncio.sleep(seconds * _pace)


@contextlib.contextmanager
def paused_for(share: float) -> Iterator[None]:
    """Every pause between tries, of the whole process, takes this share of its time while the block runs.

    For tests: an outage that is asked about many times over ends in milliseconds, by the same tries in the same order.
    """
    global _pace
    before, _pace = _pace, share
    try:
        yield
    finally:
        _pace = before
