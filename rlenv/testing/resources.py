"""The laws that every resource keeps.

Run them on your own:

    from rlenv.testing.resources import check_resource

    def test_my_resource_keeps_the_laws():
        check_resource(my_resource, look=lambda box: box.items(), change=lambda box: box.put("x"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.errors import ResourceError
from rlenv.resources.base import Resource, ResourceContext
from rlenv.testing import laws

__all__ = ["check_resource", "check_resource_async"]

_AT_ONCE = 8


class _Raised(Exception):
    """The exception that an episode raises while the resource is open."""


async def check_resource_async(
    resource: Resource | Mapping[str, Any],
    *,
    look: Callable[[Any], Any],
    change: Callable[[Any], Any] | None = None,
    tasks: Sequence[Mapping[str, Any]] = ({},),
    failing: Sequence[Mapping[str, Any]] = (),
    vars: Mapping[str, Any] | None = None,
    seed: int = 0,
    base: Path = Path(),
    limit_s: float = laws.LIMIT_S,
    **parts: Any,
) -> None:
    """Runs the laws of resources on `resource`; a law that is broken is an AssertionError that states it.

    Args:
        resource: a compiled resource, or an entry under `resources:`.
        look: what is to be seen in an opened handle, as JSON; sync or async.
        change: changes what `look` sees, as an episode's tools may; None where nothing can. Sync or async.
        tasks: rows that it opens for.
        failing: rows for which its infrastructure fails.
        vars: the constants that opening sees.
        seed: the episode's seed that opening sees.
        base: the folder that an entry's paths are relative to.
        limit_s: how long opening, closing, `look` and `change` may take, in seconds: a bound for what hangs.
        parts: what an entry is compiled with beside it (`roots`, `endpoints`).
    """
    made: Resource = laws.compiled("resources", resource, name="resource", base=base, vars=vars or {}, **parts)
    laws.law("a resource has a name", bool(made.name), repr(made.name))
    laws.law("a resource's scope is episode or process", made.scope in ("episode", "process"), repr(made.scope))
    for task in tasks:
        one = _Laws(made, ResourceContext(task, vars or {}, seed), look, change, limit_s)
        await one.opens_and_closes()
        await one.closes_whatever_happens()
        await one.opens_at_once()
        if made.scope == "episode" and change is not None:
            await one.keeps_episodes_apart()
    for task in failing:
        await _Laws(made, ResourceContext(task, vars or {}, seed), look, change, limit_s).fails()


check_resource = laws.in_own_loop(check_resource_async)


@dataclass
class _Laws:
    """One resource, opened for one row."""

    _resource: Resource
    _context: ResourceContext
    _look: Callable[[Any], Any]
    _change: Callable[[Any], Any] | None
    _limit_s: float

    def _in_time(self, work: Awaitable[Any], what: str) -> Awaitable[Any]:
        return laws.in_time(work, f"a resource {what} in time", self._limit_s)

    async def _enter(self) -> tuple[AbstractAsyncContextManager[Any], Any]:
        rule = "what keeps a resource from opening is a ResourceError"
        with laws.raises_only(rule, ResourceError, where=f"{self._context.task}: "):
            manager = self._resource.open(self._context)
            return manager, await self._in_time(manager.__aenter__(), "opens")

    async def _exit(self, manager: AbstractAsyncContextManager[Any], rule: str) -> None:
        with laws.raises_only(rule):
            await self._in_time(manager.__aexit__(None, None, None), "closes")

    @asynccontextmanager
    async def _open_resource(self) -> Any:
        manager, handle = await self._enter()
        try:
            yield handle
        finally:
            await self._exit(manager, "a resource closes without an error")

    async def _see(self, handle: Any) -> str:
        return laws.kept_as_json(await self._in_time(laws.awaited(self._look(handle)), "is looked at"))

    async def _change_state(self, handle: Any) -> None:
        assert self._change is not None
        await self._in_time(laws.awaited(self._change(handle)), "is changed")

    async def opens_and_closes(self) -> None:
        """Opening leaves the row as it is and gives the same each time; what is closed may be closed again."""
        before = laws.kept_as_json(self._context.task)
        manager, handle = await self._enter()
        first = await self._see(handle)
        laws.law(
            "a resource leaves the task as it is", laws.kept_as_json(self._context.task) == before, self._context.task
        )
        await self._exit(manager, "a resource closes without an error")
        await self._exit(manager, "a resource that is closed may be closed again")
        async with self._open_resource() as handle:
            if self._change is not None and self._resource.scope == "episode":
                await self._change_state(handle)
                laws.law("what is changed is seen", await self._see(handle) != first, f"{first} before and afterwards")
        async with self._open_resource() as handle:
            again = await self._see(handle)
        rule = "a resource opens as it was, whatever an earlier episode did"
        laws.law(rule, again == first, f"{laws.short(first)} at first, {laws.short(again)} later")

    async def closes_whatever_happens(self) -> None:
        """An error inside comes out as it was; cancelling ends it; and it opens again after either."""
        async with self._open_resource() as handle:
            first = await self._see(handle)
        inside = _Raised("of the episode")
        rule = "what an episode raises comes out as it was"
        with suppress(_Raised), laws.raises_only(rule, _Raised, where=f"{laws.short(inside)} went in, and "):
            await self._in_time(self._raise_inside(inside), "closes after an error")
            raise laws.broken(rule, f"{laws.short(inside)} went in and was swallowed")
        await laws.ends_when_cancelled(self._hold_open(asyncio.Event()), "a resource's opening", self._limit_s)
        async with self._open_resource() as handle:
            again = await self._see(handle)
        rule = "a resource opens as it was after an error"
        laws.law(rule, again == first, f"{laws.short(first)} before it, {laws.short(again)} after it")

    async def _raise_inside(self, error: Exception) -> None:
        async with self._resource.open(self._context):
            raise error

    async def _hold_open(self, never: asyncio.Event) -> None:
        async with self._resource.open(self._context):
            await never.wait()

    async def opens_at_once(self) -> None:
        """As many episodes as start together see the same."""
        ready = asyncio.Barrier(_AT_ONCE)

        async def one() -> str:
            async with self._open_resource() as handle:
                await ready.wait()
                return await self._see(handle)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one()) for _ in range(_AT_ONCE)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        seen = {task.result() for task in tasks}
        laws.law("episodes that open at once see the same", len(seen) == 1, laws.short(sorted(seen)))

    async def keeps_episodes_apart(self) -> None:
        """Checks that one episode's changes are not seen by another that is open beside it."""
        async with self._open_resource() as one, self._open_resource() as other:
            before = await self._see(other)
            await self._change_state(one)
            after = await self._see(other)
        laws.law(
            "one episode's changes are not seen in another",
            after == before,
            f"{laws.short(before)}, then {laws.short(after)}",
        )

    async def fails(self) -> None:
        """Infrastructure that fails is said with an error that makes the reward invalid."""
        try:
            async with self._open_resource():
                pass
        except ResourceError:
            return
        raise laws.broken(
            "a resource whose infrastructure fails raises ResourceError", f"{self._context.task}: it opened"
        )
