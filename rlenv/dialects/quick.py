"""Calls and readings made quickly, for the path of the common message; see `rlenv._quick`."""

from __future__ import annotations

from typing import Any

from rlenv._quick import quick
from rlenv.messages import ParsedAction, ToolCall

__all__ = ["parsed_action", "tool_call"]

_call = quick(ToolCall)

parsed_action = quick(ParsedAction)
"""The same as `ParsedAction(…)`."""


def tool_call(name: str, arguments: dict[str, Any], start: int, end: int) -> ToolCall:
    """The same as `ToolCall(name, arguments, None, start, end)`."""
    return _call(name, arguments, None, start, end)
