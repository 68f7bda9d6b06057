"""A time limit that holds for one coroutine, whatever it does.

What may wait runs in a task of its own from the start. `asyncio.timeout` and anyio's scopes cancel the task that they
were opened in: were that the caller's, those of a coroutine that is left behind would cancel the caller later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rlenv.errors import ToolFailed

__all__ = ["Expired", "drive", "stopped"]

_GRACE_S = 0.1
"""How long a cancelled coroutine may take to clean up before it is left behind."""
_strays: set[asyncio.Task[Any]] = set()
"""Coroutines that were left behind and have not ended; a loop holds its tasks by weak references alone."""


class Expired(Exception):
    """The time limit was reached.

    `reason` says what the time went to, in the words of `rlenv._base.reasons`: `late` where nobody knows, `busy` where
    the call never began, `timeout` where its own work took it.
    """

    def __init__(self, *, reason: str = "late") -> None:
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


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What it returns, or raises: a task hands SystemExit to its loop, and what nobody retrieves to the log."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


async def drive(
    coroutine: Coroutine[Any, Any, Any],
    seconds: float,
    *,
    on_stray: Callable[[asyncio.Task[Any]], object] | None = None,
) -> Any:
    """Runs `coroutine` in a task of its own and returns what it returns, unless `seconds` pass first.

    At the limit the coroutine is cancelled. One that still waits after a short grace time goes on to its end without
    its caller. Cancelling the caller cancels the coroutine, which has what is left of its time to end.

    Args:
        on_stray: called with the task of a coroutine that is left behind.

    Raises:
        Expired: the limit was reached.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(_outcome(coroutine))
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
            end, is_over = loop.time() + _GRACE_S, True
            task.cancel()
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
            raise Expired(reason=_why(error))
        if error is not None:
            raise error
        return returned
    finally:
        del cancelled, error  # their tracebacks hold this frame
