"""Everything that is done around one call: tries, kept results, faults on purpose, the breaker and the rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from rlenv._base.reasons import whose
from rlenv.calls.cache import Cache, MemoryStore, Store
from rlenv.calls.injection import Fault, Injector, injected
from rlenv.calls.rate import Rate
from rlenv.concurrency.breaker import Breaker
from rlenv.concurrency.countdown import pause
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.lanes import here
from rlenv.concurrency.waits import Waited
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.language.spec import CacheSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput, asked_again
from rlenv.tools.policy import CallPolicy

__all__ = ["Attempt", "Guard", "Notes"]

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 10.0
_OWN = frozenset({"crashed", "server_error"})

Notes = dict[str, Any]
Attempt = Callable[[Mapping[str, Any], ToolContext, float, float], Awaitable[ToolOutput]]
"""Runs the tool once, with its arguments and context: until when (on the clock of `time.monotonic()`), and for how many
seconds it is held first."""


@dataclass(slots=True)
class _Try:
    """One try of a call. `caller` stands for the episode that makes it."""

    arguments: Mapping[str, Any]
    context: ToolContext
    limit: float
    fault: Fault | None
    notes: Notes
    caller: Hashable


class Guard:
    """The policy of one tool at work, shared by all episodes of a process.

    One try draws its fault, looks for a kept result, waits for the rate, asks the breaker, and runs. A try with a fault
    neither reads nor writes kept results, so that which calls are spoiled follows from seeds alone.

    Args:
        attempt: runs the tool once.
        in_thread: runs a blocking function of the cache's.
    """

    def __init__(
        self,
        tool: Tool,
        policy: CallPolicy,
        *,
        timeout_s: float,
        attempt: Attempt,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._name, self._tool = tool.name, tool
        self._attempt = attempt
        self._retries = policy.retries
        self._attempt_s = policy.attempt_s
        self._time_s = min(timeout_s, policy.attempt_s or timeout_s)
        self._rate = Rate(policy.rate_per_s) if policy.rate_per_s is not None else None
        spec = policy.breaker
        self._breaker = Breaker(failures=spec.failures, reset_s=spec.reset_s) if spec is not None else None
        self._faults = Injector(tool.name, policy.faults) if policy.faults is not None else None
        self._disk: Any = None
        self._cache = self._cache_of(tool, policy, policy.cache, in_thread) if policy.cache is not None else None

    def _cache_of(
        self, tool: Tool, policy: CallPolicy, spec: CacheSpec, in_thread: Callable[..., Awaitable[Any]]
    ) -> Cache:
        depends_on = spec.key if spec.key is not None else tool.depends_on

        def memory() -> MemoryStore:
            return MemoryStore(max_entries=spec.max_entries, ttl_s=spec.ttl_s)

        store: Store | None = memory() if spec.scope == "process" else None
        if spec.scope == "disk":
            from rlenv.calls.disk import DiskStore, default_path  # needs a file only where one is asked for

            path = policy.cache_path if policy.cache_path is not None else default_path()
            store = self._disk = DiskStore(
                path, owner=tool.identity or tool.name, max_entries=spec.max_entries, ttl_s=spec.ttl_s
            )
        return Cache(
            tool.identity or tool.name, store=store, depends_on=depends_on, make_store=memory, in_thread=in_thread
        )

    def close(self) -> None:
        """Closes what the policy keeps open; the next call opens it again."""
        if self._disk is not None:
            self._disk.close()

    async def run(
        self, arguments: Mapping[str, Any], context: ToolContext, *, index: int, limit: float, notes: Notes
    ) -> ToolOutput:
        """The call's result after as many tries as it takes and `limit` allows.

        Raises what the last try raised. `notes` gets what was done to the call; see `ToolResult.details`.
        """
        tries = 0
        while True:
            try:
                return await self._once(arguments, context, index=index, limit=limit, number=tries, notes=notes)
            except EpisodeError:
                raise
            except Exception as error:
                wait = min(_FIRST_WAIT_S * 2**tries, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
                if tries >= self._retries or not _may_pass(error) or time.monotonic() + wait >= limit:
                    raise
            with Waited():
                await pause(wait)
            tries += 1
            notes["attempts"] = tries + 1

    async def _once(
        self, arguments: Mapping[str, Any], context: ToolContext, *, index: int, limit: float, number: int, notes: Notes
    ) -> ToolOutput:
        # The scope is the episode's own; whoever has none is known by task and seed.
        caller = (context.seed, id(getattr(context.scope, "__self__", context.task)))
        if self._attempt_s is not None:
            limit = min(limit, time.monotonic() + self._attempt_s)
        fault = self._faults.draw(context, index=index, attempt=number) if self._faults is not None else None
        one = _Try(arguments, context, limit, fault, notes, caller)
        if fault is not None:
            notes.setdefault("faults", []).append(fault.kind)
            output = await self._admitted(one)
            return fault.spoil(output) if type(output) is ToolOutput else output
        if self._cache is None or asked_again.get():
            return await self._admitted(one)
        output, was_kept = await self._cache.get_or_run(
            arguments, context, until=limit, run=lambda: self._admitted(one)
        )
        if was_kept:
            notes["cached"] = True
        return output

    async def _admitted(self, one: _Try) -> ToolOutput:
        if self._rate is not None:
            wait = self._rate.take(until=one.limit)
            if wait is None:
                raise ToolFailed(f"the tool {self._name} is busy: too many calls wait for it", reason="busy")
            if wait > 0:
                with Waited():
                    await asyncio.sleep(wait)
        breaker = self._breaker
        if breaker is None:
            return await self._run(one)
        if not breaker.admits():
            one.notes["breaker"] = "open"
            raise ToolFailed(f"the tool {self._name} is not available at the moment", reason="breaker_open")
        began = time.monotonic()
        try:
            output = await self._run(one)
        except ToolFailed as failure:
            # What one policy writes must not take the tool from all the others: only the tool's own faults count.
            if failure.whose == "policy":
                breaker.succeeded()
            elif asked_again.get():  # it was counted when it failed first
                breaker.abandoned()
            elif failure.whose == "infrastructure":
                breaker.failed()
            elif failure.retryable or failure.reason in _OWN:
                breaker.failed(one.caller)
            else:
                breaker.abandoned()
            raise
        except Expired as expired:
            if expired.reason == "timeout":
                breaker.succeeded()
            elif asked_again.get():
                breaker.abandoned()
            # A call that came with little of its episode's time left says nothing about the tool.
            elif expired.reason in ("stalled", "stopped") or time.monotonic() - began >= self._time_s / 2:
                breaker.failed(one.caller if whose(expired.reason) == "unclear" else None)
            else:
                breaker.abandoned()
            raise
        except Exception:
            # An author's bug, which some arguments may find and others not.
            breaker.failed(one.caller)
            raise
        except BaseException:
            breaker.abandoned()
            raise
        breaker.succeeded()
        return output

    async def _run(self, one: _Try) -> ToolOutput:
        fault = one.fault
        if fault is not None and fault.kind == "error":
            raise injected(self._name)
        held_s = fault.seconds if fault is not None else 0.0
        # A call that hangs on purpose asks nothing.
        if self._faults is not None and held_s < inf and (lane := here()) is not None:
            from rlenv.calls.taped import tried  # only where there is a tape

            run = partial(self._attempt, one.arguments, one.context, one.limit, held_s)
            return await tried(lane, self._tool, one.arguments, one.context, run)
        return await self._attempt(one.arguments, one.context, one.limit, held_s)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    return error.retryable if isinstance(error, ToolFailed) else True
