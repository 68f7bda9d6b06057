"""Any OpenAI-compatible endpoint as a policy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from rlenv.concurrency.lanes import entered
from rlenv.concurrency.scope import Scope
from rlenv.dialects.base import CHARS_PER_TOKEN
from rlenv.dialects.built_in import broken_message, broken_schemas
from rlenv.endpoints import BARRED, REFUSED, Client, Endpoint
from rlenv.endpoints.account import Completion, counted
from rlenv.errors import EndpointError, PolicyError, RewardError, UsageError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message, Sampled
from rlenv.policies.base import HARMLESS, PolicyContext, harmless, reworded
from rlenv.rewards.asking_again import Barred, Refused
from rlenv.rewards.asking_models import UNCLEAR, Room, if_felled, if_refused, tried, tries_s
from rlenv.secrets import host_of

if TYPE_CHECKING:
    import aiohttp

__all__ = ["FEW_TOKENS", "MAX_TOKENS", "OpenAIPolicy", "beside", "is_full", "starts", "written"]

_T = TypeVar("_T")
_Request = Callable[..., Awaitable[_T]]
_FIRST_TOKEN_S: Final = 30.0
"""A server that is well gives the first token of an answer within so many seconds, or within its endpoint's `timeout_s`
where that is less."""
MAX_TOKENS: Final = 4096
"""The most tokens of an action in raw text where neither the sampling nor the spec has a limit; fewer where the
server's context has no room for so many."""
_FULL: Final = re.compile(
    r"(?i)context[ _](?:length|size|window)|(?:model|allowed|input) length|must have less than|max_new_tokens"
)
"""What vLLM, SGLang, TGI, llama.cpp and OpenAI say of a request that has no room, where nobody counts its tokens."""
FEW_TOKENS: Final = 16


class OpenAIPolicy:
    """Chat completions of an OpenAI-compatible server (`POST {base_url}/chat/completions`).

    An action has at most as many tokens as the sampling says and the spec's `limits.response_tokens` has left. Where
    neither is given a chat server writes on to the end of its context; in raw text the limit is `MAX_TOKENS`. A server
    that counts tokens is asked for no more than its context has left; an episode that has filled the context goes on
    with empty actions to its end, and is scored.

    Args:
        headers: sent with every request, beside the key's.
        http: connections that others use too, and which are left open; the policy has its own otherwise.
        mode: `tools` sends the tools' schemas and reads the server's own tool calls; `text` sends the prompt as raw
            text to `{base_url}/completions` and reads calls from the text by the spec's dialect.
        asks_beside: the server may be asked for the first tokens of other answers, where it is late or fails: what a
            policy brings about by its words is told from an outage so. A gateway that keeps every answer for training
            wants False: there such an episode is invalid, and one whose time is over is scored.
        sampling: sent with every request; what is None is left to the server.
        seeded: the seed of the episode is sent where the sampling has none.
        timeout_s: for one request; what is tried again, and how, stands at `rlenv.endpoints.Endpoint`. After the
            `retries` the episode's reward is invalid. An answer that is not there in time is waited for while the
            server gives the first token of another like it, for as long as the retries would take.
    """

    name = "openai"

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        http: aiohttp.ClientSession | None = None,
        mode: Literal["tools", "text"] = "tools",
        sampling: SamplingSpec | None = None,
        seeded: bool = True,
        timeout_s: float = 120.0,
        retries: int = 3,
        concurrency: int = 64,
        asks_beside: bool = True,
    ) -> None:
        endpoint = Endpoint(
            name="",
            base_url=base_url.rstrip("/"),
            model=model,
            headers=_make_headers(api_key, headers or {}),
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            sampling=sampling if sampling is not None else SamplingSpec(),
        )
        self.mode: Literal["tools", "text"] = mode
        self.seeded, self.asks_beside, self._endpoint, self._http = seeded, asks_beside, endpoint, http
        self._client: Client | None = None
        self.falls = Scope()
        """The episodes' knowledge of a server that their words may fell."""
        self.lost: EndpointError | None = None
        """The latest failure that ended an episode."""

    @classmethod
    def over(cls, client: Client, *, mode: Literal["tools", "text"] = "tools") -> OpenAIPolicy:
        """A policy over a client that others use too; closing the policy leaves it open."""
        policy = cls(client.endpoint.base_url, client.endpoint.model, mode=mode)
        policy._endpoint = client.endpoint
        policy._client = client
        policy._owns_client = False
        return policy

    _owns_client = True

    @property
    def client(self) -> Client:
        """The connections; made when first asked for."""
        if self._client is None:
            self._client = Client(self._endpoint, self._http)
        return self._client

    @property
    def facts(self) -> dict[str, Any]:
        """The model, where it is served and how it is sampled, for a lock."""
        endpoint, given = self._endpoint, self._endpoint.sampling
        sampling = {**given.model_dump(include={"temperature", "top_p", "max_tokens"}), "extra": dict(given.extra)}
        return {"model": endpoint.model, "host": host_of(endpoint.base_url), "mode": self.mode, "sampling": sampling}

    def start(self, context: PolicyContext) -> _Session:
        """One episode's conversation."""
        return _Session(self, context)

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        self.falls = Scope()  # its locks are of one event loop
        if self._client is not None and self._owns_client:
            await self._client.aclose()
            self._client = None


