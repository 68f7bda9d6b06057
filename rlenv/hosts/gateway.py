"""A reverse gateway: an agent that knows nothing of rlenv plays an episode against an endpoint of OpenAI's.

    POST /episodes                     the driver opens an episode, and is told the agent's addresses
    /agent/KEY/v1/chat/completions     the agent asks its model, in one piece or as events
    /agent/KEY/v1/responses            the same in the other wire of OpenAI's
    /v1/…                              the same with the key as API key
    /agent/KEY/mcp                     the environment's tools, by MCP
    POST /episodes/ID/finish           the driver is told the reward, and the training rows

The model's own server is asked behind it, for token ids and log-probabilities too. Every request and answer is kept.
What the model wrote is scored as the transcript of a `rlenv.ToolSession`: an agent's history is its own affair.

A server that does not answer ends the episode with an invalid reward; a request that it refuses each time beside one
that it answers is the agent's own mistake, which it is told. An agent that never finishes is scored as truncated
(`host`). One that goes on behind the end is answered by a last message, upon which agents end by themselves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from rlenv._base.bounded import drop_oldest, size
from rlenv.concurrency.scope import Scope
from rlenv.dialects.built_in import broken_schemas, broken_value
from rlenv.endpoints import BARRED, REFUSED, Client
from rlenv.endpoints.account import Completion, counted, is_away, read_chat
from rlenv.episodes.environment import Environment
from rlenv.errors import EndpointError, RewardError
from rlenv.hosts.desk import Desk, Held, guard_of, refusal
from rlenv.hosts.exchanges import Exchange, as_json, match_ids, named_by, rows_of, told_of, write
from rlenv.hosts.http import MOST_BYTES, bearer_of, json_of
from rlenv.hosts.mcp_server import held_by, over_http
from rlenv.hosts.wires import CHAT_FIELDS, as_chat, as_events, as_response, call_of, chat_chunks, given_in, problem_of
from rlenv.messages import Message
from rlenv.policies.openai import FEW_TOKENS, beside, is_full, starts, written
from rlenv.rewards.asking_again import Answered
from rlenv.rewards.asking_models import UNCLEAR, Room, if_felled, if_refused, tried
from rlenv.runs.folder import KeptRun
from rlenv.runs.schema import Facts, Tokens
from rlenv.trajectory import Trajectory

_Answer = tuple[dict[str, Any], Completion]
_ASKED_FOR: Final = {"logprobs": True, "return_token_ids": True}
"""vLLM's and SGLang's; other servers leave alone what they do not know, or are asked without (`wants_ids=False`)."""
_OVER: Final = "the episode is over: the model is not asked any more"
_FAREWELL: Final = Completion(Message("assistant", "The episode is over."))
_MOST_FAREWELLS: Final = 3
"""An agent that asks on behind so many last messages is told by an error: some go on until they are stopped."""
_MOST_RECEIVED: Final = 256_000_000
"""Characters of all requests of one episode, which are kept until it has ended."""
MOST_AT_ONCE: Final = 8
"""The most requests of one episode that are asked at once, the others in turn: others wait for the same server."""
_MOST_VALUES: Final = 60_000
"""The most JSON values of a request, some 7,500 messages with calls: the event loop reads each message."""
_MOST_RESPONSES: Final = 1_000
_CHAT: Final = "/chat/completions"


@dataclass(slots=True)
class Recorded:
    """The requests of an agent in one episode, and their answers."""

    exchanges: list[Exchange] = field(default_factory=list)
    responses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The conversation behind each response, by its id."""
    asked: int = 0
    received: int = 0
    """Characters of all requests, of which what stood in the one before counts once."""
    last: list[tuple[Any, Any]] = field(default_factory=list)
    """The tools and messages of the last request, each with what the model's server was sent of it."""
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))
    farewells: int = 0
    """The number of requests behind the end."""
    scored: list[Exchange] = field(default_factory=list)
    """The exchanges whose messages are the transcript that was scored."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    """Requests that the model's server has not answered yet."""
    refused: Mapping[str, Any] | None = None
    """The last one that the model's server failed at or refused. Of an author's first words that tells nothing."""
    is_long: bool = False
    """The model has written on one for longer than it may, or what its server fails at."""
    rows: list[Tokens] = field(default_factory=list)
    """The training rows, once the episode has ended."""

    def until_end(self, covered: int) -> list[Exchange]:
        """The exchanges before the episode's end, which lies behind so many messages of the transcript."""
        if covered >= len(self.scored):
            return self.exchanges
        return self.exchanges[: self.exchanges.index(self.scored[covered - 1]) + 1] if covered else []


