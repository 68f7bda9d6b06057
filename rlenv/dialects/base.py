"""The seam between dialects and episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlenv.messages import Message, ParsedAction

__all__ = ["Dialect"]


class Dialect(Protocol):
    """How a model family writes calls and reads results; stateless and shared.

    `parse` is total: it never raises and is linear in the text's length. `render_prompt` and `render_observation`
    give the conversation as raw text to a policy that has no tokenizer, equal to what the family's own chat template
    writes: the prompt ends with the generation prompt; an observation starts right after the policy's last
    character (the end mark of the assistant's turn included) and ends with the next generation prompt.
    """

    name: str

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction: ...

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str: ...

    def render_action(self, message: Message) -> str:
        """An assistant message with structured calls as the text that this family would write."""
        ...

    def render_observation(self, messages: Sequence[Message]) -> str: ...
