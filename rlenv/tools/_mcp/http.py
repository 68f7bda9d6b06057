"""Servers behind an address: streamable HTTP, and the older SSE.

The SDK's transports end the whole session when one request cannot be sent, and with it every other call on it. Here
a connection that fails becomes an error response to its own request, so that only the call that made it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx2
import orjson
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp_types import INTERNAL_ERROR, JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from rlenv._base.strict_json import TooMuchJson
from rlenv.tools import _mcp as wire

UNREACHABLE = -32081
"""The code of a request for which no connection came about; in the range that JSON-RPC leaves to implementations."""
LOST = -32082
"""The code of a request to a server that does not know the session: it was started anew. It was not run."""
BROKEN = -32084
"""The code of a request whose connection broke after it was sent."""
_NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
# The pool looks at every connection that it keeps for every request, so it keeps few; calls wait elsewhere, not in it.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
_SHOWN_OF_REQUEST = 500
_GOODBYE_S = 2.0
_MAX_SESSION_ID = 1_024
_MAX_SSE_BYTES = 1_000_000
_READ_S = 3600.0  # calls have time limits of their own


class _Careful(httpx2.AsyncBaseTransport):
    """Sends requests; what goes wrong underneath is an answer with a JSON-RPC error in it, and what is too much too."""

    def __init__(self, on_lost: Callable[[], None], *, is_sse: bool) -> None:
        self._inner = httpx2.AsyncHTTPTransport(limits=_LIMITS, trust_env=False)
        self._on_lost = on_lost  # of a server that does not know the session, or by SSE of a message that is lost
        self._is_sse = is_sse
        self._gate = wire.MessageBudget()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "DELETE":
            return await self._handled(request)
        try:
            async with asyncio.timeout(_GOODBYE_S):  # whoever closes a session waits for the answer
                return await self._handled(request)
        except TimeoutError:
            return _error(request, UNREACHABLE, "the server does not answer", status=503)

    async def _handled(self, request: httpx2.Request) -> httpx2.Response:
        is_post = request.method == "POST"
        # A few bytes of a compressed answer may stand for gigabytes.
        request.headers["accept-encoding"] = "identity"
        asked = (await request.aread())[:_SHOWN_OF_REQUEST] if is_post else b""  # a redirected one is not read yet
        if b'"method":' in asked:  # not an answer to the server's own requests
            self._gate.asked()
        try:
            response = await self._inner.handle_async_request(request)
            _without_cookies(response)
            if is_post and response.status_code == 404 and MCP_SESSION_ID in request.headers:
                await response.aclose()
                self._on_lost()
                return _error(request, LOST, "the server does not know this session", status=404)
            if response.status_code in (204, 304):  # left unread, so that what stands behind it opens no next answer
                await response.aclose()
                if not is_post or b'"id":' not in asked:  # as some servers answer what wants no answer
                    return httpx2.Response(response.status_code, request=request)
                return _error(request, INTERNAL_ERROR, "the server sent no answer", status=502)
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                await response.aclose()
                return _error(request, INTERNAL_ERROR, "the server sent a compressed answer", status=502)
            if "text/event-stream" not in response.headers.get("content-type", "").lower():
                return await _whole(request, response)
            return _streamed(request, response, self._events(is_answer=is_post))
        except httpx2.TransportError as error:
            if not is_post:
                raise
            if self._is_sse:  # its answers come another way, so nothing would tell the one who waits
                self._on_lost()
            if isinstance(error, _NO_CONNECTION):
                why = f"the server cannot be reached ({type(error).__name__})"
                return _error(request, UNREACHABLE, why, status=503)
            return _error(request, BROKEN, f"the connection broke ({type(error).__name__})", status=503)

    def _events(self, *, is_answer: bool) -> wire.Events:
        # The SDK's older transport ends its session at an event of a megabyte.
        most = _MAX_SSE_BYTES if self._is_sse else wire.MAX_MESSAGE_BYTES
        return wire.Events(self._gate, is_answer=is_answer, max_bytes=most)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _without_cookies(response: httpx2.Response) -> None:
    """Drops cookies: a server's session is known by its id, and a jar would grow with every answer."""
    if "set-cookie" in response.headers:
        del response.headers["set-cookie"]
    if len(response.headers.get(MCP_SESSION_ID, "")) > _MAX_SESSION_ID:
        del response.headers[MCP_SESSION_ID]


