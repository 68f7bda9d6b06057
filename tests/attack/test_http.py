"""A hostile HTTP or model server, and a hostile policy before them: bounded, and the failure says whose it is."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.endpoints import Client, Endpoint
from rlenv.endpoints.account import seconds_of
from rlenv.errors import EndpointError
from rlenv.language.kinds import CompileContext
from rlenv.messages import Message, ToolResult
from rlenv.testing.tools import call, context, kept
from rlenv.tools.http import KIND, HttpSpec

MOST_CPU_S = 1.5  # a collection of a large process takes half a second by itself
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def served(handler: Handler, work: Callable[[str], Awaitable[Any]]) -> Any:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return await work("http://{}:{}".format(*runner.addresses[0][:2]))
    finally:
        await runner.cleanup()


def asked(status: int = 200, body: bytes = b"", **headers: str) -> ToolResult:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={key.replace("_", "-"): headers[key] for key in headers})

    async def work(url: str) -> ToolResult:
        (tool,) = KIND.factory("ask", HttpSpec(kind="http", url=f"{url}/"), CompileContext(base=Path()))
        async with kept(context) as make:
            return await call(tool, {}, within=make())

    found: ToolResult = asyncio.run(served(handler, work))
    return found


def test_no_call_is_given_what_a_server_says_behind_the_answer_to_another_one() -> None:
    used = list[Any]()

    async def handler(request: web.Request) -> web.Response:
        used.append(request.transport)
        return web.Response(text="its own")

    async def work(url: str) -> None:
        (tool,) = KIND.factory("ask", HttpSpec(kind="http", url=f"{url}/"), CompileContext(base=Path()))
        async with kept(context) as make:
            for _ in range(3):
                await call(tool, {}, within=make())
            await asyncio.gather(*(call(tool, {}, within=make()) for _ in range(3)))

    asyncio.run(served(handler, work))
    assert len(used) == 6
    assert len(set(used)) == 6  # what waits in a connection, or comes late, meets nobody


@pytest.mark.parametrize(
    ("status", "reason", "whose"),
    [
        (400, "refused", "policy"),
        (404, "refused", "policy"),
        (408, "server_error", "unclear"),
        (429, "rate_limited", "unclear"),
        (500, "server_error", "unclear"),
        (503, "server_error", "unclear"),
        (504, "server_error", "unclear"),
    ],
)
def test_a_status_says_whose_failure_it_is(status: int, reason: str, whose: str) -> None:
    found = asked(status, b"no", Content_Type="text/plain")
    assert (found.outcome, found.reason, found.whose) == ("failed", reason, whose)


def test_a_server_that_is_not_there_is_no_failure_of_the_policy() -> None:
    async def main() -> ToolResult:
        (tool,) = KIND.factory("ask", HttpSpec(kind="http", url="http://127.0.0.1:9/"), CompileContext(base=Path()))
        async with kept(context) as make:
            return await call(tool, {}, within=make())

    found = asyncio.run(main())
    assert (found.reason, found.whose) == ("unavailable", "infrastructure")


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "utf-7", "zlib_codec", "raw_unicode_escape"])
def test_a_charset_is_one_that_is_read_in_linear_time(charset: str) -> None:
    before = time.thread_time()
    found = asked(200, b"abc-" * 200_000, Content_Type=f"text/plain; charset={charset}")
    assert found.outcome == "ok"
    assert found.text.startswith("abc-abc-")
    assert time.thread_time() - before < 2 * MOST_CPU_S


def test_json_over_the_limits_is_shown_as_text() -> None:
    found = asked(200, b"[" * 90_000 + b"]" * 90_000, Content_Type="application/json")
    assert found.outcome == "ok"
    assert isinstance(found.value, str)


def answered(body: bytes, **headers: str) -> Any:
    async def handler(request: web.Request) -> web.Response:
        given = {"Content-Type": "application/json", **{key.replace("_", "-"): headers[key] for key in headers}}
        return web.Response(body=body, headers=given)

    async def work(url: str) -> Any:
        client = Client(Endpoint(name="e", base_url=url, model="m", retries=0, timeout_s=60))
        try:
            return await client.chat([Message("user", "hello")])
        finally:
            await client.aclose()

    return asyncio.run(served(handler, work))


@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        (gzip.compress(b'{"choices":[{"message":{"content":"' + b"a" * 50_000_000 + b'"}}]}', 1), "gzip", "compressed"),
        (b'{"choices":[' + b"{}," * 2_000_000 + b"{}]}", "", "too much"),
        (b'{"choices":[{"message":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b"}]}", "", "too much"),
        (b"[" * 2_000_000, "", "too much"),
        (b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":' + b"9" * 5_000 + b"}}", "", "too much"),
        (b" " * 17_000_000, "", "larger than"),
    ],
)
def test_an_answer_of_a_model_server_is_bounded_before_it_is_parsed(body: bytes, headers: str, says: str) -> None:
    given = {"Content_Encoding": headers} if headers else {}
    with pytest.raises(EndpointError, match=says):
        answered(body, **given)


def test_odd_numbers_of_a_model_server_are_no_usage() -> None:
    found = answered(
        b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":-5,"completion_tokens":99999999999999}}'
    )
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (0, 0)


@pytest.mark.parametrize("header", ["nan", "-1", "x", "Mon, 01 Jan 0001 00:00:00 -2359", "9" * 400, "\x00", ""])
def test_any_word_for_when_to_come_back_is_a_wait(header: str) -> None:
    assert seconds_of(header) >= 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_a_method_that_writes_may_change_what_a_server_holds_however_often_it_may_be_repeated(method: Any) -> None:
    spec = HttpSpec(kind="http", url="http://127.0.0.1:9/", method=method, idempotent=True)
    (tool,) = KIND.factory("ask", spec, CompileContext(base=Path()))
    assert tool.may_write is (method in ("PUT", "PATCH", "DELETE"))
