"""Any OpenAI-compatible endpoint as a policy."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlenv.errors import PolicyError, UsageError
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.policies.base import PolicyContext

if TYPE_CHECKING:
    import aiohttp

__all__ = ["OpenAIPolicy", "Sampling"]

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sent with every request. None leaves a field to the server."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(slots=True, eq=False)
class OpenAIPolicy:
    """Chat completions of an OpenAI-compatible server (`POST {base_url}/chat/completions`).

    Args:
        mode: `tools` sends the tools' schemas and reads the server's own tool calls; `text` sends the prompt as raw
            text to `{base_url}/completions` and reads calls from the text by the spec's dialect.
        timeout_s: for one request; 408, 409, 425, 429 and 5xx, lost connections and time-outs are tried again
            `retries` times with jittered, doubling waits. After that the episode's reward is invalid.
    """

    base_url: str
    model: str
    api_key: str | None = None
    mode: Literal["tools", "text"] = "tools"
    sampling: Sampling = Sampling()
    timeout_s: float = 120.0
    retries: int = 3
    concurrency: int = 64
    name: str = "openai"
    _session: aiohttp.ClientSession | None = None
    _rng: random.Random = field(default_factory=random.Random)

    def start(self, context: PolicyContext) -> _Session:
        """One episode's conversation."""
        return _Session(self, context)

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON object that the server answers.

        Raises:
            PolicyError: the server refused, or did not answer within the retries.
        """
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self.concurrency)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=self.timeout_s)
            )
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = self.base_url.rstrip("/") + path
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(min(8.0, 0.25 * 2**attempt) * self._rng.uniform(0.5, 1.0))
            try:
                async with self._session.post(url, json=body, headers=headers) as response:
                    raw = await response.read()
                    if response.status == 200:
                        answer = json.loads(raw)
                        if isinstance(answer, dict) and isinstance(answer.get("choices"), list) and answer["choices"]:
                            return answer
                        problem = "the server's answer holds no choices"
                        continue
                    problem = f"the server answered {response.status}: {raw[:200].decode('utf-8', 'replace')}"
                    if response.status not in _RETRIED:
                        break
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = f"no answer from the server ({type(error).__name__})"
            except ValueError:
                problem = "the server's answer is not JSON"
        raise PolicyError(f"{self.model} at {path}: {problem}")


@dataclass(slots=True, eq=False)
class _Session:
    policy: OpenAIPolicy
    context: PolicyContext
    _text: str = ""
    _seen: int = 0

    async def act(self, messages: Sequence[Message]) -> str | Message:
        policy = self.policy
        sampling = policy.sampling
        body: dict[str, Any] = {
            key: value
            for key, value in (
                ("temperature", sampling.temperature),
                ("top_p", sampling.top_p),
                ("max_tokens", sampling.max_tokens),
                ("seed", sampling.seed if sampling.seed is not None else self.context.seed),
            )
            if value is not None
        }
        body["model"] = policy.model
        if policy.mode == "text":
            return await self._complete(messages, body)
        body["messages"] = [_wire(message) for message in messages]
        if self.context.tools:
            body["tools"] = list(self.context.tools)
        answer = await policy.post("/chat/completions", body)
        return _action(answer)

    async def _complete(self, messages: Sequence[Message], body: dict[str, Any]) -> str:
        # The raw text so far: the prompt, then each action and the observation that followed it.
        if not self._text:
            self._text = self.context.prompt_text
        body["prompt"] = self._text + self._tail(messages)
        self._text = body["prompt"]
        answer = await self.policy.post("/completions", body)
        text = answer["choices"][0].get("text")
        if not isinstance(text, str):
            raise PolicyError(f"{self.policy.model}: the completion holds no text")
        self._text += text
        return text

    def _tail(self, messages: Sequence[Message]) -> str:
        new = messages[self._seen :]
        first = self._seen == 0
        self._seen = len(messages) + 1  # the action that is about to be made is in `_text` already
        return "" if first else self.context.render_observation(new)


def _wire(message: Message) -> dict[str, Any]:
    out = message.as_dict()
    for call in out.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):  # the wire format carries arguments as JSON text
            call["function"]["arguments"] = json.dumps(arguments)
    return out


def _action(answer: Mapping[str, Any]) -> Message:
    message = answer["choices"][0].get("message")
    if not isinstance(message, dict):
        raise PolicyError("the server's choice holds no message")
    content = message.get("content")
    calls: list[ToolCall | MalformedCall] = []
    for index, item in enumerate(message.get("tool_calls") or ()):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            raise PolicyError("the server's tool call holds no function")
        identity = item.get("id")
        calls.append(_call(function, identity if isinstance(identity, str) else f"call_{index}"))
    return Message("assistant", content if isinstance(content, str) else "", tuple(calls))


def _call(function: Mapping[str, Any], identity: str) -> ToolCall | MalformedCall:
    name = function.get("name")
    raw = function.get("arguments", "{}")
    name = name if isinstance(name, str) else ""
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        reason = f"the arguments are not JSON ({error}); expected an object"
        return MalformedCall(str(raw), reason, name=name, id=identity)
    if not isinstance(arguments, dict) or not name:
        reason = "a call needs a name and an object of arguments"
        return MalformedCall(str(raw), reason, name=name, id=identity)
    return ToolCall(name, arguments, identity)


def require(value: str | None, flag: str) -> str:
    """`value`, or an error that names the flag which gives it."""
    if not value:
        raise UsageError(f"--policy openai needs {flag}")
    return value
