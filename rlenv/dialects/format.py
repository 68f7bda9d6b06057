"""A dialect as a row of data: what the engine needs to know about a model family, and nothing that runs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CallFormat", "ChatFormat", "ThinkingFormat"]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How calls stand in a message: markers around a JSON body, one call a pair of markers."""

    open: str
    close: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    written: str = ""
    """How the family's template writes a call: `{name}` and `{arguments}` are JSON texts."""


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """The markers of a thinking block, and how a block is written before an answer (`{thinking}`)."""

    open: str
    close: str
    written: str


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a conversation is written as text.

    `turn` holds `{role}` and `{content}`; `turn_open` is its part before the content and `turn_close` after it,
    what separates it from the next turn included. `tools` holds `{tools}`, one JSON text a line, and stands behind
    the system message. `result` holds `{content}`; consecutive results share one turn of `result_role`.
    """

    turn_open: str
    turn_close: str
    tools: str
    result: str
    result_role: str = "user"
