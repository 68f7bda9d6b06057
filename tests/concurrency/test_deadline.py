"""What a call that is cut off says of its time, and that its caller hears no more of it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

import anyio
import pytest

from rlenv.calls.executor import Executor
from rlenv.concurrency import deadline
from rlenv.concurrency.deadline import (
    Breaker,
    Countdown,
    Expired,
    Waited,
    begin,
    bounded_by_itself,
    drive,
    pause,
    paused_for,
    running_under,
    stopped,
    waited_s,
)
from rlenv.errors import ToolFailed
from rlenv.language.spec import CallsSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.testing.tools import Gate, context, fake_tool
from rlenv.tools.base import policy_of
from tests.support.clock import passes, run_skipping


@pytest.mark.parametrize("said", [stopped("stalled"), ToolFailed("over", reason="stalled")])
def test_a_coroutine_that_is_stopped_at_its_limit_may_say_what_its_time_went_to(said: BaseException) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise said from error

    async def main() -> None:
        with pytest.raises(Expired) as expired:
            await drive(work(), 0.01)
        assert expired.value.reason == "stalled"

    asyncio.run(main())


def test_one_that_says_nothing_was_late() -> None:
    async def main() -> None:
        with pytest.raises(Expired) as expired:
            await drive(asyncio.Event().wait(), 0.01)
        assert expired.value.reason == "late"

    asyncio.run(main())


async def stalled() -> None:
    """Waits for ever, and says why it was stopped."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise stopped("stalled") from error


def test_one_that_says_it_where_its_caller_is_cancelled_is_cancelled() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(drive(stalled(), 100))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(main())


def test_a_time_limit_of_asyncio_around_it_is_a_time_limit_still() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stalled()

    asyncio.run(main())


async def stubborn(scope: AbstractAsyncContextManager[Any], go_on: asyncio.Event, ended: list[str]) -> str:
    """Opens a scope before it first waits, keeps its cancellation to itself, and goes on once it may."""
    async with scope:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
        await asyncio.sleep(0)
    ended.append("ended")
    raise ValueError("nobody hears this")


def cancel_scope(seconds: float) -> AbstractAsyncContextManager[Any]:
    class Scope(AbstractAsyncContextManager[Any]):
        async def __aenter__(self) -> None:
            self.scope = anyio.move_on_after(seconds).__enter__()

        async def __aexit__(self, *error: Any) -> bool | None:
            return self.scope.__exit__(*error)

    return Scope()


SCOPES: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
    "none": nullcontext,
    "asyncio.timeout": lambda: asyncio.timeout(0.15),
    "asyncio.TaskGroup": asyncio.TaskGroup,
    "anyio.CancelScope": lambda: cancel_scope(0.15),
    "anyio.TaskGroup": anyio.create_task_group,
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_coroutine_that_is_left_behind_runs_to_its_end_and_never_touches_its_caller(
    scope: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        go_on, ended, strays = asyncio.Event(), list[str](), list[asyncio.Task[Any]]()
        with pytest.raises(Expired):
            await drive(stubborn(scope(), go_on, ended), 0.01, on_stray=strays.append)
        gc.collect()
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, over.set)  # behind the timers of all scopes
        await over.wait()
        me = asyncio.current_task()
        assert me is not None
        assert not me.cancelling()
        go_on.set()
        await asyncio.wait(strays)
        assert ended[0] == "cancelled"
        assert not me.cancelling()

    asyncio.run(main())
    gc.collect()
    assert not reported


def test_a_coroutine_that_is_cancelled_with_its_caller_before_it_begins_is_closed(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(drive(stalled(), 100))
        me = asyncio.current_task()
        asyncio.get_running_loop().call_soon(lambda: [one.cancel() for one in asyncio.all_tasks() if one is not me])
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(main())
    gc.collect()
    assert not recwarn.list


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("own")])
def test_what_a_coroutine_raises_is_raised_where_it_was_asked_for(error: BaseException) -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise error

    async def main() -> None:
        with pytest.raises(type(error)) as raised:
            await drive(raises(), 100)
        assert raised.value is error

    asyncio.run(main())


