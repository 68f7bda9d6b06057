"""From calls to results: order, limits, and what a misbehaving tool may cost."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv._base.bounded import size
from rlenv.calls.executor import Executor
from rlenv.concurrency.deadline import CallSlots
from rlenv.errors import EpisodeError, ResourceError, ToolFailed, UsageError
from rlenv.language.spec import CallsSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.testing.tools import Gate, context, fake_tool
from rlenv.tools.base import Tool, ToolContext, ToolOutput

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def executor(*tools: Tool, timeout_s: float = 10.0, concurrency: int = 256, **options: Any) -> Executor:
    calls = CallsSpec(timeout_s=timeout_s, concurrency=concurrency)
    return Executor({tool.name: tool for tool in tools}, calls=calls, **options)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def one(runner: Executor, name: str, seconds: float = 60.0, **arguments: Any) -> ToolResult:
    async def work() -> ToolResult:
        (result,) = await runner.run([ToolCall(name, arguments, id="c1")], context(seconds=seconds))
        return result

    return run(work())


def echo(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("n", ""))


async def echo_later(arguments: Mapping[str, Any]) -> str:
    await asyncio.sleep(0)
    return echo(arguments)


ALL_MODES = pytest.mark.parametrize(
    "tool",
    [fake_tool("t", echo), fake_tool("t", echo_later), fake_tool("t", echo, mode="thread")],
    ids=["inline", "async", "thread"],
)


@ALL_MODES
def test_a_call_gives_its_text_value_and_id(tool: Tool) -> None:
    result = one(executor(tool), "t", n=3)
    assert (result.name, result.text, result.value, result.outcome, result.call_id) == ("t", "3", "3", "ok", "c1")
    assert result.seconds >= 0


@ALL_MODES
def test_calls_of_one_turn_give_results_in_call_order(tool: Tool) -> None:
    runner = executor(tool)
    results = run(runner.run([ToolCall("t", {"n": n}) for n in range(20)], context()))
    assert [result.text for result in results] == [str(n) for n in range(20)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8).flatmap(lambda size: st.permutations(range(size))))
def test_results_stand_in_call_order_whichever_call_ends_first(order: list[int]) -> None:
    async def work() -> None:
        gate = Gate()

        async def held(arguments: Mapping[str, Any]) -> str:
            await gate.wait(arguments["n"])
            return str(arguments["n"])

        runner = executor(fake_tool("held", held))
        turn = asyncio.ensure_future(runner.run([ToolCall("held", {"n": n}) for n in range(len(order))], context()))
        await gate.until_started(len(order))
        for who in order:
            gate.let(who)
            await asyncio.sleep(0)
        assert [result.text for result in await turn] == [str(n) for n in range(len(order))]

    run(work())


def test_a_turn_without_calls_gives_no_results() -> None:
    assert run(executor().run([], context())) == ()


def test_calls_of_one_turn_run_at_once() -> None:
    async def work() -> None:
        gate = Gate()

        async def held(arguments: Mapping[str, Any]) -> str:
            await gate.wait(arguments["n"])
            return "ended"

        turn = asyncio.ensure_future(
            executor(fake_tool("held", held)).run([ToolCall("held", {"n": n}) for n in range(3)], context())
        )
        await gate.until_started(3)
        for n in range(3):
            gate.let(n)
        assert len(await turn) == 3

    run(work())


def test_a_tool_that_mutates_runs_alone_and_in_its_place() -> None:
    async def work() -> None:
        running: set[str] = set()
        seen: list[tuple[str, frozenset[str]]] = []

        def tool(name: str, *, mutates: bool = False) -> Tool:
            async def body(arguments: Mapping[str, Any]) -> str:
                running.add(name)
                await asyncio.sleep(0)
                seen.append((name, frozenset(running)))
                running.discard(name)
                return name

            return fake_tool(name, body, mutates=mutates)

        runner = executor(tool("a"), tool("b"), tool("write", mutates=True))
        names = ["a", "b", "write", "a", "write"]
        results = await runner.run([ToolCall(name, {}) for name in names], context())
        assert [result.text for result in results] == names
        assert [alone for name, alone in seen if name == "write"] == [frozenset({"write"})] * 2
        assert [name for name, _ in seen] == names

    run(work())


def test_an_unknown_tool_is_answered_with_the_nearest_and_all_that_exist() -> None:
    result = one(executor(fake_tool("search", echo), fake_tool("calculate", echo)), "Calculator")
    assert result.outcome == "unknown_tool"
    assert "did you mean 'calculate'?" in result.text
    assert "available: search, calculate" in result.text


def test_a_malformed_call_is_answered_with_its_reason() -> None:
    (result,) = run(executor().run([MalformedCall("{", "the call is not JSON")], context()))
    assert (result.outcome, result.text) == ("malformed", "the call is not JSON")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": "3"}, "argument 'n': found \"3\", expected a whole number"),
        ({}, "missing argument 'n' (a whole number)"),
        ({"n": 1, "m": 2}, "unknown argument 'm'; expected: n"),
        ({"n": 1, "N": 2}, "unknown argument 'N'; did you mean 'n'?"),
        ({"n": [1] * 1000}, "argument 'n': found a list of 1000, expected a whole number"),
        ({"n": "x" * 10_000}, "expected a whole number"),
    ],
)
def test_arguments_that_do_not_fit_are_explained_and_the_tool_does_not_run(
    arguments: dict[str, Any], says: str
) -> None:
    calls: list[Any] = []

    def run(given: Any) -> str:
        calls.append(given)
        return "ran"

    result = one(executor(fake_tool("t", run, parameters=NUMBER)), "t", **arguments)
    assert result.outcome == "bad_arguments"
    assert says in result.text
    assert len(result.text) < 500
    assert calls == []


@pytest.mark.parametrize("rows", [[0] * 9_999, [[[]] * 2] * 3_333, [{"a": [0]}] * 3_333])
@pytest.mark.parametrize("tool", [fake_tool("t", echo), fake_tool("t", echo_later)])
def test_a_policys_arguments_hold_a_bounded_number_of_values_however_they_are_nested(tool: Tool, rows: Any) -> None:
    runner, asked = executor(tool), replace(context(), turn=0)

    def outcome(given: Any, context: ToolContext) -> str:
        (result,) = run(runner.run([ToolCall("t", {"rows": given})], context))
        return str(result.outcome)

    assert outcome(rows, asked) == "ok"
    assert outcome([*rows, 1], asked) == "bad_arguments"
    assert outcome([*rows, 1], context()) == "ok", "a reward's call is the author's"


def test_a_schema_may_allow_arguments_that_it_does_not_name() -> None:
    parameters = {"type": "object", "properties": {}, "additionalProperties": True}
    assert one(executor(fake_tool("t", echo, parameters=parameters)), "t", n=1).outcome == "ok"


def test_parameters_that_are_no_schema_are_the_authors_mistake() -> None:
    with pytest.raises(UsageError, match="parameters of tool 't'"):
        executor(fake_tool("t", echo, parameters={"type": "object", "properties": {"a": {"type": "strin"}}}))


def raises(error: Exception) -> list[Tool]:
    def plain(arguments: Mapping[str, Any]) -> str:
        raise error

    async def later(arguments: Mapping[str, Any]) -> str:
        raise error

    async def much_later(arguments: Mapping[str, Any]) -> str:
        await asyncio.sleep(0)
        raise error

    return [
        fake_tool("inline", plain),
        fake_tool("async", later),
        fake_tool("async2", much_later),
        fake_tool("thread", plain, mode="thread"),
    ]


def test_a_declared_failure_is_shown_as_it_stands() -> None:
    runner = executor(*raises(ToolFailed("no such city")))
    for name in ("inline", "async", "async2", "thread"):
        result = one(runner, name)
        assert (result.outcome, result.text) == ("failed", "no such city")


def test_any_other_exception_is_a_plain_failure_and_goes_to_the_author(caplog: pytest.LogCaptureFixture) -> None:
    runner = executor(*raises(KeyError("/secret/path")))
    for name in ("inline", "async", "async2", "thread"):
        with caplog.at_level(logging.WARNING, logger="rlenv.tools"):
            result = one(runner, name)
        assert (result.outcome, result.text) == ("failed", f"the tool {name} failed")
    assert "/secret/path" in caplog.text


def test_a_tool_that_always_fails_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    runner = executor(raises(ValueError("again"))[0])

    async def work() -> None:
        for _ in range(200):
            await runner.run([ToolCall("inline", {})], context())

    with caplog.at_level(logging.WARNING, logger="rlenv.tools"):
        run(work())
    assert 1 <= len(caplog.records) < 20


@pytest.mark.parametrize("index", range(4))
def test_an_infrastructure_failure_is_no_result(index: int) -> None:
    tool = raises(ResourceError("the database is gone"))[index]
    with pytest.raises(EpisodeError, match="the database is gone"):
        one(executor(tool), tool.name)


def test_an_infrastructure_failure_cancels_the_turns_other_calls() -> None:
    cancelled: list[str] = []

    async def waits(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("waits")
            raise
        return "never"

    runner = executor(fake_tool("waits", waits), raises(ResourceError("gone"))[2])
    with pytest.raises(ResourceError):
        run(runner.run([ToolCall("waits", {}), ToolCall("async2", {})], context()))
    assert cancelled == ["waits"]


def test_a_tool_that_exits_the_process_only_fails() -> None:
    def leaves(arguments: Mapping[str, Any]) -> str:
        sys.exit(3)

    runner = executor(fake_tool("inline", leaves), fake_tool("thread", leaves, mode="thread"))
    assert one(runner, "inline").outcome == one(runner, "thread").outcome == "failed"


def test_a_tool_that_gives_no_tool_output_fails(caplog: pytest.LogCaptureFixture) -> None:
    tool = Tool(name="t", description="d", parameters={"type": "object"}, run=lambda a, c: "text", mode="inline")
    with caplog.at_level(logging.WARNING, logger="rlenv.tools"):
        assert one(executor(tool), "t").outcome == "failed"
    assert "not a ToolOutput" in caplog.text


def test_a_huge_result_is_cut_at_once_to_its_head_and_tail() -> None:
    text = "a" * 5_000_000 + "b" * 5_000_000
    for mode in ("inline", "thread"):
        tool = fake_tool("t", lambda arguments: text, mode=mode)
        result = one(executor(tool, max_chars=1_000), "t")
        assert len(result.text) <= 1_000
        assert result.text.startswith("aaa")
        assert result.text.endswith("bbb")
        assert "characters left out" in result.text
        assert result.value == result.text


def test_a_long_failure_text_is_cut() -> None:
    assert len(one(executor(raises(ToolFailed("x" * 1_000_000))[0]), "inline").text) <= 2_000


def reasons(*results: ToolResult) -> list[tuple[str, str]]:
    return [(result.reason, result.whose) for result in results]


def test_a_call_that_went_well_has_no_reason() -> None:
    assert reasons(one(executor(fake_tool("t", echo)), "t")) == [("", "")]


def test_a_call_that_no_tool_took_is_the_policys() -> None:
    runner = executor(fake_tool("t", echo, parameters=NUMBER))
    calls: list[ToolCall | MalformedCall]
    calls = [ToolCall("x", {}), ToolCall("t", {"n": "one"}), MalformedCall("{", "no JSON")]
    results = run(runner.run(calls, context()))
    assert reasons(*results) == [("unknown_tool", "policy"), ("bad_arguments", "policy"), ("malformed", "policy")]


@pytest.mark.parametrize("index", range(3), ids=["inline", "async", "thread"])
def test_a_declared_failure_keeps_its_reason_and_whose_it_is(index: int) -> None:
    refused = ToolFailed("no", reason="rate_limited", retryable=True)
    for error, expected in [
        (ToolFailed("no"), ("failed", "policy")),
        (refused, ("rate_limited", "unclear")),
        (ToolFailed("no", reason="mine", whose="unclear"), ("mine", "unclear")),
        (ValueError("a bug"), ("bug", "infrastructure")),
    ]:
        tool = raises(error)[index]
        assert reasons(one(executor(tool), tool.name)) == [expected]


@pytest.mark.parametrize("name", ["hang_async", "stubborn", "hang_thread"])
def test_whose_failure_a_call_is_that_only_waited_is_not_known(name: str) -> None:
    gate = Gate(limit_s=1)
    result = one(executor(*hanging(gate)), name)
    gate.unblock()
    assert reasons(result) == [("late", "unclear")]


def test_a_call_that_found_no_place_in_its_time_is_not_the_policys() -> None:
    async def work() -> tuple[ToolResult, ...]:
        gate = Gate()
        runner = executor(*hanging(gate), concurrency=1)
        first = asyncio.ensure_future(runner.run([ToolCall("hang_async", {})], context()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # a call that may wait begins in a task of its own
        assert gate.started == ["hang_async"]
        found = await runner.run([ToolCall("hang_async", {})], context(seconds=0.01))
        await first
        return found

    assert reasons(*run(work())) == [("busy", "infrastructure")]


@ALL_MODES
def test_a_value_that_takes_more_than_its_text_may_is_not_kept(tool: Tool) -> None:
    rows = [["cell"] * 100] * 1_000
    told = replace(tool, run=_later(rows) if tool.mode == "async" else lambda arguments, call: ToolOutput("t", rows))
    runner = executor(told, max_chars=10_000)
    (result,) = run(runner.run([ToolCall("t", {})], replace(context(), turn=0)))
    assert result.value is None
    assert one(runner, "t").value == rows  # a call that a reward makes is read once, and not kept
    assert "10000 characters" in result.details["left_out"]


def _later(value: Any) -> Any:
    async def later(arguments: Mapping[str, Any], call: Any) -> ToolOutput:
        return ToolOutput("t", value)

    return later


def test_what_is_left_out_of_details_and_of_the_value_are_both_told() -> None:
    noisy = {"calls": ["x" * 1_000_000]}
    told = executor(fake_tool("t", lambda arguments: ToolOutput("t", ["y" * 20_000], (), noisy)), max_chars=10_000)
    (result,) = run(told.run([ToolCall("t", {})], replace(context(), turn=0)))
    assert result.details["left_out"].count("more than") == 2


def test_a_place_is_not_lost_with_a_loop_that_was_closed_while_it_waited() -> None:
    places = CallSlots(1)

    async def leave() -> None:
        assert places.take() is not None

    async def main() -> None:
        assert places.take() is None
        await asyncio.to_thread(asyncio.run, leave())  # its loop is closed, and its turn waits for ever
        places.free()
        assert places.take() is None

    asyncio.run(main())


def test_details_are_cut_to_a_bound() -> None:
    noisy = {"calls": [{"arguments": "x" * 1_000_000}] * 400}
    told = executor(fake_tool("t", lambda arguments: ToolOutput("t", None, (), noisy)))
    for result in (one(told, "t"), one(executor(raises(ToolFailed("no", details=noisy))[0]), "inline")):
        assert len(repr(result.details)) < 1_000_000
        assert "left_out" in (result.details or {})


def test_lone_surrogates_leave_no_tool() -> None:
    result = one(executor(fake_tool("t", lambda arguments: "a\ud800b")), "t")
    assert (result.text, result.value) == ("a\ufffdb", "a\ufffdb")
    assert one(executor(raises(ToolFailed("a\udfffb"))[0]), "inline").text == "a\ufffdb"


def test_a_tool_whose_text_is_no_text_fails(caplog: pytest.LogCaptureFixture) -> None:
    tool = fake_tool("t", lambda arguments: ToolOutput([1], None))  # type: ignore[arg-type]
    assert reasons(one(executor(tool), "t")) == [("bug", "infrastructure")]
    assert "not a str" in caplog.text


# Hangs. `hang_async` and `hang_thread` end only when the test lets them.


def hanging(gate: Gate, *, timeout_s: float = 0.05) -> list[Tool]:
    async def hang_async(arguments: Mapping[str, Any]) -> str:
        gate.started.append("hang_async")
        await asyncio.Event().wait()
        return "never"

    async def stubborn(arguments: Mapping[str, Any]) -> str:
        gate.started.append("stubborn")
        for _ in range(20):
            try:
                await gate.wait("stubborn")
            except asyncio.CancelledError:
                continue
        return "never"

    def hang_thread(arguments: Mapping[str, Any]) -> str:
        gate.block("hang_thread")
        return "too late"

    return [
        fake_tool("hang_async", hang_async, timeout_s=timeout_s),
        fake_tool("stubborn", stubborn, timeout_s=timeout_s),
        fake_tool("hang_thread", hang_thread, mode="thread", timeout_s=timeout_s),
    ]


@pytest.mark.parametrize("name", ["hang_async", "stubborn", "hang_thread"])
def test_a_hanging_tool_ends_at_its_time_limit_with_a_stable_text(name: str) -> None:
    gate = Gate(limit_s=1)
    runner = executor(*hanging(gate))
    result = one(runner, name)
    gate.unblock()
    assert (result.outcome, result.text) == ("timeout", f"the tool {name} did not end within 0.05 s")


@pytest.mark.parametrize("name", ["hang_async", "hang_thread"])
def test_the_episodes_deadline_ends_a_call_before_its_own_limit(name: str) -> None:
    gate = Gate()
    result = one(executor(*hanging(gate, timeout_s=60)), name, seconds=0.05)
    gate.unblock()
    assert (result.outcome, result.text) == ("timeout", f"the tool {name} was stopped: the episode's time is up")


@ALL_MODES
def test_no_call_is_made_after_the_episodes_deadline(tool: Tool) -> None:
    assert one(executor(tool), "t", seconds=-1).outcome == "timeout"


@pytest.mark.parametrize("name", ["hang_async", "stubborn", "hang_thread"])
def test_sixty_four_other_episodes_end_while_one_hangs(name: str) -> None:
    async def work() -> None:
        gate = Gate()
        runner = executor(
            *hanging(gate, timeout_s=50),
            fake_tool("inline", echo),
            fake_tool("later", echo_later),
            fake_tool("blocks", echo, mode="thread"),
            concurrency=8,
            threads=8,
        )
        hung = asyncio.ensure_future(runner.run([ToolCall(name, {})], context(seconds=55)))
        await gate.until_started(1)

        async def episode(n: int) -> list[str]:
            texts: list[str] = []
            for _ in range(3):
                turn = [ToolCall(tool, {"n": n}) for tool in ("inline", "later", "blocks")]
                texts += [result.text for result in await runner.run(turn, context())]
            return texts

        episodes = await asyncio.gather(*[episode(n) for n in range(64)])
        assert not hung.done(), "the others ended before the hanging call did"
        assert episodes == [[str(n)] * 9 for n in range(64)]
        hung.cancel()
        gate.unblock()
        gate.let("stubborn")
        await asyncio.wait((hung,), timeout=10)

    run(work())


def test_hung_threads_are_replaced_so_that_other_calls_get_through() -> None:
    async def work() -> None:
        gate = Gate()
        runner = executor(*hanging(gate), fake_tool("blocks", echo, mode="thread"), threads=2)
        for _ in range(6):
            (result,) = await runner.run([ToolCall("hang_thread", {})], context())
            assert result.outcome == "timeout"
        (result,) = await runner.run([ToolCall("blocks", {"n": 1})], context())
        assert result.text == "1"
        gate.unblock()

    run(work())


async def taken_again(runner: Executor) -> ToolResult:
    """A call of the tool that hung, as soon as one is made again."""
    while True:
        try:
            (result,) = await runner.run([ToolCall("hang_thread", {})], context())
        except EpisodeError:
            await asyncio.sleep(0)
        else:
            return result


def test_a_tool_whose_calls_never_end_is_refused_at_the_cap_and_taken_again_once_they_end() -> None:
    async def work() -> None:
        gate = Gate()
        runner = executor(*hanging(gate), fake_tool("blocks", echo, mode="thread"), max_left_behind=2)
        for _ in range(2):
            await runner.run([ToolCall("hang_thread", {})], context())
        with pytest.raises(EpisodeError, match="2 calls of tool 'hang_thread' were given up"):
            await runner.run([ToolCall("hang_thread", {})], context())
        (other,) = await runner.run([ToolCall("blocks", {"n": 1})], context())
        assert other.outcome == "ok"
        gate.unblock()
        again = await taken_again(runner)
        assert again.outcome == "ok"

    run(work())


def test_a_late_end_of_a_call_that_was_given_up_changes_nothing() -> None:
    async def work() -> None:
        gate = Gate()
        runner = executor(*hanging(gate), max_left_behind=1)
        (result,) = await runner.run([ToolCall("hang_thread", {})], context())
        gate.unblock()
        await taken_again(runner)  # so the one before has ended
        assert result.outcome == "timeout"

    run(work())


def test_a_places_limit_holds_and_waiting_is_first_come_first_served() -> None:
    async def work() -> None:
        gate = Gate()
        at_once = 0
        most = 0

        async def held(arguments: Mapping[str, Any]) -> str:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await gate.wait(arguments["n"])
            at_once -= 1
            return "ended"

        runner = executor(fake_tool("held", held, concurrency=2))
        episodes = [asyncio.ensure_future(runner.run([ToolCall("held", {"n": n})], context())) for n in range(10)]
        await gate.until_started(2)
        for n in range(10):
            gate.let(n)
        await asyncio.gather(*episodes)
        assert most == 2
        assert gate.started == list(range(10))

    run(work())


@pytest.mark.parametrize("mode", ["async", "thread"])
def test_waiting_for_a_place_counts_towards_the_time_limit_and_the_place_is_not_lost(mode: str) -> None:
    async def work() -> None:
        gate = Gate()

        def body(arguments: Mapping[str, Any]) -> Any:
            if arguments.get("hold"):
                gate.block("hold")
            return "ended"

        async def body_async(arguments: Mapping[str, Any]) -> Any:
            if arguments.get("hold"):
                await gate.wait("hold")
            return "ended"

        tool = fake_tool("t", body_async if mode == "async" else body, mode=mode, concurrency=1, timeout_s=20)  # type: ignore[arg-type]
        runner = executor(tool)
        first = asyncio.ensure_future(runner.run([ToolCall("t", {"hold": True})], context()))
        await gate.until_started(1)
        (waited,) = await runner.run([ToolCall("t", {})], context(seconds=0.05))
        assert waited.outcome == "timeout"
        cancelled = asyncio.ensure_future(runner.run([ToolCall("t", {})], context()))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        gate.unblock()
        gate.let("hold")
        assert (await first)[0].text == "ended"
        assert (await runner.run([ToolCall("t", {})], context()))[0].text == "ended"

    run(work())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", ["async", "thread"])
def test_cancelling_an_episode_cancels_all_its_calls_and_gives_their_places_back(mode: str, count: int) -> None:
    async def work() -> None:
        gate = Gate()

        async def body_async(arguments: Mapping[str, Any]) -> str:
            await gate.wait("all")
            return "ended"

        def body(arguments: Mapping[str, Any]) -> str:
            gate.block("all")
            return "ended"

        tool = fake_tool("t", body_async if mode == "async" else body, mode=mode, concurrency=3)  # type: ignore[arg-type]
        runner = executor(tool)
        turn = asyncio.ensure_future(runner.run([ToolCall("t", {})] * count, context()))
        await gate.until_started(count)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        gate.let("all")
        gate.unblock()
        results = await runner.run([ToolCall("t", {})] * 3, context())
        assert [result.outcome for result in results] == ["ok"] * 3

    run(work())


def test_a_tool_that_keeps_a_cancellation_to_itself_cannot_keep_the_episode_alive() -> None:
    async def work() -> None:
        gate = Gate()

        async def swallows(arguments: Mapping[str, Any]) -> str:
            try:
                await gate.wait("never")
            except asyncio.CancelledError:
                return "nothing happened"
            return "never"

        turn = asyncio.ensure_future(executor(fake_tool("t", swallows)).run([ToolCall("t", {})], context()))
        await gate.until_started(1)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    run(work())


def test_a_tool_may_clean_up_after_its_time_limit() -> None:
    cleaned: list[str] = []

    async def tidy(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")
        return "never"

    assert one(executor(fake_tool("t", tidy, timeout_s=0.05)), "t").outcome == "timeout"
    assert cleaned == ["yes"]


def test_a_tools_own_time_limits_work_within_a_call() -> None:
    async def inner(arguments: Mapping[str, Any]) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "its own limit"
        return "never"

    assert one(executor(fake_tool("t", inner)), "t").text == "its own limit"


def test_a_tool_that_cancels_something_of_its_own_only_fails() -> None:
    async def cancels(arguments: Mapping[str, Any]) -> str:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        return str(await inner)

    assert one(executor(fake_tool("t", cancels)), "t").outcome == "failed"


def test_one_executor_serves_one_event_loop_after_another() -> None:
    runner = executor(fake_tool("later", echo_later), fake_tool("blocks", echo, mode="thread"))
    for n in range(3):
        assert one(runner, "later", n=n).text == str(n)
        assert one(runner, "blocks", n=n).text == str(n)


@pytest.mark.slow
def test_a_hung_thread_does_not_keep_the_interpreter_from_exiting() -> None:
    code = """
    import asyncio, threading
    from rlenv.calls.executor import Executor
    from rlenv.messages import ToolCall
    from rlenv.language.spec import CallsSpec
    from rlenv.testing.tools import context, fake_tool
    tool = fake_tool("t", lambda arguments: threading.Event().wait(), mode="thread", timeout_s=0.05)
    runner = Executor({"t": tool}, calls=CallsSpec())
    print(asyncio.run(runner.run([ToolCall("t", {})], context()))[0].outcome)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "timeout"


