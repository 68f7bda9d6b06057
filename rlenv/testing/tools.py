"""Fake tools for tests, and the laws that every tool keeps.

Run the laws on your own tools:

    from rlenv.testing.tools import check_tool

    def test_my_tool_keeps_the_laws():
        check_tool(my_tool, good=[{"text": "a"}], bad=[{"text": 3}, {}])
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from rlenv._hosted import Scope
from rlenv.errors import ToolFailed
from rlenv.executor import Executor
from rlenv.messages import ToolCall, ToolResult
from rlenv.spec import CallsSpec
from rlenv.tools.base import Mode, Tool, ToolContext, ToolOutput

__all__ = ["Gate", "call", "check_tool", "context", "fake_tool", "kept", "refuse"]

_ANYTHING: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|File \".+\", line \d+")


def context(
    *, task: Mapping[str, Any] | None = None, resources: Mapping[str, Any] | None = None, seconds: float = 60.0
) -> ToolContext:
    """What one call may see, with a deadline `seconds` from now."""
    return ToolContext(task or {}, resources or {}, time.monotonic() + seconds)


def fake_tool(
    name: str,
    run: Callable[..., Any],
    *,
    mode: Mode | None = None,
    parameters: Mapping[str, Any] = _ANYTHING,
    timeout_s: float | None = None,
    concurrency: int | None = None,
    mutates: bool = False,
) -> Tool:
    """A tool from a function of the arguments that returns a text, a ToolOutput, or a coroutine of one.

    `mode` is `async` for a coroutine function and `inline` otherwise, unless given.
    """

    def output(result: Any) -> ToolOutput:
        return result if isinstance(result, ToolOutput) else ToolOutput(str(result), result)

    def plain(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        return output(run(arguments))

    async def coroutine(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        return output(await run(arguments))

    is_async = inspect.iscoroutinefunction(run)
    return Tool(
        name=name,
        description=f"The fake tool {name}.",
        parameters=parameters,
        run=coroutine if is_async else plain,
        mode=mode or ("async" if is_async else "inline"),
        timeout_s=timeout_s,
        concurrency=concurrency,
        mutates=mutates,
    )


class Gate:
    """Holds calls until they are let go, so that a test decides the order in which they end.

    `wait` is for coroutines, `block` for threads; `started` lists who came, in order. A wait ends with an error after
    `limit_s`, so that a broken test fails and does not hang.
    """

    def __init__(self, *, limit_s: float = 30.0) -> None:
        self.started: list[Any] = []
        self._limit_s = limit_s
        self._open: dict[Any, asyncio.Event] = {}
        self._thread = threading.Event()

    async def wait(self, who: Any) -> None:
        """Waits, in a coroutine, until `let(who)`."""
        self.started.append(who)
        await asyncio.wait_for(self._event(who).wait(), self._limit_s)

    def block(self, who: Any) -> None:
        """Blocks the calling thread until `unblock()`."""
        self.started.append(who)
        if not self._thread.wait(self._limit_s):
            raise TimeoutError(f"nobody let {who!r} go within {self._limit_s:g} s")

    def let(self, who: Any) -> None:
        """Lets one coroutine go, now or when it comes."""
        self._event(who).set()

    def unblock(self) -> None:
        """Lets all threads go."""
        self._thread.set()

    async def until_started(self, count: int) -> None:
        """Waits until `count` calls have come, whether or not they were let go."""
        end = time.monotonic() + self._limit_s
        while len(self.started) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.started)} of {count} calls came within {self._limit_s:g} s")
            await asyncio.sleep(0.001)

    def _event(self, who: Any) -> asyncio.Event:
        return self._open.setdefault(who, asyncio.Event())


@asynccontextmanager
async def kept(make_context: Callable[[], ToolContext] = context) -> AsyncIterator[Callable[[], ToolContext]]:
    """Gives contexts that keep what tools open, as in one episode of one environment; closes it at the end."""
    scope, shared = Scope(), Scope()
    try:
        yield lambda: replace(make_context(), scope=lambda: scope, shared=lambda: shared)
    finally:
        try:
            await scope.aclose()
        finally:
            await shared.aclose()


async def call(tool: Tool, arguments: Mapping[str, Any], *, within: ToolContext | None = None) -> ToolResult:
    """The result of one call through an executor with default limits."""
    executor = Executor({tool.name: tool}, calls=CallsSpec())
    (result,) = await executor.run([ToolCall(tool.name, arguments)], within or context())
    return result


def check_tool(
    tool: Tool,
    *,
    good: Sequence[Mapping[str, Any]],
    bad: Sequence[Mapping[str, Any]] = (),
    failing: Sequence[Mapping[str, Any]] = (),
    make_context: Callable[[], ToolContext] = context,
) -> None:
    """Runs the laws of tools on `tool`; a law that is broken is an AssertionError that states it.

    Args:
        good: arguments that give a result; for a tool that does not mutate, equal results each time.
        bad: arguments that do not fit the schema.
        failing: arguments that fit the schema and for which the tool declares a failure.
        make_context: what calls see, made anew for each.
    """
    assert good, "check_tool needs at least one set of good arguments"
    _check_declaration(tool)

    async def laws() -> None:
        async with kept(make_context) as make:
            await obey(make)

    async def obey(make_context: Callable[[], ToolContext]) -> None:
        for arguments in good:
            await _check_good(tool, arguments, make_context)
        for arguments in bad:
            result = await call(tool, arguments, within=make_context())
            assert result.outcome == "bad_arguments", (
                f"law: arguments that do not fit are refused; {arguments}: {result}"
            )
        for arguments in failing:
            result = await call(tool, arguments, within=make_context())
            assert result.outcome in ("failed", "timeout", "bad_arguments"), (
                f"law: a declared failure is a failed result; {arguments}: {result}"
            )
            assert result.text != f"the tool {tool.name} failed", (
                f"law: a failure is declared with ToolFailed and a text for the model; {arguments}"
            )
            _check_text(result)

    asyncio.run(laws())


def _check_declaration(tool: Tool) -> None:
    assert tool.name, "law: a tool has a name"
    assert tool.description.strip(), f"law: a tool has a description that the model can act on; {tool.name} has none"
    assert tool.parameters.get("type") == "object", f"law: parameters are the JSON Schema of an object; {tool.name}"
    assert orjson.loads(orjson.dumps(tool.schema)) == tool.schema, f"law: a tool's schema is JSON; {tool.name}"
    is_async = inspect.iscoroutinefunction(tool.run)
    assert is_async == (tool.mode == "async"), f"law: run is a coroutine function exactly in mode async; {tool.name}"


async def _check_good(tool: Tool, arguments: Mapping[str, Any], make_context: Callable[[], ToolContext]) -> None:
    before = orjson.dumps(dict(arguments))
    result = await call(tool, arguments, within=make_context())
    assert result.outcome == "ok", f"law: good arguments give a result; {arguments}: {result}"
    _check_text(result)
    assert orjson.dumps(dict(arguments)) == before, f"law: a tool leaves its arguments as they are; {arguments}"
    try:
        orjson.dumps(result.value)
    except TypeError as error:
        raise AssertionError(f"law: a value is JSON, so that trajectories can keep it; {arguments}: {error}") from error
    if not tool.mutates:
        again = await call(tool, arguments, within=make_context())
        assert (again.text, again.value) == (result.text, result.value), (
            f"law: a tool that does not mutate gives equal results for equal calls; {arguments}"
        )
        executor = Executor({tool.name: tool}, calls=CallsSpec())
        many = await executor.run([ToolCall(tool.name, arguments)] * 4, make_context())
        assert {one.text for one in many} == {result.text}, f"law: calls at once do not disturb each other; {arguments}"


def _check_text(result: ToolResult) -> None:
    assert isinstance(result.text, str), f"law: a result has a text; found {result.text!r:.80}"
    assert not _TRACEBACK.search(result.text), f"law: no traceback reaches the model; found {result.text!r:.200}"


def refuse(message: str) -> Callable[[Mapping[str, Any]], str]:
    """A function for `fake_tool` that declares a failure with `message`."""

    def run(arguments: Mapping[str, Any]) -> str:
        raise ToolFailed(message)

    return run
