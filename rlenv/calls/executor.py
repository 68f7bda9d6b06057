"""From calls to results: in order, within their limits, whatever a tool does.

One executor serves all episodes of a process. Quick tools run on the event loop with no task and no timer; the rest
are bounded by their own time limit, by the episode's deadline and by how many may run at once.

A call goes one way: `Executor` checks it, a `CallGuard` stands around tools whose policy asks for more (tries, kept
results, rates), and a `Runner` gives it a place and runs it. What comes back is a result (`rlenv.calls.taped`).
"""

from __future__ import annotations

import asyncio
import copy
import math
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlenv._base.bounded import cut_middle, values_in
from rlenv._base.text import all_known
from rlenv.calls.cache import forget_episode
from rlenv.calls.guard import CallGuard, Notes, close_store
from rlenv.calls.runner import Runner
from rlenv.calls.taped import broken, ended, failed, late, not_run, quick_result, refused, slow_result
from rlenv.concurrency.deadline import CallSlots, Expired, begin
from rlenv.concurrency.lanes import Lane, entered, here
from rlenv.concurrency.scope import cancel_all as all_ended
from rlenv.concurrency.threads import ThreadPool
from rlenv.dialects.base import MANY, MAX_VALUES
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.images import within_turn
from rlenv.language.functions import FailureLog
from rlenv.language.spec import CallsSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import Tool, ToolContext, ends_once, policy_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUTH = {"true": True, "false": False}
_MAX_CHARS = 64
_PASS_S = 0.02
_UNREAD = "Not run: another call of this action could not be read, and this one would end the episode."
_ANY = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class Coerced:
    """Arguments that fit, as a copy, and which of them were text before (`n`, `points.0.x`)."""

    arguments: dict[str, Any]
    names: tuple[str, ...]


def coerce(arguments: Mapping[str, Any], check: ArgumentCheck, types: frozenset[str]) -> Coerced | None:
    """The arguments with texts of the declared `types` read as what the schema wants; None where they still misfit.

    Only what the schema refuses is touched: a text where a text is allowed stays one.
    """
    taken: dict[str, Any] = copy.deepcopy(dict(arguments))
    names: list[str] = []
    for path, wanted in check.type_faults(taken):
        if not path:
            return None
        holder: Any = taken
        for step in path[:-1]:
            holder = holder[step]
        value = _read_typed(holder[path[-1]], types.intersection(wanted))
        if value is None:
            return None
        holder[path[-1]] = value
        names.append(".".join(map(str, path)))
    return Coerced(taken, tuple(names)) if names and check.fits(taken) else None


def _read_typed(value: Any, types: frozenset[str]) -> Any:
    if not isinstance(value, str) or len(value) > _MAX_CHARS:
        return None
    text = value.strip()
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        return (int(text) if _INTEGER.fullmatch(text) else number) if math.isfinite(number) else None
    return _TRUTH.get(text.lower()) if "boolean" in types else None


@dataclass(slots=True, eq=False)
class _Entry:
    """A tool as the executor keeps it."""

    tool: Tool
    runner: Runner
    check: ArgumentCheck
    timeout_s: float
    is_inline: bool
    """Runs on the loop, and no policy asks for more."""
    guard: CallGuard | None
    coerce: frozenset[str]
    keeps_results: bool
    waited_for: dict[object, float] = field(default_factory=dict)
    """When each call began that somebody waits for, by `time.monotonic`."""
    log: FailureLog = field(default_factory=lambda: FailureLog("rlenv.tools"))


_Pending = tuple[_Entry, ToolCall, Notes | None]
"""A call that has to be waited for, with what was done to it already; a tuple, since one is made for each."""


