"""The sandbox `monty`: pydantic-monty's workers, driven from threads one step at a time.

Expected: its asynchronous pool, `AsyncMonty`. Actual: a process that ends soon after such a pool was closed aborts in
about one of three runs (pydantic-monty 1.4.0, CPython 3.11, at interpreter exit). So the blocking pool is used, in
threads. To be looked at again with a later version.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlenv._base.bounded import bounded, size
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import EpisodeError, MissingExtra, ToolFailed, UsageError, told_as
from rlenv.messages import ToolCall, ToolResult
from rlenv.tools._cell import Outcome
from rlenv.tools._monty_cell import LOOK_AGAIN_S, Cell, Notebook, PendingCalls
from rlenv.tools.base import Tool, ToolContext

if TYPE_CHECKING:
    from pydantic_monty import Monty

    from rlenv.tools.code import CodeSpec

_MAX_KEPT_ARGUMENTS = 1_000
_MAX_ARGUMENTS, _MAX_AT_ONCE = 1_000_000, 16_000_000
_TOGETHER = 64
"""So many of the calls that code makes at once run at once; the rest follows in groups."""
_TOO_MUCH = "what calls at once give is more than the code may hold in memory"
_MARGIN_S = 0.25
"""So long before the call's end waiting for a worker is given up."""
_GRACE_S = 2.0
"""So long after its limit a worker that says nothing is killed."""
_MOST_SILENT_S = 60.0
"""A worker that says nothing for so long, and that nobody waits for any more, is replaced."""


@dataclass(slots=True, eq=False)
class _Pool:
    """The workers of one tool in one environment. Who runs code holds a place first, so that no thread waits for a
    worker while another cell waits for a thread."""

    workers: Monty
    places: asyncio.Semaphore
    threads: ThreadPool


@asynccontextmanager
async def _open_notebook() -> AsyncIterator[Notebook]:
    yield Notebook()


def _check_installed() -> None:
    with told_as(MissingExtra, "the sandbox monty", ImportError, extra="code"):
        import pydantic_monty
        from pydantic_monty._binary import find_monty_binary
    assert pydantic_monty.__version__
    try:
        find_monty_binary(None)
    except FileNotFoundError as error:
        message = "the sandbox monty has no worker program"
        raise UsageError(message, hint=f"pip install pydantic-monty-runtime ({error})") from error


def monty_runner(
    name: str, spec: CodeSpec, called: Mapping[str, Tool]
) -> Callable[[str, ToolContext], Awaitable[Outcome]]:
    """Runs code in monty; within an episode one after another where there is a session.

    Raises:
        MissingExtra, UsageError: pydantic-monty, or its worker program, is not installed.
    """
    _check_installed()
    return _Runner(name, spec, called).run


class _Runner:
    def __init__(self, name: str, spec: CodeSpec, called: Mapping[str, Tool]) -> None:
        self._key = ("monty", name)
        self._spec = spec
        self._called = called

    async def run(self, code: str, call: ToolContext) -> Outcome:
        if not self._spec.session:
            return await self._run_cell(code, call, None)
        notebook = await call.scope().get(self._key, _open_notebook)
        async with notebook.turn:
            return await self._run_cell(code, call, notebook)

    async def _run_cell(self, code: str, call: ToolContext, notebook: Notebook | None) -> Outcome:
        pool = await call.shared().get(self._key, self._open_pool)
        made = _Calls()
        try:
            async with asyncio.timeout(call.deadline - _MARGIN_S - time.monotonic()):
                await pool.places.acquire()
        except TimeoutError as error:
            raise ToolFailed("no worker was free in the code's time", reason="busy", retryable=True) from error
        try:
            left_s = max(call.deadline - time.monotonic() - 2 * _MARGIN_S, _MARGIN_S)
            cell = Cell(pool.workers, self._spec, self._called, notebook, seed=call.seed, most_s=left_s)
            outcome = await self._drive_cell(code, call, cell, pool.threads, made)
        finally:
            pool.places.release()
        if notebook is not None and cell.kept is not None:
            notebook.state, notebook.name = cell.kept, cell.name
        return made.seen_by(outcome, is_reward=call.turn < 0)

    async def _drive_cell(self, code: str, call: ToolContext, cell: Cell, threads: ThreadPool, made: _Calls) -> Outcome:
        """The outcome of the code; each of its steps takes a thread, none while it waits for tools."""

        async def step(
            go: Callable[[Any], Outcome | PendingCalls], given: Any, first_look_s: float
        ) -> Outcome | PendingCalls:
            found: Outcome | PendingCalls = await _run_in_thread(
                threads, go, given, give_up=cell.release, look=cell.look, first_look_s=first_look_s
            )
            return found

        try:
            found = await step(cell.start, code, self._spec.time_s)
            while isinstance(found, PendingCalls):
                found = await step(cell.answer, await self._answer_calls(found, call, made), LOOK_AGAIN_S)
            return found
        finally:
            if cell.is_held:
                await asyncio.shield(asyncio.ensure_future(_run_in_thread(threads, cell.release)))

    async def _answer_calls(self, asked: PendingCalls, call: ToolContext, made: _Calls) -> dict[int, dict[str, Any]]:
        """The tools' answers, each in the form in which the sandbox goes on: a value, or an exception. No more of them
        are asked for than the code could hold."""
        if call.run_calls is None:
            raise EpisodeError("code called a tool where no environment runs calls", reason="code")
        calls, answers = await asyncio.to_thread(_calls_in, asked, self._called)
        numbers, left = list(calls), self._spec.memory_mb * 1024 * 1024
        for at in range(0, len(numbers), _TOGETHER):
            group = numbers[at : at + _TOGETHER]
            if time.monotonic() >= call.deadline:
                raise ToolFailed("the code's time is up", reason="late")
            results = await call.run_calls([calls[number] for number in group], call) if left >= 0 else ()
            for number, result in zip(group, results, strict=False):
                made.add(calls[number], result)
                if result.outcome != "ok":
                    answers[number] = {"exception": RuntimeError(result.text)}
                    continue
                value = result.text if result.value is None else result.value
                if (left := left - size(value, max(left, 0))) >= 0:
                    answers[number] = {"return_value": value}
            for number in group:
                answers.setdefault(number, {"exception": RuntimeError(_TOO_MUCH)})
        return answers

    @asynccontextmanager
    async def _open_pool(self) -> AsyncIterator[_Pool]:
        import pydantic_monty

        threads = ThreadPool(size=self._spec.workers)
        workers = pydantic_monty.Monty(
            min_processes=1,
            max_processes=self._spec.workers,
            request_timeout=max(_MOST_SILENT_S, 10 * self._spec.time_s),
            feed_duration_limit_grace=_GRACE_S,
        )
        await _run_in_thread(threads, workers.__enter__)
        try:
            yield _Pool(workers, asyncio.Semaphore(self._spec.workers), threads)
        finally:
            await _run_in_thread(threads, workers.__exit__, None, None, None)
            threads.close()


