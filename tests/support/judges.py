"""A judge's server with given replies, and terms that ask it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Endpoint
from rlenv.errors import RewardError
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.judge import KIND
from rlenv.testing.rewards import reward_context, turn
from tests.support.clock import passes

Reply = Callable[[dict[str, Any]], web.Response | str | Awaitable[str]]


SPENDING = """
rlenv: 1
name: spending
tasks: {test: {rows: [{q: a}, {q: b}, {q: c}, {q: d}]}}
prompt: {user: "Task {{ task.q }}"}
endpoints: {judge: {base_url: "ADDRESS", model: judge-1}}
oracle: [{say: "<answer>5</answer>"}]
rewards: {good: {kind: judge, endpoint: judge, prompt: "Is it good? {{ message }} of {{ task.q }}"}}
"""
PRICES = "currency: EUR\nmodels: {judge-1: {input: 1000000, output: 0}}\n"
"""Prices of the judge of `SPENDING`, which is at ADDRESS."""


def verdict(score: object, reasoning: str = "because") -> str:
    return json.dumps({"reasoning": reasoning, "score": score})


def chat(text: str, finish_reason: str = "stop") -> web.Response:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})


@dataclass
class Server:
    """A judge's server that gives the listed replies in turn, the last one for ever."""

    replies: Sequence[str | web.Response | Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""
    holding: asyncio.Event | None = None

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.holding is not None:
            await self.holding.wait()
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        found = reply(body) if callable(reply) else reply
        if isinstance(found, Awaitable):
            found = await found
        if isinstance(found, str):
            return chat(found)
        return web.Response(status=found.status, body=found.body, content_type=found.content_type)

    @asynccontextmanager
    async def running(self):  # type: ignore[no-untyped-def]
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{port}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


def compiled(server: Server, *, timeout_s: float = 20.0, concurrency: int = 64, **keys: Any) -> Term:
    keys = {"kind": "judge", "prompt": "How good is the answer to {{ task.question }}?", "endpoint": "writer"} | keys
    endpoints = {
        name: Endpoint(
            name=name,
            base_url=server.address,
            model=f"model-of-{name}",
            retries=0,
            timeout_s=timeout_s,
            concurrency=concurrency,
        )
        for name in ("writer", "second", "third")
    }
    spec = KIND.spec.model_validate(keys)
    term = KIND.factory("clarity", spec, TermCompileContext(base=Path(), endpoints=endpoints))
    assert isinstance(term, Term)
    return term


def context(scope: Scope, message: str = "It is 42.", **keys: Any) -> RewardContext:
    made = reward_context(
        answer=keys.pop("answer", None), task={"question": "why?"}, turns=keys.pop("turns", None) or [turn(message)]
    )
    return dataclasses.replace(made, shared=lambda: scope)


def judged(server: Server, *contexts: Callable[[Scope], RewardContext], **keys: Any) -> list[Measured | Exception]:
    async def main() -> list[Measured | Exception]:
        async with asyncio.timeout(60), server.running():
            scope = Scope()
            try:
                term = compiled(server, **keys)
                assert term.measure_async is not None
                found: list[Measured | Exception] = []
                for make in contexts or (context,):
                    try:
                        found.append(await term.measure_async(make(scope)))
                    except RewardError as error:
                        found.append(error)
                return found
            finally:
                await scope.aclose()

    return asyncio.run(main())


def one(server: Server, **keys: Any) -> Measured:
    (found,) = judged(server, **keys)
    assert isinstance(found, Measured), found
    return found


@asynccontextmanager
async def falling(address: str, *, has_proxy: bool = False) -> AsyncIterator[str]:
    """The address of a server that passes on to another one, and that is away for a while over a text that fells it.

    Of a proxy before it where it `has_proxy`, which answers 502 then.
    """
    open_now, serving, is_away = dict[Any, asyncio.StreamWriter](), list[asyncio.Server](), False
    to = urlsplit(address)

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closed by who ends the task: one that is cancelled before it has begun closes nothing.
        task = asyncio.ensure_future(passed(reader, writer))
        open_now[task] = writer
        task.add_done_callback(lambda done: open_now.pop(done).close())

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            await answered(reader, writer)

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal is_away
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(size[1])) if size else b""
        fells = b"It fells." in body
        if has_proxy and (is_away or fells):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        if fells and not is_away:
            is_away = True
            if not has_proxy:
                await shut()
                for one in open_now.values():
                    one.transport.abort()
            await passes(0.05)
            if not has_proxy:
                await serve(port)
            is_away = False
        elif not (fells or is_away):
            back, on = await asyncio.open_connection(to.hostname, to.port)
            try:
                on.write(re.sub(rb"\r\n", b"\r\nConnection: close\r\n", head, count=1) + body)
                writer.write(await back.read())
            finally:
                on.close()

    async def serve(port: int = 0) -> None:
        serving.append(await asyncio.start_server(met, "127.0.0.1", port))

    async def shut() -> None:
        # asyncio leaves a connection open that was accepted, and met by nobody yet, when its server closes.
        server = serving.pop()
        for one in server.sockets:
            asyncio.get_running_loop().remove_reader(one.fileno())
        for _ in range(8):
            await asyncio.sleep(0)
        server.close()

    async def gone() -> None:
        while open_now:
            for one in open_now.values():
                one.transport.abort()
            await asyncio.wait(list(open_now))

    await serve()
    port = serving[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    await gone()
    await shut()
    await gone()