def _make_headers(api_key: str | None, given: Mapping[str, str]) -> dict[str, str]:
    if not api_key:
        return dict(given)
    if any(name.lower() == "authorization" for name in given):
        raise UsageError("both a key and a header Authorization are given", hint="leave one of the two out")
    return {"Authorization": f"Bearer {api_key}", **given}


def is_full(error: EndpointError) -> bool:
    """True where a server says that a request has no room in its context, which is no fault of its own."""
    return error.is_full or (error.status in REFUSED and _FULL.search(str(error)) is not None)


async def beside(request: _Request[_T], endpoint: Endpoint, *, tokens: int = 1, tried: int = 1) -> _T:
    """The first token of an answer, or the first few, which a server that is well soon has.

    Raises:
        EndpointError: it has not.
    """
    within_s = min(_FIRST_TOKEN_S, endpoint.timeout_s)
    return await request(tokens=tokens, retries=0, tried=tried, timeout_s=within_s, is_beside=True)


async def starts(request: _Request[Any], endpoint: Endpoint, *, tokens: int = 1, tried: int = 1) -> bool:
    """True where a server soon gives the first tokens of an answer, or refuses to end it there: it does not hang."""
    try:
        await beside(request, endpoint, tokens=tokens, tried=tried)
    except EndpointError as error:
        return error.status in UNCLEAR
    return True


async def written(request: _Request[_T], endpoint: Endpoint, well: list[bool] | None = None) -> _T:
    """The answer to a request, however long a policy writes on it.

    One that is not there in `timeout_s` would make the policy's own reward invalid, and one that is drawn again for
    that would be shorter than what the policy writes. So it is waited for while the server gives first tokens, for as
    long as its retries would take. The last try is a new request: one connection may hang beside a server that is well.

    Args:
        well: whether there was a first token is put behind it, each time that one is asked for.

    Raises:
        EndpointError: what the request raises; or `is_late`: there is no answer, and where there were first tokens
            beside the last two tries, `is_held`.
    """
    last, timeout_s, loop = endpoint.retries, endpoint.timeout_s, asyncio.get_running_loop()
    well = [] if well is None else well

    async def watch(limit: asyncio.Timeout, rounds: int) -> None:
        for left in range(rounds, 0, -1):
            well.append(await starts(request, endpoint, tried=len(well) + 1))
            if left == 1 or not well[-1]:
                break
            await asyncio.sleep(timeout_s)
        limit.reschedule(loop.time())

    @contextmanager
    def placed(limit: asyncio.Timeout) -> Iterator[None]:  # what it waits for its place is not the server's
        watching: list[asyncio.Task[None]] = []

        def begin() -> None:  # few requests are late, and a task for each would take a tenth of an episode
            watching.append(loop.create_task(watch(limit, max(1, last - len(well)))))

        timer = loop.call_later(timeout_s, begin)
        try:
            yield
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()

    while len(well) <= last:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                return await request(timeout_s=inf, tried=len(well), on_place=partial(placed, limit))
    told = f"no answer from the server of {endpoint.model} within {last + 1} times {timeout_s:.3g} s"
    raise EndpointError(told, is_late=True, is_held=all(well[-2:]))


