"""An agent of openai-agents, as its documentation makes one, with a model and tools at addresses that it is given.

agents_plays.py WIRE BASE_URL API_KEY MCP_URL PROMPT
"""

from __future__ import annotations

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

WIRES = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


async def main(wire: str, base_url: str, api_key: str, mcp_url: str, prompt: str) -> None:
    set_tracing_disabled(True)
    model = WIRES[wire.removesuffix("-events")](
        model="policy", openai_client=AsyncOpenAI(base_url=base_url, api_key=api_key)
    )
    async with MCPServerStreamableHttp(params={"url": mcp_url}, name="rlenv") as server:
        agent = Agent(name="counter", instructions="Use the tools.", model=model, mcp_servers=[server])
        if wire.endswith("-events"):
            streamed = Runner.run_streamed(agent, prompt)
            async for _ in streamed.stream_events():
                pass
            said = streamed.final_output
        else:
            said = (await Runner.run(agent, prompt)).final_output
    sys.stdout.write(json.dumps(said) + "\n")


asyncio.run(main(*sys.argv[1:]))
