"""A client of the first versions of MCP's SDK at `rlenv mcp`: what it says of an episode in one line of JSON.

Arguments: the Python that has rlenv, and address and token of a server over HTTP; standard input and output without.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


async def main(python: str, url: str = "", token: str = "") -> None:
    command = StdioServerParameters(command=python, args=["-m", "rlenv", "mcp", "arithmetic"], env=dict(os.environ))
    opened = streamablehttp_client(f"{url}/mcp?task=0&token={token}") if url else stdio_client(command)
    async with opened as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        said = (await session.get_prompt("task")).messages[-1].content.text
        calls = [session.call_tool("calculate", {"expression": f"{n} + 1"}) for n in range(4)]
        made = [one.content[0].text for one in await asyncio.gather(*calls)]
        ended = await session.call_tool("finish_episode", {"answer": "none"})
        late = await session.call_tool("calculate", {"expression": "1"})
        tools = [one.name for one in (await session.list_tools()).tools]
    outcome = {key: ended.structuredContent[key] for key in ("total", "reason")}
    print(json.dumps({"prompt": said, "tools": tools, "made": made, "outcome": outcome, "late": late.isError}))


asyncio.run(main(*sys.argv[1:]))
