"""Any OpenAI-compatible endpoint as a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlenv.control import broken_message, broken_schemas
from rlenv.endpoints import REFUSED, Client, Endpoint
from rlenv.errors import EndpointError, PolicyError
from rlenv.messages import Message, Sampled
from rlenv.policies.base import PolicyContext
from rlenv.spec import SamplingSpec

__all__ = ["OpenAIPolicy", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sent with every request. None leaves a field to the server."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class OpenAIPolicy:
    """Chat completions of an OpenAI-compatible server (`POST {base_url}/chat/completions`).

    Args:
        mode: `tools` sends the tools' schemas and reads the server's own tool calls; `text` sends the prompt as raw
            text to `{base_url}/completions` and reads calls from the text by the spec's dialect.
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
        mode: Literal["tools", "text"] = "tools",
        sampling: Sampling | None = None,
        timeout_s: float = 120.0,
        retries: int = 3,
        concurrency: int = 64,
    ) -> None:
        given = sampling if sampling is not None else Sampling()
        endpoint = Endpoint(
            name="",
            base_url=base_url.rstrip("/"),
            model=model,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            sampling=SamplingSpec(
                temperature=given.temperature, top_p=given.top_p, max_tokens=given.max_tokens, seed=given.seed
            ),
        )
        self.mode: Literal["tools", "text"] = mode
        self._endpoint = endpoint
        self._client: Client | None = None

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
            self._client = Client(self._endpoint)
        return self._client

    def start(self, context: PolicyContext) -> _Session:
        """One episode's conversation."""
        return _Session(self, context)

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        if self._client is not None and self._owns_client:
            await self._client.aclose()
            self._client = None


class _Session:
    def __init__(self, policy: OpenAIPolicy, context: PolicyContext) -> None:
        self._client = policy.client
        self._context = context
        self._is_text = policy.mode == "text"
        self._tools = broken_schemas(context.tools)
        seeded = self._client.endpoint.sampling.seed is None
        self._sampling = SamplingSpec(seed=context.seed) if seeded else None
        self._text = ""
        self._seen = 0

    async def act(self, messages: Sequence[Message]) -> Sampled:
        try:
            if self._is_text:
                return await self._complete(messages)
            # The server makes tokens of these texts; what is neither the policy's nor the author's may not be one.
            said = [broken_message(message) for message in messages]
            answer = await self._client.chat(said, tools=self._tools, sampling=self._sampling)
            return Sampled(answer.message, answer.finish_reason)
        except EndpointError as error:
            # A request that is refused for what it holds, such as one that has grown too long, is named apart.
            raise PolicyError(str(error), reason="refused" if error.status in REFUSED else None) from error

    async def _complete(self, messages: Sequence[Message]) -> Sampled:
        # The raw text so far: the prompt, then each action and the observation that followed it.
        if not self._text:
            self._text = self._context.prompt_text
        self._text += self._tail(messages)
        context = self._context
        answer = await self._client.complete(
            self._text, stops=context.stops, ends=context.turn_ends, sampling=self._sampling
        )
        self._text += answer.message.content
        return Sampled(answer.message.content, answer.finish_reason)

    def _tail(self, messages: Sequence[Message]) -> str:
        new = messages[self._seen :]
        first = self._seen == 0
        self._seen = len(messages) + 1  # the action that is about to be made is in `_text` already
        return "" if first else self._context.render_observation(new)
