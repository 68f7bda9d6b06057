"""An endpoint that keeps failing is left alone for a while, for all episodes, and by no fault of one of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Client, Endpoint
from rlenv.errors import EndpointError, RewardError
from rlenv.language.spec import BreakerSpec
from rlenv.rewards.asking_again import Answered, Known, Refused, Untold
from rlenv.rewards.asking_models import Pace, Room, if_felled, if_refused, if_unread, in_time
from rlenv.rewards.verdict import Health, Legibility
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


async def failing(
    one: Health, request: Request, callers: Iterator[Hashable] | list[Hashable], *, is_known: bool = True
) -> None:
    for caller in callers:
        with pytest.raises(EndpointError):
            await one.ask(request, caller=caller, is_known=is_known)


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


@pytest.mark.parametrize(("callers", "count"), [(["mine"] * 20, 20), (list(range(20)), 3)])
def test_one_episode_alone_takes_a_judge_from_nobody(callers: list[Hashable], count: int) -> None:
    asked = list[int]()

    async def away() -> str:
        asked.append(1)
        raise EndpointError("nobody is there")

    asyncio.run(failing(health(Clock()), away, callers, is_known=False))
    assert len(asked) == count


@pytest.mark.parametrize(
    "facts", [{"status": 500}, {"status": 404}, {"status": 429}, {"is_garbled": True}, {"is_late": True}]
)
def test_what_many_policies_may_have_written_takes_a_judge_from_nobody(facts: dict[str, Any]) -> None:
    asked = list[int]()

    async def fails() -> str:
        asked.append(1)
        raise EndpointError("no", **facts)

    asyncio.run(failing(health(Clock()), fails, list(range(20)), is_known=False))
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


@pytest.mark.parametrize(("callers", "fails_s", "is_open"), [(1, 60.0, False), (9, 4.0, False), (9, 6.0, True)])
def test_a_judge_that_has_answered_is_down_where_it_fails_for_long_and_for_several(
    callers: int, fails_s: float, is_open: bool
) -> None:
    clock, asked = Clock(), list[int]()
    one = health(clock)

    async def main() -> None:
        await one.ask(answering(asked=[]), caller="any", is_known=True)
        clock.now += 100.0  # in which nobody asks
        for at in range(41):
            with suppress(EndpointError):
                await one.ask(answering(503, asked=asked), caller=at % callers, is_known=True)
            clock.now += fails_s / 40

    asyncio.run(main())
    assert (len(asked) < 41) == is_open


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
    found = Health.of(endpoint, BreakerSpec(), scope)
    assert found is not None
    assert Health.of(endpoint, BreakerSpec(), scope) is found
    assert Health.of(endpoint, BreakerSpec(), Scope()) is not found
    assert Health.of(endpoint, BreakerSpec(failures=0), scope) is None


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
    """A request that takes so long."""

    async def ask() -> Any:
        asked[what] += 1
        await passes(seconds)
        if isinstance(answer, Exception):
            raise answer
        return Answered(answer) if what == "known" else answer

    return ask


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, float]:
    """What it gives, or the error that it raises, and the seconds that it took."""

    async def main() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        try:
            return await work(), loop.time()
        except EndpointError as error:
            return error, loop.time()

    return run_skipping(main())


def usual(*seconds: float) -> Pace:
    """The pace of a model that has answered others in so many seconds."""
    return Pace(took=seconds * 8, answered=8 * len(seconds))


LATE = EndpointError("it is late", is_late=True)
HELD = "no answer within 54 s"


@pytest.mark.parametrize(
    ("very", "known_s", "pace", "found", "least_s"),
    [
        (1.0, 1.0, usual(3.0), "well", 1.0),  # as nearly all are
        (53.0, 1.0, usual(3.0), "well", 53.0),  # a text that takes long
        (59.0, 1.0, usual(20.0), "well", 59.0),  # a judge that takes long over most, and not over harmless characters
        (59.0, 20.0, usual(3.0), "well", 59.0),  # a judge that takes long now
        (500.0, 0.1, usual(), HELD, 54.0),
        (500.0, 0.1, usual(3.0), HELD, 54.0),
        (500.0, 2.0, usual(3.0), HELD, 54.0),
        (500.0, 0.1, usual(3.0, 3.0, 50.0), HELD, 54.0),
        (500.0, 0.1, usual(20.0), None, 60.0),
        (500.0, 2.0, usual(), None, 60.0),  # nobody knows how long it takes over others
        (500.0, 20.0, usual(3.0), None, 60.0),
        (500.0, 500.0, usual(3.0), None, 60.0),  # a judge that hangs for all
        ((30.0, LATE), 0.1, usual(3.0), HELD, 30.0),  # its own limit of time comes first
        ((30.0, LATE), 40.0, usual(3.0), "it is late", 30.0),
        ((0.5, LATE), 0.1, usual(3.0), "it is late", 0.5),  # there is time to ask again
    ],
)
def test_a_text_that_keeps_a_model_busy_is_told_from_a_model_that_takes_its_time(
    very: Any, known_s: float, pace: Pace, found: Any, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()
    very_s, answer = very if isinstance(very, tuple) else (very, "well")

    async def work() -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                request = after(very_s, asked, "very", answer)
                return await in_time(after(known_s, asked, "known"), request, within_s=54.0, pace=pace)

    told, seconds = in_virtual_time(work, monkeypatch)
    assert (str(told) if isinstance(told, EndpointError) else told) == found
    assert getattr(told, "is_held", False) == (found == HELD)
    assert least_s <= seconds <= 60.1
    if found == HELD:
        assert min(asked["very"], asked["known"]) >= 4
    elif very_s < 10 or pace.usual_s == 20.0:
        assert asked == {"very": 1}
    assert pace.waiting == {}


def test_a_model_of_two_that_hangs_takes_no_verdict_from_those_that_the_other_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Counter[str]()

    async def request() -> str:
        asked["very"] += 1
        await passes(500.0 if asked["very"] == 1 else 3.5)
        return "well"

    def work() -> Coroutine[Any, Any, Any]:
        return in_time(after(0.5, asked, "known"), request, within_s=54.0, pace=usual(3.0))

    assert in_virtual_time(work, monkeypatch)[0] == "well"


@pytest.mark.parametrize(
    ("texts", "hung", "pace", "held"),
    [
        (100, 0, usual(3.0), 0),  # as many at once are late by themselves: nothing is asked beside
        (100, 0, usual(), 0),
        (100, 20, usual(3.0), 20),
        (16, 16, usual(3.0), 16),
        (17, 17, usual(3.0), 0),  # it may be the model
        (3, 3, usual(), 3),
        (4, 4, usual(), 0),
    ],
)
def test_a_model_with_much_to_do_is_asked_nothing_beside(
    texts: int, hung: int, pace: Pace, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()

    async def work() -> Any:
        each_s = [500.0 if index < hung else 3.0 if hung else 50.0 for index in range(texts)]
        known = after(0.5, asked, "known")
        all_of_them = [
            asyncio.wait_for(in_time(known, after(seconds, asked, "very"), within_s=54.0, pace=pace), 60.0)
            for seconds in each_s
        ]
        return await asyncio.gather(*all_of_them, return_exceptions=True)

    found = Counter(type(one) for one in in_virtual_time(work, monkeypatch)[0])
    assert (found[EndpointError], found[str]) == (held, texts - hung)
    assert (asked["known"] > 0) == (asked["very"] > texts) == (held > 0)


def test_where_no_text_is_answered_in_time_the_limit_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, asked = usual(), Counter[str]()

    async def work() -> Any:
        found = []
        for _ in range(6):
            request = after(80.0, asked, "very")
            with suppress(TimeoutError, EndpointError):
                await asyncio.wait_for(in_time(after(0.5, asked, "known"), request, within_s=54.0, pace=pace), 60.0)
            found.append(pace.held)
        return found

    assert in_virtual_time(work, monkeypatch)[0] == [1, 2, 3, 3, 3, 3]


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize(
    ("reads", "known_s", "found", "most_s"),
    [
        (lambda tries: False, 0.5, "no reply to it can be read", 46.0),
        (lambda tries: False, 10.0, "no reply to it can be read", 46.0),
        (lambda tries: tries == 6, 0.5, 6, 46.0),  # a model that writes so by chance
        (lambda tries: False, None, 0, 60.0),  # one that writes so whatever it is asked
    ],
)
def test_a_text_about_which_a_model_writes_long_is_told_in_time_from_a_model_that_writes_so_by_chance(
    reads: Callable[[int], bool], known_s: float | None, found: Any, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def request() -> int:
        nonlocal tries
        tries += 1
        mine = tries
        await passes(12.0)
        return mine

    async def known() -> Answered[None] | Refused:
        await passes(known_s or 0.5)
        return Refused("prose") if known_s is None else Answered(None)

    async def work() -> Any:
        return await if_unread(known, request, 0, reads, most=10, took_s=12.0, within_s=42.0)

    told, seconds = in_virtual_time(work, monkeypatch)
    assert (str(told) if isinstance(told, EndpointError) else told) == found
    assert getattr(told, "is_held", False) == isinstance(found, str)
    assert seconds < most_s


class Falling:
    """A server that falls for a while, in the place of its client; what it was asked then is cut."""

    endpoint = SimpleNamespace(base_url="the judge")

    def __init__(self, away_s: float, *, refuses: float = 0.0, proxy: int | None = None) -> None:
        self.away_s, self.cuts, self.is_up, self.fall = away_s, 0, True, asyncio.Event()
        self.refuses, self.proxy = refuses, proxy

    def falls(self) -> None:
        if self.is_up:
            self.fall.set()
            self.fall, self.is_up = asyncio.Event(), False
            asyncio.get_running_loop().call_later(self.away_s, setattr, self, "is_up", True)

    @property
    def server(self) -> Falling:
        return self

    async def ask(self, seconds: float, *, fells: bool = False, retries: int = 0) -> str:
        if not self.is_up:
            raise EndpointError("it is away", status=self.proxy)
        if random.random() < self.refuses:
            self.cuts += self.proxy is not None
            raise EndpointError("it is busy", status=self.proxy or 500, is_cut=self.proxy is not None)
        fall = self.fall
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await fall.wait()
        if not fells and not fall.is_set():
            return "well"
        self.falls()
        self.cuts += 1
        raise EndpointError("it went", status=self.proxy, is_garbled=self.proxy is None, is_cut=True)

    async def known(self) -> Answered[str] | Refused | Untold:
        try:
            return Answered(await self.ask(0.3))
        except EndpointError as error:
            return Refused(str(error)) if error.is_cut else Untold(str(error), is_last=True)

    async def asked(self, seconds: float, scope: Scope, *, fells: bool = False) -> str:
        request = partial(self.ask, seconds, fells=fells)
        try:
            return await request()
        except EndpointError as error:
            client: Any = self
            return await if_felled(self.known, request, error, client, scope, most=10, within_s=54.0)


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize(("away_s", "proxy"), [(0.5, None), (3.0, None), (10.0, None), (0.5, 502), (3.0, 503)])
def test_a_text_that_fells_a_server_each_time_is_told_whether_or_not_others_are_cut_with_it(
    away_s: float, proxy: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> Any:
        server, scope = Falling(away_s, proxy=proxy), Scope()
        fells = server.asked(0.1, scope, fells=True)
        others = [server.asked(2.0, scope) for _ in range(10)]
        return await asyncio.gather(fells, *others, return_exceptions=True)

    (felled, *others), _ = in_virtual_time(work, monkeypatch)
    assert isinstance(felled, EndpointError)
    assert felled.is_held
    assert others == ["well"] * 10


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize(("seconds", "every_s"), [(10.0, 5.0), (10.0, 15.0), (3.0, 5.0), (1.0, 2.0)])
def test_a_server_that_falls_by_others_again_and_again_fells_nobody_who_only_takes_longer_than_what_is_known(
    seconds: float, every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> Any:
        server, found = Falling(2.0), list[Any]()
        random.seed(every_s)

        async def others() -> None:
            while True:
                await passes(random.expovariate(1 / every_s))
                server.cuts += 1
                server.falls()

        falling = asyncio.ensure_future(others())
        for _ in range(40):
            try:
                found.append(await server.asked(seconds, Scope()))
            except EndpointError as error:
                found.append(error.is_held)
        falling.cancel()
        return found

    assert set(in_virtual_time(work, monkeypatch)[0]) <= {"well", False}


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize("proxy", [None, 503])
@pytest.mark.parametrize("seconds", [0.1, 3.0])
def test_a_server_that_is_back_and_refuses_half_of_all_takes_no_verdict(
    seconds: float, proxy: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> Any:
        found = list[Any]()
        random.seed(1)
        for _ in range(100):
            server, scope = Falling(2.0, refuses=0.5, proxy=proxy), Scope()
            server.falls()
            scope.keep(("falls", server.endpoint.base_url), lambda: Known(asyncio.Lock())).fellers = 1
            found += await asyncio.gather(server.asked(seconds, scope), return_exceptions=True)
        return Counter(getattr(one, "is_held", "well") for one in found)

    assert in_virtual_time(work, monkeypatch)[0][True] == 0


@pytest.mark.usefixtures("whole_pauses")
def test_what_finds_a_server_away_waits_for_it_only_where_it_fell_over_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> Any:
        server, scope = Falling(5.0), Scope()
        server.falls()
        alone = await asyncio.gather(server.asked(1.0, scope), return_exceptions=True)
        await passes(6.0)
        suspect = asyncio.ensure_future(server.asked(1.0, scope))
        await passes(0.5)
        server.falls()
        await passes(0.5)
        return [*alone, await server.asked(1.0, scope), await suspect]

    (alone, later, suspect), _ = in_virtual_time(work, monkeypatch)
    assert (str(alone), later, suspect) == ("it is away", "well", "well")


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("is_out", [False, True])
def test_words_at_which_a_server_hangs_are_told_where_a_harmless_answer_takes_a_fifth_of_the_time_for_one(
    is_out: bool, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few its tries are. One that hangs now and then at anything is told from it."""
    asked = 0

    async def known() -> None:
        nonlocal asked
        asked += 1
        if is_out and asked % 4 == 0:
            await very()
        await passes(4.0)  # it is two answers

    async def very() -> None:
        await passes(10.0)
        raise EndpointError("no answer", is_late=True)

    async def work() -> Any:
        client = Client(Endpoint(name="", base_url="http://127.0.0.1:9/v1", model="m", timeout_s=10.0, retries=retries))
        return await if_refused(known, very, Room(client), looks=1, took_s=10.0)

    if is_out:
        with pytest.raises(RewardError):
            in_virtual_time(work, monkeypatch)
    else:
        assert in_virtual_time(work, monkeypatch)[0] is None


