"""The `python` resource: whatever a function of the author's makes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal

from rlenv.concurrency.scope import Hosted
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import EpisodeError, ResourceError, UsageError, under
from rlenv.language.functions import failure, import_function, named_parameters
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import ResourceSpec, Text
from rlenv.resources.base import ResourceContext
from rlenv.secrets import logger

__all__ = ["KIND", "PythonResource", "PythonResourceSpec"]

_log: Final = logger("rlenv.resources")
_GRACE_S: Final = 0.2
_CLOSE_S: Final = 30.0
_threads: Final = ThreadPool(size=64)
_OFFERED: Final = ("task", "seed", "vars")


class PythonResourceSpec(ResourceSpec):
    """Calls a function once for each episode (or once, with `scope: process`); what it gives is the resource.

    The function may be sync or async, give the value itself, a context manager, or yield it once. Parameters called
    `task`, `seed` and `vars` are filled by name.
    """

    kind: Literal["python"]
    factory: Text
    """`file.py:function`, relative to the spec, or `package.module:function`."""
    run_in: Literal["loop", "thread"] = "thread"
    """Where a plain function runs: `thread` where it may block; `loop` for a quick one."""


class PythonResource:
    """A compiled `python` entry.

    Blocking work, closing too, is done in a thread (unless `run_in: loop`). Where the episode is cancelled while one
    opens, what was opened is closed; a thread that hangs is left behind and closes by itself once it goes on. An async
    context manager is entered and exited by one task, as anyio asks for. What closing raises, and that it takes longer
    than 30 s, goes to the logger `rlenv.resources`.
    """

    def __init__(
        self,
        name: str,
        *,
        scope: Literal["episode", "process"],
        function: Callable[..., Any],
        parameters: tuple[str, ...],
        in_thread: bool,
    ) -> None:
        self.name = name
        self.scope = scope
        self._function = function
        self._parameters = parameters
        self._in_thread = in_thread

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Any]:
        """The value for as long as it is entered.

        Raises:
            ResourceError: the function, or entering what it gave, failed.
        """
        known: Mapping[str, Any] = {"task": context.task, "seed": context.seed, "vars": context.vars}
        given = {name: known[name] for name in self._parameters}
        async with AsyncExitStack() as stack:
            yield await self._entered(given, stack)

    async def _entered(self, given: Mapping[str, Any], stack: AsyncExitStack) -> Any:
        function = self._function
        with self._named():
            if inspect.isasyncgenfunction(function):
                return await self._async_manager(asynccontextmanager(function)(**given), stack)
            if inspect.isgeneratorfunction(function):
                return await self._manager(contextlib.contextmanager(function)(**given), stack)
            if inspect.iscoroutinefunction(function):
                made = await function(**given)
            else:
                made = await self._blocking(lambda: function(**given))
            if hasattr(type(made), "__aenter__") and hasattr(type(made), "__aexit__"):
                return await self._async_manager(made, stack)
            if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
                return await self._manager(made, stack)
            return made

    async def _async_manager(self, manager: AbstractAsyncContextManager[Any], stack: AsyncExitStack) -> Any:
        host = Hosted(manager)
        value = await host.open()

        async def close() -> None:
            with self._logged():
                async with asyncio.timeout(_CLOSE_S):
                    await host.aclose()

        stack.push_async_callback(close)
        return value

    async def _manager(self, manager: AbstractContextManager[Any], stack: AsyncExitStack) -> Any:
        entered: list[Any] = []

        def enter() -> None:
            entered.append(manager.__enter__())

        def leave() -> None:
            if entered:
                entered.clear()
                manager.__exit__(None, None, None)

        def leave_late() -> None:
            with self._logged():
                leave()

        async def close() -> None:
            if entered:
                with self._logged():
                    async with asyncio.timeout(_CLOSE_S):
                        await self._blocking(leave)

        # Before it is entered: a cancellation that comes meanwhile must not leave it open.
        stack.push_async_callback(close)
        await self._blocking(enter, late=leave_late)
        return entered[0]

    async def _blocking(self, work: Callable[[], Any], *, late: Callable[[], None] | None = None) -> Any:
        """What `work` returns. `late` is called where it ends only after it was given up."""
        if not self._in_thread:
            return work()
        job = _threads.submit(work)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; one that hangs is left behind, and closes what it opens by itself.
            await asyncio.wait((job.done,), timeout=_GRACE_S)
            if not job.is_ended:
                _threads.give_up(job, after=late)
            raise
        return job.outcome()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            message = f"the resource '{self.name}' cannot be opened: {failure(error)}"
            raise ResourceError(message) from error

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        # The episode is over and its reward stands; what was opened before this still has to be closed.
        try:
            yield
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            _log.warning("resource '%s' cannot be closed", self.name, exc_info=error)


def compile_python(name: str, spec: PythonResourceSpec, context: CompileContext) -> PythonResource:
    """The resource of one entry.

    Raises:
        UsageError: there is no such function, or it takes what nothing gives.
    """
    with under("factory"):
        function = import_function(spec.factory, base=context.bases.get("factory", context.base))
    names = named_parameters(function, key="factory", offered=_OFFERED)
    if "task" in names and spec.scope == "process":
        raise UsageError(
            "a resource of scope process is made once and has no task", key="factory", hint="use scope: episode"
        )
    return PythonResource(
        name, scope=spec.scope, function=function, parameters=names, in_thread=spec.run_in == "thread"
    )


KIND = Kind(PythonResourceSpec, compile_python)
