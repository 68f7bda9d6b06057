"""Everything that is done around one call: tries, kept results, faults on purpose, the breaker and the rate."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import inf
from random import Random
from typing import Any, Literal

import orjson

from rlenv.calls.cache import CallCache, MemoryStore, Store
from rlenv.calls.taped import run_try
from rlenv.concurrency.deadline import Breaker, Expired, Waited, bounded_by_itself, pause
from rlenv.concurrency.lanes import here
from rlenv.errors import EpisodeError, ToolFailed, whose_failure
from rlenv.language.spec import CacheSpec, FaultsSpec
from rlenv.tools.base import FELLED, CallPolicy, Tool, ToolContext, ToolOutput, asked_again

_BURST_S = 0.1


class Rate:
    """At most `per_s` calls a second; a tenth of a second's calls (at least one) may come at once.

    A place in the queue is taken when it is asked for, so that calls go in the order in which they came.
    """

    __slots__ = ("_burst_s", "_clock", "_free_at", "_lock", "_step_s")

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._step_s = 1.0 / per_s
        self._burst_s = max(_BURST_S - self._step_s, 0.0)
        self._clock = clock
        self._free_at = float("-inf")
        self._lock = threading.Lock()

    def take(self, *, until: float) -> float | None:
        """Seconds to wait before the call; None where that would be past `until`, and nothing is taken."""
        with self._lock:
            now = self._clock()
            due = max(self._free_at, now - self._burst_s)
            if due > now and due >= until:
                return None
            self._free_at = due + self._step_s
            return max(due - now, 0.0)


OVERSIZE_CHARS = 10_000_000
_NOISE = '\ufffd\x00\x1b[31m}{]"<tool_call></tool_response>\\u12'

FaultKind = Literal["error", "delay", "garble", "oversize", "hang"]


def injected_failure(tool: str) -> ToolFailed:
    """The failure of a call that meets an `error`: the tool has not run."""
    return ToolFailed(f"the tool {tool} failed", reason="injected", retryable=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `seconds` is how long the call is held before it begins (infinite for a hang)."""

    kind: FaultKind
    seconds: float = 0.0
    seed: int = 0

    def spoil(self, output: ToolOutput) -> ToolOutput:
        """The result as it is spoiled; its value is None where its text is not the tool's any more."""
        if self.kind == "oversize":
            text = output.text or " "
            return ToolOutput((text * (OVERSIZE_CHARS // len(text) + 1))[:OVERSIZE_CHARS])
        if self.kind != "garble":
            return output
        chance = Random(self.seed)
        letters = list(output.text[: chance.randint(0, len(output.text))])
        for _ in range(3 + len(letters) // 8):
            letters.insert(chance.randint(0, len(letters)), chance.choice(_NOISE))
        return ToolOutput("".join(letters))


class Injector:
    """Draws at most one fault for each try of a call.

    Equal for equal task, episode seed, turn, place of the call in its turn, try and tool, whatever else runs. Calls
    that rewards make (turn -1) are left alone.
    """

    __slots__ = ("_shares", "_spec", "_tool")

    def __init__(self, tool: str, spec: FaultsSpec) -> None:
        self._tool = tool
        self._spec = spec
        delay = spec.delay_s.p if spec.delay_s is not None else 0.0
        self._shares: tuple[tuple[FaultKind, float], ...] = (
            ("error", spec.error),
            ("delay", delay),
            ("garble", spec.garble),
            ("oversize", spec.oversize),
            ("hang", spec.hang),
        )

    def draw(self, context: ToolContext, *, index: int, attempt: int) -> Fault | None:
        """The fault of one try, or None."""
        if context.turn < 0:
            return None
        place = f"{self._spec.seed}:{context.seed}:{context.turn}:{index}:{attempt}:{self._tool}".encode()
        seed = int.from_bytes(blake2b(_encode_task(context.task) + place, digest_size=8).digest(), "big")
        chance = Random(seed)
        point = chance.random()
        for kind, share in self._shares:
            if point < share:
                return Fault(kind, self._hold_seconds(kind, chance), seed)
            point -= share
        return None

    def _hold_seconds(self, kind: FaultKind, chance: Random) -> float:
        if kind == "delay" and self._spec.delay_s is not None:
            return chance.uniform(*self._spec.delay_s.range)
        return inf if kind == "hang" else 0.0


def _encode_task(task: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(dict(task), default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # numbers beyond 64 bits, lone surrogates
        return repr(sorted(task.items(), key=lambda item: str(item[0]))).encode("utf-8", "surrogatepass")


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


class CallGuard:
    """The policy of one tool at work, shared by all episodes of a process.

    One try draws its fault, looks for a kept result, waits for the rate, asks the breaker, and runs. A try with a fault
    neither reads nor writes kept results, so that which calls are spoiled follows from seeds alone.

    Args:
        pool: what tools of one pool count and keep together; {} for a tool of its own.
    """

    def __init__(
        self,
        tool: Tool,
        policy: CallPolicy,
        *,
        timeout_s: float,
        attempt: Attempt,
        in_thread: Callable[..., Awaitable[Any]],
        pool: dict[str, Any],
    ) -> None:
        self._name, self._tool, self._pool = tool.name, tool, pool
        self._attempt = attempt
        self._retries = policy.retries
        self._attempt_s = policy.attempt_s
        self._time_s = min(timeout_s, policy.attempt_s or timeout_s)
        rate, spec = policy.rate_per_s, policy.breaker
        self._rate: Rate | None = None if rate is None else pool.setdefault("rate", Rate(rate))
        self._breaker: Breaker | None = None
        if spec is not None:
            self._breaker = pool.setdefault("breaker", Breaker(failures=spec.failures, reset_s=spec.reset_s))
        self._faults = Injector(tool.name, policy.faults) if policy.faults is not None else None
        self._cache = self._cache_of(tool, policy, policy.cache, in_thread) if policy.cache is not None else None

    def _cache_of(
        self, tool: Tool, policy: CallPolicy, spec: CacheSpec, in_thread: Callable[..., Awaitable[Any]]
    ) -> CallCache:
        depends_on = spec.key if spec.key is not None else tool.depends_on

        def memory() -> MemoryStore:
            return MemoryStore(max_entries=spec.limit, ttl_s=spec.ttl_s)

        store: Store | None = self._pool.get("store")
        if store is None and spec.scope == "process":
            store = memory()
        if store is None and spec.scope == "disk":
            from rlenv.calls.cache import DiskStore, default_path  # needs a file only where one is asked for

            path = policy.cache_path if policy.cache_path is not None else default_path()
            owner = tool.pool or tool.identity or tool.name
            store = DiskStore(path, owner=owner, max_entries=spec.limit, ttl_s=spec.ttl_s)
        self._pool["store"] = store
        return CallCache(
            tool.identity or tool.name, store=store, depends_on=depends_on, make_store=memory, in_thread=in_thread
        )

    def close(self) -> None:
        """Closes what the policy keeps open; the next call opens it again."""
        close_store(self._pool)

    async def run(
        self, arguments: Mapping[str, Any], context: ToolContext, *, index: int, limit: float, notes: Notes
    ) -> ToolOutput:
        """The call's result after as many tries as it takes and `limit` allows.

        Raises what the last try raised. `notes` gets what was done to the call; see `ToolResult.details`.
        """
        tries = 0
        while True:
            try:
                return await self._run_try(arguments, context, index=index, limit=limit, number=tries, notes=notes)
            except EpisodeError:
                raise
            except Exception as error:
                wait = min(_FIRST_WAIT_S * 2**tries, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
                # Asking again has pauses of its own: a policy could use up its time by what a server asks to wait for.
                asked_s = error.wait_s if isinstance(error, ToolFailed) and not asked_again.get() else 0.0
                if time.monotonic() + wait + asked_s < limit:  # else it is tried all the same
                    wait += asked_s
                if tries >= self._retries or not _may_pass(error) or time.monotonic() + wait >= limit:
                    raise
            with Waited():
                await pause(wait)
            tries += 1
            notes["attempts"] = tries + 1

    async def _run_try(
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
            output = await self._run_admitted(one)
            return fault.spoil(output) if type(output) is ToolOutput else output
        if self._cache is None or asked_again.get():
            return await self._run_admitted(one)
        output, was_kept = await self._cache.get_or_run(
            arguments, context, until=limit, run=lambda: self._run_admitted(one)
        )
        if was_kept:
            notes["cached"] = True
        return output

    async def _run_admitted(self, one: _Try) -> ToolOutput:
        if self._rate is not None:
            wait = self._rate.take(until=one.limit)
            if wait is None:
                raise ToolFailed(f"the tool {self._name} is busy: too many calls wait for it", reason="busy")
            if wait > 0:
                again = bool(asked_again.get())
                # What others ask must not keep a reward from finding out whose failure it was.
                with Waited(), bounded_by_itself() if again else nullcontext():
                    await asyncio.sleep(wait)
                one.limit += wait * again
                one.context = one.context.until(one.context.deadline + wait * again)
        breaker = self._breaker
        if breaker is None:
            return await self._run(one)
        if not breaker.admits() and not asked_again.get():  # what it was opened by is found out by asking
            one.notes["breaker"] = "open"
            raise ToolFailed(f"the tool {self._name} is not available at the moment", reason="breaker_open")
        began = time.monotonic()
        try:
            output = await self._run(one)
        except ToolFailed as failure:
            # What one policy writes must not take the tool from all the others: only the tool's own faults count.
            if failure.whose == "policy":
                breaker.succeeded()
            elif asked_again.get() or _is_of_called(failure):
                breaker.abandoned()  # it was counted when it failed first, or at the tool that code called
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
                breaker.failed(one.caller if whose_failure(expired.reason) == "unclear" else None)
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
            raise injected_failure(self._name)
        held_s = fault.seconds if fault is not None else 0.0
        # A call that hangs on purpose asks nothing.
        if self._faults is not None and held_s < inf and (lane := here()) is not None:
            run = partial(self._attempt, one.arguments, one.context, one.limit, held_s)
            return await run_try(lane, self._tool, one.arguments, one.context, run)
        return await self._attempt(one.arguments, one.context, one.limit, held_s)


def close_store(pool: Mapping[str, Any]) -> None:
    """Closes what the caches of a pool keep open; the next call opens it again."""
    if (close := getattr(pool.get("store"), "close", None)) is not None:
        close()


def _is_of_called(failure: ToolFailed) -> bool:
    """True where code failed by a call that it made, and that was lost (`rlenv.tools.code`)."""
    called = (failure.details or {}).get("called")
    outcomes = [one for one in called.values() if isinstance(one, Mapping)] if isinstance(called, Mapping) else []
    return any("infrastructure" in one or "unclear" in one for one in outcomes)


def _may_pass(error: Exception) -> bool:
    """True where the same call may succeed a little later.

    Not where it is asked again whether the call fells its server: that nobody is there yet would hide that it did.
    """
    return not isinstance(error, ToolFailed) or (error.retryable and not (asked_again.get() and error.reason in FELLED))