def test_who_waits_for_room_under_a_limit_of_rate_has_no_place_meanwhile_and_counts_it_for_no_try() -> None:
    async def main() -> None:
        client, tries = Client(Endpoint(name="", base_url="http://127.0.0.1:9/v1", model="m", concurrency=1)), 0

        async def asked(status: int) -> str:
            nonlocal tries
            tries, client.barred_until = tries + 1, float("inf")
            assert client.places.locked()
            if tries % 2 or status:
                raise EndpointError("no", status=429 if tries % 2 else status)
            return "yes"

        with closing(Room(client, has_place=True)) as room:
            asking = asyncio.ensure_future(if_refused(partial(asked, 0), partial(asked, 400), room))
            while not asking.done():
                async with client.yielding:  # it is another's turn
                    await passes(1.0)
                    assert not client.places.locked()
                await passes(0.5)
            assert await asking is None
        assert (client.places.locked(), tries) == (False, 26)

    run_skipping(main())


@pytest.mark.parametrize("is_barred", [True, False])
def test_while_a_limit_of_rate_bars_requests_one_at_a_time_asks_about_refusals(is_barred: bool) -> None:
    """And waits before each: whoever asks for a policy's answer has few tries. Without one nobody waits for another."""
    now, most = 0, 0

    async def main() -> list[str | None]:
        client = Client(Endpoint(name="", base_url="http://127.0.0.1:9/v1", model="m"))
        client.barred_until = float("inf") if is_barred else client.barred_until

        async def known(status: int = 0) -> str:
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            await asyncio.sleep(0)
            now -= 1
            if status:
                raise EndpointError("no", status=status)
            return "yes"

        return await asyncio.gather(
            *(if_refused(known, partial(known, 400), Room(client, has_place=True)) for _ in range(5))
        )

    assert run_skipping(main()) == [None] * 5
    assert most == (1 if is_barred else 5)
