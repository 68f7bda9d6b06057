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
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from rlenv.calls.executor import Executor
from rlenv.concurrency.scope import Scope
from rlenv.errors import ToolFailed
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.resources.base import Resource, ResourceContext
from rlenv.testing.laws import LIMIT_S, broken, compiled, ends_when_cancelled, in_own_loop, law, short
from rlenv.tools.base import Mode, Tool, ToolContext, ToolOutput

__all__ = ["Gate", "call", "check_tool", "check_tool_async", "context", "fake_tool", "kept", "refuse"]

_ANYTHING: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|File \".+\", line \d+")


def context(
    *, task: Mapping[str, Any] | None = None, resources: Mapping[str, Any] | None = None, seconds: float = 60.0
) -> ToolContext:
    """The context of one call, with a deadline `seconds` from now."""
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
async def kept(
    make_context: Callable[[], ToolContext] = context,
    *,
    resources: Mapping[str, Resource] | None = None,
    shared: Scope | None = None,
) -> AsyncIterator[Callable[[], ToolContext]]:
    """Gives contexts that keep what tools open, as in one episode of one environment; closes it at the end.

    Args:
        resources: opened for the episode, each under its name in the contexts' `resources`.
        shared: what the environment keeps, where several episodes have one; the caller closes it.
    """
    scope, environment = Scope(), shared if shared is not None else Scope()
    async with AsyncExitStack() as stack:
        if shared is None:
            stack.push_async_callback(environment.aclose)
        opened: dict[str, Any] = {}
        for name, resource in (resources or {}).items():
            seen = ResourceContext(make_context().task)
            opened[name] = await stack.enter_async_context(resource.open(seen))
        stack.push_async_callback(scope.aclose)  # what tools keep goes first, as it may use resources

        def make() -> ToolContext:
            made = make_context()
            held = {**made.resources, **opened}
            return replace(made, resources=held, scope=lambda: scope, shared=lambda: environment)

        yield make


async def call(tool: Tool, arguments: Mapping[str, Any], *, within: ToolContext | None = None) -> ToolResult:
    """The result of one call through an executor with default limits."""
    executor = Executor({tool.name: tool}, calls=CallsSpec())
    (result,) = await executor.run([ToolCall(tool.name, arguments)], within or context())
    return result


async def check_tool_async(
    tool: Tool | Mapping[str, Any],
    *,
    good: Sequence[Mapping[str, Any]],
    bad: Sequence[Mapping[str, Any]] = (),
    failing: Sequence[Mapping[str, Any]] = (),
    make_context: Callable[[], ToolContext] = context,
    resources: Mapping[str, Resource] | None = None,
    base: Path = Path(),
    limit_s: float = LIMIT_S,
    **parts: Any,
) -> None:
    """Runs the laws of tools on `tool`; a law that is broken is an AssertionError that states it.

    Args:
        tool: a compiled tool, or an entry under `tools:` that gives one.
        good: arguments that give a result; for a tool that does not mutate, equal results each time.
        bad: arguments that do not fit the schema.
        failing: arguments that fit the schema and for which the tool declares a failure.
        make_context: what calls see, made anew for each.
        resources: compiled resources that are opened for each episode; what the tool changes in them is theirs.
        base: the folder that an entry's paths are relative to.
        limit_s: how long a call that was cancelled may still go on, in seconds.
        parts: what an entry is compiled with beside it (`endpoints`, `vars`, `nest`).
    """
    assert good, "check_tool needs at least one set of good arguments"
    if isinstance(tool, Mapping):  # an entry may give several
        made = compiled("tools", tool, name="tool", base=base, resources=resources or {}, **parts)
        assert len(made) == 1, f"the entry gives {len(made)} tools; compile it, and check one after the other"
        tool = made[0]
    assert isinstance(tool, Tool)
    _check_declaration(tool)
    async with kept(make_context, resources=resources) as make:
        for arguments in good:
            await _check_good(tool, arguments, make)
        for arguments in bad:
            result = await call(tool, arguments, within=make())
            law("arguments that do not fit are refused", result.outcome == "bad_arguments", f"{arguments}: {result}")
        for arguments in failing:
            await _check_failing(tool, arguments, make)
        if tool.mode == "async":
            await _check_cancelled(tool, good[0], make, limit_s)
    if not (tool.mutates and tool.reaches_out):  # what such a call changes is no environment's
        await _check_episodes(tool, good, make_context, resources)


check_tool = in_own_loop(check_tool_async)


