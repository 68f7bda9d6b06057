"""The laws that every simulated user keeps.

Run them on your own:

    from rlenv.testing.users import check_user

    def test_my_user_keeps_the_laws():
        check_user(my_user, says=["Hello.", "Which size?", "Ordered."])
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from rlenv._base.bounded import encodable
from rlenv.concurrency.scope import Scope
from rlenv.errors import EpisodeError
from rlenv.messages import Message
from rlenv.testing import laws
from rlenv.users.base import MAX_REPLY_CHARS, User, UserContext, UserSession, stops_of

__all__ = ["check_user", "check_user_async"]


async def check_user_async(
    user: User | Mapping[str, Any],
    *,
    says: Sequence[str],
    context: UserContext | None = None,
    most_replies: int = 50,
    base: Path = Path(),
    limit_s: float = laws.LIMIT_S,
    **parts: Any,
) -> None:
    """Runs the laws of simulated users on `user`; a law that is broken is an AssertionError that states it.

    Args:
        user: a compiled user, or the mapping under `user:`.
        says: what the policy says, in order; its last message is said again for as long as the user replies.
        context: what the user sees when an episode starts; an empty task by default.
        most_replies: a user that has not ended the dialogue after as many does not end.
        base: the folder that the mapping's paths are relative to.
        limit_s: how long one reply may take, in seconds: a bound for what hangs.
        parts: what a mapping is compiled with beside it (`endpoints`, `vars`, `resources`).
    """
    assert says, "check_user needs at least one message of the policy's"
    made: User = laws.compiled("users", user, base=base, **parts)
    laws.law(
        "a user's stop is a text or None",
        all(isinstance(stop, str) and stop for stop in stops_of(made)),
        repr(made.stop),
    )
    begins = context if context is not None else UserContext({})
    async with aclosing(Scope()) as scope:
        if begins.shared is Scope:
            begins = replace(begins, shared=lambda: scope)
        await _check_dialogues(made, begins, says, most_replies, limit_s)


check_user = laws.in_own_loop(check_user_async)


async def _check_dialogues(
    made: User, begins: UserContext, says: Sequence[str], most_replies: int, limit_s: float
) -> None:
    before = laws.kept_as_json(begins.task)
    alone = await _Dialogue(made, begins, says, limit_s).replies(most_replies)
    is_over = len(alone) < most_replies
    laws.law("a user ends the dialogue", is_over, f"it has replied {most_replies} times, last {laws.short(alone[-1:])}")
    laws.law("a user leaves the task as it is", laws.kept_as_json(begins.task) == before, laws.short(begins.task))
    again = await _Dialogue(made, begins, says, limit_s).replies(most_replies)
    laws.law("equal seeds give equal replies", again == alone, f"{laws.short(alone)}, then {laws.short(again)}")
    one, other = (_Dialogue(made, begins, says, limit_s) for _ in range(2))
    beside: list[list[str]] = [[], []]
    for _ in alone:
        for dialogue, replies in zip((one, other), beside, strict=True):
            said = await dialogue.next()
            replies += [] if said is None else [said]
    for replies in beside:
        laws.law(
            "episodes side by side hear the same as one alone",
            replies == alone,
            f"{laws.short(alone)}, {laws.short(replies)}",
        )
    heard = [Message("user", "Go on."), Message("assistant", says[0])]
    cancelled = made.start(begins).reply(heard, deadline=time.monotonic() + limit_s)
    await laws.ends_when_cancelled(cancelled, "a reply", limit_s)


class _Dialogue:
    """One episode's user, and a policy that says what it was given."""

    def __init__(self, user: User, context: UserContext, says: Sequence[str], limit_s: float) -> None:
        self._stops = stops_of(user)
        self._session: UserSession = user.start(context)
        self._says = chain(says, repeat(says[-1]))
        self._dialogue = [Message("user", "Go on.")]
        self._limit_s = limit_s

    async def replies(self, most: int) -> list[str]:
        """The user's replies until it ends, at most `most`."""
        found: list[str] = []
        while len(found) < most and (said := await self.next()) is not None:
            found.append(said)
        return found

    async def next(self) -> str | None:
        """The next reply; None once the user has ended the dialogue."""
        self._dialogue.append(Message("assistant", next(self._says)))
        given = list(self._dialogue)
        deadline = time.monotonic() + self._limit_s
        with laws.raises_only("a user that cannot be asked raises EpisodeError", EpisodeError):
            asked = self._session.reply(given, deadline=deadline)
            said = await laws.in_time(asked, "a user replies in time", self._limit_s)
        laws.law("a user leaves the dialogue as it is", given == self._dialogue, laws.short(given))
        laws.law("a reply is a text or None", said is None or isinstance(said, str), laws.short(said))
        if said is None:
            return None
        is_fit = len(said) <= MAX_REPLY_CHARS and encodable(said) == said
        laws.law(
            f"a reply is a text of at most {MAX_REPLY_CHARS} characters that UTF-8 can hold", is_fit, laws.short(said)
        )
        self._dialogue.append(Message("user", said))
        return None if any(stop in said for stop in self._stops) else said