def test_inline_calls_make_no_task() -> None:
    async def work() -> None:
        before = len(asyncio.all_tasks())
        seen: list[int] = []

        def body(arguments: Mapping[str, Any]) -> ToolOutput:
            seen.append(len(asyncio.all_tasks()))
            return ToolOutput("x")

        await executor(fake_tool("t", body)).run([ToolCall("t", {})] * 5, context())
        assert seen == [before] * 5

    run(work())


def test_others_have_their_turn_between_calls_that_take_the_loops_time() -> None:
    async def work() -> None:
        seen: list[str] = []

        def body(arguments: Mapping[str, Any]) -> ToolOutput:
            until = time.thread_time() + 0.03
            while time.thread_time() < until:
                pass
            seen.append("call")
            return ToolOutput("x")

        asyncio.get_running_loop().call_soon(seen.append, "other")
        await executor(fake_tool("t", body)).run([ToolCall("t", {})] * 3, context())
        assert seen == ["call", "other", "call", "call"]

    run(work())


@pytest.mark.parametrize("mode", ["async", "thread"])
def test_calls_that_are_waited_for_are_named_until_they_end(mode: Any) -> None:
    gate = threading.Event()

    def held(arguments: Mapping[str, Any]) -> str:
        gate.wait(20)
        return ""

    async def held_async(arguments: Mapping[str, Any]) -> str:
        await asyncio.to_thread(gate.wait, 20)
        return ""

    async def work() -> None:
        runner = executor(
            fake_tool("search", held, mode="thread") if mode == "thread" else fake_tool("search", held_async),
            fake_tool("quick", echo),
        )
        began = time.monotonic()
        calls = [ToolCall("search", {}), ToolCall("quick", {}), ToolCall("search", {})]
        running = asyncio.ensure_future(runner.run(calls, context()))
        for _ in range(10):
            await asyncio.sleep(0)
        (name,) = runner.waited_for()
        assert name == "search"
        assert all(began <= since <= time.monotonic() for since in runner.waited_for()[name])
        gate.set()
        await running
        assert runner.waited_for() == {}

    run(work())