def _check_declaration(tool: Tool) -> None:
    law("a tool has a name", bool(tool.name), repr(tool.name))
    law("a tool has a description that the model can act on", bool(tool.description.strip()), f"{tool.name} has none")
    is_object = tool.parameters.get("type") == "object"
    law("parameters are the JSON Schema of an object", is_object, f"{tool.name}: {short(tool.parameters)}")
    try:
        read = orjson.loads(orjson.dumps(tool.schema))
    except TypeError as error:
        raise broken("a tool's schema is JSON", f"{tool.name}: {error}") from error
    law("a tool's schema is JSON", read == tool.schema, f"{tool.name}: {short(tool.schema)}")
    is_async = inspect.iscoroutinefunction(tool.run)
    law(
        "run is a coroutine function exactly in mode async",
        is_async == (tool.mode == "async"),
        f"{tool.name} has mode {tool.mode}",
    )


async def _check_good(tool: Tool, arguments: Mapping[str, Any], make_context: Callable[[], ToolContext]) -> None:
    before = orjson.dumps(dict(arguments))
    result = await call(tool, arguments, within=make_context())
    law("good arguments give a result", result.outcome == "ok", f"{arguments}: {result}")
    _check_text(result)
    law("a tool leaves its arguments as they are", orjson.dumps(dict(arguments)) == before, arguments)
    for what, value in (("a value", result.value), ("details", result.details)):
        try:
            orjson.dumps(value)
        except TypeError as error:
            verb = "is" if what == "a value" else "are"
            raise broken(f"{what} {verb} JSON, so that trajectories can keep it", f"{arguments}: {error}") from error
    if not tool.mutates:
        again = await call(tool, arguments, within=make_context())
        law(
            "a tool that does not mutate gives equal results for equal calls",
            _told_parts(again) == _told_parts(result),
            f"{arguments}: {short(result.text)}, then {short(again.text)}",
        )
        with closing(Executor({tool.name: tool}, calls=CallsSpec())) as executor:
            many = await executor.run([ToolCall(tool.name, arguments)] * 4, make_context())
        told = {one.text for one in many}
        law("calls at once do not disturb each other", told == {result.text}, f"{arguments}: {short(told)}")


async def _check_failing(tool: Tool, arguments: Mapping[str, Any], make_context: Callable[[], ToolContext]) -> None:
    result = await call(tool, arguments, within=make_context())
    is_failed = result.outcome in ("failed", "timeout", "bad_arguments")
    law("a declared failure is a failed result", is_failed, f"{arguments}: {result}")
    law(
        "a failure is declared with ToolFailed and a text for the model",
        result.text != f"the tool {tool.name} failed",
        f"{arguments}: {result.text}",
    )
    _check_text(result)


async def _check_cancelled(
    tool: Tool, arguments: Mapping[str, Any], make_context: Callable[[], ToolContext], limit_s: float
) -> None:
    before = await call(tool, arguments, within=make_context())
    await ends_when_cancelled(tool.run(dict(arguments), make_context()), "a call", limit_s)
    after = await call(tool, arguments, within=make_context())
    law(
        "a call that was cancelled leaves the tool usable",
        after.outcome == "ok" and (tool.mutates or _told_parts(after) == _told_parts(before)),
        f"{arguments}: {after}",
    )


async def _check_episodes(
    tool: Tool,
    good: Sequence[Mapping[str, Any]],
    make_context: Callable[[], ToolContext],
    resources: Mapping[str, Resource] | None,
) -> None:
    async with aclosing(Scope()) as shared:
        begun = partial(kept, make_context, resources=resources, shared=shared)
        async with begun() as make:
            alone = [_told_parts(await call(tool, arguments, within=make())) for arguments in good]
        async with begun() as one, begun() as other:
            for arguments, expected in zip(good, alone, strict=True):
                for make in (one, other):
                    found = _told_parts(await call(tool, arguments, within=make()))
                    law(
                        "calls of one episode do not show in another",
                        found == expected,
                        f"{arguments}: {short(expected)} alone, {short(found)} beside another episode",
                    )


def _told_parts(result: ToolResult) -> tuple[str, str, Any]:
    return (result.outcome, result.text, result.value)


def _check_text(result: ToolResult) -> None:
    law("a result has a text", isinstance(result.text, str), short(result.text))
    law("no traceback reaches the model", not _TRACEBACK.search(result.text), short(result.text))


def refuse(message: str) -> Callable[[Mapping[str, Any]], str]:
    """A function for `fake_tool` that declares a failure with `message`."""

    def run(arguments: Mapping[str, Any]) -> str:
        raise ToolFailed(message)

    return run