class Gateway:
    """The gateway of one environment and one model; `application()` is served by aiohttp.

    Args:
        client: the model's server. What its endpoint says of sampling is what is sampled with; the rest is the agent's.
        kept: the run that keeps the episodes with their rows; None keeps none. The exchanges of each stand in its
            folder, in `exchanges/ID.jsonl`.
        most_requests: of one episode; an agent that asks for more is told that the episode is over.
        wants_ids: ask for token ids and log-probabilities; without them there are no rows.
        options: of the `Desk`.
    """

    def __init__(
        self,
        environment: Environment,
        client: Client,
        *,
        host: str = "127.0.0.1",
        token: str = "",
        kept: KeptRun | None = None,
        most_requests: int = 500,
        wants_ids: bool = True,
        **options: Any,
    ) -> None:
        self.environment, self._client, self._kept = environment, client, kept
        self._host, self._token, self._most, self._wants_ids = host, token, most_requests, wants_ids
        self._falls = Scope()
        self._harmless = {"messages": [{"role": "user", "content": "Say yes."}], **client.body(None)}
        self.desk = Desk(environment, keep=self._keep, scored=self._transcript_of, aside=Recorded, **options)

    def application(self) -> web.Application:
        """The server."""
        guard = guard_of(self._host, self._token, is_free=lambda one: one.path.startswith(("/agent/", "/v1/")))
        app = web.Application(middlewares=[guard], client_max_size=MOST_BYTES)
        app.cleanup_ctx.append(held_by(aclosing(self._client), self.environment, self.desk))
        app.add_routes(self.desk.routes(self._describe))
        for before in ("/agent/{key}/v1", "/v1"):
            app.router.add_post(f"{before}/chat/completions", self._agent_route(self._answer_chat))
            app.router.add_post(f"{before}/responses", self._agent_route(self._answer_response))
            app.router.add_get(f"{before}/models", self._agent_route(self._list_models))
        app.router.add_route("*", "/agent/{key}/mcp", self._agent_route(partial(over_http, desk=self.desk)))
        return app

    def _describe(self, request: web.Request, held: Held) -> dict[str, Any]:
        if held.trajectory is not None:
            is_valid = held.trajectory.reward.total is not None
            return {"rows": [as_json(row, is_valid=is_valid) for row in held.aside.rows]}
        root = f"{request.url.origin()}/agent/{held.key}"
        return {"base_url": f"{root}/v1", "api_key": held.key, "mcp_url": f"{root}/mcp"}

    def _agent_route(
        self, answer: Callable[[web.Request, Held], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Any]:
        """A route that the key of an episode opens, in the address or as API key."""

        async def route(request: web.Request) -> web.StreamResponse:
            held = self.desk.at(request.match_info.get("key") or bearer_of(request))
            if held is None:
                return refusal(401, "the key is that of no episode")
            held.busy += 1
            try:
                return await answer(request, held)
            finally:
                held.busy -= 1
                held.touched = self.desk.now()

        return route

    async def _list_models(self, request: web.Request, held: Held) -> web.StreamResponse:
        model = {"id": self._client.endpoint.model, "object": "model", "created": 0, "owned_by": "rlenv"}
        return web.json_response({"object": "list", "data": [model]})

    async def _answer_chat(self, request: web.Request, held: Held) -> web.StreamResponse:
        body = await json_of(request, max_values=_MOST_VALUES)
        options = body.get("stream_options")
        with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))

        def events(made: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
            return (("", data) for data in chat_chunks(made, with_usage=with_usage))

        chat = {key: body[key] for key in CHAT_FIELDS if key in body}
        return await given_in(request, body, self._ask_model(request, held, body, chat), lambda answer: answer, events)

    async def _answer_response(self, request: web.Request, held: Held) -> web.StreamResponse:
        body, record = await json_of(request, max_values=_MOST_VALUES), held.aside
        before = body.get("previous_response_id")
        known = () if before is None else record.responses.get(str(before))
        if known is None:
            return refusal(404, f"there is no response '{str(before)[:60]}' in this episode")
        chat = as_chat(body, known)

        def whole(answer: Mapping[str, Any]) -> dict[str, Any]:
            made = as_response(answer, body)
            record.responses[made["id"]] = [*chat["messages"], answer["choices"][0]["message"]]
            drop_oldest(record.responses, most=_MOST_RESPONSES)
            return made

        def events(made: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
            return ((json.loads(data)["type"], data) for data in as_events(made))

        return await given_in(request, body, self._ask_model(request, held, body, chat), whole, events)

    # The model behind it

    async def _ask_model(
        self, request: web.Request, held: Held, body: Mapping[str, Any], chat: dict[str, Any]
    ) -> Exchange | web.Response:
        """The model's answer to an agent's request, or what the agent is told in its place."""
        record, episode = held.aside, held.session.episode
        deadline = episode.tools.begun + episode.limits.episode_s
        if problem := problem_of(body, chat):
            return refusal(400, problem)
        record.asked += 1
        chat["tools"], *chat["messages"] = _share_values([chat.get("tools"), *chat["messages"]], record)
        if record.asked > self._most or record.received > _MOST_RECEIVED or _is_over(held, deadline):
            return self._after_end(held)
        sent = self._to_request(chat)
        async with record.places:
            if _is_over(held, deadline):
                return self._after_end(held)
            record.waiting.append(sent)
            well: list[bool] = []
            try:
                with counted(episode.tools.account, "policy"):
                    answer, completion = await self._answer_of(held, sent, well, deadline)
            except EndpointError as error:
                return await self._on_failure(held, error, sent, well, is_over=time.monotonic() >= deadline)
            finally:
                record.waiting.remove(sent)
        parameters = {name: tool.parameters for name, tool in episode.toolset.tools.items()}
        if _is_over(held, deadline):  # what was asked beside it has used up the turns, or ended the episode
            return self._after_end(held)
        one = Exchange(sent, self._to_plain(answer, completion), completion, named_by(chat.get("tools"), parameters))
        record.exchanges.append(one)
        return one

    async def _read(self, sent: Mapping[str, Any], **options: Any) -> _Answer:
        answer = await self._client.post(_CHAT, sent, **options)
        return answer, self._client.counted(read_chat, answer)

    async def _answer_of(self, held: Held, sent: Mapping[str, Any], well: list[bool], deadline: float) -> _Answer:
        """The answer to a request. A server that fails at it, or refuses it, is asked a harmless one in turn.

        Raises:
            EndpointError: as `written` does; `status` is in `REFUSED` for the agent's own mistakes alone.
        """
        request = partial(self._read, sent, deadline=deadline)
        try:
            return await written(request, self._client.endpoint, well)
        except EndpointError as error:
            failed = error

        async def again(**tries: Any) -> _Answer:
            if _is_over(held, deadline):
                raise RewardError("the episode is over")
            return await request(**{"retries": 0, **tries})

        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                given = await self._ask_in_turn(held, sent, again, failed)
        except (RewardError, TimeoutError):
            raise EndpointError(str(failed)) from failed  # whatever its status, it is no mistake of the agent's
        if given is None:
            is_back = not (failed.is_cut or is_away(failed) or failed.status in UNCLEAR)
            if is_back and not held.aside.exchanges:  # it may fail at what the model writes
                held.aside.is_long |= await self._starts(held.aside, sent)
            raise EndpointError(f"the model's server fails at this request: {failed}", status=400) from failed
        return given

    async def _ask_in_turn(
        self, held: Held, sent: Mapping[str, Any], again: Callable[..., Awaitable[_Answer]], failed: EndpointError
    ) -> _Answer | None:
        """What a request that failed gives `again`, asked in turn with a harmless one; None where it fails each time.

        Raises:
            EndpointError: the failure is an outage's, or the request has no room.
            RewardError: nobody can tell.
        """
        known = self._harmless_ask(held.aside, sent)
        if failed.is_cut or is_away(failed):  # by what this one asks, or another
            held.aside.refused = sent
            try:
                return await if_felled(partial(tried, known), again, failed, self._client, self._falls)
            except EndpointError as told:
                if told.is_held:
                    return None
                failed = told
        if is_full(failed) or not (failed.is_garbled or failed.status not in BARRED):
            raise failed
        is_refused, held.aside.refused = failed.status in UNCLEAR, sent
        with closing(Room(self._client, has_place=is_refused)) as room:
            return await if_refused(known, partial(again, is_beside=is_refused), room)

    def _harmless_ask(self, record: Recorded, sent: Mapping[str, Any] | None) -> Callable[[], Awaitable[_Answer]]:
        """Asks for a few tokens of an answer to harmless words, beside the tools that the server has taken in the
        episode; before it has answered anything, beside those of `sent`, which are the author's as all of it is."""
        asked = [one.request for one in record.exchanges] or [sent or {}]
        tools = (one.get("tools") for one in asked if one.get("tool_choice") in (None, "auto"))
        harmless = {**self._harmless, "tools": next(filter(None, tools), None)}
        return partial(beside, partial(self._read, harmless), self._client.endpoint, tokens=FEW_TOKENS)

    def _after_end(self, held: Held) -> Exchange | web.Response:
        """The answer to a request behind the end: a last message, or an error where nobody wants the agent's answer."""
        held.aside.farewells += 1
        if held.is_closing or held.session.episode.failure is not None or held.aside.farewells > _MOST_FAREWELLS:
            return refusal(400, _OVER, code="episode_over")
        return Exchange({}, self._to_plain({"choices": [{"message": {}}]}, _FAREWELL), _FAREWELL)

    def _to_request(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """The request that the model's server is sent."""
        sent = {key: value for key, value in chat.items() if value is not None}
        most = sent.pop("max_completion_tokens", None)
        sent |= {"max_tokens": most} if most is not None else {}
        own = self._client.body(None)
        limits = [one["max_tokens"] for one in (sent, own) if type(one.get("max_tokens")) is int]
        return sent | own | ({"max_tokens": min(limits)} if limits else {}) | (_ASKED_FOR if self._wants_ids else {})

    async def _on_failure(
        self, held: Held, error: EndpointError, sent: Mapping[str, Any], well: list[bool], *, is_over: bool
    ) -> Exchange | web.Response:
        """What an agent is told where its model did not answer. An outage ends the episode; whether a fault of the
        server's is one is asked beside it, since a request may have made it fail. A model that writes for longer than
        it may (`written`), also than the episode, is no outage: it could leave out its own sample."""
        record, is_own = held.aside, error.status in REFUSED
        record.is_long |= error.is_held
        if is_over and not (is_own or record.is_long) and (record.exchanges or sent is not record.refused):
            record.is_long = (all(well) and await self._starts(record, sent)) or await self._hangs(record, sent)
        if _is_over(held) or (is_over and (is_own or record.is_long)):
            return self._after_end(held)
        if is_own:
            return refusal(400, str(error))
        is_own = error.is_held or (error.is_late and await self._hangs(record, sent))
        if _is_over(held):
            return self._after_end(held)
        if is_own:
            return refusal(400, f"the model's server hangs at this request: {error}")
        held.session.episode.fail("policy", str(error))
        return refusal(503, "the model does not answer; the episode is over", code="episode_over")

    async def _starts(self, record: Recorded, sent: Mapping[str, Any] | None = None) -> bool:
        """True where the server soon gives a first token, or refuses what a model wrote and answers harmless words."""
        is_first = sent is not None and not record.exchanges
        try:
            await beside(partial(self._read, self._harmless if sent is None else sent), self._client.endpoint)
        except EndpointError as error:
            is_refused = error.status in UNCLEAR and not is_first
            return is_refused and isinstance(await tried(self._harmless_ask(record, sent)), Answered)
        return True

    async def _hangs(self, record: Recorded, sent: Mapping[str, Any]) -> bool:
        """True if a request that had no first token has none again, between others that have theirs at once."""
        again = partial(starts, partial(self._read, sent), self._client.endpoint)
        return await self._starts(record) and not await again() and await self._starts(record)

    def _to_plain(self, answer: Mapping[str, Any], completion: Completion) -> dict[str, Any]:
        """An answer in the form that clients expect, as it was read; what else the server says is left out."""
        raw, read = answer["choices"][0], completion.message
        calls = [call_of(*one) for one in enumerate((raw["message"].get("tool_calls") or ())[: len(read.tool_calls)])]
        message: dict[str, Any] = {"role": "assistant", "content": read.content}
        message |= {"tool_calls": calls} if calls else {}
        message |= {"reasoning_content": read.thinking} if read.thinking else {}
        usage = completion.usage.as_dict()
        usage["total_tokens"] = sum(usage.values())
        id, reason = answer.get("id"), completion.finish_reason or "stop"
        return {
            "id": id if isinstance(id, str) else f"chatcmpl-{uuid4().hex}", "object": "chat.completion",
            "created": int(time.time()), "model": self._client.endpoint.model, "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        }  # fmt: skip

    # The end

    async def _transcript_of(self, held: Held, answer: str | None) -> Sequence[Message] | None:
        if (record := held.aside).waiting:
            asked, is_known = record.waiting[-1], record.exchanges or record.waiting[-1] is not record.refused
            record.is_long = is_known and (await self._starts(record, asked) or await self._hangs(record, asked))
            if not record.is_long:  # and so its agent gave up
                held.session.episode.fail("policy", "the model does not answer")
        tools, episode_s = held.session.episode.tools, held.session.episode.limits.episode_s
        lasted_s = min(time.monotonic() - tools.begun, episode_s)
        if (held.aside.waiting or lasted_s == episode_s) and (why := tools.account.barred(lasted_s)):
            held.session.episode.fail("policy", why)
        held.aside.scored = told_of(held.aside.exchanges)
        said = [one.message for one in held.aside.scored]
        if answer is not None:  # of the driver's, as out of a file: it stands in the place of the model's last words
            said = [*(said if said and said[-1].tool_calls else said[:-1]), Message("assistant", answer)]
        has_acted = said or held.aside.exchanges or held.made or held.aside.is_long
        return match_ids(said, held.made) if has_acted else None

    def _keep(self, held: Held, trajectory: Trajectory) -> None:
        rows, exchanges = rows_of(held.aside.until_end(held.session.covered)), held.aside.exchanges
        held.aside = Recorded(rows=rows, responses=held.aside.responses, farewells=held.aside.farewells)
        if self._kept is None:
            return
        facts = Facts(started=time.time() - trajectory.seconds, tokens=rows)
        id = self._kept.append(trajectory, facts) or uuid4().hex
        file = self._kept.path / "exchanges" / f"{id}.jsonl"
        # Each request holds all before it: megabytes, which the other episodes do not wait for. The loop's end does.
        asyncio.get_running_loop().run_in_executor(None, write, file, exchanges)


def _is_over(held: Held, deadline: float = float("inf")) -> bool:
    turns = sum(bool(one.message.tool_calls) for one in held.aside.exchanges if one.is_delivered)
    return held.is_over or time.monotonic() >= deadline or turns >= held.session.episode.limits.turns


def _escape_controls(message: Any) -> Any:
    """A message, or the list of tools, as it is sent: what it spells of control tokens is text, in all that comes from
    tools and tasks."""
    if not isinstance(message, Mapping):
        return message and list(broken_schemas(message))
    if message.get("role") not in ("user", "tool"):  # what the agent's author and the model itself wrote
        return {**message, "role": "system"} if message.get("role") == "developer" else message
    return {**message, "content": broken_value(message.get("content"))}


def _share_values(asked: Sequence[Any], record: Recorded) -> list[Any]:
    """What is sent of a request's tools and messages. Those that the last request had too are held once and read once,
    since each request has all before it; the others are counted as received."""
    before, fresh = record.last, []
    record.last = []
    for at, one in enumerate(asked):
        if at < len(before) and before[at][0] == one:
            record.last.append(before[at])
        else:
            record.last.append((one, _escape_controls(one)))
            fresh.append(one)
    record.received += size(fresh, _MOST_RECEIVED)
    return [sent for _, sent in record.last]
