"""The tools of an episode for any client of MCP, over HTTP or over standard input and output.

Both eras of the protocol are spoken. Up to 2025-11-25 a client shakes hands (`initialize`) and may have a session; in
2026-07-28 each request stands alone, so the episode is in its address:

    POST /mcp/KEY              the episode with that key, in either era; opened by `POST /episodes` (rlenv.hosts.desk)
    POST /mcp?task=3           a session is an episode, opened by `initialize`; its tool `finish_episode` scores it
    standard input and output  the process is an episode, in either era; `finish_episode` as above

The task is the prompt `task`, and where `finish_episode` is offered it is also in the server's instructions. Source:
modelcontextprotocol.io/specification, 2025-11-25 and 2026-07-28 ("Transports", "Tools", "Prompts").
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, BinaryIO, Final

from aiohttp import web

from rlenv import __version__
from rlenv._base.bounded import sendable
from rlenv._base.strict_json import read_sent
from rlenv.concurrency.scope import cancel_all
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError, told_as
from rlenv.hosts import wire
from rlenv.hosts.desk import STOPPED, Desk, Held, guard_of, refusal
from rlenv.hosts.http import MOST_BYTES, read_of
from rlenv.messages import ToolCall
from rlenv.secrets import logger

_log = logger("rlenv.hosts")
_HANDSHAKE: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_ALONE: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol/"
_PARSE, _REQUEST, _METHOD, _PARAMS, _INTERNAL, _HEADER, _VERSION = (
    -32700, -32600, -32601, -32602, -32603, -32020, -32022
)  # fmt: skip
_STATUS: Final = {_PARSE: 400, _REQUEST: 400, _METHOD: 404, _PARAMS: 400, _HEADER: 400, _VERSION: 400}
_NAMED: Final = {"tools/call": "name", "prompts/get": "name"}
FINISH: Final = "finish_episode"
"""The tool that ends an episode which its client alone knows of."""
_FINISH_TOOL: Final = {
    "name": FINISH,
    "description": "Ends the task with your final answer. Call it once, when you are done; it tells the reward.",
    "inputSchema": {
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "the final answer, in the form that the task asks"}},
        "required": ["answer"],
    },
}


class _Refused(Exception):
    """A request that is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.data = code, data
        super().__init__(message)


def check(environment: Environment) -> None:
    """Refuses a spec whose tools cannot be told from the server's own.

    Raises:
        UsageError: it has a tool `finish_episode`.
    """
    if FINISH in environment.parts.tools:
        raise UsageError(f"the spec has a tool '{FINISH}', which the server adds itself", hint="call it otherwise")


