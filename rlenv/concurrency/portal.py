"""One event loop for callers that have none, in a thread of its own."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import cache
from typing import Final, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

__all__ = ["run_sync"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


_lock: Final = threading.Lock()


@cache
def _portal() -> BlockingPortal:
    stack = ExitStack()
    portal = stack.enter_context(start_blocking_portal(name="rlenv"))
    atexit.register(stack.close)
    return portal


def run_sync(function: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Runs an async function on the one event loop of the synchronous callers of a process, and waits for it.

    The loop stays, so that what one call opens (an environment, an episode, a policy) another one can use. It has a
    thread of its own: a caller inside of a running event loop may wait too. Where the wait is interrupted, the function
    is cancelled.
    """
    with _lock:
        portal = _portal()
    future = portal.start_task_soon(lambda: function(*args, **kwargs))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
