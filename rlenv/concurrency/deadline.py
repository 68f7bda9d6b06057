"""Time limits: of one piece of work on the loop, one that stands while others work, and what a call has waited.

Places, of which calls wait for one. A circuit breaker: what keeps failing is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from rlenv.errors import ToolFailed

_GRACE_S = 0.1  # how long a cancelled coroutine may take to clean up before it is left behind
_strays: set[asyncio.Task[Any]] = set()
"""Coroutines that were left behind and have not ended; a loop holds its tasks by weak references alone."""


class Expired(Exception):
    """The time limit was reached.

    `reason` says what the time went to, in the words of `rlenv.errors.WHOSE`: `late` where nobody knows, `busy` where
    the call never began, `timeout` where its own work took it.
    """

    def __init__(self, *, reason: str = "late") -> None:
        self.reason = reason
        super().__init__()


class _Why(str):
    """The reason in a cancellation: what the coroutine's time went to."""


def stopped(reason: str) -> asyncio.CancelledError:
    """The exception of a cancelled coroutine that says what its time went to, in the words of `rlenv.errors.WHOSE`.

    No class of its own: `asyncio.timeout` turns a CancelledError into its TimeoutError, and lets a subclass pass
    (https://github.com/python/cpython/blob/3.11/Lib/asyncio/timeouts.py), so that it would end the caller's task.
    """
    return asyncio.CancelledError(_Why(reason))


def _reason_of(error: BaseException | None) -> str:
    if isinstance(error, ToolFailed):
        return error.reason
    if isinstance(error, asyncio.CancelledError) and error.args and isinstance(error.args[0], _Why):
        return str(error.args[0])
    return "late"


