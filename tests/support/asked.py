"""What asks servers of episodes: requests over HTTP, a model whose answers have ids, and an agent with its own loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlenv.messages import Message, Sampled, ToolCall, message_of
from rlenv.tokens.encoder import TokenEncoder

__all__ = ["Asks", "Speaker", "asking", "plays", "served"]


class Asks:
    """Requests to a server; an answer is its status and its JSON."""

    def __init__(self, http: aiohttp.ClientSession, root: str) -> None:
        self.http, self.root = http, root

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        url = path if path.startswith("http") else self.root + path
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, url, json=body, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None)

    async def rpc(self, url: str, method: str, params: Any = None, **headers: str) -> tuple[int, Any]:
        """A request of MCP."""
        params = {} if params is None else params
        return await self("POST", url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **headers)


@asynccontextmanager
async def asking(app: web.Application) -> AsyncIterator[Asks]:
    """Asks a server while it runs."""
    async with asyncio.timeout(60), TestServer(app) as server, aiohttp.ClientSession() as http:
        yield Asks(http, str(server.make_url("")).rstrip("/"))


def served(app: web.Application, play: Callable[[Asks], Awaitable[None]]) -> None:
    """Plays with a server, which has ended when this returns."""

    async def main() -> None:
        async with asking(app) as ask:
            await play(ask)

    asyncio.run(main())


class Speaker:
    """A model that says its lines in order, one an answer: what a conversation has is counted by its own messages.

    With an encoder it says which ids it was shown, which it sampled, and how likely they were.
    """

    def __init__(self, lines: Sequence[str | Message], encoder: TokenEncoder | None = None) -> None:
        self.lines, self.encoder = lines, encoder

    def __call__(self, body: Mapping[str, Any]) -> str | Message | Sampled:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        line = self.lines[min(said, len(self.lines) - 1)]
        return line if self.encoder is None else self.sampled(body, line)

    def sampled(self, body: Mapping[str, Any], line: str | Message) -> Sampled:
        assert self.encoder is not None
        messages = [message_of(message) for message in body["messages"]]
        prompt = self.encoder.encode_prompt(messages, tools=body.get("tools") or ())
        text = line if isinstance(line, str) else written(line)
        ids = [*self.encoder.encode_text(text), self.encoder.stop_id]
        return Sampled(line, "", tuple(ids), tuple(-0.01 * (at + 1) for at in range(len(ids))), tuple(prompt))


def written(message: Message) -> str:
    """A message as the chat template of the tests writes it."""
    calls = [
        {"name": call.name, "arguments": dict(call.arguments)}
        for call in message.tool_calls
        if isinstance(call, ToolCall)
    ]
    texts = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    return "\n".join([*([message.content] if message.content else []), *texts])


async def plays(
    ask: Asks, seat: Mapping[str, Any], *, prefix: str = "", most: int = 20, **asked: Any
) -> list[dict[str, Any]]:
    """An agent: it asks its model, makes the calls by MCP, and asks again until there are none; its history."""
    _, listed = await ask.rpc(seat["mcp_url"], "tools/list")
    tools = [
        {**one, "function": {**one["function"], "name": prefix + one["function"]["name"]}} for one in seat["tools"]
    ]
    assert [prefix + one["name"] for one in listed["result"]["tools"]] == [one["function"]["name"] for one in tools]
    history: list[dict[str, Any]] = [dict(message) for message in seat["messages"]]
    for _ in range(most):
        body = {"model": "any", "messages": history, "tools": tools, **asked}
        status, answer = await ask("POST", f"{seat['base_url']}/chat/completions", body)
        if status != 200:
            return history
        message = answer["choices"][0]["message"]
        history.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            break
        ran = [_call(ask, seat, call["function"], prefix) for call in calls]
        for call, text in zip(calls, await asyncio.gather(*ran), strict=True):
            history.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return history


async def _call(ask: Asks, seat: Mapping[str, Any], function: Mapping[str, Any], prefix: str) -> str:
    params = {"name": function["name"].removeprefix(prefix), "arguments": json.loads(function["arguments"])}
    _, answer = await ask.rpc(seat["mcp_url"], "tools/call", params)
    return "".join(part["text"] for part in answer["result"]["content"])