class Executor:
    """Runs the calls of a turn and gives their results in call order.

    Calls of one turn run at once; a tool that `mutates` runs alone, in its place in the order. A call ends at its
    tool's time limit or at the episode's deadline, whichever comes first; waiting for a place counts. A blocking
    tool that hangs is left behind in its thread, and a new thread takes its place.

    A model's mistakes and a tool's failures are results. What a failing tool raised goes to the logger `rlenv.tools`
    (at most once a second for each tool) and never to the model.

    Args:
        tools: the tools by the name that the model calls.
        calls: the defaults for tools that set no limits of their own.
        max_chars: a longer text is cut to its head and tail at once, and a value that takes more is not kept: the
            result's details say so under `left_out`. Details are cut to a bound of their own.
        threads: blocking calls that run at once, over all tools; threads are started when they are needed.
        max_left_behind: calls of one tool that were given up and still run, at which further calls are refused.

    Raises:
        UsageError: a tool's parameters are not a valid JSON Schema.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        calls: CallsSpec,
        max_chars: int = 65_536,
        threads: int = 256,
        max_left_behind: int = 256,
    ) -> None:
        self._pool = ThreadPool(size=threads)
        self._calls = calls
        self._pools: dict[str, dict[str, Any]] = {}
        self._set_entries({name: self._make_entry(name, tool, calls) for name, tool in tools.items()})
        self._max_chars = max_chars
        self._max_left_behind = max_left_behind

    def _set_entries(self, entries: dict[str, _Entry]) -> None:
        self._entries = entries
        self._has_alone = any(entry.tool.mutates or entry.tool.ends for entry in entries.values())
        self._keeps_results = any(entry.keeps_results for entry in entries.values())

    def with_tools(self, tools: Mapping[str, Tool], *others: Executor) -> Executor:
        """An executor of these tools, which shares threads and pools with this one, and what this and others know of
        tools that they have too.

        Raises:
            UsageError: a tool's parameters are not a valid JSON Schema.
        """
        other = copy.copy(self)
        known = {name: entry for one in (*others, self) for name, entry in one._entries.items()}
        other._set_entries({name: entry if (entry := known.get(name)) is not None and entry.tool is tool
                     else self._make_entry(name, tool, self._calls) for name, tool in tools.items()})  # fmt: skip
        return other

    def _make_entry(self, name: str, tool: Tool, calls: CallsSpec) -> _Entry:
        policy = tool.policy
        if policy is None:
            policy = policy_of(calls, idempotent=tool.idempotent, mutates=tool.mutates)
        timeout_s = tool.timeout_s if tool.timeout_s is not None else calls.timeout_s
        concurrency = tool.concurrency if tool.concurrency is not None else calls.concurrency
        pool = self._pools.setdefault(tool.pool, {}) if tool.pool else {}
        shared = None
        if policy.shared_concurrency is not None and not policy.is_quiet:
            from rlenv.calls.runner import shared_places  # not on every platform

            limit = policy.shared_concurrency
            shared = shared_places(tool.pool or tool.identity or tool.name, limit=limit)
            # So no more calls than there are places look for one; the others wait in order.
            concurrency = min(concurrency, limit)
        whole_s = min(timeout_s, policy.attempt_s or timeout_s)
        places = pool.setdefault("places", CallSlots(concurrency))
        runner = Runner(tool, places=places, shared=shared, pool=self._pool, whole_s=whole_s)
        guard = None
        if not policy.is_quiet:
            run, in_thread = runner.run, self._pool.call
            guard = CallGuard(tool, policy, timeout_s=timeout_s, attempt=run, in_thread=in_thread, pool=pool)
        return _Entry(
            tool,
            runner,
            ArgumentCheck(tool.parameters if tool.is_strict else _ANY, tool=name),
            timeout_s,
            tool.mode == "inline" and guard is None,
            guard,
            policy.coerce,
            policy.cache is not None,
        )

    def close(self) -> None:
        """Ends the threads that wait for work and closes what caches keep open; calls made later open them again."""
        for entry in self._entries.values():
            if entry.guard is not None:
                entry.guard.close()
        for pool in self._pools.values():
            close_store(pool)
        self._pool.close()

    def waited_for(self) -> dict[str, list[float]]:
        """The calls that somebody waits for now: when each began (`time.monotonic`), by tool; from any thread.

        Quick tools that run on the event loop are not among them.
        """
        return {name: list(entry.waited_for.values()) for name, entry in self._entries.items() if entry.waited_for}

    def run(
        self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext
    ) -> Coroutine[Any, Any, tuple[ToolResult, ...]]:
        """The results of one turn's calls, to be awaited: `len(results) == len(calls)`, in the same order.

        Raises:
            EpisodeError: a tool's infrastructure failed; the turn's other calls are cancelled.
        """
        made = self._run_in_order(calls, context) if self._has_alone else self._run_together(calls, context, 0)
        return made if len(calls) < 2 else _bound_results(made)

    async def _run_in_order(
        self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext
    ) -> tuple[ToolResult, ...]:
        """The results of calls of which those that mutate, or may end the episode, run by themselves."""
        results: list[ToolResult] = []
        # A policy that writes what cannot be read meant to go on, and what was to stand there may stand beside it.
        is_broken = any(isinstance(call, MalformedCall) for call in calls)
        for group in self._group_calls(calls):
            tool = self._tool_of(group[0])
            if tool is not None and tool.ends is ends_once and is_broken and context.turn >= 0:
                results += not_run(group, _UNREAD)
                continue
            made = await self._run_together(group, context, len(results))
            if tool is not None and tool.ends and context.turn >= 0 and made[0].outcome in ("ok", "failed"):
                end = tool.ends(made[0], context)
                if end:
                    results.append(replace(made[0], details={**(made[0].details or {}), "ends": end}))
                    return (*results, *not_run(calls[len(results) :], f"Not run: {tool.name} ended the episode."))
            results.extend(made)
            if self._keeps_results and tool is not None and tool.mutates:
                # A policy writes `update` and then `read` in one turn: the reading may be kept from before.
                forget_episode(context)
        return tuple(results)

    def _tool_of(self, call: ToolCall | MalformedCall) -> Tool | None:
        entry = self._entries.get(call.name) if isinstance(call, ToolCall) else None
        return None if entry is None else entry.tool

    def _group_calls(self, calls: Sequence[ToolCall | MalformedCall]) -> list[list[ToolCall | MalformedCall]]:
        """The calls in order, in groups that run one after another: who mutates, or may end, is a group of its own."""
        groups: list[list[ToolCall | MalformedCall]] = [[]]
        for call in calls:
            if (tool := self._tool_of(call)) is not None and (tool.mutates or tool.ends):
                groups += [[call], []]
            else:
                groups[-1].append(call)
        return [group for group in groups if group]

    async def _run_together(
        self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext, first: int
    ) -> tuple[ToolResult, ...]:
        """The results of calls that may run at once. `first` is the place of the first one in its turn."""
        if (lane := here()) is not None:
            return await self._run_taped(lane, calls, context, first)
        if len(calls) == 1:  # most turns
            made = self._try_at_once(calls[0], context)
            return (made if isinstance(made, ToolResult) else await self._await(made, context, first),)
        results, due = list[Any](), time.monotonic() + _PASS_S
        for call in calls:
            if time.monotonic() > due:  # large arguments take a while to check: others have their turn between
                await asyncio.sleep(0)
                due = time.monotonic() + _PASS_S
            results.append(self._try_at_once(call, context))
        pending = [index for index, result in enumerate(results) if type(result) is not ToolResult]
        if len(pending) == 1:  # no task of its own
            index = pending[0]
            results[index] = await self._await(results[index], context, first + index)
        elif pending:
            tasks = [asyncio.ensure_future(self._await(results[index], context, first + index)) for index in pending]
            for index, result in zip(pending, await _gather(tasks), strict=True):
                results[index] = result
        return tuple(results)

    async def _run_taped(
        self, lane: Lane, calls: Sequence[ToolCall | MalformedCall], context: ToolContext, first: int
    ) -> tuple[ToolResult, ...]:
        """The same under a tape, which keeps what they give or gives it again.

        Raises:
            CassetteError: the tape has no answer to a quick one, before a slow one is begun.
        """
        found, due = list[tuple[Lane, Any]](), time.monotonic() + _PASS_S
        for index, call in enumerate(calls, first):
            if time.monotonic() > due:
                await asyncio.sleep(0)
                due = time.monotonic() + _PASS_S
            own = lane.at(f"call {index}", is_live=isinstance(call, ToolCall) and lane.tape.lets_out(call.name))
            with entered(own):
                inline = self._inline_call(call, context) if isinstance(call, ToolCall) else None
                found.append((own, quick_result(own, call, context, inline, self._try_at_once)))
        results: list[Any] = []
        for index, (own, made) in enumerate(found, first):
            if not isinstance(made, ToolResult):
                with entered(own):  # the task takes the lane that it is made in
                    made = asyncio.ensure_future(slow_result(own, made, context, index, self._await))
            results.append(made)
        if tasks := [one for one in results if isinstance(one, asyncio.Task)]:
            await _gather(tasks)
        return tuple(one.result() if isinstance(one, asyncio.Task) else one for one in results)

    def _inline_call(self, call: ToolCall, context: ToolContext) -> tuple[Tool, Mapping[str, Any]] | None:
        """The tool of a call that fits it and runs on the loop."""
        entry = self._entries.get(call.name)
        if entry is None or not entry.is_inline or _is_too_much(call, context):
            return None
        arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
        try:
            return (entry.tool, arguments) if entry.check.fits(arguments) else None
        except ValueError:
            return None

    def _try_at_once(self, call: ToolCall | MalformedCall, context: ToolContext) -> ToolResult | _Pending:
        """The result of a call that needs no waiting, or what has to be awaited."""
        if isinstance(call, MalformedCall):
            return refused(call.name or "", call.reason, "malformed", call.id)
        entry = self._entries.get(call.name)
        if entry is None:
            return self._unknown_tool(call)
        if _is_too_much(call, context):
            return refused(call.name, f"bad arguments for {call.name}: {MANY}", "bad_arguments", call.id)
        arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
        try:
            if not entry.check.fits(arguments):
                if entry.coerce and (taken := coerce(arguments, entry.check, entry.coerce)) is not None:
                    fitting = ToolCall(call.name, taken.arguments, call.id, call.start, call.end)
                    return entry, fitting, {"coerced": list(taken.names)}
                text = f"bad arguments for {call.name}: {entry.check.explain(arguments)}"
                return refused(call.name, text, "bad_arguments", call.id)
        except ValueError as error:  # what no JSON text can hold, or nested too deep to check
            text = f"bad arguments for {call.name}: they cannot be read as JSON ({error})"
            return refused(call.name, text, "bad_arguments", call.id)
        if not entry.is_inline:
            return entry, call, None
        tool = entry.tool
        started = time.monotonic()
        if started >= context.deadline:
            return late(call, started, context, timeout_s=entry.timeout_s)
        # A quick tool has no use for the default limit; one whose own limit is given may look at its deadline.
        if tool.timeout_s is not None and started + entry.timeout_s < context.deadline:
            context = context.until(started + entry.timeout_s)
        try:
            return ended(call, tool.run(arguments, context), started, context, max_chars=self._max_chars)
        except ToolFailed as failure:
            return failed(call, failure, started, context)
        except (EpisodeError, KeyboardInterrupt):
            raise
        except BaseException as error:  # libraries end in more than Exception: PyO3's panics, SystemExit
            return broken(call, error, started, context, entry.log)

    async def _await(self, pending: _Pending, context: ToolContext, index: int) -> ToolResult:
        """The result of a call that may take its time, whatever the tool does; `index` is its place in the turn."""
        entry, call, notes = pending
        started = time.monotonic()
        limit = min(started + entry.timeout_s, context.deadline)
        if started >= limit:
            return late(call, started, context, timeout_s=entry.timeout_s)
        if entry.runner.places.left_behind >= self._max_left_behind:
            raise _hang_error(entry, call)
        waiting, waits = object(), begin()
        entry.waited_for[waiting] = started
        try:
            arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
            if entry.guard is None:
                output = await entry.runner.run(arguments, context, limit)
            else:
                notes = {} if notes is None else notes
                output = await entry.guard.run(arguments, context, index=index, limit=limit, notes=notes)
            result = ended(call, output, started, context, max_chars=self._max_chars)
        except Expired as expired:
            result = late(call, started, context, timeout_s=entry.timeout_s, reason=expired.reason)
        except ToolFailed as failure:
            result = failed(call, failure, started, context)
        except (EpisodeError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # libraries end in more than Exception: PyO3's panics, SystemExit
            # An episode that is given up is cancelled, and so is this call. A tool may also let out a CancelledError of
            # something that it cancelled itself; nobody asked this task to end then, and it is the tool's failure.
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            result = broken(call, error, started, context, entry.log)
        finally:
            del entry.waited_for[waiting]
        if waits:
            result = replace(result, waited=sum(waits))
        return replace(result, details={**(result.details or {}), **notes}) if notes else result

    def _unknown_tool(self, call: ToolCall) -> ToolResult:
        known = list(self._entries)
        name = cut_middle(call.name, 100)
        listed = all_known(name, known, "available:") if known else "no tools are available"
        return refused(name, f"there is no tool '{name}'; {listed}", "unknown_tool", call.id)


def _is_too_much(call: ToolCall, context: ToolContext) -> bool:
    """True of a policy's call whose arguments hold more values than are looked at; a reward's are the author's."""
    return context.turn >= 0 and values_in(call.arguments, MAX_VALUES) > MAX_VALUES


async def _bound_results(made: Coroutine[Any, Any, tuple[ToolResult, ...]]) -> tuple[ToolResult, ...]:
    return within_turn(await made)


def _hang_error(entry: _Entry, call: ToolCall) -> EpisodeError:
    # Each call that hangs keeps a thread, or a task, and what it holds. Where so many do, the tool is down for
    # everybody, and going on would end in a process without memory instead of in an error that says why.
    count = entry.runner.places.left_behind
    found = f"{count} calls of tool '{call.name}' were given up and have not ended; no more are made"
    return EpisodeError(found, reason="tool_hangs")


def _is_cancelled() -> bool:
    """True where somebody has asked the current task to end."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


async def _gather(tasks: Sequence[asyncio.Task[ToolResult]]) -> list[ToolResult]:
    """All results; where one task raises, or the caller is cancelled, the others are cancelled and awaited first.

    So no call of a turn goes on behind its episode's back, on resources that are about to be closed.
    """
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    except BaseException:
        await all_ended(*tasks)
        raise
