"""Episodes for clients that have no socket: NeMo Gym's gymnasium agent, and tools by JSON-RPC.

NeMo Gym 0.7.0 (responses_api_agents/gymnasium_agent/app.py, resources_servers/gymnasium/base.py): `POST /reset` with
a row, `POST /step` with the row and the model's response, `POST /close`; a cookie names the session, and the rewards of
all steps are added up. A row says its task under `rlenv`: {split, task, seed}. The agent knows no reward but a number:
an invalid one is answered by status 500, upon which it closes the session and reports the rollout as failed.

OpenEnv 0.10.0 (`core/env_server/http_server.py`, `POST /mcp`): `openenv/session/create` and `close`, `tools/list`,
`tools/call`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from aiohttp import web

from rlenv._base.bounded import drop_oldest
from rlenv.episodes.tool_session import ToolSession
from rlenv.errors import RlenvError
from rlenv.hosts import wire
from rlenv.hosts.conversation import note_end
from rlenv.hosts.http import answer, json_of
from rlenv.hosts.session import Session
from rlenv.messages import Message
from rlenv.trajectory import Step

if TYPE_CHECKING:
    from rlenv.hosts.serve import Server

_COOKIE: Final = "rlenv_session"
_SWEEP_S: Final = 5.0
_PARSE, _INVALID, _PARAMS = -32700, -32600, -32602
_MOST_ID, _MOST_CLOSED = 256, 1_000
_Kind = TypeVar("_Kind", bound=Session | ToolSession)
_Made = TypeVar("_Made")


@dataclass(eq=False)
class _Held:
    """A session that is open between requests. `last` is the answer to the request of `last_id`, which may come again
    where the first answer was lost."""

    session: Session | ToolSession
    touched: float
    busy: int = 0
    """Requests that are being answered."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_id: str = ""
    last: tuple[int, dict[str, Any]] = (200, {})