async def answer_message(
    held: Held | None, message: Any, *, desk: Desk, finishes: bool = False, headers: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """The answer to one message of JSON-RPC; None where it wants none.

    Args:
        held: the episode that is asked; None where the request names none.
        finishes: the client may end the episode itself, by `finish_episode`.
        headers: those of HTTP, which repeat what a request without a handshake says of itself.
    """
    id = message.get("id") if isinstance(message, Mapping) else None
    try:
        if not isinstance(message, Mapping) or not isinstance(method := message.get("method"), str):
            raise _Refused(_REQUEST, "expected one JSON-RPC request")
        if "id" not in message:
            return None
        if type(id) is not int and not isinstance(id, str):
            raise _Refused(_REQUEST, "the id of a request is a text or a whole number")
        params = message.get("params", {})
        if not isinstance(params, Mapping):
            raise _Refused(_PARAMS, "params: expected an object")
        alone = _stands_alone(method, params, headers)
        result = await _result_of(held, method, params, desk=desk, finishes=finishes)
        if alone:
            result = {"resultType": "complete", **result}
            if method in ("server/discover", "tools/list", "prompts/list"):
                result |= {"ttlMs": 0, "cacheScope": "private"}
        return wire.rpc_result(id, sendable(result))
    except _Refused as error:
        fault = (error.code, str(error)), ({} if error.data is None else {"data": sendable(error.data)})
    except Exception:  # the boundary: whoever waits for an answer is given one
        _log.exception("a request of MCP failed")
        fault = (_INTERNAL, "the server has failed at this request"), {}
    return wire.rpc_fault(id if isinstance(id, str | int) else None, *fault[0], **fault[1])


def _stands_alone(method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None) -> bool:
    """True for a request of the era without a handshake, whose headers must say what it does.

    Raises:
        _Refused: they do not, or it is of a version that is not spoken.
    """
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    version = meta.get(f"{_META}protocolVersion")
    told = headers.get("MCP-Protocol-Version") if headers is not None else version
    if told is None or (told in _HANDSHAKE and version is None):
        return False
    if headers is not None:
        wanted = {"MCP-Protocol-Version": version, "Mcp-Method": method}
        if method in _NAMED and (headers.get("Mcp-Name") or "")[:2] != "=?":  # such a one is encoded
            wanted["Mcp-Name"] = params.get(_NAMED[method])
        if wrong := [name for name, value in wanted.items() if headers.get(name) != value]:
            raise _Refused(_HEADER, f"the header {wrong[0]} does not say what the request does")
    if version != _ALONE:
        data = {"supported": [_ALONE, *_HANDSHAKE], "requested": version}
        raise _Refused(_VERSION, "Unsupported protocol version", data)
    if f"{_META}clientCapabilities" not in meta:
        raise _Refused(_PARAMS, f"params._meta lacks {_META}clientCapabilities")
    return True


async def _result_of(
    held: Held | None, method: str, params: Mapping[str, Any], *, desk: Desk, finishes: bool
) -> dict[str, Any]:
    if method == "ping":
        return {}
    if method in ("initialize", "server/discover"):
        return _introduce(held, method, params, desk=desk, finishes=finishes)
    if held is None:
        raise _Refused(_REQUEST, "no episode: shake hands with `initialize`, or ask /mcp/KEY (`POST /episodes`)")
    if method == "tools/list":
        tools = [wire.tool_of(schema["function"]) for schema in held.session.episode.toolset.schemas]
        return {"tools": [*tools, *([_FINISH_TOOL] if finishes else [])]}
    if method == "tools/call":
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
            raise _Refused(_PARAMS, "expected the name of a tool and an object of arguments")
        if finishes and name == FINISH:
            return await _finish_episode(held, arguments or {}, desk)
        return await _call_tool(held, name, arguments or {}, desk)
    if method == "prompts/list":
        return {"prompts": [{"name": "task", "description": "the task of this episode"}]}
    if method == "prompts/get":
        if params.get("name") != "task":
            raise _Refused(_PARAMS, "the one prompt is called 'task'")
        said = [
            ("assistant" if one.role == "assistant" else "user", one.content) for one in held.session.episode.messages
        ]
        return {"messages": [{"role": role, "content": {"type": "text", "text": text}} for role, text in said]}
    raise _Refused(_METHOD, f"there is no method '{method[:100]}'")


def _introduce(
    held: Held | None, method: str, params: Mapping[str, Any], *, desk: Desk, finishes: bool
) -> dict[str, Any]:
    spec = desk.environment.spec
    said = {
        "capabilities": {"tools": {}, "prompts": {}},
        "serverInfo": {"name": f"rlenv-{spec.name}", "version": __version__},
    }
    if finishes and held is not None:
        said["instructions"] = "\n\n".join(message.content for message in held.session.episode.messages)
    if method == "initialize":
        wanted = params.get("protocolVersion")
        return {"protocolVersion": wanted if wanted in _HANDSHAKE else _HANDSHAKE[-1], **said}
    # Without an episode in the address there is nothing that a request could stand for: such a client shakes hands.
    return {"supportedVersions": [*_HANDSHAKE, *([_ALONE] if held is not None else [])], **said}


async def _call_tool(held: Held, name: str, arguments: Mapping[str, Any], desk: Desk) -> dict[str, Any]:
    if held.is_over:
        return _text("Not run: the episode is over.", is_error=True)
    held.busy += 1
    held.made.append(call := ToolCall(name, arguments, f"made {len(held.made)}"))
    try:
        result = await held.session.call(name, arguments, id=call.id)
    finally:
        held.busy, held.touched = held.busy - 1, desk.now()
    return wire.mcp_result(result)


async def _finish_episode(held: Held, arguments: Mapping[str, Any], desk: Desk) -> dict[str, Any]:
    answer = arguments.get("answer")
    if not isinstance(answer, str):
        return _text("answer: expected a text", is_error=True)
    outcome = wire.public_outcome(await desk.finish(held, answer), held.id)
    return {**_text(json.dumps(sendable(outcome)), is_error=False), "structuredContent": outcome}


def _text(text: str, *, is_error: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


# Over HTTP


async def over_http(request: web.Request, held: Held | None, desk: Desk, *, finishes: bool = False) -> web.Response:
    """The answer to a request of MCP over HTTP: one message in, one out, as JSON."""
    if request.method != "POST":
        return web.Response(status=405, headers={"Allow": "POST"})
    try:
        message = read_sent(await read_of(request), max_bytes=MOST_BYTES)
    except ValueError as error:
        return web.json_response(wire.rpc_fault(None, _PARSE, f"Parse error: {error}"), status=400)
    made = None
    if finishes and held is None and isinstance(message, Mapping) and message.get("method") == "initialize":
        held = made = await desk.start(**_asked_row(request))
    answer = await answer_message(held, message, desk=desk, finishes=finishes, headers=request.headers)
    session = {} if made is None else {"Mcp-Session-Id": made.key}
    if answer is None:
        return web.Response(status=202)
    status = _STATUS.get(answer["error"]["code"], 200) if "error" in answer else 200
    return web.json_response(answer, status=status, headers=session)


def _asked_row(request: web.Request) -> dict[str, Any]:
    """The row that the address of a session names."""
    asked: dict[str, Any] = {key: value for key, value in request.query.items() if key in ("task", "split", "seed")}
    with told_as(UsageError, "task and seed are whole numbers", ValueError):
        return asked | {key: int(asked[key]) for key in ("task", "seed") if key in asked}


def application(
    environment: Environment, *, host: str = "127.0.0.1", token: str = "", **options: Any
) -> web.Application:
    """The server, to be run by aiohttp.

    Args:
        host: the address that is listened at; where it is this machine's own, no other name is served.
        token: what the driver's routes and sessions are asked for; an episode's key is enough for `/mcp/KEY`.
        options: of the `Desk`.

    Raises:
        UsageError: see `check`.
    """
    check(environment)
    desk = Desk(environment, **options)

    async def of_key(request: web.Request) -> web.StreamResponse:
        held = desk.at(request.match_info["key"])
        return refusal(404, "there is no such episode") if held is None else await over_http(request, held, desk)

    async def of_session(request: web.Request) -> web.StreamResponse:
        key = request.headers.get("Mcp-Session-Id")
        held = desk.at(key) if key is not None else None
        if key is not None and held is None:
            return refusal(404, "there is no such session; shake hands again")
        if request.method == "DELETE" and held is not None:
            await desk.leave(held)
            return web.Response(status=204)
        return await over_http(request, held, desk, finishes=True)

    def described(request: web.Request, held: Held) -> dict[str, Any]:
        return {"mcp_url": f"{request.url.origin()}/mcp/{held.key}"}

    guard = guard_of(host, token, is_free=lambda request: request.path.startswith("/mcp/"))
    app = web.Application(middlewares=[guard], client_max_size=MOST_BYTES)
    app.cleanup_ctx.append(held_by(environment, desk))
    app.add_routes(desk.routes(described))
    app.add_routes([web.route("*", "/mcp/{key}", of_key), web.route("*", "/mcp", of_session)])
    return app


def held_by(*contexts: AbstractAsyncContextManager[Any]) -> Callable[[web.Application], AsyncIterator[None]]:
    """What a server holds while it runs; the last is closed first."""

    async def while_served(app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in contexts:
                await stack.enter_async_context(one)
            yield

    return while_served


# Over standard input and output


async def serve_lines(
    desk: Desk, held: Held, read: Callable[[], bytes], out: BinaryIO, *, stopped: asyncio.Event | None = None
) -> None:
    """Answers the messages that `read` gives line by line until it gives none, or `stopped` is set; calls run at once.

    Args:
        read: blocks until there is a line; runs in a thread of its own, which is left behind once all has ended.
    """
    loop, stopped = asyncio.get_running_loop(), stopped or asyncio.Event()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def reading() -> None:
        line = b"\n"
        with suppress(OSError, ValueError, RuntimeError):  # closed while it was read, or the loop has ended
            while line:
                loop.call_soon_threadsafe(lines.put_nowait, line := read())

    async def take(line: bytes) -> None:
        try:
            answer = await answer_message(held, read_sent(line, max_bytes=MOST_BYTES), desk=desk, finishes=True)
        except ValueError as error:
            answer = wire.rpc_fault(None, _PARSE, f"Parse error: {error}")
        if answer is not None:
            with suppress(OSError):  # the client has gone, and its episode ends with what it sends
                out.write(json.dumps(answer).encode() + b"\n")
                out.flush()

    async def take_all() -> None:
        async with asyncio.TaskGroup() as running:
            while line := await lines.get():
                if line.strip():
                    running.create_task(take(line))

    threading.Thread(target=reading, name="rlenv-mcp", daemon=True).start()
    taking, stopping = asyncio.create_task(take_all()), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
        await desk.leave(held, **({"gives_up": "stopped", "why": STOPPED} if stopped.is_set() else {}))
    finally:
        await cancel_all(taking, stopping)
