"""Lanes are carried by tasks, and what is about to leave the process is held back where a run is replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from rlenv.concurrency.lanes import Answer, Asked, Heard, Lane, Slot, check_going_out, entered, here, offline
from rlenv.errors import CassetteError


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
