"""OpenEnv's own clients at a server of ours: openenv_client.py URL SESSIONS. The last line is what they saw."""

from __future__ import annotations

import asyncio
import json
import sys

from openenv.core import GenericEnvClient

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'
ANSWER = {"message": "<answer>5</answer>"}


async def episode(url: str, seen: dict[str, object]) -> None:
    async with GenericEnvClient(base_url=url) as client:
        first = await client.reset(task=0, episode_id="e1")
        step = await client.step({"message": CALL})
        state = await client.state()
        try:
            await client.step({"nope": 1})
        except RuntimeError as error:
            seen["bad action"] = str(error)
        last = await client.step(ANSWER)
        seen["prompt"] = first.observation["messages"][-1]["content"]
        seen["step"] = [step.observation["messages"][0]["content"], step.reward, step.done]
        seen["state"] = [state["episode_id"], state["step_count"]]
        seen["last"] = [last.reward, last.done, last.metadata["terms"]]


async def capacity(url: str, sessions: int) -> list[str]:
    clients = [GenericEnvClient(base_url=url) for _ in range(sessions + 1)]
    told = []
    for client in clients:
        try:
            await client.reset(task=0)
            told.append("ok")
        except RuntimeError as error:
            told.append(str(error))
    for client in clients:
        await client.close()
    return told


async def many(url: str) -> float:
    async def play() -> float:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(task=0)
            return float((await client.step(ANSWER)).reward)

    return sum([sum(await asyncio.gather(*[play() for _ in range(4)])) for _ in range(25)])


def main(url: str, sessions: int) -> None:
    seen: dict[str, object] = {}
    asyncio.run(episode(url, seen))
    seen["capacity"] = asyncio.run(capacity(url, sessions))
    seen["many"] = asyncio.run(many(url))
    with GenericEnvClient(base_url=url).sync() as client:
        seen["sync"] = client.reset(task=0).done
    sys.stdout.write(json.dumps(seen) + "\n")


main(sys.argv[1], int(sys.argv[2]))