async def _whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    body = bytearray()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        async for chunk in response.stream:
            body += chunk
            if len(body) > wire.MAX_MESSAGE_BYTES:
                message = f"the server sent more than {wire.MAX_MESSAGE_BYTES:,} bytes"
                return _error(request, wire.TOO_LARGE, message, status=502)
    finally:
        await response.aclose()
    whole = bytes(body)
    if "json" in response.headers.get("content-type", "").lower():
        try:
            await wire.looked_at(whole)
            if request.method == "POST":
                read = partial(_answer, whole, request.content[:_SHOWN_OF_REQUEST], is_told=response.is_success)
                whole = read() if len(whole) <= wire.LARGE_BYTES else await asyncio.to_thread(read)
        except TooMuchJson as error:
            return _error(request, wire.TOO_LARGE, f"the server's answer is too much: {error}", status=502)
        except ValueError:  # the SDK would write a traceback for each
            return _error(request, INTERNAL_ERROR, "the server's answer is no message", status=502)
    stream = httpx2.ByteStream(whole)
    return httpx2.Response(response.status_code, headers=response.headers, content=None, request=request, stream=stream)


def _answer(data: bytes, request: bytes, *, is_told: bool) -> bytes:
    """The answer as it is read. Raises ValueError: it is no message, or the answer to another request."""
    if is_told:
        message = jsonrpc_message_adapter.validate_json(data, by_name=False)
        if isinstance(message, (JSONRPCResponse, JSONRPCError)) and not wire.is_answer_to(message.id, request):
            raise ValueError("it answers another request")
    with suppress(ValueError):
        return wire.of_its_call(data, orjson.loads(data))
    return data


def _streamed(request: httpx2.Request, response: httpx2.Response, events: wire.Events) -> httpx2.Response:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    stream = _Screened(response, events)
    return httpx2.Response(response.status_code, headers=response.headers, content=None, request=request, stream=stream)


class _Screened(httpx2.AsyncByteStream):
    """The events of a stream that are let through."""

    def __init__(self, response: httpx2.Response, events: wire.Events) -> None:
        self._response = response
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for chunk in self._response.stream:
            async for event in self._events.of(chunk):
                yield event
            if self._events.is_over:
                return

    async def aclose(self) -> None:
        await self._response.aclose()


def _error(request: httpx2.Request, code: int, message: str, *, status: int) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=orjson.dumps(body), request=request)


@asynccontextmanager
async def open_http(url: str, *, headers: Mapping[str, str], on_unknown: Callable[[], None]) -> AsyncIterator[Any]:
    """The streams of a streamable HTTP server; `on_unknown` is called when it says that it does not know the session.

    That may be said to one request alone, so the others that are under way are left to end.
    """
    timeout = httpx2.Timeout(30.0, read=_READ_S)
    transport = _Careful(on_unknown, is_sse=False)
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout, transport=transport, trust_env=False) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=2 * wire.MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def open_sse(url: str, *, headers: Mapping[str, str], on_lost: Callable[[], None]) -> AsyncIterator[Any]:
    """The streams of an SSE server; `on_lost` is called when a message cannot be delivered."""

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        transport = _Careful(on_lost, is_sse=True)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, transport=transport, trust_env=False)

    async with sse_client(url, headers=dict(headers), sse_read_timeout=_READ_S, httpx_client_factory=client) as streams:
        yield streams
