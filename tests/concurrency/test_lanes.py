"""Lanes are carried by tasks, and what is about to leave the process is held back where a run is replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlenv.concurrency.lanes import (
    Answer,
    Asked,
    Heard,
    Lane,
    Slot,
    check_going_out,
    entered,
    given,
    heard_again,
    hearing,
    here,
    offline,
    said_again,
    through,
)
from rlenv.errors import CassetteError, EpisodeError


@dataclass
class Deaf:
    """A tape that has nothing."""

    is_offline: bool = True
    wants_local: bool = True

    def look(self, lane: Lane, asked: Asked) -> Slot:
        raise CassetteError("nothing")

    def keep(self, slot: Slot, answer: Answer) -> None:
        raise AssertionError

    def copied(self, lane: Lane, heard: Heard) -> None:
        raise AssertionError

    def lets_out(self, tool: str) -> bool:
        return False

    def missed(self, episode: str) -> str:
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


ASKED = Asked("tool", "search", {"q": 1})


def slot(answer: Answer | None, sleep: Any = None) -> Slot:
    return Slot(Lane(Deaf(), "e", "turn 0"), ASKED, "", 0, 0.0, answer, sleep)


@pytest.mark.parametrize(
    ("answer", "is_timed", "waits"),
    [
        (None, True, []),
        (Answer("ok", seconds=2.5), True, [2.5]),
        (Answer("ok", seconds=2.5), False, []),
        (Answer("ok", seconds=0.0), True, []),
    ],
)
def test_an_answer_is_given_after_its_time_where_times_are_kept(
    answer: Answer | None, is_timed: bool, waits: list[float]
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    found = slot(answer, sleep if is_timed else None)
    assert asyncio.run(given(found)) is answer
    assert (slept, found.seconds) == (waits, sum(waits))


def test_an_answer_that_nobody_waited_for_never_comes() -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(given(slot(Answer("cancelled"))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "raised", "expected"),
    [
        (Answer("refused", None, "its value is no JSON"), None, "turn 0: the tape has no result of search: its value"),
        (Answer("ok"), KeyError("x"), "turn 0: what the tape has of search is no answer of its kind: KeyError"),
        (Answer("ok"), TypeError("x"), "TypeError: x"),
        (Answer("ok"), ValueError("x\ny"), r"ValueError: x$"),
        (Answer("failed"), EpisodeError("as it was"), "as it was"),
    ],
)
def test_an_answer_that_is_none_of_its_kind_is_told_by_its_place(
    answer: Answer, raised: Exception | None, expected: str
) -> None:
    def again(_slot: Slot, _answer: Answer) -> str:
        assert raised is not None
        raise raised

    with pytest.raises(EpisodeError, match=expected) as told:
        said_again(slot(answer), answer, again)
    assert isinstance(told.value, CassetteError) is not isinstance(raised, EpisodeError)


@dataclass
class Keeping(Deaf):
    """A tape that keeps what it is told."""

    kept: list[Any] = field(default_factory=list)

    def look(self, lane: Lane, asked: Asked) -> Slot:
        return slot(None)

    def keep(self, slot: Slot, answer: Answer) -> None:
        self.kept.append(answer.outcome)

    def copied(self, lane: Lane, heard: Heard) -> None:
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

    def failed(error: BaseException) -> Answer | None:
        return None if isinstance(error, LookupError) else Answer("failed")

    async def main() -> str:
        lane = Lane(tape, "e")
        return await through(lane, ASKED, make, again=lambda *_: "", kept=lambda _: Answer("ok"), failed=failed)

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
