"""From calls to results: in order, within their limits, whatever a tool does.

One executor serves all episodes of a process. Quick tools run on the event loop with no task and no timer; the rest
are bounded by their own time limit, by the episode's deadline and by how many may run at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from rlenv._arguments import ArgumentCheck, nearest
from rlenv._bounded import bounded, cut_middle, encodable, size
from rlenv._coercion import coerced
from rlenv._deadline import Expired, drive
from rlenv._quick import quick
from rlenv._threads import ThreadPool
from rlenv.calls.cache import forget_episode
from rlenv.calls.guard import Guard, Notes
from rlenv.calls.policy import policy_of
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.images import within_limits
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.reasons import whose
from rlenv.secrets import logger, redact, redact_ends, redact_value
from rlenv.spec import CallsSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from rlenv.calls.shared import SharedPlaces

__all__ = ["Executor"]

_result = quick(ToolResult)

_log = logger("rlenv.tools")
_LOG_EVERY_S = 1.0
_MAX_ERROR_CHARS = 2_000

_MAX_NOTES_CHARS = 131_072
_MAX_REWARD_VALUE = 16_000_000
"""A value that only a reward reads is not kept; it is bounded for the reader's sake alone."""

_FailedOutcome = Literal["failed", "timeout", "bad_arguments"]
_OUTCOME_OF_REASON: dict[str, _FailedOutcome] = {
    "timeout": "timeout",
    "late": "timeout",
    "stalled": "timeout",
    "busy": "timeout",
    "bad_arguments": "bad_arguments",
}


