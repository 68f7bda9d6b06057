"""Policies at work around calls, through the executor."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.concurrency.deadline import Countdown, running_under, stopped
from rlenv.concurrency.scope import Scope
from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.language.spec import BreakerSpec, CacheSpec, CallsSpec, DelaySpec, FaultsSpec, ToolSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.testing.tools import Gate, fake_tool
from rlenv.tools.base import CallPolicy, Tool, ToolContext, ToolOutput, asked_again, ends_once, policy_of

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def context(*, seconds: float = 50, seed: int = 0, turn: int = 0, **task: Any) -> ToolContext:
    kept = Scope()
    return ToolContext(task, {}, time.monotonic() + seconds, seed, lambda: kept, turn=turn)


def executor(*tools: Tool, **calls: Any) -> Executor:
    return Executor({tool.name: tool for tool in tools}, calls=CallsSpec(**calls))


def under(tool: Tool, **policy: Any) -> Executor:
    depends_on = policy.pop("depends_on", "arguments")
    governed = replace(tool, policy=CallPolicy(**policy), idempotent=True, depends_on=depends_on)
    return executor(governed)


class Flaky:
    """Fails so often before it answers."""

    def __init__(self, failures: int, error: Callable[[], Exception]) -> None:
        self.left = failures
        self.error = error
        self.calls = 0

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error()
        return f"answer {self.calls}"


def flaky(
    mode: Any, failures: int = 2, error: Callable[[], Exception] = lambda: ValueError("down")
) -> tuple[Flaky, Tool]:
    body = Flaky(failures, error)
    if mode == "async":

        async def later(arguments: Mapping[str, Any]) -> str:
            await asyncio.sleep(0)
            return body(arguments)

        return body, fake_tool("t", later)
    return body, fake_tool("t", body, mode=mode)


def one(runner: Executor, within: ToolContext | None = None, **arguments: Any) -> ToolResult:
    async def work() -> ToolResult:
        (result,) = await runner.run([ToolCall("t", arguments, id="c")], within or context())
        return result

    return run(work())


@pytest.mark.parametrize("mode", ["inline", "async", "thread"])
@pytest.mark.parametrize("error", [lambda: ValueError("down"), lambda: ToolFailed("busy", retryable=True)])
def test_a_failed_call_is_tried_again_until_it_answers(mode: str, error: Callable[[], Exception]) -> None:
    body, tool = flaky(mode, 2, error)
    result = one(under(tool, retries=2))
    assert (result.outcome, result.text, result.call_id) == ("ok", "answer 3", "c")
    assert result.details == {"attempts": 3}
    assert body.calls == 3


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize(("reason", "calls"), [("", 1), ("server_error", 2)])
def test_the_next_try_waits_as_long_as_the_server_asks_but_where_whose_failure_it_was_is_asked(
    reason: str, calls: int
) -> None:
    made: list[int] = []
    seen: asyncio.Future[int] | None = None

    async def limited(arguments: Mapping[str, Any]) -> str:
        nonlocal seen
        made.append(1)
        if seen is not None:
            return "answer"
        loop = asyncio.get_running_loop()
        seen = due = loop.create_future()
        # Longer than the first wait of its own; timers of one loop run in the order in which they are due.
        loop.call_later(0.2, lambda: due.set_result(len(made)))
        raise ToolFailed("busy", retryable=True, wait_s=0.3)

    async def work() -> None:
        token = asked_again.set(reason)
        try:
            (result,) = await under(fake_tool("t", limited), retries=1).run([ToolCall("t", {})], context())
        finally:
            asked_again.reset(token)
        assert result.text == "answer"
        assert seen is not None
        assert await seen == calls

    run(work())


@pytest.mark.parametrize("wait_s", [3600.0, math.inf, math.nan])
def test_a_wait_that_is_longer_than_the_call_may_take_is_not_waited_for(wait_s: float) -> None:
    _, tool = flaky("inline", 1, lambda: ToolFailed("busy", retryable=True, wait_s=wait_s))
    assert one(under(tool, retries=1)).text == "answer 2"


def test_tries_end_with_the_last_failure_where_they_do_not_help() -> None:
    body, tool = flaky("inline", 9, lambda: ToolFailed("busy", retryable=True))
    result = one(under(tool, retries=1))
    assert (result.outcome, result.text, body.calls) == ("failed", "busy", 2)


@pytest.mark.parametrize("error", [ToolFailed("no such city"), ToolFailed("late", reason="timeout")])
def test_a_failure_that_would_come_again_is_not_tried_again(error: ToolFailed) -> None:
    body, tool = flaky("inline", 9, lambda: error)
    assert one(under(tool, retries=5)).text == error.text
    assert body.calls == 1


def test_an_infrastructure_failure_is_not_tried_again() -> None:
    body, tool = flaky("inline", 9, lambda: ResourceError("gone"))
    with pytest.raises(ResourceError):
        one(under(tool, retries=5))
    assert body.calls == 1


def test_tries_stay_within_the_calls_time_limit() -> None:
    body, tool = flaky("inline", 99)
    result = one(under(replace(tool, timeout_s=0.3), retries=20))
    assert result.outcome == "failed"
    assert body.calls < 5


def test_one_try_is_ended_at_its_own_limit_and_the_next_one_may_answer() -> None:
    calls: list[int] = []

    async def hangs_once(arguments: Mapping[str, Any]) -> str:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "answer"

    result = one(under(fake_tool("t", hangs_once), retries=1, attempt_s=0.05))
    assert (result.text, result.details) == ("answer", {"attempts": 2})


def test_a_tool_that_may_not_be_repeated_keeps_no_retries_and_no_cache() -> None:
    calls = CallsSpec(retries=3, cache=CacheSpec())
    assert policy_of(calls, idempotent=False, mutates=False).is_quiet
    assert policy_of(calls, idempotent=True, mutates=True) == CallPolicy(retries=3)
    assert policy_of(calls, idempotent=True, mutates=False) == CallPolicy(retries=3, cache=CacheSpec())
    with pytest.raises(UsageError, match=r"retries: .*idempotent: true"):
        policy_of(calls, ToolSpec(kind="x", retries=1), idempotent=False, mutates=False)
    with pytest.raises(UsageError, match=r"cache: .*change state"):
        policy_of(calls, ToolSpec(kind="x", cache=CacheSpec()), idempotent=True, mutates=True)


def test_a_tool_may_turn_a_default_off() -> None:
    calls = CallsSpec(retries=3, cache=CacheSpec(), breaker=BreakerSpec(), faults=FaultsSpec(error=1.0))
    entry = ToolSpec(
        kind="x",
        retries=0,
        cache=CacheSpec(scope="none"),
        breaker=BreakerSpec(failures=0),
        faults=FaultsSpec(),
    )
    assert policy_of(calls, entry, idempotent=True, mutates=False).is_quiet


# The cache.


class Counting:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        self.calls.append(dict(arguments))
        return f"call {len(self.calls)}"


@pytest.mark.parametrize("mode", ["inline", "thread"])
@pytest.mark.parametrize("scope", ["process", "disk"])
def test_equal_arguments_in_any_order_are_run_once(mode: Any, scope: Any, tmp_path: Path) -> None:
    body = Counting()
    runner = under(fake_tool("t", body, mode=mode), cache=CacheSpec(scope=scope), cache_path=tmp_path / "kept.sqlite")

    async def work() -> list[ToolResult]:
        calls = [ToolCall("t", arguments) for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1})]
        found = [(await runner.run([call], context(seed=n, q=n)))[0] for n, call in enumerate(calls)]
        runner.close()
        return found

    first, second, third = run(work())
    assert (first.text, second.text, third.text) == ("call 1", "call 1", "call 2")
    assert (first.details, second.details) == (None, {"cached": True})
    assert second.value == first.value


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), (1, 2)])
def test_what_json_writes_as_something_else_is_kept_for_nobody(odd: Any) -> None:
    body = Counting()
    tool = replace(fake_tool("t", body), parameters={"type": "object", "properties": {"a": {}}})
    runner = under(tool, cache=CacheSpec())

    async def work() -> list[str]:
        calls = [ToolCall("t", {"a": [value]}) for value in (odd, None, [1, 2], None, [1, 2])]
        return [(await runner.run([call], context()))[0].text for call in calls]

    assert run(work()) == ["call 1", "call 2", "call 3", "call 2", "call 3"]


def test_a_kept_value_cannot_be_changed_by_who_gets_it() -> None:
    from rlenv.tools.base import ToolOutput

    runner = under(fake_tool("t", lambda arguments: ToolOutput("t", {"rows": [[1]]})), cache=CacheSpec())

    async def work() -> None:
        for _ in range(3):
            (result,) = await runner.run([ToolCall("t", {})], context())
            assert result.value == {"rows": [[1]]}
            result.value["rows"].append("changed")

    run(work())


def test_failures_are_never_kept() -> None:
    _, tool = flaky("inline", 2, lambda: ToolFailed("no such city"))
    runner = under(tool, cache=CacheSpec())

    async def work() -> list[str]:
        return [(await runner.run([ToolCall("t", {})], context()))[0].text for _ in range(4)]

    assert run(work()) == ["no such city", "no such city", "answer 3", "answer 3"]


@pytest.mark.parametrize(
    ("depends_on", "key", "calls"),
    [("arguments", None, 1), ("task", None, 2), ("episode", None, 3), ("task", "arguments", 1), ("episode", "task", 2)],
)
def test_results_are_shared_no_further_than_what_they_depend_on(depends_on: Any, key: Any, calls: int) -> None:
    body = Counting()
    runner = under(fake_tool("t", body), cache=CacheSpec(key=key), depends_on=depends_on)

    async def work() -> None:
        for row in ("a", "b", "a"):
            within = context(row=row)
            for _ in range(2):
                await runner.run([ToolCall("t", {})], within)

    run(work())
    assert len(body.calls) == calls


def test_what_was_read_of_an_episodes_state_is_forgotten_when_a_tool_changed_it() -> None:
    state = {"n": 0}

    def write(arguments: Mapping[str, Any]) -> str:
        state["n"] += 1
        return "written"

    reads = Counting()
    read = fake_tool("read", lambda arguments: reads(arguments) and str(state["n"]))
    tools = (
        replace(read, idempotent=True, depends_on="episode", policy=CallPolicy(cache=CacheSpec())),
        fake_tool("write", write, mutates=True),
    )
    runner = executor(*tools)

    async def work() -> list[str]:
        within = context()
        names = ["read", "read", "write", "read", "read"]
        alone = [(await runner.run([ToolCall(name, {})], within))[0].text for name in names]
        return alone + [result.text for result in await runner.run([ToolCall(name, {}) for name in names], within)]

    assert run(work()) == ["0", "0", "written", "1", "1", "1", "1", "written", "2", "2"]
    assert len(reads.calls) == 3


def test_equal_calls_at_once_are_one_flight() -> None:
    async def work() -> None:
        gate = Gate()

        async def held(arguments: Mapping[str, Any]) -> str:
            await gate.wait("it")
            return "landed"

        runner = under(fake_tool("t", held), cache=CacheSpec())
        turns = [asyncio.ensure_future(runner.run([ToolCall("t", {})], context())) for _ in range(16)]
        await gate.until_started(1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert gate.started == ["it"]
        gate.let("it")
        results = [(await turn)[0] for turn in turns]
        assert {result.text for result in results} == {"landed"}
        assert sum(result.details == {"cached": True} for result in results) == 15

    run(work())


@pytest.mark.parametrize(
    ("whose", "may_pass", "calls"),
    [("policy", False, 1), ("policy", True, 3), ("infrastructure", False, 3), ("unclear", False, 3)],
)
def test_who_waits_for_a_flight_shares_no_failure_but_the_policys(whose: Any, may_pass: bool, calls: int) -> None:
    async def work() -> None:
        made: list[int] = []

        async def failing(arguments: Mapping[str, Any]) -> str:
            made.append(1)
            await asyncio.sleep(0)
            raise ToolFailed("no", reason="word", whose=whose, retryable=may_pass, details={"a": 1})

        runner = under(fake_tool("t", failing), cache=CacheSpec())
        turns = await asyncio.gather(*(runner.run([ToolCall("t", {})], context()) for _ in range(3)))
        assert [(one.whose, one.details) for (one,) in turns] == [(whose, {"a": 1})] * 3
        assert len(made) == calls

    run(work())


def test_who_waits_for_a_flight_runs_for_itself_when_the_first_is_cancelled_and_ends_at_its_own_limit() -> None:
    async def work() -> None:
        gate = Gate()
        started: list[int] = []

        async def held(arguments: Mapping[str, Any]) -> str:
            started.append(1)
            await gate.wait(len(started))
            return "landed"

        runner = under(fake_tool("t", held), cache=CacheSpec())
        first = asyncio.ensure_future(runner.run([ToolCall("t", {})], context()))
        await gate.until_started(1)
        (hurried,) = await runner.run([ToolCall("t", {})], context(seconds=0.05))
        assert hurried.outcome == "timeout"
        second = asyncio.ensure_future(runner.run([ToolCall("t", {})], context()))
        for _ in range(10):
            await asyncio.sleep(0)
        first.cancel()
        await gate.until_started(2)
        gate.let(2)
        assert (await second)[0].text == "landed"

    run(work())


def test_what_is_asked_again_is_answered_by_the_tool_and_counted_by_no_breaker() -> None:
    _, tool = flaky("async", 3, lambda: ToolFailed("no", reason="server_error"))
    runner = under(tool, cache=CacheSpec(), breaker=BreakerSpec(failures=1, reset_s=1_000))

    async def work() -> list[str]:
        token = asked_again.set("late")
        try:
            return [(await runner.run([ToolCall("t", {})], context()))[0].text for _ in range(5)]
        finally:
            asked_again.reset(token)

    assert run(work()) == ["no", "no", "no", "answer 4", "answer 5"]


@pytest.mark.parametrize(("reason", "said"), [("disconnected", "disconnected"), ("server_error", "unavailable")])
def test_while_it_is_asked_again_a_call_that_may_have_felled_its_server_is_tried_once(reason: str, said: str) -> None:
    """Another try would find nobody there yet, and tell of that alone."""
    reasons = iter([reason, "unavailable"])
    _, tool = flaky("async", 2, lambda: ToolFailed("no", reason=next(reasons), retryable=True))

    async def work() -> str:
        token = asked_again.set("unavailable")
        try:
            return (await under(tool, retries=1).run([ToolCall("t", {})], context()))[0].reason
        finally:
            asked_again.reset(token)

    assert run(work()) == said


@pytest.mark.parametrize("fails", [1, 3])
def test_an_open_breaker_lets_through_what_is_asked_again_and_shuts_where_that_goes_well(fails: int) -> None:
    _, tool = flaky("async", fails, lambda: ToolFailed("no", whose="infrastructure"))
    runner = under(tool, breaker=BreakerSpec(failures=1, reset_s=1_000))

    async def work() -> list[str]:
        said = [(await runner.run([ToolCall("t", {})], context()))[0] for _ in range(2)]
        token = asked_again.set("breaker_open")
        try:
            said += [(await runner.run([ToolCall("t", {})], context()))[0] for _ in range(fails)]
        finally:
            asked_again.reset(token)
        said.append((await runner.run([ToolCall("t", {})], context()))[0])
        return [one.reason or one.outcome for one in said]

    again = ["failed"] * (fails - 1)
    assert run(work()) == ["failed", "breaker_open", *again, "ok", "ok"]


@pytest.mark.parametrize(
    ("turn", "mutates", "reason"), [(0, False, "late"), (0, True, "timeout"), (-1, False, "timeout")]
)
def test_who_used_up_a_moment_that_was_left_is_told_so_where_nobody_asks_again(
    turn: int, mutates: bool, reason: str
) -> None:
    async def works(arguments: Mapping[str, Any]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise stopped("timeout") from None
        return ""

    result = one(executor(replace(fake_tool("t", works), mutates=mutates)), context(seconds=0.05, turn=turn))
    assert (result.outcome, result.reason) == ("timeout", reason)


def test_a_result_on_disk_outlives_the_process_that_made_it_and_not_the_tools_identity(tmp_path: Path) -> None:
    body = Counting()
    path = tmp_path / "kept.sqlite"

    def runner(identity: str) -> Executor:
        tool = replace(fake_tool("t", body), identity=identity)
        return under(tool, cache=CacheSpec(scope="disk"), cache_path=path)

    for identity in ("v1", "v1", "v2"):
        fresh = runner(identity)
        one(fresh)
        fresh.close()
    assert len(body.calls) == 2


@pytest.mark.parametrize("broken", [b"\0", b"[1,2]", b"{}", b"3", b""])
def test_a_result_on_disk_that_cannot_be_read_is_had_anew(tmp_path: Path, broken: bytes) -> None:
    body, path = Counting(), tmp_path / "kept.sqlite"
    runner = under(fake_tool("t", body), cache=CacheSpec(scope="disk"), cache_path=path)
    assert one(runner).text == "call 1"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE kept SET packed = ?", (broken,))
        file.commit()
    assert [one(runner).text for _ in range(2)] == ["call 2"] * 2
    runner.close()


# The breaker, the rate, shared places.


def test_an_open_breaker_refuses_calls_at_once_with_a_stable_text() -> None:
    body, tool = flaky("inline", 99)
    runner = under(tool, breaker=BreakerSpec(failures=2, reset_s=1_000))

    async def work() -> list[ToolResult]:
        return [(await runner.run([ToolCall("t", {})], context()))[0] for _ in range(4)]

    results = run(work())
    assert body.calls == 2
    assert [result.text for result in results[2:]] == ["the tool t is not available at the moment"] * 2
    assert [result.outcome for result in results] == ["failed"] * 4
    assert results[3].details == {"breaker": "open"}


def test_a_trial_that_is_cancelled_lets_the_next_call_try() -> None:
    begun = asyncio.Event()

    async def call(arguments: Mapping[str, Any]) -> str:
        if arguments["is"] == "hanging":
            begun.set()
            await asyncio.Event().wait()
        if arguments["is"] == "down":
            raise ToolFailed("down", whose="infrastructure")
        return "well"

    runner = under(fake_tool("t", call), breaker=BreakerSpec(failures=1, reset_s=1e-9))

    async def work() -> ToolResult:
        await runner.run([ToolCall("t", {"is": "down"})], context())
        trial = asyncio.ensure_future(runner.run([ToolCall("t", {"is": "hanging"})], context()))
        await begun.wait()
        trial.cancel()
        await asyncio.wait([trial])
        return (await runner.run([ToolCall("t", {"is": "well"})], context()))[0]

    assert run(work()).text == "well"


def test_the_models_own_failures_do_not_open_the_breaker() -> None:
    _, tool = flaky("inline", 9, lambda: ToolFailed("no such city"))
    runner = under(tool, breaker=BreakerSpec(failures=2, reset_s=1_000))
    assert [one(runner).text for _ in range(5)] == ["no such city"] * 5


def test_a_call_that_cannot_have_its_turn_in_time_is_told_so_at_once() -> None:
    runner = under(fake_tool("t", Counting()), rate_per_s=0.1)

    async def work() -> list[ToolResult]:
        return [(await runner.run([ToolCall("t", {})], context(seconds=5)))[0] for _ in range(2)]

    first, second = run(work())
    assert first.outcome == "ok"
    assert (second.outcome, second.text) == ("timeout", "the tool t is busy: too many calls wait for it")


@pytest.mark.parametrize("reason", ["", "busy"])
def test_waiting_for_the_rate_counts_for_no_limit_while_whose_failure_it_was_is_asked(reason: str) -> None:
    """Or those who call a tool most could keep every reward over it from being measured, their own among them."""
    seen: list[float] = []
    stood: list[str] = []

    class Limit(Countdown):
        def standing(self) -> Any:
            stood.append(reason)
            return super().standing()

    async def body(arguments: Mapping[str, Any], within: ToolContext) -> ToolOutput:
        seen.append(within.deadline)
        return ToolOutput("answer")

    async def work() -> None:
        runner = under(replace(fake_tool("t", Counting()), run=body, mode="async"), rate_per_s=2)
        within = context(seconds=5)
        token = asked_again.set(reason)
        try:
            with running_under(Limit(50)):
                results = await runner.run([ToolCall("t", {})] * 2, within)
        finally:
            asked_again.reset(token)
        assert [result.text for result in results] == ["answer", "answer"]
        assert results[1].waited > 0
        if reason:
            assert seen[0] == within.deadline < seen[1]
            assert stood
        else:
            assert (seen, stood) == ([within.deadline] * 2, [])

    run(work())


def test_calls_over_all_executors_stay_within_the_shared_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    running: list[int] = []
    most: list[int] = []

    async def body(arguments: Mapping[str, Any]) -> str:
        running.append(1)
        most.append(len(running))
        for _ in range(5):
            await asyncio.sleep(0)
        running.pop()
        return "ended"

    runners = [under(fake_tool("t", body), shared_concurrency=2) for _ in range(2)]

    async def work() -> list[Any]:
        turns = [runner.run([ToolCall("t", {"n": n})] * 2, context()) for n in range(8) for runner in runners]
        return await asyncio.gather(*turns)

    results = [result for turn in run(work()) for result in turn]
    assert {result.outcome for result in results} == {"ok"}
    assert max(most) == 2


# Faults on purpose.


def test_faults_are_marked_and_a_retry_may_overcome_them() -> None:
    runner = under(fake_tool("t", Counting()), faults=FaultsSpec(error=0.5), retries=3)

    async def work() -> list[ToolResult]:
        turns = [runner.run([ToolCall("t", {})], context(seed=seed)) for seed in range(40)]
        return [result for (result,) in await asyncio.gather(*turns)]

    results = run(work())
    assert {result.outcome for result in results} <= {"ok", "failed"}
    hit = [result for result in results if result.details]
    assert 5 < len(hit) < 35
    for result in hit:
        assert result.details is not None
        assert set(result.details["faults"]) == {"error"}
        assert result.details["attempts"] >= 2
    assert sum(result.outcome == "ok" for result in hit) > 3


@pytest.mark.parametrize(
    ("faults", "outcome", "kind"),
    [
        (FaultsSpec(error=1.0), "failed", "error"),
        (FaultsSpec(hang=1.0), "timeout", "hang"),
        (FaultsSpec(delay_s=DelaySpec(p=1.0, range=(5, 9))), "timeout", "delay"),
        (FaultsSpec(delay_s=DelaySpec(p=1.0, range=(0, 0.01))), "ok", "delay"),
        (FaultsSpec(garble=1.0), "ok", "garble"),
        (FaultsSpec(oversize=1.0), "ok", "oversize"),
    ],
)
@pytest.mark.parametrize("mode", ["inline", "thread"])
def test_each_fault_looks_like_a_real_one(faults: FaultsSpec, outcome: str, kind: str, mode: Any) -> None:
    timeout_s = 0.1 if outcome == "timeout" else 30.0  # no thread has to be quick for the others
    tool = fake_tool("t", lambda arguments: "a plain answer", mode=mode, timeout_s=timeout_s)
    result = one(under(tool, faults=faults))
    assert (result.outcome, result.details) == (outcome, {"faults": [kind]})
    assert len(result.text) <= 65_536
    if kind == "error":
        assert result.text == "the tool t failed"


def test_a_fault_never_gets_into_the_cache_nor_a_kept_result_into_a_fault() -> None:
    body = Counting()
    runner = under(fake_tool("t", body), faults=FaultsSpec(garble=0.3), cache=CacheSpec())

    async def work() -> list[ToolResult]:
        return [(await runner.run([ToolCall("t", {})], context(seed=seed)))[0] for seed in range(50)]

    results = run(work())
    spoiled = [result for result in results if "faults" in (result.details or {})]
    clean = [result for result in results if "faults" not in (result.details or {})]
    assert spoiled
    assert len({result.text for result in clean}) == 1


def test_calls_without_a_fault_are_as_they_were() -> None:
    def texts(**calls: Any) -> list[str]:
        runner = executor(fake_tool("t", lambda arguments: str(arguments)), **calls)

        async def work() -> list[ToolResult]:
            turns = [runner.run([ToolCall("t", {"n": n})], context(seed=n)) for n in range(50)]
            return [result for (result,) in await asyncio.gather(*turns)]

        return [result.text if not result.details else "fault" for result in run(work())]

    plain, hit = texts(), texts(faults=FaultsSpec(error=0.3, garble=0.2))
    assert 5 < hit.count("fault") < 45
    assert all(got in (expected, "fault") for got, expected in zip(hit, plain, strict=True))


# Coercion.


@pytest.mark.parametrize("mode", ["inline", "thread"])
def test_a_declared_coercion_is_taken_and_counted(mode: Any) -> None:
    tool = fake_tool("t", lambda arguments: str(arguments["n"] + 1), mode=mode, parameters=NUMBER)
    assert one(executor(tool), n="3").outcome == "bad_arguments"
    result = one(executor(tool, coerce=("integer",)), n="3")
    assert (result.text, result.details) == ("4", {"coerced": ["n"]})
    refused = one(executor(tool, coerce=("integer",)), n="three")
    assert (refused.outcome, refused.details) == ("bad_arguments", None)


@pytest.mark.parametrize(
    ("make", "is_counted"),
    [
        (lambda: ToolFailed("no", whose="policy"), False),
        (lambda: ToolFailed("no", reason="odd"), False),
        (lambda: ToolFailed("no", reason="timeout"), False),
        (lambda: ToolFailed("no", retryable=True), True),
        (lambda: ToolFailed("no", reason="crashed"), True),
        (lambda: ToolFailed("no", reason="server_error"), True),
        (lambda: ToolFailed("no", whose="infrastructure"), True),
        (lambda: ToolFailed("no", whose="infrastructure", details={"called": {"far": {"infrastructure": 1}}}), False),
        (lambda: ToolFailed("no", whose="infrastructure", details={"called": {"far": {"ok": 1, "refused": 1}}}), True),
        (lambda: ToolFailed("no", whose="infrastructure", details={"called": 3}), True),
        (lambda: ValueError("an author's bug"), True),
    ],
    ids=[
        *("policy", "tool", "timeout", "retryable", "crashed", "server_error", "infrastructure"),
        *("code", "code itself", "other details", "bug"),
    ],
)
@pytest.mark.parametrize("is_asked_again", [False, True])
def test_a_breaker_counts_the_tools_own_faults_and_each_once(
    make: Callable[[], Exception], is_counted: bool, is_asked_again: bool
) -> None:
    body, tool = flaky("inline", 99, make)
    runner = under(tool, breaker=BreakerSpec(failures=1, reset_s=1_000))

    async def work() -> None:
        token = asked_again.set("late") if is_asked_again else None
        for _ in range(2):
            await runner.run([ToolCall("t", {})], context())
        if token is not None:
            asked_again.reset(token)

    run(work())
    assert body.calls == (1 if is_counted and not is_asked_again else 2)


@pytest.mark.parametrize("reason", ["closed", "timeout"])
@pytest.mark.parametrize("seconds", [0.5, 50])
def test_only_a_time_limit_that_a_moments_rest_has_bounded_is_told_as_late(reason: str, seconds: float) -> None:
    _, tool = flaky("async", 9, lambda: ToolFailed("no", reason=reason))
    result = one(executor(replace(tool, timeout_s=10)), context(seconds=seconds))
    assert result.reason == ("late" if reason == "timeout" and seconds < 1 else reason)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_shared_place_is_given_back_however_a_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    gate = Gate()

    async def body(arguments: Mapping[str, Any]) -> str:
        await gate.wait(arguments["n"])
        raise ValueError("down")

    async def work() -> None:
        runner = under(fake_tool("t", body), shared_concurrency=1)
        first = asyncio.ensure_future(runner.run([ToolCall("t", {"n": 0})], context()))
        await gate.until_started(1)
        first.cancel() if is_cancelled else gate.let(0)
        await asyncio.wait([first])
        gate.let(1)
        assert (await runner.run([ToolCall("t", {"n": 1})], context()))[0].outcome == "failed"
        assert gate.started == [0, 1]

    run(work())


def test_a_closed_executor_keeps_no_file_of_results_open(tmp_path: Path) -> None:
    runner = under(fake_tool("t", Counting()), cache=CacheSpec(scope="disk"), cache_path=tmp_path / "kept.sqlite")
    one(runner)
    runner.close()
    assert [path.name for path in tmp_path.iterdir()] == ["kept.sqlite"], "SQLite's log goes with the last connection"


@pytest.mark.parametrize(("turn", "outcomes"), [(0, ["skipped", "malformed"]), (-1, ["ok", "malformed"])])
def test_beside_a_broken_call_what_would_end_the_episode_is_not_run_but_for_rewards(
    turn: int, outcomes: list[str]
) -> None:
    tool = replace(fake_tool("t", Counting()), ends=ends_once)
    work = executor(tool).run([ToolCall("t", {}), MalformedCall("{", "no JSON")], context(turn=turn))
    results = run(work)
    assert [one.outcome for one in results] == outcomes
    assert [one.name for one in results] == ["t", ""]


@pytest.mark.parametrize(("turn", "texts"), [(0, ["1", "", ""]), (-1, ["1", "1", "2"])])
def test_what_ends_an_episode_runs_alone_and_ends_none_of_rewards(turn: int, texts: list[str]) -> None:
    seen: list[Mapping[str, Any]] = []

    def body(arguments: Mapping[str, Any]) -> str:
        seen.append(arguments)
        return str(sum(one == arguments for one in seen))

    ending = replace(fake_tool("t", body), ends=ends_once)
    runner = executor(ending, fake_tool("other", body))
    results = run(runner.run([ToolCall("t", {}), ToolCall("other", {"a": 1}), ToolCall("t", {})], context(turn=turn)))
    assert [one.text if one.outcome == "ok" else "" for one in results] == texts
    assert [(one.details or {}).get("ends") for one in results] == ["ended" if turn == 0 else None, None, None]
    assert len(seen) == (1 if turn == 0 else 3)
