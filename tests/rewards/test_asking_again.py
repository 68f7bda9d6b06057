"""An endpoint that keeps failing is left alone for a while, for all episodes, and by no fault of one of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Endpoint
from rlenv.errors import EndpointError
from rlenv.language.spec import BreakerSpec
from rlenv.rewards.asking_again import Answered, Health, Held, Legibility, Refused, in_time, paces_of
from tests.support.clock import passes, run_skipping

Request = Callable[[], Awaitable[str]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def health(clock: Clock, failures: int = 3, reset_s: float = 30.0) -> Health:
    return Health("writer", BreakerSpec(failures=failures, reset_s=reset_s), hung_s=5.0, clock=clock)


def answering(status: int | None = None, *, asked: list[int]) -> Request:
    async def request() -> str:
        asked.append(1)
        if status is not None:
            raise EndpointError("no", status=status)
        return "yes"

    return request


async def failing(one: Health, request: Request, callers: Iterator[Hashable] | list[Hashable]) -> None:
    for caller in callers:
        with pytest.raises(EndpointError):
            await one.ask(request, caller=caller)


def test_after_failures_in_a_row_nobody_is_asked_until_one_may_try() -> None:
    clock, asked = Clock(), list[int]()

    async def main() -> None:
        one = health(clock)
        await failing(one, answering(503, asked=asked), [1, 2, 3])
        with pytest.raises(EndpointError, match="left alone: 3 failures in a row; it is tried again after 30 s"):
            await one.ask(answering(asked=asked), caller=4)
        assert len(asked) == 3
        clock.now += 30
        await failing(one, answering(503, asked=asked), [5])  # the one that tries fails: shut for as long again
        await failing(one, answering(asked=asked), [6])
        assert len(asked) == 4
        clock.now += 30
        assert await one.ask(answering(asked=asked), caller=7) == "yes"
        assert await one.ask(answering(asked=asked), caller=8) == "yes"

    asyncio.run(main())


def test_while_one_tries_the_others_are_refused() -> None:
    clock = Clock()

    async def main() -> None:
        one, gate = health(clock), asyncio.Event()
        await failing(one, answering(500, asked=[]), [1, 2, 3])
        clock.now += 30

        async def slow() -> str:
            await gate.wait()
            return "yes"

        trying = asyncio.ensure_future(one.ask(slow, caller=1))
        await asyncio.sleep(0)
        await failing(one, answering(asked=[]), [2])
        gate.set()
        assert await trying == "yes"

    asyncio.run(main())


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_server_that_refuses_what_it_was_shown_is_well(status: int) -> None:
    asked = list[int]()
    asyncio.run(failing(health(Clock()), answering(status, asked=asked), list(range(20))))
    assert len(asked) == 20


def test_one_episode_alone_takes_a_judge_from_nobody() -> None:
    asked = list[int]()
    asyncio.run(failing(health(Clock()), answering(500, asked=asked), ["mine"] * 20))
    assert len(asked) == 20


@pytest.mark.parametrize(("is_known", "is_late", "is_open"), [(True, True, False), (True, False, True)])
def test_a_harmless_question_that_is_late_may_wait_for_what_its_episode_asked_before(
    is_known: bool, is_late: bool, is_open: bool
) -> None:
    one, asked = health(Clock()), list[int]()

    async def request() -> str:
        asked.append(1)
        raise EndpointError("no", status=None if is_late else 503, is_late=is_late)

    async def main() -> None:
        for _ in range(20):
            with suppress(EndpointError):
                await one.ask(request, caller="mine", is_known=is_known)

    asyncio.run(main())
    assert len(asked) == (3 if is_open else 20)


@pytest.mark.parametrize(
    ("waited", "somebody_got_one", "is_open"), [(6, False, True), (1, False, False), (6, True, False)]
)
def test_a_request_cut_off_counts_where_it_waited_and_nobody_was_answered(
    waited: float, somebody_got_one: bool, is_open: bool
) -> None:
    clock = Clock()

    async def main() -> None:
        one = health(clock, failures=2)

        async def hangs() -> str:
            await asyncio.Event().wait()
            return ""

        waiting = [asyncio.ensure_future(one.ask(hangs, caller=caller)) for caller in range(3)]
        await asyncio.sleep(0)
        clock.now += waited
        if somebody_got_one:
            await one.ask(answering(asked=[]), caller=9)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        asked = list[int]()
        if is_open:
            await failing(one, answering(asked=asked), [9])
        else:
            await one.ask(answering(asked=asked), caller=9)
        assert len(asked) == (0 if is_open else 1)

    asyncio.run(main())


def test_all_who_share_a_scope_share_one_and_0_wants_none() -> None:
    scope = Scope()
    endpoint = Endpoint(name="writer", base_url="http://127.0.0.1:1/v1", model="m")
    found = Health.of(endpoint, BreakerSpec(), scope, limit_s=None)
    assert found is not None
    assert Health.of(endpoint, BreakerSpec(), scope, limit_s=None) is found
    assert Health.of(endpoint, BreakerSpec(), Scope(), limit_s=None) is not found
    assert Health.of(endpoint, BreakerSpec(failures=0), scope, limit_s=None) is None


def test_a_judge_is_given_up_after_replies_in_a_row_that_cannot_be_read_and_for_a_while() -> None:
    clock = Clock()
    known = Legibility(30.0, clock)
    for is_read, is_lost in [(False, False), (False, False), (False, True), (True, False)]:
        known.told(is_read=is_read)
        assert known.is_lost == is_lost
    for number in range(1, 11):  # it can be read now and then: more of them
        known.told(is_read=False)
        assert known.is_lost == (number == 10)
    clock.now += 30
    assert not known.is_lost
    known.told(is_read=False)  # still in a row
    assert known.is_lost


def after(seconds: float, asked: Counter[str], what: str, answer: Any = "well") -> Callable[[], Awaitable[Any]]:
    """A question that takes so long."""

    async def ask() -> Any:
        asked[what] += 1
        await passes(seconds)
        return Answered(answer) if isinstance(answer, str) else answer

    return ask


LATE = Refused("it is late")


@pytest.mark.parametrize(
    ("very", "known_s", "within_s", "found", "least_s"),
    [
        (1.0, 1.0, 54.0, Answered("well"), 1.0),  # as nearly all are
        (53.0, 1.0, 54.0, Answered("well"), 53.0),  # a text that takes long
        (53.0, 40.0, 54.0, Answered("well"), 53.0),  # a judge that takes long
        (500.0, 0.1, 54.0, Held("no answer within 54 s"), 54.0),
        (500.0, 2.0, 54.0, Held("no answer within 54 s"), 54.0),
        (500.0, 0.02, 3.0, Held("no answer within 3 s"), 3.0),
        (500.0, 40.0, 54.0, None, 60.0),  # a judge that hangs for all
        (500.0, 500.0, 54.0, None, 60.0),
        ((30.0, LATE), 0.1, 54.0, Held("no answer within 54 s"), 30.0),  # its own limit of time comes first
        ((30.0, LATE), 40.0, 54.0, LATE, 30.0),
        ((0.5, LATE), 0.1, 54.0, LATE, 0.5),  # there is time to ask again
    ],
)
def test_a_text_that_keeps_a_model_busy_is_told_from_a_model_that_takes_its_time(
    very: Any, known_s: float, within_s: float, found: Any, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()
    very_s, answer = very if isinstance(very, tuple) else (very, "well")

    async def main() -> tuple[Any, float]:
        loop, told = asyncio.get_running_loop(), None
        monkeypatch.setattr(time, "monotonic", loop.time)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s / 0.9):
                known = after(known_s, asked, "known")
                told = await in_time(known, after(very_s, asked, "very", answer), within_s=within_s, paces=paces())
        return told, loop.time()

    told, seconds = run_skipping(main())
    assert told == found
    assert least_s <= seconds <= within_s / 0.9 + 0.1
    if isinstance(found, Held):
        assert min(asked["very"], asked["known"]) >= 4
    elif very_s < 10:
        assert asked == {"very": 1}


def paces() -> Any:
    return paces_of(Scope(), "judge")


def test_a_judge_with_too_much_to_do_is_asked_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Counter[str]()

    async def main() -> list[Any]:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        shared = paces()
        known, very = after(35.0, asked, "known"), after(50.0, asked, "very")
        return await asyncio.gather(*(in_time(known, very, within_s=54.0, paces=shared) for _ in range(100)))

    assert run_skipping(main()) == [Answered("well")] * 100
    assert (asked["very"], asked["known"]) == (100, 1)
