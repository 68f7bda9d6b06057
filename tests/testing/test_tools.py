"""The laws of tools: each is broken by a tool that breaks it alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ToolFailed, UsageError
from rlenv.testing import check_tool, check_tool_async, laws, tools
from rlenv.testing.resources import check_resource
from rlenv.testing.tools import fake_tool
from rlenv.tools.base import Tool, ToolContext, ToolOutput
from tests.support.laws import not_broken, rule_of

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANYTHING = {"type": "object", "additionalProperties": True}
Run = Callable[[Mapping[str, Any]], Any]


def tool(run: Run, **keys: Any) -> Tool:
    return fake_tool("made", run, parameters=NUMBER, **keys)


def fine(arguments: Mapping[str, Any]) -> str:
    return str(arguments["n"] + 1)


async def waits(arguments: Mapping[str, Any]) -> str:
    await asyncio.sleep(0)
    return fine(arguments)


def adds(arguments: Any) -> str:
    arguments["n"] += 1
    return "added"


def raises(arguments: Mapping[str, Any]) -> str:
    raise ValueError("a bug")


def fails(text: str) -> Run:
    def run(arguments: Mapping[str, Any]) -> str:
        raise ToolFailed(text)

    return run


def counting() -> Tool:
    count = itertools.count()
    return tool(lambda arguments: str(next(count)))


def counting_for_all_episodes() -> Tool:
    count = itertools.count()
    return tool(lambda arguments: str(next(count)), mutates=True)


def at_once() -> Tool:
    """Gives another text where a call is on its way already."""
    running = 0

    async def run(arguments: Mapping[str, Any]) -> str:
        nonlocal running
        running += 1
        alone = running == 1
        try:
            await asyncio.sleep(0)
            return "alone" if alone else "beside"
        finally:
            running -= 1

    return tool(run)


async def swallows(arguments: Mapping[str, Any]) -> str:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return "never mind"
    return "done"


async def goes_on(arguments: Mapping[str, Any]) -> str:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await asyncio.Event().wait()
    return "done"


def spoiled_by_cancelling() -> Tool:
    state = {"ok": True}

    async def run(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            state["ok"] = False
            raise
        return str(state["ok"])

    return tool(run)


def of_wrong_mode() -> Tool:
    return replace(tool(fine), mode="async")


GOOD: dict[str, Any] = {"good": [{"n": 1}], "bad": [{}, {"n": "1"}]}
BROKEN: list[tuple[str, Callable[[], Tool], dict[str, Any]]] = [
    ("a tool has a name", lambda: replace(tool(fine), name=""), {}),
    ("a tool has a description that the model can act on", lambda: replace(tool(fine), description=" "), {}),
    ("parameters are the JSON Schema of an object", lambda: replace(tool(fine), parameters={"type": "string"}), {}),
    ("a tool's schema is JSON", lambda: replace(tool(fine), parameters={**NUMBER, "default": {1}}), {}),
    ("a tool's schema is JSON", lambda: replace(tool(fine), parameters={**NUMBER, "default": (1,)}), {}),
    ("run is a coroutine function exactly in mode async", of_wrong_mode, {}),
    ("good arguments give a result", lambda: tool(raises), {}),
    ("a tool leaves its arguments as they are", lambda: tool(adds), {}),
    (
        "a value is JSON, so that trajectories can keep it",
        lambda: tool(lambda arguments: ToolOutput("a", {"b": object()})),
        {},
    ),
    ("a tool that does not mutate gives equal results for equal calls", counting, {}),
    ("calls at once do not disturb each other", at_once, {}),
    (
        "arguments that do not fit are refused",
        lambda: replace(tool(lambda arguments: "1"), parameters=ANYTHING),
        {},
    ),
    ("a declared failure is a failed result", lambda: tool(fine), {"failing": [{"n": 2}]}),
    (
        "a failure is declared with ToolFailed and a text for the model",
        lambda: tool(lambda arguments: raises(arguments) if arguments["n"] == 2 else "1"),
        {"failing": [{"n": 2}]},
    ),
    (
        "no traceback reaches the model",
        lambda: tool(lambda arguments: 'Traceback (most recent call last)\n  File "a.py", line 3'),
        {},
    ),
    ("a call that is cancelled raises CancelledError", lambda: tool(swallows), {}),
    ("a call that is cancelled ends", lambda: tool(goes_on), {"limit_s": 0.05}),
    ("a call that was cancelled leaves the tool usable", spoiled_by_cancelling, {}),
    ("calls of one episode do not show in another", counting_for_all_episodes, {}),
]


def keeps(made: Tool, **keys: Any) -> None:
    check_tool(made, **{**deepcopy(GOOD), **keys})


@pytest.mark.parametrize("made", [lambda: tool(fine), lambda: tool(waits), lambda: tool(fine, mode="thread")])
def test_a_tool_that_keeps_the_laws_passes(made: Callable[[], Tool]) -> None:
    keeps(made())


@pytest.mark.parametrize(("rule", "made", "keys"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_each_law_is_broken_by_a_tool_that_breaks_it_alone(
    rule: str, made: Callable[[], Tool], keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    with pytest.raises(AssertionError) as found:
        keeps(made(), **keys)
    assert rule_of(found.value) == rule


def test_every_law_of_tools_has_a_tool_that_breaks_it() -> None:
    # What an executor makes of any tool's output: no tool can break it.
    kept_by_the_executor = {"a result has a text", "details are JSON, so that trajectories can keep them"}
    assert not_broken(tools, {*(rule for rule, _, _ in BROKEN), *kept_by_the_executor}) == []
    assert not_broken(laws, [rule for rule, _, _ in BROKEN]) == []


def test_what_a_tool_keeps_in_its_resource_is_the_episodes_own(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text("class Counter:\n    n = 0\n    def up(self): self.n += 1\n")
    entry = {"kind": "python", "function": "counter.py:Counter"}
    counter = laws.compiled("resources", entry, name="counter", base=tmp_path)

    def run(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        context.resources["counter"].up()
        return ToolOutput(str(context.resources["counter"].n))

    made = replace(tool(fine), run=run, mutates=True)
    check_tool(made, good=[{"n": 1}, {"n": 1}], resources={"counter": counter})
    check_resource(counter, look=lambda one: one.n, change=lambda one: one.up())


def test_an_entry_of_a_spec_is_compiled_as_a_spec_would() -> None:
    check_tool({"kind": "calculator"}, good=[{"expression": "1 + 1"}], failing=[{"expression": "1/0"}])


def test_a_loop_that_runs_is_told_of_the_twin() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="await check_tool_async in it"):
            keeps(tool(fine))
        await check_tool_async(tool(fine), **GOOD)

    asyncio.run(main())