@pytest.mark.parametrize(("turn", "spare", "is_kept"), [(0, 0, True), (0, 1, False), (-1, 1, True)])
@pytest.mark.parametrize("form", ["text", "list"])
def test_a_value_is_kept_up_to_the_characters_that_its_text_may_have(
    turn: int, spare: int, is_kept: bool, form: str
) -> None:
    value: Any = "x" * (1_000 + spare - size("" if form == "text" else [""], 1_000))
    value = value if form == "text" else [value]
    runner = executor(fake_tool("t", lambda arguments: ToolOutput("short", value)), max_chars=1_000)
    (result,) = run(runner.run([ToolCall("t", {})], replace(context(), turn=turn)))
    assert result.value == (value if is_kept else "short" if form == "text" else None)
    assert (result.details is None) is is_kept


@pytest.mark.parametrize("mode", ["inline", "async", "thread"])
def test_nothing_is_called_at_the_deadline_itself(mode: Any) -> None:
    made: list[int] = []

    def body(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        return ""

    async def later(arguments: Mapping[str, Any]) -> str:
        return body(arguments)

    runner = executor(fake_tool("t", later if mode == "async" else body, mode=mode))
    result = one(runner, "t", seconds=0.0)
    assert (result.outcome, result.reason, made) == ("timeout", "late", [])


@pytest.mark.parametrize(
    ("timeout_s", "seconds", "text"),
    [
        (5, 0.0, "the tool t was stopped: the episode's time is up"),
        (0.01, 50, "the tool t did not end within 0.01 s"),
    ],
)
def test_what_is_told_of_a_late_call_names_the_limit_that_came_first(
    timeout_s: float, seconds: float, text: str
) -> None:
    async def hangs(arguments: Mapping[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    assert one(executor(fake_tool("t", hangs, timeout_s=timeout_s)), "t", seconds=seconds).text == text


@pytest.mark.parametrize(("most", "outcome"), [(1, "tool_hangs"), (2, "ok")])
def test_calls_are_refused_once_as_many_as_may_be_were_left_behind(most: int, outcome: str) -> None:
    gate = Gate()

    def blocks(arguments: Mapping[str, Any]) -> str:
        if arguments.get("hangs"):
            gate.block(1)
        return "ended"

    async def work() -> str:
        runner = executor(fake_tool("t", blocks, mode="thread"), max_left_behind=most)
        (late,) = await runner.run([ToolCall("t", {"hangs": True})], context(seconds=0.02))
        assert late.outcome == "timeout"
        try:
            (result,) = await runner.run([ToolCall("t", {})], context())
            return result.outcome
        except EpisodeError as error:
            return error.reason
        finally:
            gate.unblock()

    assert run(work()) == outcome