class _Places:
    """At most `limit` calls at once; those that wait are served in the order they came, on any event loop."""

    __slots__ = ("limit", "lock", "taken", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self.waiting: deque[asyncio.Future[bool]] = deque()
        self.lock = threading.Lock()

    def take(self) -> asyncio.Future[bool] | None:
        """Takes a place and returns None, or returns what to wait for; it gives True once the place is taken."""
        with self.lock:
            if self.taken < self.limit:
                self.taken += 1
                return None
            turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            return turn

    def free(self) -> None:
        """Gives a place back, to the one that has waited longest."""
        with self.lock:
            while self.waiting:
                turn = self.waiting.popleft()
                loop = turn.get_loop()
                if loop is asyncio.get_running_loop():
                    if not turn.done():
                        turn.set_result(True)
                        return
                elif not loop.is_closed():
                    loop.call_soon_threadsafe(self._hand_over, turn)
                    return
            self.taken -= 1

    def _hand_over(self, turn: asyncio.Future[bool]) -> None:
        if turn.done():
            self.free()
        else:
            turn.set_result(True)

    def leave(self, turn: asyncio.Future[bool]) -> None:
        """Stops waiting; gives the place back where it had been handed over already."""
        if turn.done() and not turn.cancelled() and turn.result():
            self.free()
        else:
            turn.cancel()


def _expire(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@dataclass(slots=True, eq=False)
class _Entry:
    """A tool as the executor keeps it."""

    tool: Tool
    check: ArgumentCheck
    timeout_s: float
    places: _Places
    is_inline: bool
    """Runs on the loop, and no policy asks for more."""
    guard: Guard | None = None
    shared: SharedPlaces | None = None
    coerce: frozenset[str] = frozenset()
    keeps_results: bool = False
    left_behind: int = 0
    """Calls that were given up and have not ended."""
    waited_for: dict[object, float] = field(default_factory=dict)
    """When each call began that somebody waits for, by `time.monotonic`."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    logged_at: float = float("-inf")
    unlogged: int = 0

    def leave_behind(self) -> None:
        with self.lock:
            self.left_behind += 1

    def has_ended(self, _: object = None) -> None:
        with self.lock:
            self.left_behind -= 1


@dataclass(slots=True, eq=False)
class _Pending:
    """A call that is run with other arguments than the policy wrote."""

    entry: _Entry
    call: ToolCall
    notes: Notes


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
        self._entries = {name: self._entry(name, tool, calls) for name, tool in tools.items()}
        self._has_mutating = any(tool.mutates for tool in tools.values())
        self._keeps_results = any(entry.keeps_results for entry in self._entries.values())
        self._max_chars = max_chars
        self._max_left_behind = max_left_behind
        self._pool = ThreadPool(size=threads)
        self._strays: set[asyncio.Task[Any]] = set()

    def _entry(self, name: str, tool: Tool, calls: CallsSpec) -> _Entry:
        policy = tool.policy
        if policy is None:
            policy = policy_of(calls, idempotent=tool.idempotent, mutates=tool.mutates)
        timeout_s = tool.timeout_s if tool.timeout_s is not None else calls.timeout_s
        concurrency = tool.concurrency if tool.concurrency is not None else calls.concurrency
        guard = shared = None
        if not policy.is_quiet:
            guard = Guard(tool, policy, timeout_s=timeout_s, in_thread=self._call_in_thread)
            if policy.shared_concurrency is not None:
                from rlenv.calls.shared import shared_places  # not on every platform

                limit = policy.shared_concurrency
                shared = shared_places(tool.identity or tool.name, limit=limit)
                # So no more calls than there are places look for one; the others wait in order.
                concurrency = min(concurrency, limit)
        return _Entry(
            tool,
            ArgumentCheck(tool.parameters, tool=name),
            timeout_s,
            _Places(concurrency),
            tool.mode == "inline" and guard is None,
            guard,
            shared,
            policy.coerce,
            policy.cache is not None,
        )

    def close(self) -> None:
        """Ends the threads that wait for work and closes what caches keep open; calls made later open them again."""
        for entry in self._entries.values():
            if entry.guard is not None:
                entry.guard.close()
        self._pool.close()

    def waited_for(self) -> dict[str, list[float]]:
        """The calls that somebody waits for now: when each began (`time.monotonic`), by tool; from any thread.

        Quick tools that run on the event loop are not among them.
        """
        return {name: list(entry.waited_for.values()) for name, entry in self._entries.items() if entry.waited_for}

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        """The results of one turn's calls, `len(results) == len(calls)`, in the same order.

        Raises:
            EpisodeError: a tool's infrastructure failed; the turn's other calls are cancelled.
        """
        if not self._has_mutating:
            return await self._together(calls, context, 0)
        results: list[ToolResult] = []
        for group in self._groups(calls):
            results.extend(await self._together(group, context, len(results)))
            if self._keeps_results and any(self._mutates(call) for call in group):
                forget_episode(context)
        return tuple(results)

    def _mutates(self, call: ToolCall | MalformedCall) -> bool:
        entry = self._entries.get(call.name) if isinstance(call, ToolCall) else None
        return entry is not None and entry.tool.mutates

    def _groups(self, calls: Sequence[ToolCall | MalformedCall]) -> list[list[ToolCall | MalformedCall]]:
        groups: list[list[ToolCall | MalformedCall]] = [[]]
        for call in calls:
            if self._mutates(call):
                groups += [[call], []]
            else:
                groups[-1].append(call)
        return [group for group in groups if group]

    async def _together(
        self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext, first: int
    ) -> tuple[ToolResult, ...]:
        results: list[Any] = [self._at_once(call, context) for call in calls]
        pending = [index for index, result in enumerate(results) if type(result) is not ToolResult]
        if pending:
            if len(pending) == 1:
                index = pending[0]
                results[index] = await self._awaited(results[index], calls[index], context, first + index)
            else:
                tasks = [
                    asyncio.ensure_future(self._awaited(results[index], calls[index], context, first + index))
                    for index in pending
                ]
                for index, result in zip(pending, await _all(tasks), strict=True):
                    results[index] = result
        return tuple(results)

    def _awaited(
        self, what: _Entry | _Pending, call: Any, context: ToolContext, index: int
    ) -> Coroutine[Any, Any, ToolResult]:
        if type(what) is _Pending:
            return self._waiting(what.entry, what.call, context, index, what.notes)
        assert type(what) is _Entry
        return self._waiting(what, call, context, index, None)

    def _at_once(self, call: ToolCall | MalformedCall, context: ToolContext) -> ToolResult | _Entry | _Pending:
        """The result of a call that needs no waiting, or what has to be awaited."""
        if isinstance(call, MalformedCall):
            return _refused(call.name or "", call.reason, "malformed", call.id)
        entry = self._entries.get(call.name)
        if entry is None:
            return self._unknown(call)
        arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
        try:
            if not entry.check.fits(arguments):
                if entry.coerce and (taken := coerced(arguments, entry.check, entry.coerce)) is not None:
                    fitting = ToolCall(call.name, taken.arguments, call.id, call.start, call.end)
                    return _Pending(entry, fitting, {"coerced": list(taken.names)})
                text = f"bad arguments for {call.name}: {entry.check.explain(arguments)}"
                return _refused(call.name, text, "bad_arguments", call.id)
        except ValueError as error:  # what no JSON text can hold, or nested too deep to check
            text = f"bad arguments for {call.name}: they cannot be read as JSON ({error})"
            return _refused(call.name, text, "bad_arguments", call.id)
        tool = entry.tool
        if not entry.is_inline:
            return entry
        started = time.monotonic()
        if started >= context.deadline:
            return self._late(entry, call, started, context)
        # A quick tool has no use for the default limit; one whose own limit is given may look at its deadline.
        if tool.timeout_s is not None and started + entry.timeout_s < context.deadline:
            context = _until(context, started + entry.timeout_s)
        try:
            output = tool.run(arguments, context)
        except ToolFailed as failure:
            return self._failed(failure, call, started)
        except EpisodeError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # libraries end in more than Exception: PyO3's panics, SystemExit
            return self._broken(entry, call, error, started)
        return self._ended(entry, call, output, started, context)

    async def _waiting(
        self, entry: _Entry, call: ToolCall, context: ToolContext, index: int, notes: Notes | None
    ) -> ToolResult:
        started = time.monotonic()
        limit = min(started + entry.timeout_s, context.deadline)
        if started >= limit:
            return self._late(entry, call, started, context)
        if entry.left_behind >= self._max_left_behind:
            raise EpisodeError(
                f"{entry.left_behind} calls of tool '{call.name}' were given up and have not ended; no more are made",
                reason="tool_hangs",
            )
        arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
        if entry.guard is not None and notes is None:
            notes = {}
        waiting = object()
        entry.waited_for[waiting] = started
        try:
            if entry.guard is None:
                output = await self._admitted(entry, arguments, context, limit)
            else:
                assert notes is not None
                output = await entry.guard.run(
                    lambda until, held_s: self._admitted(entry, arguments, context, until, held_s),
                    arguments,
                    context,
                    index=index,
                    limit=limit,
                    notes=notes,
                )
            result = self._ended(entry, call, output, started, context)
        except Expired as expired:
            result = self._late(entry, call, started, context, expired.reason)
        except ToolFailed as failure:
            result = self._failed(failure, call, started)
        except EpisodeError:
            raise
        except Exception as error:
            result = self._broken(entry, call, error, started)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            result = self._broken(entry, call, error, started)  # the tool cancelled something of its own
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # libraries end in more than Exception: PyO3's panics, SystemExit
            result = self._broken(entry, call, error, started)
        finally:
            del entry.waited_for[waiting]
        return replace(result, details={**(result.details or {}), **notes}) if notes else result

    async def _admitted(
        self, entry: _Entry, arguments: dict[str, Any], context: ToolContext, limit: float, held_s: float = 0.0
    ) -> Any:
        """Waits for a place and runs the tool once; a call held for `held_s` seconds has its place meanwhile.

        Raises Expired at `limit`, and whatever the tool raises.
        """
        turn = entry.places.take()
        if turn is not None:
            timer = turn.get_loop().call_later(limit - time.monotonic(), _expire, turn)
            try:
                has_place = await turn
            except asyncio.CancelledError:
                entry.places.leave(turn)
                raise
            finally:
                timer.cancel()
            if not has_place:
                raise Expired(None, reason="busy")
        try:
            within = _until(context, limit)
            if entry.shared is None and not held_s:
                if entry.tool.mode == "async":
                    return await self._async(entry, arguments, within)
                return await self._run(entry, arguments, within)
            return await self._run_shared(entry, arguments, within, held_s)
        finally:
            entry.places.free()

    async def _run_shared(self, entry: _Entry, arguments: dict[str, Any], context: ToolContext, held_s: float) -> Any:
        limit = context.deadline
        place = None
        if entry.shared is not None and (place := await entry.shared.take(until=limit)) is None:
            raise Expired(None, reason="busy")
        try:
            if held_s:
                await asyncio.sleep(min(held_s, max(limit - time.monotonic(), 0)))
            if time.monotonic() >= limit:
                raise Expired(None, reason="injected" if held_s else "late")
            return await self._run(entry, arguments, context)
        finally:
            if entry.shared is not None and place is not None:
                entry.shared.free(place)

    async def _run(self, entry: _Entry, arguments: dict[str, Any], context: ToolContext) -> Any:
        mode = entry.tool.mode
        if mode == "async":
            return await self._async(entry, arguments, context)
        if mode == "thread":
            return await self._in_thread(entry, arguments, context)
        return entry.tool.run(arguments, context)

    async def _async(self, entry: _Entry, arguments: dict[str, Any], context: ToolContext) -> Any:
        coroutine = entry.tool.run(arguments, context)
        if type(coroutine) is not CoroutineType and not isinstance(coroutine, Coroutine):
            raise TypeError(f"an async tool's run returned a {type(coroutine).__name__}, not a coroutine")
        try:
            return await drive(coroutine, context.deadline - time.monotonic())
        except Expired as expired:
            if expired.stray is not None:
                entry.leave_behind()
                self._strays.add(expired.stray)
                expired.stray.add_done_callback(self._strays.discard)
                expired.stray.add_done_callback(_retrieve)
                expired.stray.add_done_callback(entry.has_ended)
            raise

    async def _in_thread(self, entry: _Entry, arguments: dict[str, Any], context: ToolContext) -> Any:
        began = time.monotonic()
        job = self._pool.submit(entry.tool.run, arguments, context)
        timer = job.done.get_loop().call_later(context.deadline - time.monotonic(), _wake, job.done)
        try:
            await job.done
        finally:
            timer.cancel()
            if not job.is_ended:
                # Counted first: the call may end, and count itself out, as soon as it is given up.
                entry.leave_behind()
                if not self._pool.give_up(job, after=entry.has_ended):
                    entry.has_ended()
        if not job.is_ended:
            # A thread that was at work most of the time has used it up; one that waited, or got no processor, has not.
            was_at_work = job.cpu_s() >= (time.monotonic() - began) / 2
            raise Expired(None, reason="timeout" if was_at_work else "late" if job.has_begun else "busy")
        if isinstance(job.error, (KeyboardInterrupt, GeneratorExit)):
            # No Ctrl-C ends up in a thread: the tool raised it itself.
            raise RuntimeError(f"the tool {entry.tool.name} raised {type(job.error).__name__}") from job.error
        if job.error is not None:
            raise job.error
        return job.result

    async def _call_in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        job = self._pool.submit(function, *arguments)
        await job.done
        if job.error is not None:
            raise job.error
        return job.result

    def _ended(self, entry: _Entry, call: ToolCall, output: Any, started: float, context: ToolContext) -> ToolResult:
        if type(output) is not ToolOutput:
            error = TypeError(f"a tool's run returned a {type(output).__name__}, not a ToolOutput")
            return self._broken(entry, call, error, started)
        if type(output.text) is not str:
            error = TypeError(f"a tool's text was a {type(output.text).__name__}, not a str")
            return self._broken(entry, call, error, started)
        text, value, details = encodable(redact_ends(output.text, self._max_chars)), output.value, output.details
        images = output.images
        if images:
            images, left_out = within_limits(images)
            text = f"{text}\n{left_out}" if left_out and text else text or left_out
        if details is not None:
            details = _bounded_details(details)
        if value is output.text:
            value = text
        elif value is not None:
            # What a reward asks for is read once and not kept, so that only its reader has to be spared.
            limit = self._max_chars if context.turn >= 0 else _MAX_REWARD_VALUE
            if size(value, limit) > limit:
                value = text if isinstance(value, str) else None
                details = {**(details or {}), "left_out": f"a value of more than {limit} characters"}
            else:
                value = redact_value(value)
                if isinstance(value, str):
                    value = encodable(value)
        return _result(call.name, text, "ok", value, call.id, time.monotonic() - started, images, details)

    def _failed(self, failure: ToolFailed, call: ToolCall, started: float) -> ToolResult:
        outcome = _OUTCOME_OF_REASON.get(failure.reason, "failed")
        text = cut_middle(encodable(redact(str(failure.text))), _MAX_ERROR_CHARS)
        details = _bounded_details(failure.details) if failure.details is not None else None
        took = time.monotonic() - started
        return _result(call.name, text, outcome, None, call.id, took, (), details, failure.reason, failure.whose)

    def _late(
        self, entry: _Entry, call: ToolCall, started: float, context: ToolContext, reason: str = "late"
    ) -> ToolResult:
        if started + entry.timeout_s <= context.deadline:
            text = f"the tool {call.name} did not end within {entry.timeout_s:g} s"
        else:
            text = f"the tool {call.name} was stopped: the {context.bounded_by}'s time is up"
        took = time.monotonic() - started
        return _result(call.name, text, "timeout", None, call.id, took, (), None, reason, whose(reason))

    def _unknown(self, call: ToolCall) -> ToolResult:
        known = list(self._entries)
        name = cut_middle(call.name, 100)
        listed = f"available: {', '.join(known)}" if known else "no tools are available"
        text = f"there is no tool '{name}'{nearest(name, known)}"
        text = f"{text} {listed}" if text.endswith("?") else f"{text}; {listed}"
        return _refused(name, text, "unknown_tool", call.id)

    def _broken(self, entry: _Entry, call: ToolCall, error: BaseException, started: float) -> ToolResult:
        ended = time.monotonic()
        if ended - entry.logged_at >= _LOG_EVERY_S:
            also = f" ({entry.unlogged} more failures since the last one shown)" if entry.unlogged else ""
            _log.warning("tool '%s' raised%s", call.name, also, exc_info=error)
            entry.logged_at, entry.unlogged = ended, 0
        else:
            entry.unlogged += 1
        text, took = f"the tool {call.name} failed", ended - started
        return _result(call.name, text, "failed", None, call.id, took, (), None, "bug", whose("bug"))


def _until(context: ToolContext, deadline: float) -> ToolContext:
    return ToolContext(
        context.task,
        context.resources,
        deadline,
        context.seed,
        context.scope,
        context.shared,
        context.turn,
        context.bounded_by,
        context.run_calls,
    )


def _bounded_details(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a tool says about its call, redacted and within bounds: it is kept, and nobody is shown it."""
    if size(details, _MAX_NOTES_CHARS) <= _MAX_NOTES_CHARS:
        clean: Mapping[str, Any] = redact_value(details)
        return clean
    # Cut first, so that the work is bounded too; each text is redacted before it is cut.
    kept = bounded(details, _MAX_NOTES_CHARS, cut=redact_ends)
    return {**kept, "left_out": f"details of more than {_MAX_NOTES_CHARS} characters"}


def _refused(
    name: str, text: str, outcome: Literal["unknown_tool", "bad_arguments", "malformed"], call_id: str | None
) -> ToolResult:
    """A call that never reached a tool: the policy wrote it so."""
    return ToolResult(name, text, outcome, None, call_id, reason=outcome, whose="policy")


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _all(tasks: Sequence[asyncio.Task[ToolResult]]) -> list[ToolResult]:
    """All results; where one task raises, or the caller is cancelled, the others are cancelled and awaited first."""
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
        return [task.result() for task in tasks]
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            _retrieve(task)
        raise
