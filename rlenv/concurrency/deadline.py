"""A time limit for one coroutine that costs nothing unless the coroutine waits.

`asyncio.timeout` arms a timer before the work begins. Most calls of a tool end without waiting for anything, so here
the coroutine is started first, in the task that asks, and a timer is armed only once it gives the loop back.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from rlenv.errors import ToolFailed

__all__ = ["Expired", "drive", "stopped"]

_GRACE_S = 0.1
"""How long a cancelled coroutine may take to clean up before it is left behind."""


class Expired(Exception):
    """The time limit was reached. `stray` is the task of a coroutine that would not end, None where it ended.

    `reason` says what the time went to, in the words of `rlenv._base.reasons`: `late` where nobody knows, `busy` where
    the call never began, `timeout` where its own work took it.
    """

    def __init__(self, stray: asyncio.Task[Any] | None, *, reason: str = "late") -> None:
        self.stray = stray
        self.reason = reason
        super().__init__()


class _Why(str):
    """What a cancelled coroutine says its time went to."""


def stopped(reason: str) -> asyncio.CancelledError:
    """What a cancelled coroutine raises to say what its time went to, in the words of `rlenv._base.reasons`.

    No class of its own: `asyncio.timeout` turns a CancelledError into its TimeoutError, and lets a subclass pass
    (https://github.com/python/cpython/blob/3.11/Lib/asyncio/timeouts.py), so that it would end the caller's task.
    """
    return asyncio.CancelledError(_Why(reason))


def _why(error: BaseException | None) -> str:
    if isinstance(error, ToolFailed):
        return error.reason
    if isinstance(error, asyncio.CancelledError) and error.args and isinstance(error.args[0], _Why):
        return str(error.args[0])
    return "late"


class _Alarm:
    """Cancels the task at the limit and, where its coroutine goes on waiting, once more after the grace time."""

    __slots__ = ("rung", "task", "timer")

    def __init__(self, task: asyncio.Task[Any], seconds: float) -> None:
        self.task = task
        self.rung = 0
        self.timer = task.get_loop().call_later(seconds, self.ring)

    def ring(self) -> None:
        self.rung += 1
        self.task.cancel()
        if self.rung == 1:
            self.timer = self.task.get_loop().call_later(_GRACE_S, self.ring)


async def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    await coroutine


@types.coroutine
def drive(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Runs `coroutine` in the current task and returns what it returns, unless `seconds` pass first.

    At the limit the coroutine is cancelled. One that still waits after a short grace time goes on in a task of its
    own, so that nobody waits for it. Cancelling the caller cancels the coroutine.

    Raises:
        Expired: the limit was reached.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    alarm = _Alarm(task, seconds)
    result: Any = None
    error: BaseException | None = None
    stray: asyncio.Task[Any] | None = None
    try:
        while True:
            try:
                yield waits_for
            except BaseException as thrown:
                if alarm.rung == 2 and isinstance(thrown, asyncio.CancelledError):
                    stray = task.get_loop().create_task(_finish(coroutine))
                    break
                waits_for = coroutine.throw(thrown)
            else:
                waits_for = coroutine.send(None)
    except StopIteration as stop:
        result = stop.value
    except BaseException as raised:
        error = raised
    finally:
        alarm.timer.cancel()
    for _ in range(alarm.rung):
        task.uncancel()
    if task.cancelling() > before:  # the caller was cancelled; a coroutine cannot keep that to itself
        raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
    if alarm.rung:
        raise Expired(stray, reason=_why(error))
    if error is not None:
        raise error
    return result
