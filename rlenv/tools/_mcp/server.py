"""An MCP server's address, one connection to it, and its answers as outputs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import orjson
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from rlenv import secrets
from rlenv.concurrency.lanes import check_going_out
from rlenv.errors import ToolFailed
from rlenv.messages import Image
from rlenv.secrets import redact, redact_ends, redact_value
from rlenv.tools._mcp.http import open_http, open_sse
from rlenv.tools._mcp.stdio import Child, child_environment, open_child
from rlenv.tools.base import ToolOutput

_NO_TEXT = "(no text)"
_MAX_PARTS = 256
_MAX_CHARS = 262_144
_MAX_NAME = 2_000
_IMAGE = re.compile(r"image/[\w.+-]{1,60}")


def as_output(name: str, result: types.CallToolResult) -> ToolOutput:
    """The text is every part that can be read, one below the other; images are kept; the value is what is structured.

    Of a result no more than 256 parts are read, with 262,144 characters; the text says what is left
    out.

    Raises:
        ToolFailed: the server says that the call failed; with its text.
    """
    text = "\n".join(_texts(result))
    if len(text) > _MAX_CHARS:
        text = redact_ends(text, _MAX_CHARS)
    if result.is_error:
        raise ToolFailed(text or f"the tool {name} failed", reason="refused")
    value = result.structured_content
    if not text and value is not None:
        text = orjson.dumps(value).decode()
    images = tuple(_images(result))
    if not text:
        text = f"({len(images)} image{'s' if len(images) != 1 else ''})" if images else _NO_TEXT
    return ToolOutput(text, value, images)


def _texts(result: types.CallToolResult) -> Iterator[str]:
    for part in result.content[:_MAX_PARTS]:
        match part:
            case types.TextContent():
                yield part.text
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                yield resource.text
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if not _is_image(resource.mime_type):
                    yield f"[{_name(resource.mime_type) or 'binary'} resource {_name(resource.uri)}]"
            case types.ResourceLink():
                about = f": {_name(part.description)}" if part.description else ""
                yield f"[resource {_name(part.name)} at {_name(part.uri)}{about}]"
            case types.ImageContent() if not _is_image(part.mime_type):
                yield f"[{_name(part.mime_type)}]"
            case types.AudioContent():
                yield f"[{_name(part.mime_type)}]"
    if len(result.content) > _MAX_PARTS:
        yield f"[{len(result.content) - _MAX_PARTS} more parts are left out]"


def _name(said: object) -> str:
    return redact(str(said or ""))[:_MAX_NAME]


def _images(result: types.CallToolResult) -> Iterator[Image]:
    for part in result.content[:_MAX_PARTS]:
        match part:
            case types.ImageContent():
                if _is_image(part.mime_type):
                    yield Image(part.mime_type, part.data)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if _is_image(resource.mime_type):
                    yield Image(str(resource.mime_type), resource.blob)


def _is_image(mime: Any) -> bool:
    return isinstance(mime, str) and _IMAGE.fullmatch(mime) is not None


_log = secrets.logger("rlenv.tools")
_SHOWN_STDERR = 1_000


class ServerDown(Exception):
    """A server could not be started or reached; the message is for the author, not for the model."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server as an entry names it, secrets filled in. Equal servers have equal `key`.

    Exactly one of `command` and `url` is given. `env` is added to the minimal environment of the process; `cwd` is
    the folder that it runs in.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    transport: Literal["http", "sse"] = "http"
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = Path()
    start_timeout_s: float = 30.0

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the server."""
        settings = (tuple(sorted(self.env.items())), tuple(sorted(self.headers.items())))
        return (self.command, self.url, self.transport, settings, str(self.cwd))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of where it is, with secrets by their names."""
        place = redact_value([self.command, self.url, self.transport, str(self.cwd)])
        return blake2b(repr(place).encode(errors="replace"), digest_size=8).hexdigest()

    @property
    def address(self) -> str:
        """The name of the server in messages."""
        return self.url if self.url is not None else " ".join(self.command)


