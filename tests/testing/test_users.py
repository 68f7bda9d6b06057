"""The laws of simulated users: each is broken by a user that breaks it alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlenv.errors import EpisodeError
from rlenv.messages import Message
from rlenv.testing import check_user_async, users
from rlenv.users.base import UserContext
from tests.support.clock import run_skipping
from tests.support.laws import not_broken, rule_of

SAYS = ["Hello.", "Which size?", "Ordered."]


class Fine:
    """Says two things and then no more."""

    stop: Any = None

    def start(self, context: UserContext) -> Fine:
        session = type(self)()
        session.turn = itertools.count()
        session.context = context
        return session

    turn: Any
    context: UserContext

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> Any:
        await asyncio.sleep(0)
        return self.says(list(dialogue), next(self.turn))

    def says(self, dialogue: list[Message], turn: int) -> Any:
        return ["A blue one.", "Large."][turn] if turn < 2 else None


class Stops(Fine):
    stop = "###"

    def says(self, dialogue: list[Message], turn: int) -> Any:
        return "Thanks. ###"


class OddStop(Fine):
    stop = ""


class Endless(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        return "And then?"


class Changing(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        self.context.task["asked"] = turn  # type: ignore[index]
        return super().says(dialogue, turn)


class Unseeded(Fine):
    count = itertools.count()

    def says(self, dialogue: list[Message], turn: int) -> Any:
        return f"{next(self.count)}" if turn < 1 else None


class Shared(Fine):
    """Two episodes at once share a turn; one after the other they do not."""

    now: dict[str, int] = {}  # noqa: RUF012

    def says(self, dialogue: list[Message], turn: int) -> Any:
        if turn == 0 and self.now.get("left", 0) <= 0:
            self.now["left"] = 2
        self.now["left"] -= 1
        return "More." if self.now["left"] >= 0 else None


class Bug(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        raise KeyError("a bug")


class Down(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        raise EpisodeError("the endpoint is down", reason="user")


class Late(Fine):
    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> Any:
        await asyncio.Event().wait()


class Editing(Fine):
    async def reply(self, dialogue: Any, *, deadline: float) -> Any:
        dialogue.clear()
        return None


class Number(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        return 3


class Surrogate(Fine):
    def says(self, dialogue: list[Message], turn: int) -> Any:
        return "\ud800"


class Swallows(Fine):
    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> Any:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "Never mind."
        return None


class GoesOn(Fine):
    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> Any:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        return None


BROKEN: list[tuple[str, Callable[[], Any]]] = [
    ("a user's stop is a text or None", OddStop),
    ("a user ends the dialogue", Endless),
    ("a user leaves the task as it is", Changing),
    ("equal seeds give equal replies", Unseeded),
    ("episodes side by side hear the same as one alone", Shared),
    ("a user that cannot be asked raises EpisodeError", Bug),
    ("a user replies in time", Late),
    ("a user leaves the dialogue as it is", Editing),
    ("a reply is a text or None", Number),
    ("a reply is a text of at most 65536 characters that UTF-8 can hold", Surrogate),
    ("a reply that is cancelled raises CancelledError", Swallows),
    ("a reply that is cancelled ends", GoesOn),
]


def keeps(made: Any) -> None:
    run_skipping(check_user_async(made, says=SAYS, context=UserContext({"id": 1})))


@pytest.mark.parametrize("made", [Fine, Stops])
def test_a_user_that_keeps_the_laws_passes(made: type[Fine]) -> None:
    keeps(made())


def test_a_user_that_cannot_be_asked_is_nobodys_fault() -> None:
    with pytest.raises(EpisodeError, match="the endpoint is down"):
        keeps(Down())


@pytest.mark.parametrize(("rule", "made"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_each_law_is_broken_by_a_user_that_breaks_it_alone(rule: str, made: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError) as found:
        keeps(made())
    assert rule_of(found.value) == rule


def test_every_law_of_users_has_a_user_that_breaks_it() -> None:
    assert not_broken(users, [rule for rule, _ in BROKEN]) == []