@dataclass(slots=True)
class _Calls:
    """The calls that one piece of code made."""

    calls: list[Mapping[str, Any]] = field(default_factory=list)
    fault: ToolResult | None = None
    """The first that failed and not by the policy's doing."""

    def add(self, call: ToolCall, result: ToolResult) -> None:
        is_lost = result.whose in ("infrastructure", "unclear")
        kept: dict[str, Any] = {"tool": call.name, "arguments": dict(call.arguments), "outcome": result.outcome}
        if is_lost or result.reason == "refused":
            kept["outcome"] = result.whose if is_lost else result.reason
        if size(kept["arguments"], _MAX_KEPT_ARGUMENTS) > _MAX_KEPT_ARGUMENTS:
            kept |= {"arguments": bounded(kept["arguments"], _MAX_KEPT_ARGUMENTS), "is_cut": True}
        self.calls.append(kept)
        if self.fault is None and is_lost:
            self.fault = result

    def seen_by(self, outcome: Outcome, *, is_reward: bool) -> Outcome:
        """`outcome` with its calls. What a failure of the infrastructure led to is that failure: a code that fails
        after it, and for a reward a code that went on without."""
        outcome = replace(outcome, calls=tuple(self.calls))
        fault = self.fault
        if fault is None or not fault.whose or (outcome.error is None and not is_reward):
            return outcome
        error = outcome.error or f"the tool {fault.name} was not there: {fault.text}"[:1_000]
        return replace(outcome, error=error, reason=fault.reason, whose=fault.whose)


async def _run_in_thread(
    threads: ThreadPool,
    function: Callable[..., Any],
    *arguments: Any,
    give_up: Callable[[], None] | None = None,
    look: Callable[[], float] | None = None,
    first_look_s: float = 0.0,
) -> Any:
    job = threads.submit(function, *arguments)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look_again() -> None:
        nonlocal timer
        assert look is not None
        timer = loop.call_later(look(), look_again)

    if look is not None:
        timer = loop.call_later(first_look_s, look_again)
    try:
        await job.done
    finally:
        if timer is not None:
            timer.cancel()
        if not job.is_ended:
            threads.give_up(job, after=give_up)
    if job.error is not None:
        raise job.error
    return job.result


def _calls_in(asked: PendingCalls, called: Mapping[str, Tool]) -> tuple[dict[int, ToolCall], dict[int, dict[str, Any]]]:
    """The calls that code makes, of a megabyte each, and what is answered to those that are none. Not on the loop."""
    answers: dict[int, dict[str, Any]] = {}
    calls: dict[int, ToolCall] = {}
    left = _MAX_AT_ONCE
    for number, (name, args, kwargs) in asked.calls.items():
        try:
            if left >= 0:  # the rest is not looked at: one that is refused has been measured, too
                arguments = _bind_arguments(called[name], args, kwargs)
                chars = size(arguments, _MAX_ARGUMENTS)
                left -= min(chars, _MAX_ARGUMENTS)
                if chars > _MAX_ARGUMENTS:
                    raise ValueError(f"{name} takes at most {_MAX_ARGUMENTS} characters of arguments")
            if left < 0:
                raise ValueError(f"calls at once take at most {_MAX_AT_ONCE} characters of arguments")
            # What a call of the policy's own could hold: a tool that meets another key or type would be at fault.
            calls[number] = ToolCall(name, json.loads(json.dumps(arguments, allow_nan=False)))
        except (ValueError, TypeError, RecursionError) as error:
            answers[number] = {"exception": TypeError(str(error))}
    return calls, answers


def _bind_arguments(tool: Tool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = list(tool.parameters.get("properties", {}))
    if len(args) > len(names):
        raise ValueError(f"{tool.name} takes at most {len(names)} arguments; {len(args)} were given")
    return {**dict(zip(names, args, strict=False)), **kwargs}