# What may wait runs in a task of its own from the start. `asyncio.timeout` and anyio's scopes cancel the task that they
# were opened in: were that the caller's, those of a coroutine that is left behind would cancel the caller later.
async def _outcome_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """A coroutine's result or exception: a task hands SystemExit to its loop, and what nobody retrieves to the log."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


async def drive(
    coroutine: Coroutine[Any, Any, Any],
    seconds: float,
    *,
    spare_s: float = 0.0,
    on_stray: Callable[[asyncio.Task[Any]], object] | None = None,
) -> Any:
    """Runs `coroutine` in a task of its own and returns what it returns, unless `seconds` pass first.

    Seconds in which it is `bounded_by_itself` do not count, up to `spare_s` of them. One that is cancelled at the limit
    and still waits after a short grace time goes on to its end without its caller. Its caller cancelled, it is too.

    Args:
        on_stray: called with the task of a coroutine that is left behind.

    Raises:
        Expired: the limit was reached.
    """
    loop = asyncio.get_running_loop()
    limit = Countdown(seconds, spare_s)
    with running_under(limit):
        task = loop.create_task(_outcome_of(coroutine))
    end, is_over = loop.time() + seconds, False
    cancelled: asyncio.CancelledError | None = None
    waiting: Coroutine[Any, Any, Any] = asyncio.sleep(0)  # many end with their first step, and need no timer
    while True:
        try:
            await waiting
        except asyncio.CancelledError as caught:
            cancelled = caught
            task.cancel()
        if task.done() or (is_over and loop.time() >= end):
            break
        if loop.time() >= end:
            look_s = limit.look_s if spare_s and not is_over else None
            if not look_s:
                is_over = True
                task.cancel()
            end = loop.time() + (look_s or _GRACE_S)
        waiting = asyncio.wait((task,), timeout=end - loop.time())
    returned, error = None, None
    if not task.done():
        _strays.add(task)
        task.add_done_callback(_strays.discard)
        if on_stray is not None:
            on_stray(task)
    elif task.cancelled():  # before it began
        coroutine.close()
    else:
        returned, error = task.result()
    try:
        if cancelled is not None:
            raise cancelled
        if is_over:
            raise Expired(reason=_reason_of(error))
        if error is not None:
            raise error
        return returned
    finally:
        del cancelled, error  # their tracebacks hold this frame


_LOOK_S = 1.0
_pace = 1.0  # seconds that a pause of one second takes; see `paused_for`
_current: Final[ContextVar[Countdown | None]] = ContextVar("rlenv_countdown", default=None)


class Countdown:
    """So many seconds from now, None for no limit.

    Seconds in which anything that runs under it is `bounded_by_itself` do not count, up to `spare_s` of them; and with
    `beside` none in which that one stands still.
    """

    __slots__ = ("_beside", "_end", "_holders", "_last", "_since", "_stood_s", "_within")

    def __init__(
        self, limit_s: float | None, spare_s: float = float("inf"), *, beside: Countdown | None = None
    ) -> None:
        self._beside = beside
        self._end = None if limit_s is None else self._now + limit_s
        self._last = float("inf") if self._end is None else self._end + spare_s
        self._stood_s = 0.0
        self._holders = 0
        self._since = 0.0
        self._within: Countdown | None = None

    @property
    def _now(self) -> float:
        return time.monotonic() if self._beside is None else self._beside.clock_s

    @property
    def is_over(self) -> bool:
        """True where the time is up; while it stands still, where it has done so for too long."""
        now = self._now
        return self._end is not None and (now >= self._last or (not self._holders and now >= self._end))

    @property
    def look_s(self) -> float | None:
        """In how many seconds to ask again whether it is over."""
        if self._end is None:
            return None
        now = self._now
        return max(0.0, min(self._last, now + _LOOK_S if self._holders else self._end) - now)

    @property
    def left_s(self) -> float:
        """Seconds until it is over, as far as can be said now; infinite without a limit."""
        now = self._now
        own_s = float("inf") if self._end is None else self._end - (self._since if self._holders else now)
        return max(0.0, min(own_s, self._last - now))

    @property
    def clock_s(self) -> float:
        """The clock of `time.monotonic()`, less the seconds that do not count."""
        return (self._since if self._holders else self._now) - self._stood_s

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """The time stands still while the block runs, and with it that of what this runs under."""
        if not self._holders:
            self._since = self._now
        self._holders += 1
        try:
            with contextlib.nullcontext() if self._within is None else self._within.standing():
                yield
        finally:
            self._holders -= 1
            if not self._holders:
                stood_s = self._now - self._since
                self._stood_s += stood_s
                self._end = None if self._end is None else self._end + stood_s


@contextlib.contextmanager
def running_under(countdown: Countdown) -> Iterator[None]:
    """Puts what the block starts under this limit, and this limit under the one that stands now."""
    countdown._within = _current.get()
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


def share_of_time(share: float, *, most_s: float = float("inf")) -> Countdown:
    """A limit of this share of what is left of the one that the caller runs under, and that stands still when it does.

    So whoever works beside the caller under that one, and waits, takes nothing of the caller's share.
    """
    return Countdown(min(share * left_s(), most_s), beside=_current.get())


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


_waits: Final[ContextVar[list[float] | None]] = ContextVar("rlenv_call_waits", default=None)


def begin() -> list[float]:
    """The list of waits of the call that begins here, filled by whatever it runs in, tasks of its own too."""
    waits: list[float] = []
    _waits.set(waits)
    return waits


class Waited:
    """Counts the seconds of a block as waiting of the call that it is a part of, however the block ends."""

    __slots__ = ("_began",)

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_error: object) -> None:
        waits = _waits.get()
        if waits is not None:
            waits.append(time.monotonic() - self._began)


def waited_s() -> float:
    """The seconds that the call has waited that this is a part of."""
    return sum(_waits.get() or ())


class CallSlots:
    """At most `limit` calls at once, of any event loops; who waits is served in the order they came, the urgent first.

    Attributes:
        left_behind: calls that were given up and have not ended.
    """

    __slots__ = ("left_behind", "limit", "lock", "taken", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self.left_behind = 0
        self.waiting: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque())
        self.lock = threading.Lock()

    def take(self, *, is_urgent: bool = False) -> asyncio.Future[None] | None:
        """Takes a place and returns None, or returns what to hand to `wait`."""
        with self.lock:
            if self.taken < self.limit:
                self.taken += 1
                return None
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting[0 if is_urgent else 1].append(turn)
            return turn

    async def wait(self, turn: asyncio.Future[None], *, until: float = float("inf")) -> None:
        """Returns once the place is taken; the time until then is waiting of the call.

        Raises:
            Expired: it was not by `until`, on the clock of `time.monotonic()`.
        """
        try:
            with Waited():
                await asyncio.wait((turn,), timeout=None if until == float("inf") else until - time.monotonic())
        except asyncio.CancelledError:
            # An episode that is given up may have been handed its place in the same pass of the loop.
            if not turn.cancel():
                self.free()
            raise
        if turn.cancel():
            raise Expired(reason="busy")

    def free(self) -> None:
        """Gives a place back, to the one that has waited longest."""
        with self.lock:
            while waiting := self.waiting[0] or self.waiting[1]:
                turn = waiting.popleft()
                loop = turn.get_loop()
                if loop is asyncio._get_running_loop():  # None where a task that no loop ends is thrown away
                    if not turn.done():
                        turn.set_result(None)
                        return
                else:
                    # Its own loop has to wake it. By then it may have stopped waiting, which only that loop can see.
                    with contextlib.suppress(RuntimeError):  # that loop was closed, and who waited in it is gone
                        loop.call_soon_threadsafe(self._hand_over, turn)
                        return
            self.taken -= 1

    def _hand_over(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self.free()
        else:
            turn.set_result(None)


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
