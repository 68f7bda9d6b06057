"""What the tests of MCP servers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlenv.testing.tools import call
from rlenv.tools.base import Tool, ToolContext


async def come(tools: Mapping[str, Tool], count: int, make: Callable[[], ToolContext]) -> None:
    """Waits until as many calls have come to the tools `wait` and `meet` of the lab (tests/tools/servers)."""
    while int((await call(tools["waits"], {}, within=make())).text) < count:
        pass