class Connection:
    """A session that has been opened. `is_open` turns false as soon as it can take no more calls."""

    def __init__(self, client: Client, child: Child | None) -> None:
        self.client = client
        self.child = child
        self.is_lost = False
        self.is_retired = False
        """It takes no more calls, and those that are on it may end."""
        self.calls = 0
        """How many are on it."""
        self.calls_at_end: int | None = None
        """How many were on it when it ended by itself; None where it has not."""
        self._idle: asyncio.Future[None] | None = None
        self._opened_at = asyncio.get_running_loop().time()
        self._has_answered = False

    @property
    def lived_s(self) -> float:
        """The seconds since it was opened; infinite for one that has answered a call: another call ended it then."""
        return inf if self._has_answered else asyncio.get_running_loop().time() - self._opened_at

    @property
    def is_open(self) -> bool:
        return not self.is_retired and not self.is_gone

    @property
    def is_gone(self) -> bool:
        """True where the calls on it cannot be answered any more."""
        return self.is_lost or (self.child is not None and not self.child.is_open)

    async def was_emptied(self) -> bool:
        """True where it was killed between two calls: what was kept for them is gone by none of them."""
        if self.child is None or not self._has_answered or self.calls_at_end != 0:  # a 404 may be of the call's text
            return False
        return await self.child.has_exited() and self.child.was_killed

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """One call of a tool.

        The SDK's own call would check the answer on the event loop against the schema that the server gives for it,
        which may take for ever; nothing here reads by that schema.

        Raises:
            MCPError: the server answered with an error.
            ValueError: the answer is none of a tool, or asks for something in its turn.
        """
        params = types.CallToolRequestParams(name=name, arguments=dict(arguments))
        request = types.CallToolRequest(params=params)
        self.calls += 1
        try:
            found = await self.client.session.send_request(request, types.CallToolResult)
            self._has_answered = True
            return found
        except MCPError as error:
            if error.error.code != types.HEADER_MISMATCH:
                raise
            # The server wants arguments in headers, as its list of tools says; it has not run the call.
            await self.client.list_tools()
            return await self.client.session.send_request(request, types.CallToolResult)
        finally:
            self.calls -= 1
            if not self.calls and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    async def ended(self) -> None:
        """Waits until no call is on it; for one that takes no more of them."""
        if self.calls:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle


@asynccontextmanager
async def connect(
    server: McpServer,
    *,
    on_end: Callable[[Connection], None] | None = None,
    on_unknown: Callable[[Connection], None] | None = None,
) -> AsyncIterator[Connection]:
    """Starts or reaches a server and opens a session on it.

    Args:
        on_end: called once when the connection ends by itself.
        on_unknown: called once when the server says that it does not know the session.

    Raises:
        ServerDown: with how it ended and the last lines of its standard error.
    """
    check_going_out(f"the MCP server '{server.name}'")
    connection: Connection | None = None
    child: Child | None = None

    def lost() -> None:
        if connection is not None and not connection.is_lost:
            connection.is_lost, connection.calls_at_end = True, connection.calls
            if on_end is not None:
                on_end(connection)

    def unknown() -> None:
        if connection is not None and connection.is_open:
            connection.is_retired = True
            if on_unknown is not None:
                on_unknown(connection)

    @asynccontextmanager
    async def streams() -> AsyncIterator[Any]:
        nonlocal child
        if server.url is not None and server.transport == "sse":
            async with open_sse(server.url, headers=server.headers, on_lost=lost) as pair:
                yield pair
        elif server.url is not None:
            async with open_http(server.url, headers=server.headers, on_unknown=unknown) as pair:
                yield pair
        else:
            async with open_child(server.command, env=child_environment(server.env), cwd=server.cwd) as child:
                child.on_end = lost
                yield child.incoming, child.outgoing

    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(server.start_timeout_s):
                client = await stack.enter_async_context(_client(server, streams()))
        except TimeoutError as error:
            raise ServerDown(_why(server, child, f"no answer within {server.start_timeout_s:g} s")) from error
        except (Exception, BaseExceptionGroup) as error:
            raise ServerDown(_why(server, child, _reason(error))) from error
        connection = Connection(client, child)
        yield connection


def _client(server: McpServer, streams: AbstractAsyncContextManager[Any]) -> Client:
    is_said = False

    async def heard(message: Any) -> None:
        nonlocal is_said
        if isinstance(message, types.ToolListChangedNotification) and not is_said:
            is_said = True
            _log.info(
                "MCP server '%s' changed its tools; the environment keeps those it was compiled with", server.name
            )

    return Client(
        streams, message_handler=heard, client_info=types.Implementation(name="rlenv", version="0"), cache=None
    )


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.error.message if isinstance(error, MCPError) else str(error) or type(error).__name__


def _why(server: McpServer, child: Child | None, reason: str) -> str:
    if child is None:
        return f"the MCP server '{server.name}' ({server.address}) cannot be reached: {reason}"
    fate = "" if child.is_open else f" ({child.fate})"
    last = " | ".join(child.last_words(_SHOWN_STDERR).splitlines())
    said = f"; it wrote: {last}" if last else ""
    if child.fault:
        said = f"; {child.fault}{said}"
    if child.garbage:
        said = f"; {child.garbage} lines on its standard output were no messages{said}"
    return f"the MCP server '{server.name}' ({server.address}) does not start: {reason}{fate}{said}"
