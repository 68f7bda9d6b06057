"""The seam between policies and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlenv.messages import Message, Sampled

if TYPE_CHECKING:
    from rlenv.endpoints.account import Account

__all__ = ["Policy", "PolicyContext", "PolicySession"]


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Things that a policy may see when an episode starts. `task` is there for the oracle; a model never reads it."""

    task: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    vars: Mapping[str, Any]
    prompt_text: str
    """The prompt as raw text, rendered by the dialect."""
    render_observation: Callable[[Sequence[Message]], str]
    """What a policy of raw text sees of the messages that follow its action."""
    seed: int = 0
    task_index: int = -1
    """The row's index in its split; -1 where the row was given itself."""
    stops: tuple[str, ...] = ()
    """An action of raw text ends behind the first of these; see `Environment.stops`."""
    turn_ends: tuple[str, ...] = ()
    """An action of raw text ends before the first of these; see `Environment.turn_ends`."""
    prompt_is_whole: bool = False
    """`prompt_text` holds what a tokenizer would put before it; see `Environment.prompt_is_whole`."""
    response_tokens: int | None = None
    """The spec's own limit of the tokens after the prompt, observations included; None where it has none."""
    account: Account | None = None
    """What the policy asks of models is counted here; None where nobody counts."""


class PolicySession(Protocol):
    """One episode's policy."""

    async def act(self, messages: Sequence[Message]) -> str | Message | Sampled:
        """The next action, given the whole conversation so far. Raises PolicyError where the endpoint fails.

        A policy whose turns have a limit of tokens returns `Sampled`, so that a model whose turn was cut is told so.
        """
        ...


class Policy(Protocol):
    """Something that acts; shared by all episodes.

    It may have `facts`, a mapping of JSON that a run's lock keeps: its `model`, its `sampling`.
    """

    name: str

    def start(self, context: PolicyContext) -> PolicySession: ...

    async def aclose(self) -> None: ...
