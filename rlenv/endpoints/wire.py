"""The wire format of OpenAI-compatible servers: messages to JSON and answers to messages.

Source: the OpenAI API reference, "Create chat completion" and "Create completion" (2025), as vLLM and SGLang serve it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rlenv._base.json_limits import TooMuchJson, check_json
from rlenv._base.jsonable import SPARSE, UNRECORDED
from rlenv._base.strict_json import MAX_DEPTH, kind_of, load, value_fault
from rlenv.messages import Image, MalformedCall, Message, ToolCall

__all__ = ["Completion", "UnreadableAnswer", "Usage", "as_image", "as_wire", "read_chat", "read_text", "usage_of"]

_T = TypeVar("_T")
_MAX_CALLS: Final = 1_000
_THINKING: Final = ("reasoning_content", "reasoning")
"""Where servers put thinking that they have split off: vLLM, SGLang and DeepSeek; OpenRouter and newer vLLM."""
_MAX_ARGUMENTS: Final = 4_000_000
_MAX_SHOWN: Final = 10_000
_MOST_TOKENS: Final = 10**9
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=\s]+)")


class UnreadableAnswer(ValueError):
    """An answer that is not of this format; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a server counted; 0 where it did not say both sums.

    `cached_tokens` are a part of the prompt's, `reasoning_tokens` of the completion's.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = field(default=0, metadata=SPARSE)
    reasoning_tokens: int = field(default=0, metadata=SPARSE)

    @property
    def is_known(self) -> bool:
        """True where the server said both sums; no prompt has 0 tokens."""
        return self.prompt_tokens > 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def as_dict(self) -> dict[str, int]:
        """The counts under the names of the wire format."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. `finish_reason` is the server's own word (`stop`, `length`, `tool_calls`), "" where it gave none.

    `stopped_at` is the stop text that ended it, "" where it ended by itself, None where the server does not say.
    `refusal` is what the server has in the field of that name, in place of an answer. `is_recorded` is true where a
    tape gave it.
    """

    message: Message
    finish_reason: str = ""
    usage: Usage = Usage()
    stopped_at: str | None = None
    refusal: str = field(default="", metadata=SPARSE)
    is_recorded: bool = field(default=False, metadata=UNRECORDED)


def as_wire(message: Message) -> dict[str, Any]:
    """A message as the server takes it: arguments of calls are JSON text, images are data URLs."""
    out = message.as_dict()
    for call in out.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = json.dumps(arguments)
    return out


def as_image(text: str) -> Image | None:
    """The image in a data URL, None where the text is not one."""
    match = _DATA_URL.fullmatch(text.strip())
    return Image(match[1], re.sub(r"\s+", "", match[2])) if match is not None else None


def read_chat(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a chat completion. A call whose arguments cannot be read is a MalformedCall in it.

    Raises:
        Unreadable: the answer is not of the format.
    """
    choice, message = _choice(answer, "message", dict, "the server's choice holds no message")
    calls: list[ToolCall | MalformedCall] = []
    listed = message.get("tool_calls")
    if listed is not None and not isinstance(listed, list):
        raise UnreadableAnswer("the server's tool calls are no list")
    for index, item in enumerate((listed or ())[:_MAX_CALLS]):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            raise UnreadableAnswer("the server's tool call holds no function")
        identity = item.get("id")
        calls.append(_call(function, identity if isinstance(identity, str) else f"call_{index}"))
    text, images = _content(message.get("content"))
    # Servers that generate images list them beside the text.
    extra = message.get("images")
    images += _content(extra)[1] if isinstance(extra, list) else ()
    thinking = next((word for key in _THINKING if (word := _word(message.get(key)))), "")
    made = Message("assistant", text, tuple(calls), images=images, thinking=thinking)
    refusal = _word(message.get("refusal"))[:_MAX_SHOWN]
    return Completion(made, _word(choice.get("finish_reason")), usage_of(answer), refusal=refusal)


def read_text(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a completion of raw text.

    Raises:
        Unreadable: the answer is not of the format.
    """
    choice, text = _choice(answer, "text", str, "the completion holds no text")
    return Completion(
        Message("assistant", text), _word(choice.get("finish_reason")), usage_of(answer), _stopped_at(choice)
    )


def _stopped_at(choice: Mapping[str, Any]) -> str | None:
    """The stop text by vLLM (`stop_reason`) or SGLang (`matched_stop`); an end token's id, or null, where none
    was met."""
    for key in ("stop_reason", "matched_stop"):
        if key in choice:
            return _word(choice[key])
    return None


def _choice(answer: Mapping[str, Any], key: str, kind: type[_T], without: str) -> tuple[Mapping[str, Any], _T]:
    """The first choice, and what it holds under `key`."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise UnreadableAnswer("the server's answer holds no choices")
    held = choices[0].get(key)
    if not isinstance(held, kind):
        raise UnreadableAnswer(without)
    return choices[0], held


def _content(content: Any) -> tuple[str, tuple[Image, ...]]:
    if isinstance(content, str):
        return content, ()
    texts: list[str] = []
    images: list[Image] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str) and (image := as_image(url)) is not None:
            images.append(image)
    return "".join(texts), tuple(images)


def _call(function: Mapping[str, Any], identity: str) -> ToolCall | MalformedCall:
    """A call as the server gives it, under the guarantees of a call that is read from text.

    Servers give no arguments as `""`, as null or not at all where the model wrote none: that is an empty object.
    """
    name = function.get("name")
    raw = function.get("arguments")
    name = name if isinstance(name, str) else ""
    shown = raw if isinstance(raw, str) else "" if raw is None else repr(raw)
    arguments, reason = _arguments({} if raw is None else raw)
    if not name:
        reason = "the call has no name; expected the name of a tool"
    elif not reason and value_fault(name):
        reason = "the name is not valid Unicode (a lone surrogate)"
    if reason:
        return MalformedCall(shown[:_MAX_SHOWN], reason, name=name, id=identity)
    return ToolCall(name, arguments, identity)


def _arguments(raw: Any) -> tuple[dict[str, Any], str]:
    """The arguments, or why there are none."""
    value = raw
    if isinstance(raw, str):
        if not raw.strip():
            return {}, ""
        try:
            check_json(raw.encode("utf-8", "replace"), max_bytes=_MAX_ARGUMENTS, max_depth=MAX_DEPTH)
        except TooMuchJson as error:
            return {}, f"the arguments are too much to read: {error}"
        read = load(raw)
        if isinstance(read, str):
            return {}, f"the arguments are not JSON: {read}"
        value = read[0]
    if not isinstance(value, dict):
        return {}, f'the arguments are {kind_of(value)}; expected an object such as {{"key": "value"}}'
    fault = "" if value is not raw else value_fault(value)
    return value, fault and f"the arguments are not JSON: {fault}"


def usage_of(answer: Mapping[str, Any]) -> Usage:
    """The tokens that an answer says it has cost, whatever else it holds."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if not prompt or completion is None:
        return Usage()  # half of what an answer took is no sum of it
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens") or 0
    reasoning = _count(usage.get("completion_tokens_details"), "reasoning_tokens") or 0
    return Usage(
        prompt,
        completion,
        min(cached, prompt),
        min(reasoning, completion),
    )


def _count(held: Any, name: str) -> int | None:
    count = held.get(name) if isinstance(held, dict) else None
    return count if type(count) is int and 0 <= count < _MOST_TOKENS else None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