@pytest.mark.parametrize(("spare_s", "ends_at"), [(0.0, None), (1.0, None), (9.0, 5.5)])
def test_what_is_bounded_by_itself_does_not_count_as_long_as_there_is_time_to_spare(
    spare_s: float, ends_at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starts_first() -> float:
        with bounded_by_itself():
            await passes(5.0)
        await passes(0.5)
        return time.monotonic()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        if ends_at is not None:
            assert await drive(starts_first(), 1.0, spare_s=spare_s) == ends_at
            return
        with pytest.raises(Expired):
            await drive(starts_first(), 1.0, spare_s=spare_s)
        assert loop.time() == pytest.approx(1.0 + spare_s)

    run_skipping(main())


@pytest.mark.parametrize("by", ["the limit of the call", "a limit of its own, which is a share of that"])
def test_who_has_worked_all_of_a_moment_that_was_left_has_not_used_up_the_whole_time(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def works(_arguments: Mapping[str, Any]) -> str:
        if by.startswith("a limit of its own"):
            raise ToolFailed("the statement ran out of time", reason="timeout")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise stopped("timeout") from error
        return ""

    async def main() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        tools = {name: fake_tool(name, works, mutates=name == "writes") for name in ("reads", "writes")}
        runner = Executor(tools, calls=CallsSpec(timeout_s=2))
        for name, turn, seconds, whose in (
            ("reads", 0, 60.0, "policy"),
            ("reads", 0, 0.02, "unclear"),
            ("reads", -1, 1.0, "policy"),
            ("writes", 0, 0.02, "policy"),
        ):
            (result,) = await runner.run([ToolCall(name, {})], replace(context(seconds=seconds), turn=turn))
            assert result.whose == whose, (name, turn, seconds, result)
            assert result.is_error

    run_skipping(main())


def test_what_never_waits_needs_no_timer() -> None:
    async def at_once() -> int:
        return 7

    async def main() -> None:
        loop = asyncio.get_running_loop()
        scheduled: list[Any] = []
        loop.call_at = lambda *given, **_: scheduled.append(given)  # type: ignore[assignment, method-assign]
        assert await drive(at_once(), 100) == 7
        assert not scheduled

    asyncio.run(main())


def test_a_call_that_waits_for_a_place_says_how_long() -> None:
    gate = Gate()

    async def held(arguments: Mapping[str, Any]) -> str:
        await gate.wait(arguments["who"])
        return "done"

    runner = Executor({"t": replace(fake_tool("t", held), concurrency=1)}, calls=CallsSpec())

    async def work() -> tuple[ToolResult, ...]:
        calls = [ToolCall("t", {"who": who}) for who in ("first", "second")]
        running = asyncio.ensure_future(runner.run(calls, context()))
        await gate.until_started(1)
        gate.let("first")
        gate.let("second")
        return await running

    first, second = asyncio.run(work())
    assert first.waited == 0
    assert 0 < second.waited <= second.seconds


def test_time_between_tries_is_waiting() -> None:
    tries = []

    async def flaky(_arguments: Mapping[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not yet")
        return "done"

    calls = CallsSpec(retries=1)
    tool = replace(fake_tool("t", flaky), idempotent=True)
    tool = replace(tool, policy=policy_of(calls, idempotent=True, mutates=False))
    runner = Executor({"t": tool}, calls=calls)
    (result,) = asyncio.run(runner.run([ToolCall("t", {})], context()))
    assert result.outcome == "ok"
    assert len(tries) == 2
    assert 0 < result.waited <= result.seconds


def test_calls_stand_in_seconds_from_the_episodes_start() -> None:
    runner = Executor({"t": fake_tool("t", lambda _arguments: "done")}, calls=CallsSpec())
    begun = -1000.0
    calls: list[ToolCall | MalformedCall] = [ToolCall("t", {}), MalformedCall("?", "no call"), ToolCall("nothing", {})]
    ran, malformed, unknown = asyncio.run(runner.run(calls, replace(context(), begun=begun)))
    assert ran.started is not None
    assert ran.started >= 1000
    assert malformed.started is unknown.started is None


class Clock:
    """The clock of the process, put forward by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("passed", "is_over", "left_s"), [(0.0, False, 10.0), (9.5, False, 0.5), (10.0, True, 0.0), (11.0, True, 0.0)]
)
def test_a_countdown_is_over_when_its_time_has_passed(
    monkeypatch: pytest.MonkeyPatch, passed: float, is_over: bool, left_s: float
) -> None:
    clock = Clock(monkeypatch)
    countdown, without = Countdown(10.0), Countdown(None)
    clock.now += passed
    assert (countdown.is_over, countdown.left_s, countdown.look_s) == (is_over, left_s, left_s)
    assert (without.is_over, without.left_s, without.look_s) == (False, float("inf"), None)
    with running_under(countdown):
        assert deadline.left_s() == left_s
    assert deadline.left_s() == float("inf")


def test_time_that_stands_is_given_back_once_for_all_who_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    outer, inner = Countdown(10.0), Countdown(5.0)
    with running_under(outer), running_under(inner):
        clock.now += 1
        with bounded_by_itself():
            clock.now += 2
            with bounded_by_itself():
                clock.now += 40
            clock.now += 3
            assert (outer.left_s, inner.left_s, outer.is_over, inner.is_over) == (9.0, 4.0, False, False)
            assert (inner.look_s, outer.clock_s) == (1.0, 101.0), "asked again soon, since it may go on"
    assert (outer.left_s, inner.left_s, outer.clock_s) == (9.0, 4.0, 101.0)
    clock.now += 3.5
    assert (outer.left_s, inner.left_s, inner.look_s, outer.clock_s) == (5.5, 0.5, 0.5, 104.5)


@pytest.mark.parametrize(("stands", "is_over", "look_s"), [(10.0, False, 1.0), (12.5, False, 0.5), (13.0, True, 0.0)])
def test_time_does_not_stand_for_longer_than_there_is_to_spare(
    monkeypatch: pytest.MonkeyPatch, stands: float, is_over: bool, look_s: float
) -> None:
    clock = Clock(monkeypatch)
    countdown = Countdown(10.0, 3.0)
    with countdown.standing():
        clock.now += stands
        assert (countdown.is_over, countdown.look_s) == (is_over, look_s)


def test_what_a_call_has_waited_is_the_sum_however_its_waits_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def waits(seconds: float) -> None:
        with Waited():
            clock.now += seconds
            raise KeyError(seconds)

    def call() -> tuple[float, list[float]]:
        before, mine = waited_s(), begin()
        for seconds in (1.0, 2.0):
            with pytest.raises(KeyError):
                waits(seconds)
        return before + waited_s(), mine

    with Waited():  # nobody's
        assert contextvars.copy_context().run(call) == (3.0, [1.0, 2.0])
    assert waited_s() == 0.0


@pytest.mark.parametrize(("since", "is_admitted"), [(9.5, False), (10.0, True)])
def test_a_breaker_lets_one_try_once_its_time_is_over_whatever_failed_meanwhile(
    since: float, is_admitted: bool
) -> None:
    now = [0.0]
    breaker = Breaker(failures=2, reset_s=10, clock=lambda: now[0])
    breaker.failed()
    assert breaker.admits(), "one failure less than it takes"
    breaker.failed()
    now[0] = 5.0
    breaker.failed()  # of a call that began before it opened
    now[0] = since
    assert breaker.admits() is is_admitted
    if is_admitted:
        breaker.failed()
        now[0] = since + 9.5
        assert not breaker.admits(), "the try that failed begins the time anew"


def test_pauses_take_their_share_as_long_as_the_block_runs() -> None:
    async def took(seconds: float) -> float:
        await pause(seconds)
        return asyncio.get_running_loop().time()  # the virtual clock begins at 0

    with paused_for(0.5):
        with paused_for(2.0):
            assert run_skipping(took(4.0)) == 8.0
        assert run_skipping(took(4.0)) == 2.0


def test_a_coroutine_that_ends_in_its_last_moment_has_not_expired() -> None:
    async def main() -> None:
        async def ends(seconds: float) -> str:
            await passes(seconds)
            return "ended"

        assert await drive(ends(0.5), 1.0) == "ended"
        with pytest.raises(Expired):
            await drive(ends(1.5), 1.0)
        assert asyncio.get_running_loop().time() == pytest.approx(1.5)

    run_skipping(main())
