"""`rlenv serve`: environments behind OpenEnv's wire, a socket an episode, and behind HTTP for those without one.

    GET  /ws                        an episode at a time; `rlenv.hosts.wire` has the messages
    GET  /health                    healthy or draining, sessions and slots; open without the token, for balancers
    GET  /metadata /schema /openapi.json /card
    GET  /list_environments, /NAME/splits; POST /NAME/tasks, num_tasks, task, task_range
    POST /mcp                       JSON-RPC: an episode's tools (`rlenv.hosts.http_sessions`)
    POST /reset /step /close        NeMo Gym's gymnasium agent (the same)

The first spec stands at the root, and each under /env/NAME. A client is bounded before it is believed: how many there
are, how long a message is, how many wait unanswered, how long a client may be silent, slow or half open.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from rlenv import __version__
from rlenv._base.strict_json import read_json
from rlenv.dialects.base import cut_chars
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError, UsageError
from rlenv.hosts import wire
from rlenv.hosts.session import Session

__all__ = ["Limits", "Server", "Slots"]

_LOGGER: Final = logging.getLogger("rlenv.hosts.serve")
_MOST_WAITING: Final = 8
"""Messages of one socket that wait for an answer; the wire allows one, and one more is a flood."""
_END: Final = '{"type":"end"'
"""The first characters of the message by which a client of ours ends an episode."""
_SWEEP_S: Final = 5.0
_SILENT_S: Final = 30.0
"""A connection without a whole request is closed after so long."""
_GONE: Final = "the client has left"
_ENDING: Final = "the server is ending"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a server.

    `sessions` are open at once in one process; one more waits `queue_s` seconds for a slot. A session without a message
    for `idle_s` seconds is closed. A peer that does not answer a ping within `heartbeat_s` is gone, and one that does
    not read its answer within `send_s` too. On SIGTERM running episodes have `drain_s` seconds. `message_bytes` bounds
    what a client sends.
    """

    sessions: int = 1_024
    queue_s: float = 0.0
    idle_s: float = 3_600.0
    drain_s: float = 30.0
    heartbeat_s: float = 20.0
    send_s: float = 30.0
    message_bytes: int = 16 << 20


class More(Protocol):
    """Routes beside those of the sockets, with what they keep."""

    def routes(self, prefix: str) -> list[web.RouteDef]: ...

    async def aclose(self, app: web.Application) -> None: ...


