"""Lanes are carried by tasks, and what is about to leave the process is held back where a run is replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlenv.concurrency.lanes import (
    Event,
    Heard,
    Lane,
    check_going_out,
    entered,
    heard_again,
    hearing,
    here,
    offline,
    through,
)
from rlenv.errors import CassetteError, EpisodeError


@dataclass
class Deaf:
    """A tape that has nothing."""

    is_offline: bool = True
    wants_local: bool = True
    sleep: Callable[[float], Awaitable[object]] | None = None

    def look(self, lane: Lane, asked: Event) -> Event:
        raise CassetteError("nothing")

    def keep(self, lane: Lane, event: Event) -> None:
        raise AssertionError

    def copy_heard(self, lane: Lane, heard: Heard) -> None:
        raise AssertionError

    def lets_out(self, tool: str) -> bool:
        return False

    def missed_request(self, episode: str) -> str:
        return ""


def test_a_lane_is_the_place_inside_of_the_one_around_it() -> None:
    lane = Lane(Deaf(), "e").at("turn 3").at("call 1").at("> agent").at("turn 2")
    assert (lane.episode, lane.place, lane.is_live) == ("e", "turn 3 call 1 > agent turn 2", False)
    assert lane.at("call 0", is_live=True).at("judge 0").is_live


def test_a_task_has_the_lane_of_whoever_started_it() -> None:
    async def place() -> str:
        await asyncio.sleep(0)
        lane = here()
        return lane.place if lane is not None else ""

    async def main() -> list[str]:
        tasks = []
        for name in ("one", "two"):
            with entered(Lane(Deaf(), "e", name)):
                tasks.append(asyncio.ensure_future(place()))
        tasks.append(asyncio.ensure_future(place()))
        with entered(None):
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == ["one", "two", ""]


def test_nothing_leaves_the_process_but_what_its_lane_lets_out() -> None:
    check_going_out("a server")
    lane = Lane(Deaf(), "e")
    with entered(lane), pytest.raises(CassetteError, match=r"a server was about to be asked"):
        check_going_out("a server")
    for free in (lane.at("call 0", is_live=True), Lane(Deaf(is_offline=False), "e")):
        with offline(), entered(free):
            check_going_out("a server")
    with offline(), pytest.raises(CassetteError):  # a task or a thread that nobody gave a lane
        check_going_out("a server")
    check_going_out("a server")


ASKED = Event(kind="tool", name="search", request={"q": 1})


@dataclass
class Answering(Deaf):
    """A tape that has one answer."""

    answer: Event = ASKED

    def look(self, lane: Lane, asked: Event) -> Event:
        return self.answer._replace(place=lane.place)


async def given(tape: Answering, again: Callable[[Event], Any] = lambda event: event.response) -> Any:
    """The answer of a tape to a request that may not be made."""

    async def make() -> None:
        raise AssertionError

    lane = Lane(tape, "e", "turn 0")
    return await through(lane, ASKED, make, again=again, kept=lambda event, _: event, failed=lambda *_: None)


@pytest.mark.parametrize(
    ("seconds", "is_timed", "waits"), [(2.5, True, [2.5]), (2.5, False, []), (0.0, True, []), (0.0, False, [])]
)
def test_an_answer_is_given_after_its_time_where_times_are_kept(
    seconds: float, is_timed: bool, waits: list[float]
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    answer = ASKED.ended("ok", "said")._replace(seconds=seconds)
    assert asyncio.run(given(Answering(sleep=sleep if is_timed else None, answer=answer))) == "said"
    assert slept == waits


def test_an_answer_that_nobody_waited_for_never_comes() -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(given(Answering(answer=ASKED.ended("cancelled"))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("outcome", "reason", "raised", "expected"),
    [
        ("refused", "its value is no JSON", None, "turn 0: the tape has no result of search: its value is no JSON"),
        ("ok", "", KeyError("x"), "turn 0: what the tape has of search is no answer of its kind: KeyError: 'x'"),
        ("ok", "", TypeError("x"), "TypeError: x"),
        ("ok", "", ValueError("x\ny"), r"ValueError: x$"),
        ("failed", "", EpisodeError("as it was"), "as it was"),
    ],
)
def test_an_answer_that_is_none_of_its_kind_is_told_by_its_place(
    outcome: str, reason: str, raised: Exception | None, expected: str
) -> None:
    def again(event: Event) -> str:
        assert raised is not None
        raise raised

    with pytest.raises(EpisodeError, match=expected) as told:
        asyncio.run(given(Answering(answer=ASKED.ended(outcome, reason=reason)), again))
    assert isinstance(told.value, CassetteError) is not isinstance(raised, EpisodeError)


@dataclass
class Keeping(Deaf):
    """A tape that keeps what it is told."""

    kept: list[Any] = field(default_factory=list)

    def look(self, lane: Lane, asked: Event) -> Event:
        return asked

    def keep(self, lane: Lane, event: Event) -> None:
        self.kept.append(event.outcome)

    def copy_heard(self, lane: Lane, heard: Heard) -> None:
        self.kept.append((lane.place, heard))


@pytest.mark.parametrize(
    ("raised", "kept"),
    [
        (None, ["ok"]),
        (OSError(), ["failed"]),
        (LookupError(), []),
        (CassetteError("missed"), []),
        (KeyboardInterrupt(), []),
    ],
)
def test_what_came_of_a_request_is_kept_once_whether_it_gave_or_raised(
    raised: BaseException | None, kept: list[str]
) -> None:
    tape = Keeping()

    async def make() -> str:
        if raised is not None:
            raise raised
        return "answer"

    def kept_of(event: Event, answer: str) -> Event:
        return event.ended("ok", answer)

    def failed(event: Event, error: BaseException) -> Event | None:
        return None if isinstance(error, LookupError) else event.ended("failed")

    async def main() -> str:
        return await through(Lane(tape, "e"), ASKED, make, again=lambda _: "", kept=kept_of, failed=failed)

    if raised is None:
        assert asyncio.run(main()) == "answer"
    else:
        with pytest.raises(type(raised)):
            asyncio.run(main())
    assert tape.kept == kept


def test_what_is_heard_in_a_block_is_heard_by_all_around_it_and_told_again_where_there_is_something() -> None:
    tape = Keeping()
    with entered(Lane(tape, "e", "turn 3")), hearing() as outer:
        lane = here()
        assert lane is not None
        with entered(lane.at("call 1")), hearing() as inner:
            lane = here()
            assert lane is not None
            assert [(length, ear is heard) for (length, ear), heard in zip(lane.ears, (outer, inner), strict=True)] == [
                (len("turn 3"), True),
                (len("turn 3 call 1"), True),
            ]
            heard_again([])
            heard_again(["what"])
    heard_again(["nobody asks"])
    assert tape.kept == [("turn 3 call 1", ["what"])]
    assert here() is None
