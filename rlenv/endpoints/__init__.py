"""OpenAI-compatible servers: what policies, model tools, agents, simulated users and judges ask.

An `Endpoint` is compiled and holds no connection. A `Client` holds the connections of one event loop; an environment
has one for each endpoint, kept in its scope, so that everything that asks shares its limit.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.strict_json import TooMuchJson, check_json
from rlenv.concurrency.deadline import pause
from rlenv.concurrency.lanes import Event, check_going_out
from rlenv.concurrency.scope import Scope
from rlenv.dialects.base import CHARS_PER_TOKEN
from rlenv.endpoints import account
from rlenv.endpoints.raw_text import Around, RawText, asked_chat, complete_taped, fit_room
from rlenv.errors import EndpointError, UsageError
from rlenv.language.spec import EndpointSpec, SamplingSpec
from rlenv.messages import Message
from rlenv.secrets import names_in, redact, redact_within, resolve, resolve_value

if TYPE_CHECKING:
    import aiohttp


REFUSED: Final = frozenset({400, 413, 422})
"""What a server answers to a request that it cannot take for what it holds, such as one that is too long."""
BARRED: Final = frozenset({None, 402, 429})
"""What no words bring about: the server is not there, is asked too much, or wants paying for so many tokens."""
UNKNOWN: Final = frozenset({401, 403, 404})
"""What a server answers that knows no such key or model."""
_RETRIED: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
_MAX_WAIT_S: Final = 60.0
_MAX_BYTES: Final = 16_000_000
_MAX_VALUES: Final = 1_000_000  # some 12 for a sampled token with its log-probability, and an id for each before it
_LARGE_BYTES: Final = 256_000
"""A longer answer is parsed in a thread."""
_QUOTED_CHARS: Final = 200
_Lacking = Callable[[dict[str, Any]], str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """A server and a model on it, with secrets filled in.

    `timeout_s` bounds one request; `retries` more are made after 408, 409, 425, 429, 5xx, a lost connection, no answer
    in time or an answer that is not JSON, with jittered, doubling waits, or as long as `Retry-After` asks.
    `concurrency` is how many requests one client makes at once.
    """

    name: str
    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    concurrency: int = 64
    timeout_s: float = 120.0
    retries: int = 3
    sampling: SamplingSpec = field(default_factory=SamplingSpec)

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")) and not names_in(self.base_url):
            message = f"found '{redact(self.base_url)}'; expected an address"
            raise UsageError(message, key="base_url", hint="write one such as http://127.0.0.1:8000/v1")
        if self.base_url.endswith("/completions"):
            message = "expected the address without /completions or /chat/completions"
            raise UsageError(message, key="base_url", hint="end it with /v1")
        if account.two_logins(self.base_url, self.headers):
            raise UsageError(account.TWO_LOGINS, key="base_url", hint="leave one of the two out")

    async def client(self, scope: Scope) -> Client:
        """The client that all who share `scope` share."""
        server = scope.keep(("server", self.base_url), account.ServerSeen)
        return await scope.get(("endpoint", self), lambda: aclosing(Client(self, server=server)))


def compile_endpoint(name: str, spec: EndpointSpec) -> Endpoint:
    """The endpoint of one entry under `endpoints:`.

    Raises:
        MissingVariable: a variable that it names is not set.
        UsageError: the address is none.
    """
    importlib.import_module("aiohttp")  # now: it takes longer than one pass of the event loop may
    base_url = resolve(spec.base_url).rstrip("/")
    headers = dict(resolve_value(spec.headers))
    if spec.api_key is not None:
        headers["Authorization"] = f"Bearer {resolve(spec.api_key)}"
    return Endpoint(
        name=name,
        base_url=base_url,
        model=resolve(spec.model),
        headers=headers,
        concurrency=spec.concurrency,
        timeout_s=spec.timeout_s,
        retries=spec.retries,
        sampling=spec.sampling,
    )


class Client:
    """The connections of one event loop to one endpoint; `usage`, `requests` and `retries` count what it made, as an
    account does: what no model writes for (`/tokenize`) is in none of them. The clients of one address share `server`.

    `chat` asks for an answer to a conversation, `raw_text.complete` for what follows on raw text. `http` are those of
    others too, and are left open; otherwise it has its own.
    """

    def __init__(
        self, endpoint: Endpoint, http: aiohttp.ClientSession | None = None, *, server: account.ServerSeen | None = None
    ) -> None:
        self.endpoint = endpoint
        self.server = server or account.ServerSeen()
        self.usage = account.Usage()
        self.requests = 0
        self.retries = 0
        self.places = asyncio.Semaphore(endpoint.concurrency)
        """One is held by each request under way, but by those beside others."""
        self.yielding, self.barred_until = asyncio.Lock(), -inf
        """Held by one at a time of those who can wait while a limit of rate bars requests, or did a second ago."""
        self._session, self._is_shared = http, http is not None
        self._rng = random.Random()
        self.raw_text = RawText(self)
        self._has_answered = False
        self._window: int | None = None  # the server's context, once it has said so

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: SamplingSpec | None = None,
        is_fitted: bool = False,
        deadline: float = float("inf"),
        asked: Event | None = None,
        around: Around | None = None,
    ) -> account.Completion:
        """The answer to a conversation.

        Args:
            tools: schemas of the tools that may be called.
            sampling: fields that are set replace the endpoint's own.
            is_fitted: `max_tokens` may be lowered to what the server's context has left; see `post_fitting`.
            deadline: when to give up, on the clock of `time.monotonic()`; retries that would pass it are not made.
            asked: what a tape knows the request by, where the conversation holds what is drawn for each request.
            around: makes the request, or refuses it with an EndpointError; what a tape answers does not go through it.
                It may give it a `seed`, and what `post` takes as `tries`.

        Raises:
            EndpointError: the server refused, or did not answer within the retries.
            CassetteError: a run is replayed, and its tape has no answer.
        """
        body = self.body(sampling)

        async def request(*, seed: int | None = body.get("seed"), **tries: Any) -> account.Completion:
            sent = {**body, "seed": seed, "messages": [account.as_sent(message) for message in messages]}
            if tools:
                sent["tools"] = list(tools)
            post = self.post_fitting if is_fitted else self.post
            answer = await post("/chat/completions", sent, deadline=deadline, **tries)
            return self.counted(account.read_chat, answer)

        def known_as() -> Event:
            return asked if asked is not None else asked_chat(self.endpoint.name, body, messages, tools)

        return await complete_taped(request, around, known_as, model=self.endpoint.model)

    async def post(
        self, path: str, body: Mapping[str, Any], *, deadline: float = inf, tokens: int | None = None, **tries: Any
    ) -> dict[str, Any]:
        """The JSON object that the server answers, with at least one choice and at most so many `tokens`; `tries` are
        as for `post_to`.

        Raises:
            EndpointError: the server refused, or did not answer within the retries.
        """
        url, lacking = self.endpoint.base_url + path, _without_choices
        return await self.post_to(url, fit_room(body, tokens), path=path, lacking=lacking, deadline=deadline, **tries)

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        session, self._session = self._session, None
        if session is not None and not self._is_shared:
            await session.close()

    async def post_fitting(
        self, path: str, body: Mapping[str, Any], *, deadline: float = inf, **tries: Any
    ) -> dict[str, Any]:
        """As `post`; a server that has no room for `max_tokens` behind the request is asked for as many as it has.

        Servers refuse a request whose prompt and limit are longer than their context together, even by one token. vLLM
        counts tokens when asked (`POST /tokenize`, beside the API); of one that does not the refusal stands.

        Raises:
            EndpointError: as for `post`; `is_full` where the request alone fills the context.
        """
        most = body.get("max_tokens")
        room: int | None = None
        if most is not None and self._window is not None:
            asked = body.get("prompt") or body.get("messages")
            if most + len(str(asked)) // CHARS_PER_TOKEN > self._window:
                room = await self._room_left(body, deadline)
        lowered = fit_room(body, room) if most is not None and room is not None and room > 0 else body
        try:
            return await self.post(path, lowered, deadline=deadline, **tries)
        except EndpointError as error:
            if error.status not in REFUSED:
                raise
            known, room = room, room if room is not None else await self._room_left(body, deadline)
            if room is not None and room <= 0:
                # A server names the limit first, also where a shorter one would be refused as well.
                told = f"{error}; it counts {self._window or 0:,} tokens of context, and {-room:,} more in the prompt"
                raise EndpointError(told, status=error.status, is_full=True) from error
            if known is not None or room is None or most is None or room >= most:
                raise
        return await self.post(path, fit_room(body, room), deadline=deadline, **tries)

    async def _room_left(self, body: Mapping[str, Any], deadline: float) -> int | None:
        """The number of tokens that the server's context has left behind a request; None where it does not say."""
        fields = ("model", "prompt", "add_special_tokens", "messages", "tools", "chat_template_kwargs")
        asked = {key: body[key] for key in fields if key in body}
        url = self.endpoint.base_url.removesuffix("/v1") + "/tokenize"
        try:
            counted = await self.post_to(url, asked, path="/tokenize", deadline=deadline, is_free=True)
        except EndpointError:
            return None
        count, window = counted.get("count"), counted.get("max_model_len")
        if type(count) is not int or type(window) is not int:
            return None
        self._window = window
        return window - count

    async def post_to(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        path: str,
        lacking: _Lacking = lambda answer: "",
        deadline: float = float("inf"),
        is_free: bool = False,
        retries: int | None = None,
        timeout_s: float | None = None,
        tried: int = 0,
        is_beside: bool = False,
        on_place: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> dict[str, Any]:
        """The JSON object that the server answers at `url`, which errors call `path`.

        Args:
            lacking: what is missing in an answer, "" for a good one.
            is_free: no model writes for it: no account counts it, and it takes no place.
            retries, timeout_s: in place of the endpoint's.
            tried: how often the server was asked the same before.
            is_beside: it takes no place from `concurrency`, such as one by which those are judged that have them.
            on_place: entered for each try while it has its place.

        Raises:
            EndpointError: the server refused, or did not answer within the retries.
        """
        endpoint = self.endpoint
        timeout_s = endpoint.timeout_s if timeout_s is None else timeout_s
        data = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
        decides = problem = _Problem("there was no time to ask the server")
        what = f"endpoint '{endpoint.name}'" if endpoint.name else "the endpoint"
        for attempt in range((endpoint.retries if retries is None else retries) + 1):
            if attempt:
                wait = max(min(8.0, 0.25 * 2**attempt) * self._rng.uniform(0.5, 1.0), problem.wait_s)
                if wait > _MAX_WAIT_S or time.monotonic() + wait >= deadline:
                    break
                self.retries += not is_free
                await self._pause(wait, problem)
            async with nullcontext() if is_beside or is_free else self.places:
                limit_s = min(timeout_s, deadline - time.monotonic())
                if limit_s <= 0:
                    break
                check_going_out(what)
                self.requests += not is_free
                with on_place():
                    answer = await self._try_once(url, data, tried + attempt, limit_s, lacking, is_free=is_free)
            if not isinstance(answer, _Problem):
                self._has_answered |= not is_free
                return answer
            problem, decides = answer, answer.behind(decides)
            if not problem.may_pass:
                break
        told = f"{what} ({endpoint.model} at {path}): {decides.text}"
        facts = {"is_garbled": decides.is_garbled, "is_late": isinstance(decides.cause, TimeoutError)}
        facts["is_unknown"] = decides.status in UNKNOWN and not self._has_answered
        raise EndpointError(told, status=decides.status, is_cut=decides.is_cut, **facts) from decides.cause

    async def _pause(self, wait: float, problem: _Problem) -> None:
        """Waits before another try; an account counts what no request of its policy's brings about."""
        whose, is_late = account.asking(), isinstance(problem.cause, TimeoutError)
        is_barred = problem.status in (None, 429) and not (problem.is_garbled or is_late)
        with whose.account.bars() if is_barred and whose and whose.role == "policy" else nullcontext():
            await pause(wait)

    async def _try_once(
        self, url: str, data: bytes, attempt: int, limit_s: float, lacking: _Lacking, *, is_free: bool
    ) -> dict[str, Any] | _Problem:
        """One try, which is counted for whoever asks, also where nobody waits for its end."""
        whose, began = account.asking(), time.monotonic()
        usage, failed = account.Usage(), True
        try:
            answer = await self._post_once(url, data, attempt, limit_s)
            if isinstance(answer, _Problem):
                return answer
            usage, missing = account.usage_of(answer), lacking(answer)
            failed = bool(missing)
            return _Problem(missing, is_garbled=True) if missing else answer
        finally:
            if whose is not None and not is_free:
                whose.tried(self.endpoint.model, usage, failed=failed, seconds=time.monotonic() - began)

    async def _post_once(self, url: str, data: bytes, attempt: int, timeout_s: float) -> dict[str, Any] | _Problem:
        import aiohttp

        session = self._session = self._session or connections()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **self.endpoint.headers}
        if attempt:  # as OpenAI's SDK does: a gateway that keeps every answer knows a request that it has had
            headers["X-Stainless-Retry-Count"] = str(attempt)
        timeout, was_up = aiohttp.ClientTimeout(total=timeout_s if timeout_s < inf else None), self.server.is_up
        try:
            # A redirect would send the key to a server that the spec does not name.
            posted = session.post(url, data=data, headers=headers, timeout=timeout, allow_redirects=False)
            async with posted as response:
                coding = response.headers.get("Content-Encoding", "identity").lower()
                raw, goes_on = await body_within(response, _MAX_BYTES) if coding == "identity" else (b"", False)
                status, retry_after = response.status, response.headers.get("Retry-After")
        except TimeoutError as error:
            return _Problem(f"no answer from the server within {timeout_s:.3g} s", cause=error)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            return _Problem(f"the address cannot be used ({type(error).__name__})", may_pass=False, cause=error)
        except (aiohttp.ClientError, OSError) as error:
            was_sent = not isinstance(error, aiohttp.ClientConnectorError)
            self.server.cuts += was_sent
            told = f"no answer from the server ({type(error).__name__})"
            return _Problem(told, cause=error, is_garbled=was_sent, is_cut=was_sent)
        self.server.is_up = status not in account.AWAY
        self.barred_until = time.monotonic() + 1.0 if status == 429 else self.barred_until
        if goes_on:
            return _Problem(f"the server's answer is larger than {_MAX_BYTES:,} bytes", may_pass=False, is_garbled=True)
        if coding != "identity":
            told = "the server sent a compressed answer that was not asked for"
            return _Problem(told, status, may_pass=False, is_garbled=status == 200)
        if status != 200:
            quoted = redact_within(raw.decode("utf-8", "replace"), _QUOTED_CHARS)
            text, is_cut = f"the server answered {status}: {quoted}", was_up and status in account.AWAY
            self.server.cuts += is_cut
            wait_s = account.seconds_of(retry_after)
            return _Problem(text, status, may_pass=status in _RETRIED, wait_s=wait_s, is_cut=is_cut)
        try:
            answer = _parse_answer(raw) if len(raw) <= _LARGE_BYTES else await asyncio.to_thread(_parse_answer, raw)
        except TooMuchJson as error:
            return _Problem(f"the server's answer is too much: {error}", may_pass=False, is_garbled=True)
        except ValueError:
            return _Problem("the server's answer is not JSON", is_garbled=True)
        return answer if isinstance(answer, dict) else _Problem("the server's answer is no object", is_garbled=True)

    def body(self, sampling: SamplingSpec | None) -> dict[str, Any]:
        """The fields of every request: the model and its sampling, where fields of `sampling` win.

        A field under `extra` that is null stands here as None; it is not to be sent.
        """
        body: dict[str, Any] = {"model": self.endpoint.model}
        for spec in (self.endpoint.sampling, sampling):
            if spec is not None:
                body |= {**spec.model_dump(exclude_none=True, exclude={"extra"}), **spec.extra}
        return body

    def counted(
        self, read: Callable[[Mapping[str, Any]], account.Completion], answer: Mapping[str, Any]
    ) -> account.Completion:
        """The completion in an answer, its tokens counted in `usage`.

        Raises:
            EndpointError: the answer cannot be read.
        """
        try:
            completion = read(answer)
        except account.UnreadableAnswer as error:
            self.unread()
            told = f"endpoint '{self.endpoint.name}' ({self.endpoint.model}): {error}"
            raise EndpointError(told, is_garbled=True) from error
        self.usage += completion.usage
        return completion

    def unread(self, completion: account.Completion | None = None) -> None:
        """Counts a reply as a failed try: whoever asked for it cannot use it, and asks again or gives up."""
        if (whose := account.asking()) is not None:
            whose.unread(self.endpoint.model, is_recorded=completion is not None and completion.is_recorded)


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str
    status: int | None = None
    may_pass: bool = True
    wait_s: float = 0.0
    cause: Exception | None = None
    is_garbled: bool = False
    is_cut: bool = False

    def behind(self, earlier: _Problem) -> _Problem:
        """The problem of all tries: one that a limit of rate bars says nothing of what an earlier one asked."""
        was_had = earlier.is_garbled or earlier.status not in BARRED or isinstance(earlier.cause, TimeoutError)
        told = earlier if self.status == 429 and was_had else self
        return replace(told, is_cut=earlier.is_cut or self.is_cut)


def connections() -> aiohttp.ClientSession:
    """Connections of the running event loop to any number of servers, without cookies; whoever asked closes them."""
    import aiohttp  # nothing is unpacked below: a few bytes may stand for gigabytes

    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


def _without_choices(answer: dict[str, Any]) -> str:
    choices = answer.get("choices")
    return "" if isinstance(choices, list) and choices else "the server's answer holds no choices"


def _parse_answer(raw: bytes) -> Any:
    check_json(raw, max_bytes=_MAX_BYTES, max_values=_MAX_VALUES)
    return json.loads(raw)  # a lone surrogate in a model's words is no reason to lose them


async def body_within(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """The body's first `limit` bytes, and whether it goes on; no more than one piece beyond them is ever held."""
    pieces: list[bytes] = []
    size = 0
    while size <= limit:
        piece = await response.content.readany()
        if not piece:
            return b"".join(pieces), False
        pieces.append(piece)
        size += len(piece)
    response.close()  # the rest is not worth reading, so the connection is not used again
    return b"".join(pieces)[:limit], True