class Slots:
    """Places for sessions, first come first served."""

    def __init__(self, most: int) -> None:
        self.most, self.active = most, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(not one.done() for one in self._waiting)

    async def take(self, wait_s: float) -> bool:
        """True once there is a place, False where there was none for `wait_s` seconds, or as many wait as have one."""
        if self.active < self.most:
            self.active += 1
            return True
        if wait_s <= 0 or self.waiting >= self.most:
            return False
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await asyncio.wait_for(asyncio.shield(place), wait_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            if place.done():  # given in the same moment
                self.free()
            place.cancel()
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        return True

    def free(self) -> None:
        """Gives a place back, to who has waited longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.active -= 1


@dataclass(eq=False)
class Server:
    """Some environments as a web application, with the sessions that are open.

    Args:
        environments: by name, the first at the root too.
        token: what clients have to show as `Authorization: Bearer` or `?token=`; "" for whoever is on this machine.
        is_open: True lets whoever reaches the server play without a token, by any name of the machine.
        is_alone: False where other processes take requests at the same address: HTTP sessions would lose theirs.

    Raises:
        UsageError: a spec cannot be served (`rlenv.hosts.wire.card_of`).
    """

    environments: Mapping[str, Environment]
    limits: Limits = Limits()
    token: str = ""
    is_alone: bool = True
    is_open: bool = False
    is_draining: bool = False
    episodes: int = 0
    """How many were opened."""
    slots: Slots = field(init=False)
    conversations: set[Conversation] = field(default_factory=set)
    cards: dict[str, Mapping[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.limits.sessions)
        self.cards = {name: wire.card_of(environment) for name, environment in self.environments.items()}

    def application(self, held: More) -> web.Application:
        """The application, to be run by aiohttp.

        Args:
            held: the sessions of clients without a socket.
        """
        app = web.Application(client_max_size=self.limits.message_bytes, middlewares=[self._guard])
        for prefix in ("", *(f"/env/{name}" for name in self.environments)):
            app.router.add_routes(
                [
                    web.get(f"{prefix}/ws", self._socket),
                    web.get(f"{prefix}/health", self._health),
                    web.get(f"{prefix}/metadata", self._metadata),
                    web.get(f"{prefix}/schema", self._schema),
                    web.get(f"{prefix}/openapi.json", self._openapi),
                    web.get(f"{prefix}/card", self._card),
                    web.get(f"{prefix}/state", self._state),
                    *held.routes(prefix),
                ]
            )
        app.router.add_get("/list_environments", self._names)
        app.router.add_get("/{name}/splits", self._splits)
        app.router.add_post("/{name}/{asked:tasks|num_tasks|task|task_range}", self._tasks)
        app.on_cleanup.append(held.aclose)
        app.on_cleanup.append(self._aclose)
        return app

    def named(self, request: web.Request) -> str:
        """The environment that a request is for.

        Raises:
            HTTPNotFound: there is none of that name.
        """
        name = request.match_info.get("name")
        if name is None:
            parts = request.path.split("/")
            name = parts[2] if request.path.startswith("/env/") else next(iter(self.environments))
        if name not in self.environments:
            raise web.HTTPNotFound(text=f"there is no environment '{name[:80]}'; see /list_environments")
        return name

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keeps out who has no token, and pages of a browser; every refusal is JSON with its reason."""
        try:
            if not request.path.endswith("/health"):
                self._admit(request)
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            headers = {"Retry-After": "1"} if error.status == 503 else {}
            return answer({"detail": error.text or error.reason}, status=error.status, headers=headers)
        except (ValueError, RlenvError) as error:
            return answer({"detail": str(error)}, status=422)

    def _admit(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise web.HTTPForbidden(text="a page of another site may not ask this server")
        if not self.token:
            if not self.is_open and not is_local(request.host):
                raise web.HTTPForbidden(text="this server has no token, and answers to this machine's own names alone")
            return
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        shown = shown.strip() if scheme.lower() == "bearer" else request.query.get("token", "")
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), self.token.encode()):
            raise web.HTTPUnauthorized(text="the token is missing or wrong; send Authorization: Bearer TOKEN")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        environment = self.environments[self.named(request)]
        self.refuse_if_draining()
        limits = self.limits
        socket = web.WebSocketResponse(
            heartbeat=limits.heartbeat_s, max_msg_size=limits.message_bytes, compress=False, timeout=2.0
        )
        await socket.prepare(request)
        conversation = Conversation(self, Session(environment), socket, request.transport)
        self.conversations.add(conversation)
        try:
            await conversation.run()
        finally:
            self.conversations.discard(conversation)
        return socket

    def refuse_if_draining(self) -> None:
        """Raises HTTPServiceUnavailable once the server is about to end."""
        if self.is_draining:
            raise web.HTTPServiceUnavailable(text=f"{_ENDING}; ask another one, or this one later")

    async def drain(self) -> None:
        """Takes no new session, lets running episodes end within `drain_s` seconds, and ends the others as invalid."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.drain_s
        while self.conversations and loop.time() < until:
            await self._close([one for one in self.conversations if one.is_between], _ENDING)
            await asyncio.sleep(0.05)
        await self._close(self.conversations, "the server has ended")

    async def _close(self, conversations: Sequence[Conversation] | set[Conversation], why: str) -> None:
        await asyncio.gather(*[one.close(WSCloseCode.GOING_AWAY, why) for one in list(conversations)])

    async def _aclose(self, app: web.Application) -> None:
        for environment in self.environments.values():
            await environment.aclose()

    async def _health(self, request: web.Request) -> web.Response:
        state = {"active_sessions": self.slots.active, "max_sessions": self.slots.most, "waiting": self.slots.waiting}
        word = "draining" if self.is_draining else "healthy"
        return answer({"status": word, **state, "episodes": self.episodes}, status=503 if self.is_draining else 200)

    async def _metadata(self, request: web.Request) -> web.Response:
        spec = self.environments[self.named(request)].spec
        described = spec.description or f"{spec.name}, an environment of rlenv"
        return answer({"name": spec.name, "description": described, "version": f"{spec.version}", "rlenv": __version__})

    async def _schema(self, request: web.Request) -> web.Response:
        return answer({"action": wire.ACTION, "observation": wire.OBSERVATION, "state": wire.STATE})

    async def _card(self, request: web.Request) -> web.Response:
        return answer(self.cards[self.named(request)])

    async def _state(self, request: web.Request) -> web.Response:
        return answer({"episode_id": None, "step_count": 0})  # of a request without a socket, as with OpenEnv

    async def _openapi(self, request: web.Request) -> web.Response:
        get = ("/health", "/metadata", "/schema", "/state")
        done = {"responses": {"200": {"description": "JSON"}}}
        paths = {path: {"get": done} for path in get} | {path: {"post": done} for path in ("/reset", "/step", "/mcp")}
        return answer({"openapi": "3.1.0", "info": {"title": "rlenv serve", "version": "1.0.0"}, "paths": paths})

    async def _names(self, request: web.Request) -> web.Response:
        return answer(list(self.environments))

    async def _splits(self, request: web.Request) -> web.Response:
        splits = self.cards[self.named(request)]["splits"]
        return answer([{"name": name, "num_tasks": held["size"]} for name, held in splits.items()])

    async def _tasks(self, request: web.Request) -> web.Response:
        """The task API: rows by their addresses alone, since they hold the answers."""
        name, asked = self.named(request), request.match_info["asked"]
        body = await json_of(request)
        splits = self.cards[name]["splits"]
        split = body.get("split") or next(iter(splits))
        if split not in splits:
            raise web.HTTPNotFound(text=f"there is no split '{split!s:.80}'; there are {', '.join(splits)}")
        size = splits[split]["size"]
        if asked == "num_tasks":
            return answer({"num_tasks": size})
        at, start, stop = (body.get(key, 0) for key in ("index", "start", "stop"))
        stop = size if asked == "tasks" or stop is None else stop
        if not all(isinstance(one, int) and 0 <= one <= size for one in (at, start, stop)) or at >= size:
            raise web.HTTPBadRequest(text=f"the split '{split}' has tasks 0 to {size - 1}")
        if asked == "task":
            return answer({"task": {"split": split, "task": at}})
        found = [{"split": split, "task": index} for index in range(start, min(stop, start + 100_000))]
        return answer({"tasks": found, "env_name": name})


class Conversation:
    """One socket: its session, the message that is being answered, and those that wait."""

    def __init__(
        self, server: Server, session: Session, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        self._server, self.session, self._socket, self._transport = server, session, socket, transport
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING + 1)
        self.is_answering = False
        self._is_interrupted = asyncio.Event()
        """Set by a message that ends the episode: a step that runs is given up, and has no answer."""
        self._is_ours = False
        self._why = _GONE

    @property
    def is_between(self) -> bool:
        """True where no episode runs and nothing is being answered."""
        return self.session.is_ended and not self.is_answering and self._inbox.empty()

    async def run(self) -> None:
        """Answers until the client leaves or is sent away; an episode that runs then has an invalid reward."""
        reading = asyncio.create_task(self._read())
        has_slot = False
        try:
            has_slot = await self._beside(reading, self._server.slots.take(self._server.limits.queue_s)) is True
            if has_slot:
                while await self._turn(reading):
                    pass
            elif not reading.done():
                slots = self._server.slots
                held = {"active_sessions": slots.active, "max_sessions": slots.most}
                await self._fail("CAPACITY_REACHED", f"{slots.active} of {slots.most} sessions are open", **held)
        finally:
            await _ended(reading)
            if not self.session.is_ended:
                self.session.fail("client" if self._why == _GONE else "server", self._why)
            try:
                await self.session.aclose()
            finally:
                if has_slot:
                    self._server.slots.free()
            await self.close(WSCloseCode.OK, self._why)
            if self._transport is not None:
                self._transport.abort() if self._transport.get_write_buffer_size() else self._transport.close()

    async def close(self, code: int, why: str) -> None:
        """Sends the client away; one that does not read is not waited for."""
        self._why = why
        with suppress(Exception):
            await asyncio.wait_for(self._socket.close(code=code, message=why.encode()), self._server.limits.send_s)

    async def _read(self) -> None:
        """Reads while an answer is being made too: that is how a client is known to have left."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    await self.close(WSCloseCode.UNSUPPORTED_DATA, "expected texts of JSON")
                elif self._inbox.qsize() >= _MOST_WAITING:
                    await self.close(WSCloseCode.POLICY_VIOLATION, "one message, then its answer")
                else:
                    self._inbox.put_nowait(message.data)
                    if message.data.startswith(_END):
                        self._is_interrupted.set()
        finally:
            self._inbox.put_nowait(None)

    async def _beside(self, reading: asyncio.Task[None], work: Awaitable[Any]) -> Any:
        """The result of `work`; it is given up where the client leaves before."""
        working = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._is_interrupted.wait())
        await asyncio.wait({working, reading, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not working.done():
            await _ended(working)
            return None
        return working.result()

    async def _turn(self, reading: asyncio.Task[None]) -> bool:
        """Answers the next message; False where there is none."""
        limits = self._server.limits
        try:
            asked = await asyncio.wait_for(self._inbox.get(), limits.idle_s)
        except TimeoutError:
            await self._fail("SESSION_ERROR", f"no message for {limits.idle_s:g} s")
            await self.close(WSCloseCode.GOING_AWAY, "idle")
            return False
        if asked is None:
            return False
        self.is_answering = True
        try:
            if asked.startswith(_END):
                self._is_interrupted.clear()
            told = await self._beside(reading, self._answer(asked))
            if told is None:
                return self._is_interrupted.is_set() and not reading.done()
            await asyncio.wait_for(self._socket.send_str(told), limits.send_s)
        except (ConnectionError, TimeoutError):  # the client is gone, or does not read
            return False
        finally:
            self.is_answering = False
        return not reading.done() or not self._inbox.empty()

    async def _answer(self, text: str) -> str | None:
        """The answer to a message as JSON; None for one that ends the session. Never raises for what was sent."""
        try:
            raw = text.encode("utf-8", "replace")
            message = read_json(raw, max_bytes=self._server.limits.message_bytes)
        except ValueError as error:
            return _error("INVALID_JSON", f"the message is not JSON: {error}")
        if not isinstance(message, dict):
            return _error("VALIDATION_ERROR", 'a message is an object: {"type": "reset", "data": {…}}')
        kind = message.get("type")
        try:
            if kind == "close":
                return None
            made = await self._made(kind, message.get("data", {}))
        except (ValueError, RlenvError) as error:
            return _error("VALIDATION_ERROR", str(error))
        except Exception as error:  # the boundary: a bug of a tool's author ends no server
            _LOGGER.exception("session %s failed", self.session.id)
            return _error("EXECUTION_ERROR", f"{type(error).__name__}; see the server's log")
        if made is None:
            return _error("UNKNOWN_TYPE", f"{kind!r:.80} is none of reset, step, state, end, mcp and close")
        return wire.encoded(made)

    async def _made(self, kind: Any, data: Any) -> dict[str, Any] | None:
        session = self.session
        if kind == "reset":
            if self._server.is_draining:
                raise UsageError(_ENDING, hint="ask another one, or this one later")
            return {"type": "observation", "data": await self._opened(data)}
        if kind == "step":
            step = await session.step(wire.action_of(data))
        elif kind == "end":
            step = await self._ended(data)
        elif kind == "state":
            return {"type": "state", "data": session.state()}
        elif kind == "mcp":
            tools = session.episode.tool_schemas if session.episode else session.environment.tool_schemas
            return {"type": "mcp", "data": wire.tools_answer(data, tools)}
        else:
            return None
        if step.is_last:
            note_end(session)
        made = wire.step_data(step, session, is_ours=self._is_ours)
        if kind == "end":
            made["metadata"]["is_end"] = True
        return {"type": "observation", "data": made}

    async def _opened(self, data: Any) -> dict[str, Any]:
        session = self.session
        place = wire.place_of(data, session.environment)
        if not session.is_ended:
            session.fail("client", "the client has begun another episode")
        ours = data.get(wire.OURS)
        self._is_ours = isinstance(ours, Mapping)
        spec = session.environment.spec.observation
        by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
        counts_tokens = isinstance(ours, Mapping) and bool(ours.get("counts_tokens"))
        # A cut by tokens follows, at the client: any object but the environment's own says so.
        opened = await session.reset(**place, cut=(lambda text: by_chars(text)) if counts_tokens else None)
        self._server.episodes += 1
        if opened.is_ended:
            note_end(session)
        return wire.opened_data(opened, session, is_ours=self._is_ours)

    async def _ended(self, data: Any) -> Any:
        """Ends the episode as its driver says: a limit of its own (scored), or a failure (invalid)."""
        session, given = self.session, data if isinstance(data, Mapping) else {}
        reason = given.get("reason")
        if session.episode is None or not isinstance(reason, str) or not 0 < len(reason) <= 64:
            raise ValueError('expected {"reason": WORD} of an episode that was opened')
        if given.get("failed"):
            session.fail(reason, "the client says so")
        else:
            # A client that gave up a step may not know that it was taken.
            is_taken = len(session.episode.turns) > int(given.get("turns") or 0)
            action = wire.action_of(given["action"]) if given.get("action") and not is_taken else None
            await session.episode.truncate(reason, action=action)
        return await session.step("")

    async def _fail(self, code: str, message: str, **more: Any) -> None:
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._socket.send_str(_error(code, message, **more)), self._server.limits.send_s)


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _error(code: str, message: str, **more: Any) -> str:
    return wire.encoded({"type": "error", "data": {"message": message, "code": code, **more}})


def note_end(session: Session) -> None:
    """Says in the log why a reward is invalid: clients are told the reason's word alone."""
    if (failure := session.trajectory.failure) is not None:
        _LOGGER.warning("session %s: %s: %s", session.id, failure.reason, failure.message)


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response of JSON."""
    text = wire.encoded(value)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


async def json_of(request: web.Request) -> dict[str, Any]:
    """The object in a request's body, {} where it has none.

    Raises:
        HTTPBadRequest: it holds something else.
    """
    try:
        raw = await asyncio.wait_for(request.read(), _SILENT_S)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {_SILENT_S:g} s") from error
    try:
        body = read_json(raw, max_bytes=request.app._client_max_size) if raw.strip() else {}
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="expected a JSON object")
    return body


def is_local(host: str) -> bool:
    """True for this machine's own names, with or without a port: a page that was rebound shows its own."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def close_silent(runner: web.AppRunner) -> None:
    """Closes, as long as it runs, connections that have sent no whole request for a while: aiohttp waits forever."""
    since: dict[Any, float] = {}
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_S)
        server = runner.server
        now = loop.time()
        idle = [one for one in server.connections if getattr(one, "_current_request", None) is None] if server else []
        since = {one: since.get(one, now) for one in idle}
        for one, begun in since.items():
            if now - begun >= _SILENT_S:
                one.force_close()
