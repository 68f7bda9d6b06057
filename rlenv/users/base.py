"""The seam between simulated users and episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlenv._hosted import Scope
from rlenv.messages import Message

__all__ = ["User", "UserContext", "UserFactory", "UserSession"]


@dataclass(frozen=True, slots=True)
class UserContext:
    """What a user may see when an episode starts: the task, the opened resources, constants and the episode's seed.

    `shared()` keeps what lives as long as the environment, such as the connections to an endpoint.
    """

    task: Mapping[str, Any]
    resources: Mapping[str, Any] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    shared: Callable[[], Scope] = Scope


class UserSession(Protocol):
    """One episode's user."""

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        """What the user says next, None where there is nothing left to say, which ends the episode.

        Args:
            dialogue: what was said so far, `user` and `assistant` in turn: no system message, no calls, no results
                and no thinking. It ends with the policy's last message.
            deadline: when the episode's time is up, on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: the user cannot be asked; the episode's reward is invalid.
        """
        ...


class User(Protocol):
    """A compiled user, shared by all episodes of a process.

    A reply that contains `stop` ends the episode; None where no text does.
    """

    stop: str | None

    def start(self, context: UserContext) -> UserSession: ...


class UserFactory(Protocol):
    """Compiles `user:`; author mistakes raise `rlenv.errors.UsageError`."""

    def __call__(self, spec: Any, context: Any) -> User: ...
