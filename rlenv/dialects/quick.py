"""Calls and readings made quickly, with the arguments of the records themselves; see `rlenv._base.fast_records`."""

from __future__ import annotations

from rlenv._base.fast_records import quick
from rlenv.messages import MalformedCall, ParsedAction, ToolCall

__all__ = ["malformed_call", "parsed_action", "tool_call"]

malformed_call = quick(MalformedCall)
parsed_action = quick(ParsedAction)
tool_call = quick(ToolCall)
