"""Calls of the episode's own that failed by no fault of the policy's, and whether a tool is well."""

from __future__ import annotations

from rlenv.messages import ToolCall, ToolResult
from rlenv.rewards.base import RewardContext
from rlenv.tools.base import Tool

__all__ = ["is_lost", "is_well"]


def is_lost(result: ToolResult) -> bool:
    """Whether a call failed, and not surely by what the policy did."""
    return result.whose in ("infrastructure", "unclear")


async def is_well(tool: Tool, context: RewardContext) -> bool:
    """Whether the tool answers a call that is known to work: then what did not end failed by what it asked.

    Known are the tool's `example` and a call of this episode's own that went well. A tool that changes state is not
    asked.
    """
    if tool.mutates:
        return False
    known = tool.example
    for turn in context.turns:
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if known is None and isinstance(call, ToolCall) and call.name == tool.name and result.outcome == "ok":
                known = call.arguments
    return known is not None and (await context.call(tool.name, known)).outcome == "ok"