class HttpSessions:
    """The sessions of a server's HTTP clients: they take slots as sockets do, and end where nobody asks for a while."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._held: dict[str, _Held] = {}
        self._closed: dict[str, dict[str, Any]] = {}
        """The ends of sessions of tools, for clients that ask again: a judge may take longer than a client waits."""
        self._sweeping: asyncio.Task[None] | None = None

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """The routes of these clients."""
        posts = {"reset": self._reset, "step": self._step, "close": self._close, "mcp": self._answer_mcp}
        posts["aggregate_metrics"] = self._mean_reward
        return [web.post(f"{prefix}/{path}", handler) for path, handler in posts.items()]

    async def aclose(self, app: web.Application) -> None:
        """Ends all of them."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for id in list(self._held):
            await self._end(id, "server", "the server has ended")

    # NeMo Gym

    async def _reset(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if "responses_create_params" not in body:
            return await self._reset_once(request, body)
        name = self._server.named(request)
        row = body.get("rlenv")
        if not isinstance(row, Mapping):
            raise web.HTTPUnprocessableEntity(text="the row has no 'rlenv': {split, task}; `rlenv export` writes some")
        environment = self._server.environments[name]
        session, place = Session(environment), wire.place_of(row, environment)
        id, opened = await self._take_slot(session, lambda id: session.reset(**place | {"id": id}))
        if opened.is_ended:
            return await self._end_invalid(id, session)
        given = body["responses_create_params"]
        is_told = isinstance(given, Mapping) and bool(given.get("input"))
        said = "\n\n".join(message.content for message in opened.messages)
        info = {"supports_explicit_close": True, "supports_step_idempotency": True}
        response = answer({"observation": None if is_told else said, "info": info})
        response.set_cookie(_COOKIE, id, httponly=True, samesite="Strict")
        return response

    async def _reset_once(self, request: web.Request, body: Mapping[str, Any]) -> web.Response:
        """OpenEnv's `POST /reset`: an observation of an episode that nobody goes on with."""
        environment = self._server.environments[self._server.named(request)]
        session, place = Session(environment), wire.place_of(body, environment)
        id, opened = await self._take_slot(session, lambda id: session.reset(**place))
        try:
            return answer(wire.opened_data(opened, session, is_ours=False))
        finally:
            await self._end(id, "client", "a request without a socket opens an episode and leaves it")

    async def _step(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if "response" not in body:
            raise web.HTTPConflict(text="a step needs an episode: open a WebSocket at /ws, or send NeMo Gym's body")
        asked = wire.text_of(body, "_ng_step_request_id", most=_MOST_ID)
        with self._of(request.cookies.get(_COOKIE, ""), Session) as (held, session):
            async with held.lock:
                if not asked or asked != held.last_id:
                    held.last_id, held.last = asked, await self._step_session(session, body["response"])
            return answer(held.last[1], status=held.last[0])

    async def _step_session(self, session: Session, response: Any) -> tuple[int, dict[str, Any]]:
        step = await session.step(wire.action_of(_message_in(response)))
        if step.is_last:
            note_end(session)
            await session.aclose()
        if step.reward is None:
            why = f"the reward is invalid ({step.reason}); the server's log says why, session {session.id}"
            return 500, {"detail": why, "mask_sample": True, "failure_kind": f"rlenv:{step.reason}"}
        info: dict[str, Any] = {"tool_outputs": _call_outputs(step)}
        if step.is_last:
            info |= wire.public_outcome(session.trajectory, session.id)
        spoken = "\n\n".join(one.content for one in step.observation.messages if one.tool_call_id is None)
        flags = {"terminated": step.terminated, "truncated": step.truncated}
        return 200, {"observation": spoken or None, "reward": step.reward, **flags, "info": info}

    async def _end_invalid(self, id: str, session: Session) -> web.Response:
        note_end(session)
        await self._end(id, "client", "")
        reason = session.trajectory.reason
        raise web.HTTPInternalServerError(text=f"the episode did not open ({reason}); the server's log says why")

    async def _close(self, request: web.Request) -> web.Response:
        await self._end(request.cookies.get(_COOKIE, ""), "client", "the client has closed it")
        return answer({})

    async def _mean_reward(self, request: web.Request) -> web.Response:
        given = (await json_of(request)).get("verify_responses")
        rewards = [
            one["reward"]
            for one in (given if isinstance(given, list) else ())
            if isinstance(one, dict) and type(one.get("reward")) in (int, float) and not one.get("mask_sample")
        ]
        mean = {"mean/reward": sum(rewards) / len(rewards)} if rewards else {}
        return answer({"group_level_metrics": [], "agent_metrics": mean, "key_metrics": mean})

    # JSON-RPC

    async def _answer_mcp(self, request: web.Request) -> web.Response:
        try:
            body = await json_of(request)
        except web.HTTPException as error:
            return answer(wire.rpc_fault(None, _PARSE, str(error.text)))
        id, method, given = body.get("id"), body.get("method"), body.get("params", {})
        if body.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(given, dict):
            expected = 'expected {"jsonrpc": "2.0", "method": …, "params": {…}, "id": …}'
            return answer(wire.rpc_fault(id, _INVALID, expected))
        try:
            return answer(await self._answer_rpc(request, id, method, given))
        except (ValueError, RlenvError, web.HTTPException) as error:
            said = error.text if isinstance(error, web.HTTPException) else str(error)
            return answer(wire.rpc_fault(id, _PARAMS, str(said)))

    async def _answer_rpc(self, request: web.Request, id: Any, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        environment = self._server.environments[self._server.named(request)]
        at = wire.text_of(given, "session_id")
        if method == "openenv/session/create":
            place = wire.place_of(given, environment)
            del place["id"]
            made = ToolSession(environment, **place)
            at, _ = await self._take_slot(made, lambda id: made.open())
            messages = [message.as_dict() for message in made.episode.messages]
            return wire.rpc_result(id, {"session_id": at, "messages": messages})
        if method == "openenv/session/close":
            if at not in self._closed:
                with self._of(at, ToolSession) as (held, tools):
                    async with held.lock:
                        trajectory = await tools.finish(wire.text_of(given, "answer"))
                self._closed[at] = {"closed": True, **wire.public_outcome(trajectory, at)}
                drop_oldest(self._closed, most=_MOST_CLOSED)
                await self._end(at, "client", "")
            return wire.rpc_result(id, self._closed[at])
        if method != "tools/call":
            if not at:
                return wire.tools_answer({"id": id, "method": method}, environment.tool_schemas)
            with self._of(at, ToolSession) as (_, tools):
                return wire.tools_answer({"id": id, "method": method}, tools.tools)
        if not at or not (name := wire.text_of(given, "name")):
            raise ValueError("a call needs a name, and the session_id that openenv/session/create gives")
        with self._of(at, ToolSession) as (_, tools):
            result = await tools.call(name, given.get("arguments"))
        return wire.rpc_result(id, wire.mcp_result(result))

    # Sessions

    async def _take_slot(
        self, session: Session | ToolSession, begin: Callable[[str], Awaitable[_Made]]
    ) -> tuple[str, _Made]:
        """The id of a session that has a slot and was begun, and what `begin` of its id has given."""
        server = self._server
        server.refuse_if_draining()
        if server.board.workers > 1:
            raise web.HTTPNotImplemented(text="sessions over HTTP need a server with --workers 1")
        if not await server.slots.take(server.limits.queue_s):
            raise web.HTTPServiceUnavailable(text=f"all {server.slots.most} sessions are open; come back later")
        loop = asyncio.get_running_loop()
        if self._sweeping is None:
            self._sweeping = loop.create_task(self._keep_reaping())
        id = uuid4().hex
        self._held[id] = _Held(session, loop.time())
        server.note_opened()
        try:
            with self._of(id, type(session)):
                return id, await begin(id)
        except BaseException:
            await self._end(id, "client", "it was not opened")
            raise

    @contextmanager
    def _of(self, id: str, kind: type[_Kind]) -> Iterator[tuple[_Held, _Kind]]:
        """A session of that kind; it is not idle while a request of it is answered."""
        held = self._held.get(id)
        if held is None or not isinstance(held.session, kind):
            raise web.HTTPNotFound(text="there is no such session: it was closed, or nobody asked for too long")
        held.busy += 1
        try:
            yield held, held.session
        finally:
            held.busy -= 1
            held.touched = asyncio.get_running_loop().time()

    async def _end(self, id: str, reason: str, why: str) -> None:
        held = self._held.pop(id, None)
        if held is None:
            return
        try:
            episode = held.session.episode
            if episode is not None and episode.is_open:
                episode.fail(reason, why)
            await held.session.aclose()
        finally:
            self._server.slots.free()

    async def _keep_reaping(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.reap()

    async def reap(self) -> None:
        """Ends the sessions that nobody asks."""
        oldest = asyncio.get_running_loop().time() - self._server.limits.idle_s
        for id in [id for id, held in self._held.items() if held.touched < oldest and not held.busy]:
            with suppress(Exception):
                await self._end(id, "client", f"nobody asked for {self._server.limits.idle_s:g} s")


def _message_in(response: Any) -> dict[str, Any]:
    """The assistant's message in a response of OpenAI's Responses API."""
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise ValueError("the response has no list 'output' of items")
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thinking: list[str] = []
    for item in output:
        kind, content = item.get("type"), item.get("content")
        if kind == "message":
            parts = [{"text": content}] if isinstance(content, str) else _as_list(content)
            texts += [str(part.get("text") or "") for part in parts if isinstance(part, Mapping)]
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "reasoning":
            parts = [*_as_list(item.get("summary")), *_as_list(content)]
            thinking += [str(part.get("text") or "") for part in parts if isinstance(part, Mapping)]
    details = response.get("incomplete_details")
    was_cut = isinstance(details, Mapping) and details.get("reason") == "max_output_tokens"
    meta = {"thinking": "\n".join(thinking), "finish_reason": "length" if was_cut else ""}
    return {"message": "".join(texts), "tool_calls": calls, "metadata": meta}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _call_outputs(step: Step) -> list[dict[str, str]]:
    answered: list[Message] = [one for one in step.observation.messages if one.tool_call_id is not None]
    return [{"call_id": str(one.tool_call_id), "output": one.content} for one in answered]
