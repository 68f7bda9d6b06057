"""Whatever a recorded call ended in, a replay ends in the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.calls.taped import asked_of
from rlenv.concurrency.lanes import Lane, entered
from rlenv.errors import CassetteError, EpisodeError, ResourceError, ToolFailed
from rlenv.language.spec import CallsSpec, FaultsSpec
from rlenv.messages import Image, ToolCall
from rlenv.runs.cassettes import Player, Recorder
from rlenv.runs.events import Reel, parse_events
from rlenv.testing.tools import context
from rlenv.tools.base import CallPolicy, Mode, Tool, ToolContext, ToolOutput

Body = Callable[[], Any]


class Panic(BaseException):
    """What compiled libraries raise: no Exception."""


def raising(error: Callable[[], BaseException]) -> Body:
    def body() -> Any:
        raise error()

    return body


ENDINGS: dict[str, Body] = {
    "a text": lambda: ToolOutput("said"),
    "a value": lambda: ToolOutput("said", {"n": [1, None, "é\ud800"]}, details={"model": "m"}),
    "an image": lambda: ToolOutput("seen", None, (Image("iVBORw0KGgo=", "image/png"),)),
    "a failure": raising(lambda: ToolFailed("no", reason="gone", details={"at": [1, 2]}, whose="policy")),
    "a failure that may pass": raising(lambda: ToolFailed("busy", reason="busy", retryable=True)),
    "bad arguments": raising(lambda: ToolFailed("no such row", reason="bad_arguments")),
    "an end of the episode": raising(lambda: EpisodeError("the lab is closed", reason="closed")),
    "a lost resource": raising(lambda: ResourceError("the file is gone")),
    "a bug": raising(lambda: ValueError("not what was meant")),
    "a bug that is no Exception": raising(lambda: Panic("index out of bounds")),
    "a cancellation that nobody asked for": raising(asyncio.CancelledError),
    "nothing": lambda: None,
    "no output": lambda: "said",
    "an output without a text": lambda: ToolOutput(3),  # type: ignore[arg-type]
}


def tool_of(name: str, body: Body, mode: Mode) -> Tool:
    def plain(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        return body()

    async def coroutine(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        await asyncio.sleep(0)
        return body()

    run: Any = coroutine if mode == "async" else plain
    return Tool(name=name, description=name, parameters={"type": "object"}, run=run, mode=mode, reaches_out=True)


def ended(lane: Lane, tools: list[Tool]) -> tuple[Any, ...]:
    """What a turn with a call of each tool came to, without its times."""
    runner = Executor({tool.name: tool for tool in tools}, calls=CallsSpec(timeout_s=10.0))

    async def turn() -> tuple[Any, ...]:
        with entered(lane.at("turn 0")):
            return await runner.run([ToolCall(tool.name, {}) for tool in tools], context())

    try:
        results = asyncio.run(asyncio.wait_for(turn(), 60))
    except EpisodeError as error:
        return type(error) is CassetteError, error.reason, str(error)
    finally:
        runner.close()
    return tuple(replace(result, seconds=0.0, started=0.0, waited=0.0) for result in results)


def never() -> Any:
    raise AssertionError("a replay runs no tool that reaches out")


def player_of(recorder: Recorder, lane: Lane) -> Player:
    return Player(Reel(None, {"run-0": parse_events(recorder.take_events(lane), "run-0")}))


def recorded(tools: list[Tool]) -> tuple[tuple[Any, ...], Player]:
    recorder = Recorder()
    lane = recorder.lane()
    result = ended(lane, tools)
    return result, player_of(recorder, lane)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mode", ["inline", "async", "thread"])
@pytest.mark.parametrize("policy", [None, CallPolicy(faults=FaultsSpec()), CallPolicy(faults=FaultsSpec(), retries=1)])
def test_a_replay_ends_as_the_call_did(ending: str, mode: Mode, policy: CallPolicy | None) -> None:
    def with_policy(body: Body) -> list[Tool]:
        return [replace(tool_of("ask", body, mode), policy=policy)]

    then, player = recorded(with_policy(ENDINGS[ending]))
    assert ended(player.lane("run-0"), with_policy(never)) == then


@pytest.mark.parametrize("policy", [None, CallPolicy(faults=FaultsSpec())])
def test_a_call_that_never_ended_does_not_end_again(policy: CallPolicy | None) -> None:
    def tools(first: Body, second: Any) -> list[Tool]:
        slow = Tool(name="slow", description="", parameters={"type": "object"}, run=second, mode="async")
        slow = replace(slow, reaches_out=True, policy=policy)
        return [slow, tool_of("ask", first, "async")]

    async def waiting(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        await asyncio.get_running_loop().create_future()

    async def unasked(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        never()

    then, player = recorded(tools(ENDINGS["a lost resource"], waiting))
    assert then[1:] == ("resource", "the file is gone")
    assert ended(player.lane("run-0"), tools(never, unasked)) == then


@pytest.mark.parametrize("policy", [None, CallPolicy(faults=FaultsSpec())])
def test_a_call_that_was_stopped_at_its_limit_is_stopped_again(policy: CallPolicy | None) -> None:
    async def waiting(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        await asyncio.get_running_loop().create_future()

    def tools(run: Any) -> list[Tool]:
        slow = Tool(name="slow", description="", parameters={"type": "object"}, run=run, mode="async", timeout_s=0.01)
        return [replace(slow, reaches_out=True, policy=policy)]

    async def unasked(arguments: Mapping[str, Any], call: ToolContext) -> Any:
        never()

    then, player = recorded(tools(waiting))
    assert then[0].outcome == "timeout"
    assert ended(player.lane("run-0"), tools(unasked)) == then


@pytest.mark.parametrize("policy", [None, CallPolicy(faults=FaultsSpec())])
def test_a_value_that_no_json_holds_is_a_miss_that_says_so(policy: CallPolicy | None) -> None:
    def tools(body: Body) -> list[Tool]:
        return [replace(tool_of("ask", body, "async"), policy=policy)]

    then, player = recorded(tools(lambda: ToolOutput("said", {1, 2})))
    assert then[0].outcome == "ok"
    is_miss, reason, said = ended(player.lane("run-0"), tools(never))
    assert (is_miss, reason) == (True, "cassette")
    assert said.startswith("turn 0 call 0: the tape has no result of")


@pytest.mark.parametrize("policy", [None, CallPolicy(faults=FaultsSpec())])
def test_an_answer_of_another_kind_than_its_request_is_told(policy: CallPolicy | None) -> None:
    tool = replace(tool_of("ask", never, "async"), policy=policy)
    asked = asked_of(tool, {}, context())
    assert asked is not None
    recorder = Recorder()
    lane = recorder.lane()
    call = lane.at("turn 0 call 0")
    recorder.keep(call, recorder.look(call, asked).ended("ok", {"something": "else"}))
    is_miss, _, said = ended(player_of(recorder, lane).lane("run-0"), [tool])
    assert is_miss
    assert said.startswith("turn 0 call 0: what the tape has of ask is no answer of its kind: ")
