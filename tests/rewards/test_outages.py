"""Whose failure it was: how often, for how long and by whom it is asked again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest

from rlenv.concurrency.deadline import Countdown, bounded_by_itself, paused_for, running_under
from rlenv.concurrency.scope import Scope
from rlenv.errors import RewardError, whose_failure
from rlenv.messages import ToolCall, ToolResult
from rlenv.rewards.asking_again import Answered, Known, Refused, Untold, in_turn
from rlenv.rewards.base import RewardContext
from rlenv.rewards.outages import Lost, count_against, known_call, settled, settling
from rlenv.testing.rewards import compile_term, reward_context, turn
from rlenv.tools.base import Tool
from tests.support.clock import passes, run_skipping

TOOL = Tool(name="tool", description="", parameters={}, run=lambda *_: None, mode="inline", example={"q": "known"})


@pytest.mark.parametrize(
    ("took_s", "known", "very"),
    [(0.0, 13, 13), (0.9, 13, 13), (1.0, 80, 4), (5.0, 80, 4), (10.0, 60, 3), (30.0, 20, 1)],
)
def test_a_call_that_takes_long_is_asked_less_often_and_the_known_one_more(
    took_s: float, known: int, very: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"known": 0, "very": 0}

    async def ask_known() -> Answered[str]:
        asked["known"] += 1
        return Answered("well")

    async def ask_very() -> Answered[str] | Refused:
        asked["very"] += 1
        await passes(took_s)
        return Refused("it hangs")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        assert await in_turn(ask_known, ask_very, within_s=36.0, took_s=took_s) is None
        return loop.time()

    seconds = run_skipping(main())
    assert (asked["known"], asked["very"]) == (known, very)
    assert seconds <= 36.0


class _Rate:
    """Takes one question in so many seconds, whichever comes first."""

    def __init__(self, every_s: float) -> None:
        self.every_s, self.free_at = every_s, 0.0

    def __call__(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self.free_at:
            return False
        self.free_at = now + self.every_s
        return True


class _Servers:
    """Take questions in turn; the first of them fails each."""

    def __init__(self, count: int) -> None:
        self.turns = cycle([False] + [True] * (count - 1))

    def __call__(self) -> bool:
        return next(self.turns)


@pytest.mark.parametrize(
    "made", [*(partial(_Rate, s) for s in (0.02, 0.2, 1.0)), *(partial(_Servers, n) for n in (2, 3, 4))]
)
def test_what_fails_in_step_with_the_questions_is_charged_to_nobody(
    made: Callable[[], Callable[[], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle() -> str | None:
        takes = made()

        async def ask() -> Answered[str] | Refused:
            await passes(0.001)
            return Answered("well") if takes() else Refused("not now")

        await ask()
        try:
            return await in_turn(ask, ask, within_s=36.0)
        except RewardError:
            return "invalid"

    async def main() -> list[str | None]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        with paused_for(1.0):
            return await asyncio.gather(*(settle() for _ in range(50)))

    state = random.getstate()
    random.seed(1)
    try:
        found = run_skipping(main())
    finally:
        random.setstate(state)
    assert None not in found
    assert found.count("well") > 40


@pytest.mark.parametrize(("slow", "asked"), [(0, 1), (1, 4), (2, 4)])
def test_one_try_that_a_machine_made_slow_leaves_time_for_the_others(
    slow: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(range(99))

    async def ask_known() -> Answered[str]:
        await passes(0.01)
        return Answered("well")

    async def ask_very() -> Answered[str] | Refused:
        await passes(20.0 if next(tries) == slow else 0.01)
        return Refused("it fell")

    async def main() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        assert await in_turn(ask_known, ask_very, within_s=36.0, took_s=0.01, is_dear=True) is None

    run_skipping(main())
    assert next(tries) == asked


@pytest.mark.parametrize("known_s", [0.01, 0.3])
@pytest.mark.parametrize("back_s", [0.2, 2.2])
@pytest.mark.parametrize("own_s", [1.0, 3.0, 5.0, 6.0])
def test_a_call_that_blocks_its_server_is_the_policys_where_the_last_round_has_no_end(
    own_s: float, back_s: float, known_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_blocked = False
    random.seed(1)  # of the pauses between tries

    async def ask_known() -> Answered[str] | Untold:
        nonlocal is_blocked
        await passes(back_s if is_blocked else known_s)
        is_blocked, was = False, is_blocked
        return Untold("the server was replaced") if was else Answered("well")

    async def ask_very() -> Answered[str] | Refused:
        nonlocal is_blocked
        is_blocked = True
        await passes(own_s)
        return Refused("late")

    async def main() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        is_of_the_policy = await in_turn(ask_known, ask_very, within_s=36.0, took_s=own_s) is None
        assert is_of_the_policy

    run_skipping(main())


@pytest.mark.parametrize("away_s", [0.5, 2.0, 4.0, 4.4, 4.8])
@pytest.mark.parametrize("seed", range(5))
def test_who_fells_a_server_again_and_again_is_found_though_it_is_away_as_the_time_ends(
    away_s: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_at, is_down = 0.0, False
    random.seed(seed)  # of the pauses between tries

    async def ask(which: str) -> Answered[str] | Refused | Untold:
        nonlocal back_at
        await passes(0.01)
        now = asyncio.get_running_loop().time()
        if is_down or now < back_at:
            return Untold("nobody is there")
        if which == "very":
            back_at = now + away_s
            return Refused("it fell")
        return Answered("well")

    async def main() -> None:
        nonlocal is_down
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        known, very = partial(ask, "known"), partial(ask, "very")
        with paused_for(1.0):
            assert await in_turn(known, very, within_s=36.0, is_dear=True) is None
            is_down = True
            with pytest.raises(RewardError, match="nobody is there"):
                await in_turn(known, very, within_s=36.0, is_dear=True)

    run_skipping(main())


def test_nobody_is_asked_again_once_another_try_is_said_to_be_no_use() -> None:
    asked = []

    async def ask(what: str) -> Refused | Untold:
        asked.append(what)
        return Refused("unreadable") if what == "known" else Untold("given up", is_last=True)

    with pytest.raises(RewardError, match="given up"):
        asyncio.run(in_turn(partial(ask, "known"), partial(ask, "very"), within_s=36.0))
    assert asked == ["known", "very"]


@pytest.mark.parametrize("slow_s", [1.0, 10.0, 20.0, 29.0])
def test_a_call_that_fails_at_once_and_stalls_when_it_is_asked_again_masks_nothing(
    slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_known() -> Answered[str]:
        await passes(0.02)
        return Answered("well")

    async def ask_very() -> Answered[str] | Refused:
        await passes(slow_s)
        return Refused("it fell")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        assert await in_turn(ask_known, ask_very, within_s=36.0, took_s=0.05, is_dear=True) is None
        return loop.time()

    assert run_skipping(main()) <= 36.0


def test_who_ends_a_process_that_takes_long_to_start_is_asked_as_often_as_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, is_there = {"known": 0, "very": 0}, False

    async def ask(which: str) -> Answered[str] | Refused:
        nonlocal is_there
        asked[which] += 1
        if not is_there:
            with bounded_by_itself():
                await passes(15.0)
        is_there = which == "known"
        await passes(0.01)
        return Answered("well") if is_there else Refused("it fell")

    async def main() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        known, very = partial(ask, "known"), partial(ask, "very")
        assert await in_turn(known, very, within_s=36.0, took_s=0.01, is_dear=True) is None

    run_skipping(main())
    assert asked == {"known": 80, "very": 4}


def test_the_terms_of_an_episode_ask_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked.append(arguments["q"])
        await passes(0.01)
        if arguments["q"] == "known":
            return ToolResult(name, "well", "ok")
        return ToolResult(name, "fell", "failed", reason="crashed", whose="unclear")

    async def main() -> list[ToolResult]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        failed = ToolResult("tool", "fell", "failed", reason="crashed", whose="unclear")
        kept = Scope()
        context = replace(reward_context(call=call), shared=lambda: kept)
        return await asyncio.gather(*(settled(Lost("tool", {"q": "very"}, failed), TOOL, context) for _ in range(3)))

    assert {result.whose for result in run_skipping(main())} == {"policy"}
    again = [*["known"] * 20, "very"] * 3
    assert asked == ["known", "very", *again, *["known"] * 19], "a call that fells what it asks is asked less often"


@pytest.mark.parametrize(("mutates", "asked"), [(True, 1), (False, 2)])
def test_a_call_that_has_to_go_well_is_made_again_unless_it_changes_state(mutates: bool, asked: int) -> None:
    lost = ToolResult("tool", "fell", "failed", reason="crashed", whose="unclear")
    results = [lost, ToolResult("tool", "well", "ok")]
    left = iter(results)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return next(left)

    made = run_skipping(known_call(replace(TOOL, mutates=mutates), {"q": "gold"}, reward_context(call=call)))
    assert made == results[asked - 1]


@pytest.mark.parametrize("slow_s", [0.01, 0.3, 2.0])
def test_those_who_wait_for_one_slow_server_all_get_their_turn(slow_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 48 who were lost together 6 fell the server with whatever else it has."""
    flying: set[asyncio.Future[None]] = set()

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        own = asyncio.get_running_loop().create_future()
        flying.add(own)
        await asyncio.wait((own,), timeout=slow_s)
        flying.discard(own)
        if own.done() or arguments["q"].startswith("fell"):
            for other in flying:
                other.cancel()
            return ToolResult(name, "gone", "failed", reason="disconnected", whose="unclear")
        return ToolResult(name, "did", "ok")

    tool, kept = replace(TOOL, reaches_out=True), Scope()
    failed = ToolResult("tool", "gone", "failed", reason="server_died", whose="infrastructure")

    async def settle(context: RewardContext, q: str) -> str:
        limit = Countdown(60.0)
        with running_under(limit):
            found = await settled(Lost("tool", {"q": q}, failed), tool, context)
        assert not limit.is_over, "waiting for others counts for no limit"
        return found.outcome + found.whose

    async def main() -> list[str]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        context = replace(reward_context(call=call), shared=lambda: kept)
        asked = [f"fell {n}" if n % 8 == 0 else f"item {n}" for n in range(48)]
        return await asyncio.gather(*(settle(replace(context), q) for q in asked))

    assert run_skipping(main()) == ["failedpolicy" if n % 8 == 0 else "ok" for n in range(48)]


