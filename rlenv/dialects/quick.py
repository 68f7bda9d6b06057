"""Calls and readings made quickly, for the path of the common message.

A frozen dataclass sets each field through `object.__setattr__`, which takes most of the time that reading a message
has. A draft of the same layout is filled by plain assignment and becomes the frozen object at once; nobody else ever
sees the draft. The gain is 4 of 13 µs for a message with two calls (benchmarks/parse.py).
"""

from __future__ import annotations

from typing import Any

from rlenv.messages import MalformedCall, ParsedAction, ToolCall

__all__ = ["parsed_action", "tool_call"]


class _Call:
    __slots__ = ("arguments", "end", "id", "name", "start")
    name: Any
    arguments: Any
    id: Any
    start: Any
    end: Any


class _Action:
    __slots__ = ("calls", "content", "is_cut", "leniencies", "thinking")
    content: Any
    thinking: Any
    calls: Any
    is_cut: Any
    leniencies: Any


def tool_call(name: str, arguments: dict[str, Any], start: int, end: int) -> ToolCall:
    """The same as `ToolCall(name, arguments, None, start, end)`."""
    draft: Any = _Call()
    draft.name = name
    draft.arguments = arguments
    draft.id = None
    draft.start = start
    draft.end = end
    draft.__class__ = ToolCall
    return draft  # type: ignore[no-any-return]


def parsed_action(content: str, thinking: str = "", calls: tuple[ToolCall | MalformedCall, ...] = ()) -> ParsedAction:
    """The same as `ParsedAction(content, thinking, calls)`."""
    draft: Any = _Action()
    draft.content = content
    draft.thinking = thinking
    draft.calls = calls
    draft.is_cut = False
    draft.leniencies = ()
    draft.__class__ = ParsedAction
    return draft  # type: ignore[no-any-return]
