"""Any OpenAI-compatible endpoint as a policy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rlenv.dialects.base import CHARS_PER_TOKEN
from rlenv.dialects.built_in import broken_message, broken_schemas
from rlenv.endpoints import REFUSED, Client, Endpoint
from rlenv.endpoints.account import Completion, counted
from rlenv.errors import EndpointError, PolicyError, UsageError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message, Sampled, ToolCall
from rlenv.policies.base import PolicyContext
from rlenv.secrets import host_of

if TYPE_CHECKING:
    import aiohttp

__all__ = ["MAX_TOKENS", "OpenAIPolicy"]

MAX_TOKENS: Final = 4096
"""The most tokens of an action in raw text where neither the sampling nor the spec has a limit; fewer where the
server's context has no room for so many."""


_FULL: Final = re.compile(
    r"(?i)context[ _](?:length|size|window)|(?:model|allowed|input) length|must have less than|max_new_tokens"
)
"""What vLLM, SGLang, TGI, llama.cpp and OpenAI say of a request that has no room, where nobody counts its tokens."""

_UNCLEAR: Final = frozenset((*REFUSED, 403, 451))
"""What a server answers to a conversation whose words it cannot take, and to every one where it is set up wrongly. No
5xx is among them: a server that fails by chance would be taken for one that refuses."""

_HARMLESS: Final = "ok"


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
        sampling: sent with every request; what is None is left to the server.
        seeded: the seed of the episode is sent where the sampling has none.
        timeout_s: for one request; what is tried again, and how, stands at `rlenv.endpoints.Endpoint`. After the
            `retries` the episode's reward is invalid.
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
    ) -> None:
        endpoint = Endpoint(
            name="",
            base_url=base_url.rstrip("/"),
            model=model,
            headers=_headers(api_key, headers or {}),
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            sampling=sampling if sampling is not None else SamplingSpec(),
        )
        self.mode: Literal["tools", "text"] = mode
        self.seeded, self._endpoint, self._http = seeded, endpoint, http
        self._client: Client | None = None
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
        sampling = {name: getattr(given, name) for name in ("temperature", "top_p", "max_tokens")}
        sampling["extra"] = dict(given.extra)
        return {"model": endpoint.model, "host": host_of(endpoint.base_url), "mode": self.mode, "sampling": sampling}

    def start(self, context: PolicyContext) -> _Session:
        """One episode's conversation."""
        return _Session(self, context)

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        if self._client is not None and self._owns_client:
            await self._client.aclose()
            self._client = None


def _headers(api_key: str | None, given: Mapping[str, str]) -> dict[str, str]:
    if not api_key:
        return dict(given)
    if any(name.lower() == "authorization" for name in given):
        raise UsageError("both a key and a header Authorization are given", hint="leave one of the two out")
    return {"Authorization": f"Bearer {api_key}", **given}