class _Session:
    def __init__(self, policy: OpenAIPolicy, context: PolicyContext) -> None:
        self._client, self._policy, self._asks_beside = policy.client, policy, policy.asks_beside
        self._context = context
        self._is_text = policy.mode == "text"
        self._tools = broken_schemas(context.tools)
        sampling = self._client.endpoint.sampling
        self._seed = context.seed if sampling.seed is None and policy.seeded else sampling.seed
        self._most = sampling.max_tokens
        self._text = ""
        self._first = 0
        """The number of messages that the episode began with, once they were answered."""
        self._is_over, self._actions = False, ""
        self._seen = 0
        self._asking: Sequence[Message] | None = None
        self._well: list[bool] = []
        """Whether the server was well beside what is asked now, each time that somebody looked."""
        self._before = 0
        """Tokens of the first prompt, as far as the server counts them."""
        self._used = 0
        """Tokens after it."""

    async def act(self, messages: Sequence[Message]) -> Sampled:
        new = messages[self._seen :] if self._seen else ()
        self._seen = len(messages) + 1  # what is said now is known then
        most = self._tokens_left(new)
        if self._is_over or (most is not None and most < 1):
            return Sampled("", "length")
        if new and self._is_text:  # the prompt, then each action and the observation that followed it
            self._text += self._context.render_observation(new)
        self._asking, self._well, around = messages, [], partial(self._answer_of, messages)
        try:
            with counted(self._context.account, "policy"):
                answer = await self._ask(messages, most, around=around)
        except EndpointError as error:
            is_too_long = is_full(error)
            if error.is_held or (self._first and (is_too_long or await self._is_own(error, messages, most))):
                # Its own words cannot be continued. Were its reward invalid, it could leave out its own sample.
                self._is_over = not is_too_long
                return Sampled("", "length")
            self._policy.lost = error
            # A request that is refused for what it holds is named apart.
            raise PolicyError(str(error), reason="refused" if error.status in REFUSED else None) from error
        self._asking, self._first = None, self._first or len(messages)
        if self._is_text:
            self._text, self._actions = self._text + answer.message.content, self._actions + answer.message.content
        usage = answer.usage
        if usage.prompt_tokens:
            self._before = self._before or usage.prompt_tokens
            self._used = usage.prompt_tokens - self._before + usage.completion_tokens
        action, tokens = answer.message.content if self._is_text else answer.message, answer.tokens
        ids = () if tokens is None else (tokens.ids, tokens.logprobs, tokens.prompt_ids)
        return Sampled(action, answer.finish_reason, *ids)

    async def late(self) -> str:
        """What is wrong with the server that has not answered in the episode's time; "" where it gives first tokens."""
        if self._asking is None or not self._asks_beside:
            return ""
        begun, soon, room = time.monotonic(), partial(beside, endpoint=self._client.endpoint), Room(self._client)
        first, bound_s = partial(self._ask, self._asking, 1, around=soon), _FIRST_TOKEN_S + 2 * tries_s(self._client)
        with counted(self._context.account, "policy"), suppress(TimeoutError):
            try:
                async with asyncio.timeout(bound_s):  # nobody else bounds what waits for room behind the end
                    await room.ask(first)
                return "" if all(self._well) else "the server gave no first token for a part of the episode's time"
            except EndpointError as error:
                if error.status in REFUSED:
                    return ""
                told, took_s = str(error), time.monotonic() - begun
                if error.status == 429:
                    return told
                with suppress(RewardError, TimeoutError):
                    async with asyncio.timeout(bound_s):
                        asked = partial(self._ask_in_turn, self._asking, first, room, is_now=False, took_s=took_s)
                        return "" if self._first and await asked() is None else told
                return told
        return "a limit of rate had no room for a first token"

    def _tokens_left(self, new: Sequence[Message]) -> int | None:
        """The most tokens of the next action; None where nobody limits them. Of what is new the characters are taken;
        a server that counts nothing leaves the limit of the whole episode to the environment."""
        whole = self._context.response_tokens
        if whole is None:
            return self._most
        left = whole - self._used - sum(len(message.content) for message in new) // CHARS_PER_TOKEN
        return left if self._most is None else min(left, self._most)

    async def _is_own(self, error: EndpointError, messages: Sequence[Message], most: int | None) -> bool:
        """True where a server refuses the policy's words: it takes the same turns with harmless words in them, and
        refuses those in which its words alone are kept. Asked once for each, where no more may be asked beside."""
        if self._asks_beside or error.status not in UNCLEAR:
            return False
        for keeps_own in (False, True):
            try:
                with counted(self._context.account, "policy"):
                    await self._ask(messages, most, keeps_own=keeps_own)
            except EndpointError as again:
                return keeps_own and again.status in UNCLEAR
        return False

    async def _answer_of(self, messages: Sequence[Message], request: _Request[Completion]) -> Completion:
        """The answer to a conversation. A server that fails each time is asked in turn for what is known to work.

        Raises:
            EndpointError: `is_held` where it fails at the policy's words.
        """
        if not self._asks_beside:
            return await request()
        endpoint, begun = self._client.endpoint, time.monotonic()
        try:
            return await written(request, endpoint, self._well)
        except EndpointError as error:
            is_unclear = error.is_garbled or error.is_cut or error.is_late or error.status not in BARRED
            if error.is_held or not is_unclear or is_full(error):
                raise
            failed = error
        tries, is_refused = endpoint.retries + 1, failed.status in UNCLEAR
        took_s = 0.0 if is_refused else (time.monotonic() - begun) / tries  # to refuse takes no time, to wait does
        if failed.is_cut and self._first and await self._fells_server(messages, failed):
            raise EndpointError(f"the server falls over the policy's words: {failed}", is_held=True) from failed
        room = Room(self._client, has_place=is_refused)
        now = partial(starts, partial(room.ask, request), endpoint, tried=tries)
        is_now = not failed.is_late and not is_refused and await now()
        if not is_now and not self._first:
            raise failed  # it is the row's words
        very: _Request[Completion] = partial(request, retries=0, tried=tries, is_beside=is_refused)
        if failed.is_late:
            very = partial(self._ask, messages, 1, around=partial(beside, endpoint=endpoint))
        try:
            with closing(room):
                given = await self._ask_in_turn(messages, very, room, is_now=is_now, took_s=took_s)
        except RewardError:
            raise failed from None
        if given is None:
            raise EndpointError(f"the server fails at the policy's words: {failed}", is_held=True) from failed
        if failed.is_late:
            raise failed  # it hangs no more
        return given

    async def _fells_server(self, messages: Sequence[Message], error: EndpointError) -> bool:
        """True where the server is away for a while each time that it has the policy's words, among harmless ones."""
        soon = partial(beside, endpoint=self._client.endpoint)
        known = partial(tried, partial(self._ask, messages, 1, keeps_own=False, around=soon))

        async def own(**tries: Any) -> Completion:
            return await self._ask(messages, 1, keeps_own=True, around=lambda request: request(**tries))

        try:
            await if_felled(known, own, error, self._client, self._policy.falls)
        except EndpointError as told:
            return told.is_held
        return False

    async def _ask_in_turn(
        self, messages: Sequence[Message], very: _Request[Completion], room: Room, *, is_now: bool, took_s: float
    ) -> Completion | None:
        """What `very` gives, asked in turn with what is known to work; None where it fails at the policy's words.

        It may fail at what a policy writes now (`is_now`): then the server has the first token of the same
        conversation. Or it fails at what the policy wrote before: then it takes the same turns with harmless words,
        and none with the policy's own. Raises RewardError: nobody can tell.
        """
        soon, is_refused = partial(beside, endpoint=self._client.endpoint), room.has_place

        async def ask() -> None:
            await self._ask(messages, 1, keeps_own=None if is_now else False, around=soon)
            if not is_refused:  # to refuse takes a server no time, and to have many refused costs others theirs
                few = partial(soon, tokens=FEW_TOKENS)
                await self._ask((Message("user", HARMLESS),), FEW_TOKENS, text=HARMLESS, around=few)

        with entered("beside"):  # a replay does not ask these
            own = partial(self._ask, messages, 1, keeps_own=True, around=soon)
            given = await if_refused(ask, very, room, looks=1 + 2 * is_refused, took_s=took_s)
            if given is None and not is_now:
                while isinstance(told := await tried(partial(room.ask, own)), Barred):
                    pass  # until there is room: whoever asks bounds it by the episode's time
                if not isinstance(told, Refused):
                    raise RewardError("the server fails at others' words")
        return given

    async def _ask(
        self,
        messages: Sequence[Message],
        most: int | None,
        *,
        keeps_own: bool | None = None,
        text: str = "",
        around: Callable[[_Request[Completion]], Awaitable[Completion]] | None = None,
    ) -> Completion:
        """The answer to a conversation, which is `text` where a policy of raw text has another one.

        Args:
            keeps_own: whether the policy's words are kept where all others are replaced; None replaces nothing.
        """
        context = self._context
        if self._is_text:
            own = self._actions if keeps_own else harmless(len(self._actions))
            self._text = self._text or context.prompt_text
            return await self._client.raw_text.complete(
                text or (self._text if keeps_own is None else context.prompt_text + own),
                max_tokens=MAX_TOKENS if most is None else most,
                is_whole=context.prompt_is_whole,
                stops=context.stops,
                ends=context.turn_ends,
                sampling=SamplingSpec(seed=self._seed),
                around=around,
            )
        if keeps_own is not None:
            names = [str(tool["function"]["name"]) for tool in self._tools]
            later = reworded(messages[self._first :], names, keeps_own=keeps_own)
            messages = [*messages[: self._first], *later]
        # The server makes tokens of these texts; what is neither the policy's nor the author's may not be one.
        said = [broken_message(message) for message in messages]
        sampling = SamplingSpec(seed=self._seed, max_tokens=most)
        return await self._client.chat(said, tools=self._tools, sampling=sampling, is_fitted=True, around=around)