def beside_writers(
    writers: int, known_s: float, slow_s: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What becomes of eight calls beside texts that fail all that a server has in flight, as a whole batch."""
    flying: set[asyncio.Future[None]] = set()
    lost = ToolResult("tool", "batch failed", "failed", reason="server_error", whose="unclear", seconds=slow_s)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        own, q = asyncio.get_running_loop().create_future(), arguments["q"]
        flying.add(own)
        await asyncio.wait((own,), timeout=0.1 if q.startswith("fells") else known_s if q == "known" else slow_s)
        flying.discard(own)
        if q.startswith("fells") and not own.done():
            for other in flying:
                other.cancel()
        return lost if own.done() or q.startswith("fells") else ToolResult(name, "did", "ok")

    async def main() -> list[str]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        kept, tool = Scope(), replace(TOOL, reaches_out=True)

        async def settle(q: str) -> str:
            context = replace(reward_context(call=call), shared=lambda: kept)
            with running_under(Countdown(60.0)):
                found = await settled(Lost("tool", {"q": q}, lost), tool, context)
            return found.outcome + found.whose

        asked = [*(f"fells {n}" for n in range(writers)), *(f"item {n}" for n in range(8))]
        with paused_for(1.0):
            return await asyncio.gather(*map(settle, asked))

    random.seed(seed)  # of the order of tries, and of the pauses between them
    return run_skipping(main())


@pytest.mark.parametrize("slow_s", [0.005, 0.1, 0.4, 0.8])
@pytest.mark.parametrize("writers", [1, 2, 4])
def test_texts_that_fail_all_that_a_server_has_in_flight_move_nobody_elses_number(
    writers: int, slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is there at once. What others ask takes longer than what is known."""
    found = beside_writers(writers, 0.005, slow_s, 1, monkeypatch)
    assert found == [*["failedpolicy"] * writers, *["ok"] * 8]


@pytest.mark.parametrize("known_s", [0.05, 0.1])
@pytest.mark.parametrize("slow_s", [1.5, 3.0])
@pytest.mark.parametrize(("writers", "most"), [(1, 0.2), (4, 0.0)])
def test_such_texts_move_few_numbers_of_calls_that_take_a_second_or_more(
    writers: int, most: float, known_s: float, slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They set one beat for all, to which the known question would never be asked as they fail what there is."""
    found = [beside_writers(writers, known_s, slow_s, seed, monkeypatch) for seed in range(6)]
    assert all(one[:writers] == ["failedpolicy"] * writers for one in found)
    assert sum(one[writers:].count("failedpolicy") for one in found) <= most * 6 * 8


def test_what_fails_beside_others_is_asked_alone_and_what_failed_before_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a judge and a simulated user are asked too: by `in_turn`, of whatever kind the questions are."""
    turn, failed_alone, asked = asyncio.Lock(), 0, itertools.count()

    async def ask_known() -> Answered[str] | Refused:
        await passes(0.01)
        return Answered("well") if turn.locked() or next(asked) % 10 else Refused("others fell it")

    async def ask_very() -> Refused:
        nonlocal failed_alone
        await passes(0.5)
        failed_alone += turn.locked()
        return Refused("it fell")

    async def main() -> str | None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        return await in_turn(ask_known, ask_very, within_s=36.0, tries=Known(turn, holds=False))

    assert run_skipping(main()) is None
    assert failed_alone == 13


def test_a_known_question_that_is_answered_at_once_is_asked_no_longer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_known() -> Answered[str]:
        return Answered("well")

    async def ask_very() -> Refused:
        await passes(0.4)
        return Refused("it fell")

    async def main() -> tuple[str | None, float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        return await in_turn(ask_known, ask_very, within_s=36.0, tries=Known(asyncio.Lock(), holds=False)), loop.time()

    random.seed(1)  # of the order of tries
    found, seconds = run_skipping(main())
    assert found is None
    assert seconds < 24.0


@pytest.mark.parametrize(("known_s", "most_s"), [(0.05, 3 * 36.0), (0.5, 36.0)])
def test_those_who_fail_at_a_server_that_fails_now_and_then_wait_for_each_other_no_longer_than_twice_their_time(
    known_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, chance = asyncio.Lock(), random.Random(1)

    async def ask_known() -> Answered[str] | Refused:
        await passes(known_s)
        return Refused("by chance") if chance.random() < 0.02 else Answered("well")

    async def ask_very() -> Refused:
        await passes(0.5)
        return Refused("it fell")

    async def main() -> tuple[set[str | None], float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        tries = (Known(turn, holds=False) for _ in range(100))
        found = await asyncio.gather(*(in_turn(ask_known, ask_very, within_s=36.0, tries=one) for one in tries))
        return set(found), loop.time()

    random.seed(1)  # of the order of tries, and of the pauses between them
    found, seconds = run_skipping(main())
    assert found == {None}
    assert seconds < most_s


@pytest.mark.parametrize("slow_s", [0.001, 0.2, 0.5, 1.0, 1.4, 2.0, 4.0])
@pytest.mark.parametrize("is_dear", [False, True])
def test_who_fells_a_server_is_found_however_slow_it_is(
    slow_s: float, is_dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_known() -> Answered[str]:
        await passes(slow_s)
        return Answered("well")

    async def ask_very() -> Answered[str] | Refused:
        await passes(slow_s)
        return Refused("it fell")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        assert await in_turn(ask_known, ask_very, within_s=36.0, took_s=slow_s, is_dear=is_dear) is None
        return loop.time()

    assert run_skipping(main()) <= 36.0 + slow_s


@pytest.mark.parametrize(("back_s", "hangs_s"), [(0.4, 0.0), (20.0, 0.0), (20.0, 10.0), (None, 0.0), (None, 10.0)])
def test_a_server_that_is_gone_is_waited_for_by_all_at_once(
    back_s: float | None, hangs_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> Answered[str] | Untold:
        if back_s is not None and asyncio.get_running_loop().time() >= back_s:
            return Answered("well")
        await passes(hangs_s)
        return Untold("nobody is there")

    async def main() -> tuple[set[str], float]:
        loop, tries = asyncio.get_running_loop(), Known(asyncio.Lock())
        monkeypatch.setattr(time, "monotonic", loop.time)

        async def one() -> str:
            try:
                return await in_turn(ask, ask, within_s=36.0, tries=tries) or "refused"
            except RewardError:
                return "invalid"

        with paused_for(1.0):
            found = await asyncio.gather(*(one() for _ in range(100)))
        return set(found), loop.time()

    found, seconds = run_skipping(main())
    assert found == {"well" if back_s else "invalid"}
    assert seconds < 60


def test_a_server_that_is_gone_for_several_tries_failed_once() -> None:
    gone, tries = iter(range(5)), Known()

    async def known() -> Answered[str] | Untold:
        return Untold("nobody is there") if next(gone, None) is not None else Answered("well")

    async def very() -> Refused:
        return Refused("it fell")

    assert run_skipping(in_turn(known, very, within_s=36.0, tries=tries)) is None
    assert tries.failed == 1


@pytest.mark.parametrize("own_s", [0.1, 2.0, 5.0])
def test_more_lost_calls_than_there_is_time_for_mask_nothing_and_cost_no_more(
    own_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = ToolResult("tool", "late", "timeout", reason="late", whose="unclear", seconds=own_s)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if arguments["q"] == "known":
            return ToolResult(name, "did", "ok")
        await passes(own_s)
        return failed

    async def main() -> tuple[set[str], float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        lost = [Lost("tool", {"q": str(n)}, failed) for n in range(100)]
        with running_under(Countdown(60.0)):
            found = [one async for one in settling(lost, {"tool": TOOL}, reward_context(call=call))]
        return {one.whose if isinstance(one, ToolResult) else "nobody knows" for one in found}, loop.time()

    found, seconds = run_skipping(main())
    assert found == {"policy"}
    assert seconds <= 36.0


@pytest.mark.parametrize("number", [1, 2, 3, 8, 30])
@pytest.mark.parametrize(("own_s", "known_s"), [(0.2, 0.2), (0.7, 0.7), (0.0, 0.7), (1.5, 1.5), (0.0, 2.0)])
def test_several_calls_that_fail_again_are_the_policys_as_one_is(
    own_s: float, known_s: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one among them that an outage took is answered."""
    failed = ToolResult("tool", "no", "failed", reason="server_error", whose="unclear", seconds=own_s)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        await passes(known_s if arguments["q"] == "known" else own_s)
        return ToolResult(name, "did", "ok") if arguments["q"] in ("known", "item") else failed

    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        lost = [Lost("tool", {"q": q}, failed) for q in ("item", *map(str, range(number)))]
        with running_under(Countdown(60.0)):
            found = [one async for one in settling(lost, {"tool": TOOL}, reward_context(call=call))]
        return [
            one.outcome + one.whose if isinstance(one, ToolResult) else "nobody knows" for one in found
        ], loop.time()

    found, seconds = run_skipping(main())
    assert found == ["ok", *["failedpolicy"] * number]
    assert seconds <= 36.0 + own_s + known_s


def test_a_failure_while_the_known_call_fails_too_is_nobodys_beside_one_of_the_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = ToolResult("tool", "no", "failed", reason="server_error", whose="unclear", seconds=0.1)
    is_down = False

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        nonlocal is_down
        await passes(0.1)
        is_down = is_down or arguments["q"] == "item"
        return ToolResult(name, "did", "ok") if arguments["q"] == "known" and not is_down else failed

    async def main() -> list[str]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        lost = [Lost("tool", {"q": q}, failed) for q in ("bad", "item")]
        with running_under(Countdown(60.0)):
            found = [one async for one in settling(lost, {"tool": TOOL}, reward_context(call=call))]
        return [one.whose if isinstance(one, ToolResult) else "nobody knows" for one in found]

    assert run_skipping(main()) == ["policy", "nobody knows"]


def test_an_answer_counts_however_the_known_call_does() -> None:
    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if arguments["q"] == "very":
            return ToolResult(name, "did", "ok")
        return ToolResult(name, "no", "failed", reason="server_error", whose="unclear")

    failed = ToolResult("tool", "no", "failed", reason="server_error", whose="unclear")
    found = run_skipping(settled(Lost("tool", {"q": "very"}, failed), TOOL, reward_context(call=call)))
    assert found.text == "did"


@pytest.mark.parametrize("reason", ["rate_limited", "server_error"])
@pytest.mark.parametrize(("places", "seconds"), [*((1, s) for s in (0.003, 0.1, 0.3, 1.0)), (5, 1), (20, 1), (21, 2)])
def test_a_rate_that_all_calls_share_is_nobodys_failure(places: int, seconds: float, reason: str) -> None:
    """So many calls are answered in so many seconds, and the others 429, or 503 as some servers say."""
    until, left = 0.0, 0

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        nonlocal until, left
        await passes(0.002)
        now = asyncio.get_running_loop().time()
        until, left = (until, left) if now < until else (now + seconds, places)
        left -= 1
        return failed if left < 0 else ToolResult(name, "did", "ok")

    failed = ToolResult("tool", "too many", "failed", reason=reason, whose="unclear")

    async def main() -> set[str]:
        told = set[str]()
        with paused_for(1.0):
            for n in range(50):
                random.seed(n)
                try:
                    told.add(
                        (await settled(Lost("tool", {"q": "very"}, failed), TOOL, reward_context(call=call))).outcome
                    )
                except RewardError:
                    told.add("invalid")
        return told

    assert run_skipping(main()) <= {"ok", "invalid"}


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_call_that_fells_what_others_fell_too_is_the_policys(share: float) -> None:
    """So large a share of the known calls is lost with what other episodes bring about meanwhile."""
    rng = random.Random(share)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        await passes(0.001)
        if arguments["q"] == "very" or rng.random() < share:
            return ToolResult(name, "gone", "failed", reason="disconnected", whose="unclear")
        return ToolResult(name, "did", "ok")

    failed = ToolResult("tool", "gone", "failed", reason="disconnected", whose="unclear")

    async def main() -> list[ToolResult]:
        lost = Lost("tool", {"q": "very"}, failed)
        return [await settled(lost, TOOL, reward_context(call=call)) for _ in range(20)]

    assert {result.whose for result in run_skipping(main())} == {"policy"}


KINDS = ["server_error", "refused", "rate_limited", "disconnected", "unavailable"]


@pytest.mark.parametrize("fellers", [1, 3])
@pytest.mark.parametrize("away_s", [0.5, 2.0])
@pytest.mark.parametrize("others", KINDS)
@pytest.mark.parametrize("own", KINDS[:3])
def test_a_call_after_which_its_server_fails_all_in_whatever_way_is_the_policys(
    own: str, others: str, away_s: float, fellers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do a server that is starting, a proxy in front of one and a firewall that bars an address for a moment; a call
    that found it so is nobody's failure."""
    until, kept = 0.0, Scope()
    tool = replace(TOOL, reaches_out=True, kind="http", idempotent=True, depends_on="arguments")
    gives = {one: ToolResult("tool", "no", "failed", reason=one, whose=whose_failure(one)) for one in KINDS}

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        nonlocal until
        await passes(0.005)
        now = asyncio.get_running_loop().time()
        if now < until:
            return gives[others]
        until = now + away_s if arguments["q"].startswith("fells") else until
        return gives[own] if now < until else ToolResult(name, "did", "ok")

    async def asked(q: str) -> str:
        context = replace(reward_context(call=call), shared=lambda: kept)
        lost = Lost("tool", {"q": q}, gives[own if q.startswith("fells") else others])
        with running_under(Countdown(60.0)):
            return (await settled(lost, tool, context)).outcome

    async def main() -> list[str]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        with paused_for(1.0):
            fallen = [asked(f"fells {n}") for n in range(fellers)]
            return await asyncio.gather(*fallen, *(asked(f"harmless {n}") for n in range(3)))

    random.seed(1)  # of the order of tries, and of the pauses between them
    assert run_skipping(main()) == ["failed"] * fellers + ["ok"] * 3


def lost_call(q: str, reason: str = "server_error", whose: Any = "unclear") -> Lost:
    return Lost("tool", {"q": q}, ToolResult("tool", "no", "failed", reason=reason, whose=whose))


@pytest.mark.parametrize(
    ("known", "whose"),
    [
        (ToolResult("tool", "well", "ok"), "policy"),
        (ToolResult("tool", "no", "failed", reason="server_error", whose="unclear"), ""),
        (ToolResult("tool", "late", "timeout", reason="late", whose="unclear"), ""),
        (ToolResult("tool", "no", "failed", reason="unavailable", whose="infrastructure"), ""),
        (ToolResult("tool", "no such city", "failed", reason="failed", whose="policy"), ""),
    ],
    ids=lambda one: one.reason if isinstance(one, ToolResult) else one,
)
def test_a_failure_is_the_policys_beside_a_known_call_that_goes_well_alone(known: ToolResult, whose: str) -> None:
    asked = {"known": 0, "very": 0}

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked[arguments["q"]] += 1
        return known if arguments["q"] == "known" else lost_call("very").result

    async def main() -> str:
        try:
            return (await settled(lost_call("very"), TOOL, reward_context(call=call))).whose
        except RewardError:
            return ""

    assert run_skipping(main()) == whose
    if known.reason == "failed":  # a known call that is no such call tells nothing, however often it is asked
        assert asked["known"] == 1
    if known.reason == "late":
        assert asked["known"] > 1


@pytest.mark.parametrize("fails", [0, 1, 5, 1_000])
@pytest.mark.parametrize("reason", ["server_error", "late", "unavailable", "disconnected"])
def test_a_call_that_is_the_known_one_is_nobodys_failure(reason: str, fails: int) -> None:
    whose = whose_failure(reason)
    tried = iter(range(2_000))

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        failed = lost_call("known", reason, whose).result
        return failed if next(tried) < fails else ToolResult("tool", "well", "ok")

    async def main() -> str:
        try:
            return (await settled(lost_call("known", reason, whose), TOOL, reward_context(call=call))).outcome
        except RewardError:
            return "invalid"

    assert run_skipping(main()) == ("invalid" if fails == 1_000 else "ok")


def test_a_short_call_that_hangs_and_blocks_its_server_is_the_policys(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = ToolResult("tool", "late", "timeout", reason="late", whose="unclear", seconds=0.95)
    is_blocked = False

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        nonlocal is_blocked
        if arguments["q"] == "known" and not is_blocked:
            await passes(0.01)
            return ToolResult("tool", "well", "ok")
        is_blocked = arguments["q"] != "known"
        await passes(0.95 if is_blocked else 2.2)  # it is replaced
        return hung

    async def main() -> str:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        with running_under(Countdown(60.0)):
            return (await settled(Lost("tool", {"q": "very"}, hung), TOOL, reward_context(call=call))).whose

    assert run_skipping(main()) == "policy"


@pytest.mark.parametrize(
    ("tool", "turns", "says"),
    [
        (None, (), "it changes state"),
        (replace(TOOL, mutates=True), (), "it changes state"),
        (replace(TOOL, example=None), (), "give the tool an `example`"),
    ],
)
def test_a_call_that_cannot_be_tried_is_nobodys(tool: Tool | None, turns: Any, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        run_skipping(settled(lost_call("very"), tool, reward_context(turns=turns)))


def test_a_call_of_the_episode_that_went_well_is_the_known_one_where_there_is_no_example() -> None:
    asked: list[str] = []

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked.append(arguments["q"])
        return ToolResult(name, "well", "ok") if arguments["q"] != "very" else lost_call("very").result

    calls = [ToolCall("tool", {"q": q}) for q in ("first", "bad", "last")]
    results = [ToolResult("tool", "", outcome) for outcome in ("ok", "failed", "ok")]
    turns = [turn(calls=calls, results=results), turn(index=1, calls=calls[1:2], results=results[1:2])]
    found = run_skipping(
        settled(lost_call("very"), replace(TOOL, example=None), reward_context(call=call, turns=turns))
    )
    assert (found.whose, set(asked)) == ("policy", {"first", "very"})


def test_a_call_without_arguments_is_known_as_any_other() -> None:
    well = ToolResult("tool", "well", "ok")
    call = {"": lost_call("very").result, "known": well}

    async def asked(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return call["known" if not arguments else ""]

    tool = replace(TOOL, example={})
    assert run_skipping(settled(lost_call("very"), tool, reward_context(call=asked))).whose == "policy"
    bare = Lost("tool", {}, lost_call("very").result)
    assert run_skipping(settled(bare, tool, reward_context(call=asked))) == well


@pytest.mark.parametrize(("kind", "argument"), [("code", "code"), ("sql", "sql")])
def test_a_kind_that_always_has_an_answer_to_something_needs_no_example(kind: str, argument: str) -> None:
    stalled = ToolResult("tool", "it did not end", "timeout", reason="stalled", whose="infrastructure")
    own = [stalled, stalled, replace(stalled, reason="timeout", whose="policy")]

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return own.pop(0) if arguments[argument] == "very" else ToolResult(name, "1", "ok")

    tool = replace(TOOL, example=None, kind=kind)
    lost = Lost("tool", {argument: "very"}, own.pop(0))
    assert run_skipping(settled(lost, tool, reward_context(call=call))).whose == "policy"


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_calls_that_are_the_policys_after_all_are_counted_up_to_a_number(most: int) -> None:
    asked: set[str] = set()

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked.add(arguments["q"])
        is_well = arguments["q"] in ("known", "c")
        return ToolResult(name, "well", "ok") if is_well else lost_call("").result

    lost = [lost_call("a"), lost_call("x", "unavailable", "infrastructure"), *map(lost_call, "bcde")]
    found = run_skipping(count_against(lost, {"tool": TOOL}, reward_context(call=call), most=most))
    assert found == min(most, 4)
    assert asked - {"known"} == set("abcde"[: {1: 1, 2: 2, 3: 4, 9: 5}[most]])


@pytest.mark.parametrize("most", range(6))
def test_calls_that_are_the_policys_after_all_count_for_the_most_as_others_do(most: int) -> None:
    """One that went well, three that fail again and one that an outage took: four calls, and a fifth at no fault."""

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(name, "well", "ok") if arguments["q"] == "known" else lost_call("").result

    lost = [*map(lost_call, "abc"), lost_call("x", "unavailable", "infrastructure")]
    results = [ToolResult("tool", "well", "ok"), *(one.result for one in lost)]
    calls = [ToolCall("tool", {"q": q}) for q in ("known", *"abcx")]
    context = reward_context(call=call, turns=[turn(calls=calls, results=results)])
    term = compile_term(rule="tool_call_count", tools={"tool": TOOL}, max=most)

    async def main() -> float | None:
        assert term.measure_async is not None
        return (await term.measure_async(context)).value

    assert run_skipping(main()) == (most >= 4)


@pytest.mark.parametrize(
    ("reason", "whose", "is_asked"),
    [("server_error", "unclear", True), ("late", "unclear", False), ("unavailable", "infrastructure", False)],
)
def test_a_call_is_asked_beside_a_known_one_that_says_that_the_tool_is_there(
    reason: str, whose: Any, is_asked: bool
) -> None:
    asked = {"known": 0, "very": 0}

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked[arguments["q"]] += 1
        return lost_call("", reason, whose).result

    with pytest.raises(RewardError, match=f"what is known to work failed too: {reason}"):
        run_skipping(settled(lost_call("very"), TOOL, reward_context(call=call)))
    assert (asked["known"] > 1, asked["very"] > 0) == (True, is_asked)


def test_no_term_loses_its_time_to_another_of_its_episode_that_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two lost calls: the first fails by itself, an outage took the second. The server answers others for a minute."""
    lost_one = ToolResult("tool", "gone", "failed", reason="server_died", whose="infrastructure", seconds=0.5)

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        await passes(0.1)
        if arguments["q"] == "bad":
            return ToolResult(name, "no such thing", "failed", reason="failed", whose="policy")
        return ToolResult(name, "did", "ok")

    async def term(context: RewardContext) -> list[str]:
        lost = [Lost("tool", {"q": q}, lost_one) for q in ("bad", "good")]
        found = [one async for one in settling(lost, {"tool": replace(TOOL, reaches_out=True)}, context)]
        return [one.outcome if isinstance(one, ToolResult) else "nobody knows" for one in found]

    async def main() -> list[list[str]]:
        loop, kept, others = asyncio.get_running_loop(), Scope(), asyncio.Lock()
        monkeypatch.setattr(time, "monotonic", loop.time)
        kept.keep(("outages", "tool"), lambda: Known(others))
        await others.acquire()
        loop.call_later(60.0, others.release)
        context = replace(reward_context(call=call), shared=lambda: kept)
        with running_under(Countdown(60.0)):
            return await asyncio.gather(*(term(context) for _ in range(3)))

    assert run_skipping(main()) == [["failed", "ok"]] * 3
