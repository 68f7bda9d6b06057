"""Context managers that live in a task of their own.

An async context manager that holds a task group or a cancel scope (an MCP session, an HTTP client of anyio) has to be
exited by the task that entered it. Episodes are opened, stepped and closed from whatever task their caller is in, so
such a manager is entered and exited by a task made for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Hosted(Generic[_T]):
    """One context manager, entered and exited by its own task; `open` and `aclose` may come from any task."""

    def __init__(self, manager: AbstractAsyncContextManager[_T]) -> None:
        self._manager = manager
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> _T:
        """The manager's value; what it raises is raised here. Cancelling the wait takes the manager down again."""
        entered: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(entered))
        try:
            return await asyncio.shield(entered)
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task])
            if entered.done() and not entered.cancelled():
                entered.exception()
            if not self._task.cancelled():
                self._task.exception()
            raise

    async def aclose(self) -> None:
        """Exits the manager and waits for it; what exiting raises is raised here. May be called twice."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leave.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    @property
    def is_open(self) -> bool:
        """True while the manager is entered, or being entered."""
        return self._task is not None and not self._task.done()

    async def _run(self, entered: asyncio.Future[_T]) -> None:
        try:
            async with self._manager as value:
                if not entered.done():
                    entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


class Scope:
    """Things that tools keep for an episode or an environment: opened when first asked for, closed in reverse order."""

    __slots__ = ("_hosts", "_is_closed", "_kept", "_values")

    def __init__(self) -> None:
        self._values: dict[Hashable, asyncio.Future[Any]] = {}
        self._hosts: dict[Hashable, Hosted[Any]] = {}
        self._kept: dict[Hashable, Any] = {}
        self._is_closed = False

    def keep(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The plain value under `key`, made when first asked for; it needs no closing and goes with the scope."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: _T = self._kept[key]
        return kept

    async def get(self, key: Hashable, open: Callable[[], AbstractAsyncContextManager[_T]]) -> _T:
        """The value under `key`; `open()` is entered for it once, whoever asks first and is not cancelled over it.

        Raises:
            RuntimeError: the scope is closed.
            Exception: whatever entering raised; the next one who asks tries again.
        """
        while (future := self._values.get(key)) is not None:
            if not future.done():
                await asyncio.wait((future,))
            if not future.cancelled():
                shared: _T = future.result()
                return shared
        if self._is_closed:
            raise RuntimeError("the scope is closed")
        future = self._values[key] = asyncio.get_running_loop().create_future()
        try:
            host = Hosted(open())
            value = await host.open()
        except BaseException as error:
            self._values.pop(key, None)
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()
            else:
                future.cancel()  # who waits opens it: one caller's end is not another's failure
            raise
        if self._is_closed:  # the episode ended while this was opening
            await host.aclose()
        else:
            self._hosts[key] = host
        future.set_result(value)
        return value

    async def discard(self, key: Hashable) -> None:
        """Closes a value that is broken, so that the next one who asks opens anew; raises what exiting raises."""
        self._values.pop(key, None)
        host = self._hosts.pop(key, None)
        if host is not None:
            await host.aclose()

    async def aclose(self) -> None:
        """Exits all managers in reverse order, each whatever the others do; raises the first error at the end."""
        self._is_closed = True
        self._values.clear()
        first: BaseException | None = None
        while self._hosts:
            _, host = self._hosts.popitem()
            try:
                await host.aclose()
            except BaseException as error:  # who is cancelled meanwhile closes the others too
                first = first or error
        if first is not None:
            raise first


@asynccontextmanager
async def at_once(works: Iterable[Coroutine[Any, Any, _T]]) -> AsyncIterator[list[asyncio.Task[_T]]]:
    """A task for each work; those that have not ended with the block are cancelled, and none goes on behind it."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        await cancel_all(*tasks)


async def cancel_all(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels tasks and waits for their ends, whatever these are; None stands for no task."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
