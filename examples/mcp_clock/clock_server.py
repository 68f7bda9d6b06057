"""An MCP server with a clock that has no hands of its own: it converts times of day between places.

It speaks on its standard streams; env.yaml starts it. Try it alone: rlenv tools env.yaml
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

PLACES = {"Tokyo": "Asia/Tokyo", "Lima": "America/Lima", "Lagos": "Africa/Lagos", "Kathmandu": "Asia/Kathmandu"}

server = MCPServer("clock", version="1.0", log_level="ERROR")


class TimeThere(TypedDict):
    """A time of day at another place."""

    time: str
    day: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def places() -> list[str]:
    """List the places that the clock knows."""
    return sorted(PLACES)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def time_there(utc: str, place: str) -> TimeThere:
    """Tell what time it is at a place when it is a time of day (HH:MM, 1 March 2026) in UTC."""
    if place not in PLACES:
        # What a ToolError says is read by the model, which can then try again.
        raise ToolError(f"the clock does not know {place}; it knows {', '.join(sorted(PLACES))}")
    try:
        moment = datetime.strptime(f"2026-03-01 {utc}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        there = moment.astimezone(ZoneInfo(PLACES[place]))
    except (ValueError, ZoneInfoNotFoundError) as error:
        raise ToolError(f"'{utc}' is no time of day; write HH:MM, such as 06:10") from error
    return {"time": f"{there:%H:%M}", "day": f"{there:%A}"}


if __name__ == "__main__":
    server.run()
