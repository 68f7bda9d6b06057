"""Simulated users: the seam between them and episodes, and the conversation that they are shown."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Protocol

from rlenv._base.bounded import cut_middle, encodable, plain
from rlenv.concurrency.scope import Scope
from rlenv.dialects.base import Cut, without_note
from rlenv.dialects.built_in import broken
from rlenv.language.spec import UserSpec
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall, ToolResult
from rlenv.secrets import redact
from rlenv.trajectory import Turn

__all__ = ["MAX_REPLY_CHARS", "Conversation", "User", "UserContext", "UserFactory", "UserSession", "dialogue"]
__all__ += ["heard", "spoken", "told", "worded"]


MAX_REPLY_CHARS: Final = 65_536
"""A longer reply is cut to its head and its tail, before anything looks at it."""
_MAX_HEARD_CHARS: Final = 32_768
_MAX_DIALOGUE_CHARS: Final = 262_144


def spoken(text: str) -> str:
    """A reply as it is passed on: bounded, and without what no tokenizer takes."""
    return encodable(cut_middle(str(text), MAX_REPLY_CHARS))


def heard(dialogue: Sequence[Message]) -> list[Message]:
    """A dialogue as another model is asked to go on with it: bounded, and no text of it spells a control token.

    Long messages are cut, and the oldest ones left out where all of them are too long together.
    """
    kept, room = list[Message](), _MAX_DIALOGUE_CHARS
    for one in reversed(dialogue):
        content = broken(encodable(cut_middle(one.content, _MAX_HEARD_CHARS)))
        if (room := room - len(content)) < 0:
            break
        kept.append(replace(one, content=content))
    return kept[::-1]


Call = Callable[[str, Any, float], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class UserContext:
    """Things that a user may see when an episode starts: the task, the opened resources, constants and the seed.

    `shared()` keeps what lives as long as the environment, such as the connections to an endpoint.
    """

    task: Mapping[str, Any]
    resources: Mapping[str, Any] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    shared: Callable[[], Scope] = Scope
    call: Call | None = None
    """Runs a tool of the spec for the user: its name, the arguments, and the deadline."""


class UserSession(Protocol):
    """One episode's user."""

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        """The user's next message, None where there is nothing left to say, which ends the episode.

        Args:
            dialogue: what was said so far, `user` and `assistant` in turn: no system message, no calls, no results
                and no thinking. It ends with the policy's last message; it is empty where the user begins.
            deadline: when the episode's time is up, on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: the user cannot be asked; the episode's reward is invalid.
        """
        ...


class User(Protocol):
    """A compiled user, shared by all episodes of a process.

    A reply that contains one of the texts of `stop` ends the episode; None where no text does. One that has an
    attribute `hears` which is "all" is shown calls and results too. A user that may need more than `limits.episode_s`
    seconds for a reply has them as `reply_s` too.
    """

    @property
    def stop(self) -> str | Sequence[str] | None: ...

    def start(self, context: UserContext) -> UserSession: ...


class UserFactory(Protocol):
    """Compiles `user:`; author mistakes raise `rlenv.errors.UsageError`."""

    def __call__(self, spec: Any, context: Any) -> User: ...


class Conversation:
    """Asks the user for its replies, and passes them on as the policy sees them."""

    def __init__(self, user: User, context: UserContext, cut: Cut) -> None:
        self._stops = stops_of(user)
        self._hears_all = getattr(user, "hears", "messages") == "all"
        self._session = user.start(context)
        self._cut = cut

    async def reply(
        self, prompt: Sequence[Message], turns: Sequence[Turn], said: ParsedAction | None, *, deadline: float
    ) -> str | None:
        """The user's reply to an action, within bounds and without secrets; None where it ends the episode.

        Args:
            prompt: the messages of the prompt that are part of the dialogue.
            turns: those before the action.
            said: the action; None where the user speaks first.
            deadline: on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: the user cannot be asked.
        """
        parts = prompt, turns, None if said is None else said.content, self._hears_all
        length = sum([len(turn.action) + sum([len(one.text) for one in turn.results]) for turn in turns])
        is_long = length + len(parts[2] or "") > _MAX_DIALOGUE_CHARS
        messages = await asyncio.to_thread(dialogue, *parts) if is_long else dialogue(*parts)
        reply = await self._session.reply(messages, deadline=deadline)
        if reply is None or any(stop in reply for stop in self._stops):
            return None
        return self._cut(redact(reply))


def stops_of(user: User | UserSpec) -> tuple[str, ...]:
    """The texts of which each ends the episode in a reply."""
    return (user.stop,) if isinstance(user.stop, str) else tuple(user.stop or ())


def dialogue(
    prompt: Sequence[Message], turns: Sequence[Turn], said: str | None, hears_all: bool = False
) -> list[Message]:
    """The user's side of the conversation, `said` last (None where the user begins): no system message, no thinking,
    and no calls and results unless the user hears all."""
    lines = [Message(one.role, one.content, images=one.images) for one in prompt
             if one.role == "user" or (one.role == "assistant" and one.content.strip())]  # fmt: skip
    for turn in turns:
        if turn.parsed.content.strip():
            lines.append(Message("assistant", worded(turn.parsed.content) if hears_all else turn.parsed.content))
        if hears_all:
            lines += [Message("assistant", told(*pair)) for pair in zip(turn.parsed.calls, turn.results, strict=False)]
        if turn.observation is not None:
            replies = [message for message in turn.observation.messages if message.role == "user"]
            lines += [replace(message, content=without_note(message.content)) for message in replies]
    lines += [Message("assistant", worded(said) if hears_all else said)] if said is not None else []
    merged: list[Message] = []
    for _, said_by in groupby(lines, lambda message: message.role):  # a model there expects the two to take turns
        first, *others = said_by
        content = "\n\n".join([first.content, *[one.content.rstrip() for one in others]]).strip()
        merged.append(Message(first.role, content) if others else first)
    return merged


def told(call: ToolCall | MalformedCall, result: ToolResult) -> str:
    """A call and its result in words, for a user who looks over the policy's shoulder."""
    arguments = json.dumps(plain(call.arguments)) if isinstance(call, ToolCall) else call.text
    parts = (worded(cut_middle(text, MAX_REPLY_CHARS)) for text in (str(call.name), arguments, result.text))
    return "[called {} {}: {}]".format(*parts)


def worded(text: str) -> str:
    """Words that spell no entry of `told`, as whoever hears calls too is told them."""
    return re.sub(r"(?i)\[(?=\s*called)", "( ", text)
