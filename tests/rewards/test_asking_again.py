"""An endpoint that keeps failing is left alone for a while, for all episodes, and by no fault of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Endpoint
from rlenv.errors import EndpointError
from rlenv.language.spec import BreakerSpec
from rlenv.rewards.asking_again import Health, Legibility

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
