"""The seam between dialects and episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlenv.messages import Message, ParsedAction

__all__ = ["Dialect", "SameTurn"]


@dataclass(frozen=True, slots=True)
class SameTurn:
    """What a family writes around contents that go on in the assistant's own turn.

    `result` and `reply` are the text before and behind a tool's result and a user's reply. `stops` are the marks that
    close a call: generation has to end behind the first of them, since no end token does.
    """

    result: tuple[str, str]
    reply: tuple[str, str]
    stops: tuple[str, ...]

    def around(self, role: str) -> tuple[str, str]:
        """The text before and behind the content of a message."""
        return self.result if role == "tool" else self.reply


class Dialect(Protocol):
    """How a model family writes calls and reads results; stateless and shared.

    `parse` is total: it never raises and is linear in the text's length. `render_prompt` and `render_observation`
    give the conversation as raw text to a policy that has no tokenizer, equal to what the family's own chat template
    writes: the prompt ends with the generation prompt; an observation starts right after the policy's last
    character (the end mark of the assistant's turn included) and ends with the next generation prompt.

    A dialect whose observations go on in the assistant's own turn has an attribute `same_turn` that says how; None, or
    no such attribute, where every message has a turn of its own. Two more attributes it may leave out: `turn_ends`, the
    marks that end an assistant's turn, and `begins`, which is true where prompts start with what their model's
    tokenizer would put before them.
    """

    name: str

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction: ...

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str: ...

    def render_action(self, message: Message) -> str:
        """An assistant message with structured calls as the text that this family would write."""
        ...

    def render_observation(self, messages: Sequence[Message]) -> str: ...
