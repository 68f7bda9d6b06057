"""From calls to results: in order, within their limits, whatever a tool does.

One executor serves all episodes of a process. Quick tools run on the event loop with no task and no timer; the rest
are bounded by their own time limit, by the episode's deadline and by how many may run at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Literal

from rlenv._arguments import ArgumentCheck, nearest
from rlenv._deadline import Expired, drive
from rlenv._threads import ThreadPool
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.secrets import logger, redact, redact_value
from rlenv.spec import CallsSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput

__all__ = ["Executor"]

_log = logger("rlenv.tools")
_LOG_EVERY_S = 1.0
_MAX_ERROR_CHARS = 2_000

_FailedOutcome = Literal["failed", "timeout", "bad_arguments"]
_OUTCOME_OF_REASON: dict[str, _FailedOutcome] = {"timeout": "timeout", "bad_arguments": "bad_arguments"}


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
    left_behind: int = 0
    """Calls that were given up and have not ended."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    logged_at: float = float("-inf")
    unlogged: int = 0

    def leave_behind(self) -> None:
        with self.lock:
            self.left_behind += 1

    def has_ended(self, _: object = None) -> None:
        with self.lock:
            self.left_behind -= 1


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
        max_chars: a longer text is cut to its head and tail at once, and a longer text as value with it.
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
        self._entries = {
            name: _Entry(
                tool,
                ArgumentCheck(tool.parameters, tool=name),
                tool.timeout_s if tool.timeout_s is not None else calls.timeout_s,
                _Places(tool.concurrency if tool.concurrency is not None else calls.concurrency),
            )
            for name, tool in tools.items()
        }
        self._has_mutating = any(tool.mutates for tool in tools.values())
        self._max_chars = max_chars
        self._max_left_behind = max_left_behind
        self._pool = ThreadPool(size=threads)
        self._strays: set[asyncio.Task[Any]] = set()

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        """The results of one turn's calls, `len(results) == len(calls)`, in the same order.

        Raises:
            EpisodeError: a tool's infrastructure failed; the turn's other calls are cancelled.
        """
        if self._has_mutating and len(calls) > 1:
            results: list[ToolResult] = []
            for group in self._groups(calls):
                results.extend(await self._together(group, context))
            return tuple(results)
        return await self._together(calls, context)

    def _groups(self, calls: Sequence[ToolCall | MalformedCall]) -> list[list[ToolCall | MalformedCall]]:
        groups: list[list[ToolCall | MalformedCall]] = [[]]
        for call in calls:
            entry = self._entries.get(call.name) if isinstance(call, ToolCall) else None
            if entry is not None and entry.tool.mutates:
                groups += [[call], []]
            else:
                groups[-1].append(call)
        return [group for group in groups if group]

    async def _together(
        self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext
    ) -> tuple[ToolResult, ...]:
        results = [self._at_once(call, context) for call in calls]
        pending = [index for index, result in enumerate(results) if isinstance(result, _Entry)]
        if pending:
            if len(pending) == 1:
                index = pending[0]
                results[index] = await self._waiting(results[index], calls[index], context)  # type: ignore[arg-type]
            else:
                tasks = [
                    asyncio.ensure_future(self._waiting(results[index], calls[index], context))  # type: ignore[arg-type]
                    for index in pending
                ]
                for index, result in zip(pending, await _all(tasks), strict=True):
                    results[index] = result
        return tuple(results)  # type: ignore[arg-type]

    def _at_once(self, call: ToolCall | MalformedCall, context: ToolContext) -> ToolResult | _Entry:
        """The result of a call that needs no waiting, or the entry of the tool whose call has to be awaited."""
        if isinstance(call, MalformedCall):
            return ToolResult(call.name or "", call.reason, "malformed", None, call.id)
        entry = self._entries.get(call.name)
        if entry is None:
            return self._unknown(call)
        arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
        try:
            if not entry.check.fits(arguments):
                text = f"bad arguments for {call.name}: {entry.check.explain(arguments)}"
                return ToolResult(call.name, text, "bad_arguments", None, call.id)
        except ValueError as error:  # what no JSON text can hold, or nested too deep to check
            text = f"bad arguments for {call.name}: they cannot be read as JSON ({error})"
            return ToolResult(call.name, text, "bad_arguments", None, call.id)
        tool = entry.tool
        if tool.mode != "inline":
            return entry
        started = time.monotonic()
        if started >= context.deadline:
            return self._late(entry, call, started, context)
        limit = started + entry.timeout_s
        if limit < context.deadline:
            context = _until(context, limit)
        try:
            output = tool.run(arguments, context)
        except ToolFailed as failure:
            return self._failed(failure, call, started)
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:
            return self._broken(entry, call, error, started)
        return self._ended(entry, call, output, started)

    async def _waiting(self, entry: _Entry, call: ToolCall, context: ToolContext) -> ToolResult:
        started = time.monotonic()
        limit = min(started + entry.timeout_s, context.deadline)
        if started >= limit:
            return self._late(entry, call, started, context)
        if entry.left_behind >= self._max_left_behind:
            raise EpisodeError(
                f"{entry.left_behind} calls of tool '{call.name}' were given up and have not ended; no more are made",
                reason="tool_hangs",
            )
        turn = entry.places.take()
        if turn is not None:
            timer = turn.get_loop().call_later(limit - started, _expire, turn)
            try:
                has_place = await turn
            except asyncio.CancelledError:
                entry.places.leave(turn)
                raise
            finally:
                timer.cancel()
            if not has_place:
                return self._late(entry, call, started, context)
        try:
            within = _until(context, limit)
            arguments = call.arguments if type(call.arguments) is dict else dict(call.arguments)
            if entry.tool.mode == "async":
                output = await self._async(entry, arguments, within)
            else:
                output = await self._in_thread(entry, arguments, within)
        except Expired:
            return self._late(entry, call, started, context)
        except ToolFailed as failure:
            return self._failed(failure, call, started)
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:
            return self._broken(entry, call, error, started)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._broken(entry, call, error, started)  # the tool cancelled something of its own
        finally:
            entry.places.free()
        return self._ended(entry, call, output, started)

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
            raise Expired(None)
        if job.error is not None:
            raise job.error
        return job.result

    def _ended(self, entry: _Entry, call: ToolCall, output: Any, started: float) -> ToolResult:
        if type(output) is not ToolOutput:
            error = TypeError(f"a tool's run returned a {type(output).__name__}, not a ToolOutput")
            return self._broken(entry, call, error, started)
        text, value = redact(output.text), redact_value(output.value)
        if len(text) > self._max_chars:
            text = _cut(text, self._max_chars)
        if isinstance(value, (str, bytes)) and len(value) > self._max_chars:
            value = text if isinstance(value, str) else None
        return ToolResult(call.name, text, "ok", value, call.id, time.monotonic() - started, output.images)

    def _failed(self, failure: ToolFailed, call: ToolCall, started: float) -> ToolResult:
        outcome = _OUTCOME_OF_REASON.get(failure.reason, "failed")
        text = _cut(redact(failure.text), _MAX_ERROR_CHARS)
        return ToolResult(call.name, text, outcome, None, call.id, time.monotonic() - started)

    def _late(self, entry: _Entry, call: ToolCall, started: float, context: ToolContext) -> ToolResult:
        if started + entry.timeout_s <= context.deadline:
            text = f"the tool {call.name} did not end within {entry.timeout_s:g} s"
        else:
            text = f"the tool {call.name} was stopped: the episode's time is up"
        return ToolResult(call.name, text, "timeout", None, call.id, time.monotonic() - started)

    def _unknown(self, call: ToolCall) -> ToolResult:
        known = list(self._entries)
        name = _cut(call.name, 100)
        listed = f"available: {', '.join(known)}" if known else "no tools are available"
        text = f"there is no tool '{name}'{nearest(name, known)}"
        return ToolResult(
            name, f"{text} {listed}" if text.endswith("?") else f"{text}; {listed}", "unknown_tool", None, call.id
        )

    def _broken(self, entry: _Entry, call: ToolCall, error: BaseException, started: float) -> ToolResult:
        ended = time.monotonic()
        if ended - entry.logged_at >= _LOG_EVERY_S:
            also = f" ({entry.unlogged} more failures since the last one shown)" if entry.unlogged else ""
            _log.warning("tool '%s' raised%s", call.name, also, exc_info=error)
            entry.logged_at, entry.unlogged = ended, 0
        else:
            entry.unlogged += 1
        return ToolResult(call.name, f"the tool {call.name} failed", "failed", None, call.id, ended - started)


def _until(context: ToolContext, deadline: float) -> ToolContext:
    return ToolContext(context.task, context.resources, deadline, context.seed, context.scope, context.shared)


def _cut(text: str, limit: int) -> str:
    """`text` within `limit` characters: its head and its tail, and how much is left out between them."""
    if len(text) <= limit:
        return text
    gap = f"\n… ({len(text) - limit} characters left out) …\n"
    keep = max(limit - len(gap), 0)
    tail = keep // 2
    return text[: keep - tail] + gap + (text[-tail:] if tail else "")


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