class _Session:
    def __init__(self, policy: OpenAIPolicy, context: PolicyContext) -> None:
        self._client, self._policy = policy.client, policy
        self._context = context
        self._is_text = policy.mode == "text"
        self._tools = broken_schemas(context.tools)
        sampling = self._client.endpoint.sampling
        self._seed = context.seed if sampling.seed is None and policy.seeded else sampling.seed
        self._most = sampling.max_tokens
        self._text = ""
        self._first = 0
        """How many messages the episode began with, once they were answered."""
        self._is_over, self._actions = False, ""
        self._seen = 0
        self._before = 0
        """Tokens of the first prompt, as far as the server counts them."""
        self._used = 0
        """Tokens after it."""

    async def act(self, messages: Sequence[Message]) -> Sampled:
        new = messages[self._seen :] if self._seen else ()
        self._seen = len(messages) + 1  # what is said now is known then
        most = self._left(new)
        if self._is_over or (most is not None and most < 1):
            return Sampled("", "length")
        try:
            with counted(self._context.account, "policy"):
                answer = await (self._complete(new, most) if self._is_text else self._chat(messages, most))
        except EndpointError as error:
            is_full = error.is_full or (error.status in REFUSED and _FULL.search(str(error)) is not None)
            if self._first and (is_full or await self._is_own(error, messages, most)):
                # Its own words cannot be continued. Were its reward invalid, it could leave out its own sample.
                self._is_over = not is_full
                return Sampled("", "length")
            self._policy.lost = error
            # A request that is refused for what it holds is named apart.
            raise PolicyError(str(error), reason="refused" if error.status in REFUSED else None) from error
        self._first = self._first or len(messages)
        usage = answer.usage
        if usage.prompt_tokens:
            self._before = self._before or usage.prompt_tokens
            self._used = usage.prompt_tokens - self._before + usage.completion_tokens
        action, tokens = answer.message.content if self._is_text else answer.message, answer.tokens
        if tokens is None:
            return Sampled(action, answer.finish_reason)
        return Sampled(action, answer.finish_reason, tokens.ids, tokens.logprobs, tokens.prompt_ids)

    def _left(self, new: Sequence[Message]) -> int | None:
        """The most tokens of the next action; None where nobody limits them.

        The server counts what it has read; of what is new the characters are taken. One that counts nothing leaves the
        limit of the whole episode to the environment, which goes by characters as well.
        """
        whole = self._context.response_tokens
        if whole is None:
            return self._most
        left = whole - self._used - sum(len(message.content) for message in new) // CHARS_PER_TOKEN
        return left if self._most is None else min(left, self._most)

    async def _is_own(self, error: EndpointError, messages: Sequence[Message], most: int | None) -> bool:
        """True where a server refuses a conversation for the policy's words in it.

        It takes the same turns with harmless words in them, so that it is well and set up for such turns, and refuses
        those in which the policy's words alone are kept.
        """
        if error.status not in _UNCLEAR:
            return False
        for keeps_own in (False, True):
            try:
                with counted(self._context.account, "policy"):
                    await self._asked_with(messages, most, keeps_own=keeps_own)
            except EndpointError as again:
                return keeps_own and again.status in _UNCLEAR
        return False

    async def _asked_with(self, messages: Sequence[Message], most: int | None, *, keeps_own: bool) -> None:
        if self._is_text:
            await self._continued(self._context.prompt_text + (self._actions if keeps_own else _HARMLESS), most)
        else:
            names = [str(tool["function"]["name"]) for tool in self._tools]
            later = _reworded(messages[self._first :], names, keeps_own=keeps_own)
            await self._chat([*messages[: self._first], *later], most)

    async def _chat(self, messages: Sequence[Message], most: int | None) -> Completion:
        # The server makes tokens of these texts; what is neither the policy's nor the author's may not be one.
        said = [broken_message(message) for message in messages]
        sampling = SamplingSpec(seed=self._seed, max_tokens=most)
        return await self._client.chat(said, tools=self._tools, sampling=sampling, is_fitted=True)

    async def _complete(self, new: Sequence[Message], most: int | None) -> Completion:
        # The raw text so far: the prompt, then each action and the observation that followed it.
        context = self._context
        if not self._text:
            self._text = context.prompt_text
        if new:
            self._text += context.render_observation(new)
        answer = await self._continued(self._text, most)
        self._text += answer.message.content
        self._actions += answer.message.content
        return answer

    async def _continued(self, text: str, most: int | None) -> Completion:
        context = self._context
        return await self._client.raw_text.complete(
            text,
            max_tokens=MAX_TOKENS if most is None else most,
            is_whole=context.prompt_is_whole,
            stops=context.stops,
            ends=context.turn_ends,
            sampling=SamplingSpec(seed=self._seed),
        )


def _reworded(messages: Sequence[Message], names: Sequence[str], *, keeps_own: bool) -> list[Message]:
    """The same turns with harmless words in place of all others, or of all but the policy's own (`keeps_own`).

    Without its own an assistant makes one call at most, of the first tool: how many it makes, and of what, are words of
    its own. Images stay: whether a server takes any is no question of words.
    """
    out: list[Message] = []
    kept: set[str | None] = set()
    for message in messages:
        if message.role == "assistant":
            if not keeps_own:
                one = message.tool_calls[:1] if names else ()
                calls = tuple(ToolCall(names[0], {}, id=call.id) for call in one)
                said = "" if calls else _HARMLESS
                message = replace(message, content=said, tool_calls=calls, thinking="", authored=())
            kept.update(call.id for call in message.tool_calls)
        elif message.role == "tool" and message.tool_call_id not in kept:
            if out and out[-1].role != "assistant":
                continue
            message = Message("user", _HARMLESS, images=message.images)
        else:
            message = replace(message, content=_HARMLESS, authored=())
        out.append(message)
    return out
