"""One episode's conversation with its simulated user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlenv.dialects.observation import Cut, without_note
from rlenv.messages import Message
from rlenv.secrets import redact
from rlenv.trajectory import Turn
from rlenv.users.base import User, UserContext

__all__ = ["Conversation", "dialogue"]


class Conversation:
    """Asks the user for its replies, and passes them on as the policy sees them."""

    def __init__(self, user: User, context: UserContext, cut: Cut) -> None:
        self._stop = user.stop
        self._session = user.start(context)
        self._cut = cut

    async def reply(self, said: Sequence[Message], *, deadline: float) -> str | None:
        """What the user says to a dialogue, within bounds and without secrets; None where it ends the episode.

        Args:
            said: as `dialogue` gives it.
            deadline: on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: the user cannot be asked.
        """
        reply = await self._session.reply(said, deadline=deadline)
        if reply is None or (self._stop is not None and self._stop in reply):
            return None
        return self._cut(redact(reply))


def dialogue(prompt: Sequence[Message], turns: Sequence[Turn], said: str) -> list[Message]:
    """What the user has heard and said, `said` last: no system message, no calls, no results, no thinking."""
    heard = [message for message in prompt if message.role == "user"]
    for turn in turns:
        if turn.parsed.content.strip():
            heard.append(Message("assistant", turn.parsed.content))
        if turn.observation is not None:
            replies = [message for message in turn.observation.messages if message.role == "user"]
            heard += [replace(message, content=without_note(message.content)) for message in replies]
    heard.append(Message("assistant", said))
    joined: list[Message] = []
    for message in heard:  # a model on the other side expects the two to take turns
        if joined and joined[-1].role == message.role:
            joined[-1] = Message(message.role, f"{joined[-1].content}\n\n{message.content}".strip())
        else:
            joined.append(message)
    return joined
