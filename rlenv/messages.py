"""The messages between a policy and an environment: messages, calls, results and observations."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlenv._base.bounded import UNRECORDED
from rlenv.errors import Whose

__all__ = ["Image", "MalformedCall", "Message", "Observation", "ParsedAction", "Role", "Sampled", "ToolCall"]
__all__ += ["ToolResult", "message_of"]

Role = Literal["system", "user", "assistant", "tool"]
Outcome = Literal["ok", "failed", "timeout", "unknown_tool", "bad_arguments", "malformed", "skipped"]


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a tool gave: its media type (`image/png`) and its bytes as base64 text, ready for JSON."""

    mime: str
    base64: str

    @classmethod
    def of(cls, content: bytes, mime: str = "image/png") -> Image:
        """The image whose file has these bytes."""
        return cls(mime, b64encode(content).decode("ascii"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed request for one tool. `arguments` is a JSON object; it is not yet checked against the schema.

    `start` and `end` are the character offsets of the call in the action's text (-1 where the call came as
    structured data, as from an OpenAI-compatible endpoint). `id` is the caller's id, None where the family has none.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    start: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that was meant as a call and cannot be read as one.

    `reason` is written for the model: what is wrong and what is expected. `start` and `end` are character offsets
    in the action's text (-1 where the call came as structured data). `name` and `id` are set where they could be read.
    """

    text: str
    reason: str
    start: int = -1
    end: int = -1
    name: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """One action as its dialect reads it. Reading never raises.

    `content` is what stands outside thinking and calls. `thinking` is the text of thinking blocks, closed or not.
    `calls` are in the order of the text. `is_cut` is true where a call or a thinking block was left open.
    `leniencies` names each use of a leniency that the dialect allows, in order; empty in a strict reading.

    `content_at` are the parts of the action's text that `content` is made of, in order, each with its first character
    and the one behind its last: joined, without white space around the whole, they are the content. () where the
    reader does not say. It is no part of a record, since the text can be read again.
    """

    content: str
    thinking: str = ""
    calls: tuple[ToolCall | MalformedCall, ...] = ()
    is_cut: bool = False
    leniencies: tuple[str, ...] = ()
    content_at: tuple[tuple[int, int], ...] = field(default=(), compare=False, metadata=UNRECORDED)

    @property
    def said(self) -> Message:
        """The assistant's message, as it was read."""
        return Message("assistant", self.content, self.calls, thinking=self.thinking)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call; results stand in the order of their calls.

    `text` is what the model sees. `outcome` says how the call ended; everything but `ok` is shown as an error.
    `value` is the structured value behind the text (None where there is none), for rewards. `details` says what
    policies did to the call, None where nothing: `faults` (put in on purpose), `attempts`, `cached`, `coerced`
    (argument names), `breaker`. `reason` is the word of a failure and `whose` says whose failure it is (see
    `rlenv.errors.WHOSE`; both "" where the call went well).

    `started` is when the call began, in seconds from the episode's start (None where it reached no tool), `seconds` its
    wall time, and `waited` the part of it that was spent waiting: for a place, for the rate, between tries, for
    a server to start.
    """

    name: str
    text: str
    outcome: Outcome = "ok"
    value: Any = None
    call_id: str | None = None
    seconds: float = 0.0
    images: tuple[Image, ...] = ()
    details: Mapping[str, Any] | None = None
    reason: str = ""
    whose: Whose | Literal[""] = ""
    started: float | None = None
    waited: float = 0.0

    @property
    def is_error(self) -> bool:
        """True unless the tool ran and returned."""
        return self.outcome != "ok"


def message_of(value: Any) -> Message:
    """The message that a mapping in the form of OpenAI's chat says.

    Raises:
        ValueError: it says none; the text is for the author of a spec or of its rows.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"found a {type(value).__name__}; expected a message with 'role' and 'content'")
    content, calls = value.get("content"), value.get("tool_calls") or ()
    role: Role | None = next((one for one in get_args(Role) if one == value.get("role")), None)
    if role is None:
        raise ValueError(f"found the role {value.get('role')!r:.40}; expected one of {', '.join(get_args(Role))}")
    if isinstance(content, Sequence) and not isinstance(content, str):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("found a part of a message that is no text; name images under prompt.images")
        content = "".join(part["text"] for part in content)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"found a {type(content).__name__} as the content of a message; expected a text")
    if calls and role != "assistant":
        raise ValueError(f"found tool_calls in a message of the {role}; the assistant calls tools")
    thinking = value.get("reasoning_content") or ""
    name, id = (None if value.get(key) is None else str(value[key]) for key in ("name", "tool_call_id"))
    return Message(role, content, tuple(map(_call_of, calls)), name, id, thinking=str(thinking))


def _call_of(value: Any) -> ToolCall:
    held = value.get("function", value) if isinstance(value, Mapping) else None
    arguments = held.get("arguments", {}) if isinstance(held, Mapping) else None
    if isinstance(arguments, str):  # a server's own form
        arguments = json.loads(arguments)
    if not isinstance(held, Mapping) or not isinstance(arguments, Mapping) or not isinstance(held.get("name"), str):
        raise ValueError("found a call that is none; expected {function: {name: TOOL, arguments: {…}}}")
    return ToolCall(held["name"], arguments, None if value.get("id") is None else str(value["id"]))


def _call_as_dict(call: ToolCall | MalformedCall) -> dict[str, Any]:
    arguments: Any = dict(call.arguments) if isinstance(call, ToolCall) else call.text
    out: dict[str, Any] = {"type": "function", "function": {"name": call.name or "", "arguments": arguments}}
    if call.id is not None:
        out["id"] = call.id
    return out


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in the roles that chat templates know.

    `tool_calls` is set only on assistant messages that came as structured data or are rendered by a chat template.
    A malformed call among them is one whose arguments could not be read. `authored` names the parts of `content` (first
    character, and the one behind the last) that the spec's author wrote: in these alone a control token is meant as
    one. All else is text, whatever it spells (docs/training/tokens.md). `thinking` is what an assistant thought before
    its content and calls, without the marks around it; chat templates are given it as `reasoning_content`, servers are
    not.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall | MalformedCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    images: tuple[Image, ...] = ()
    authored: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    thinking: str = ""

    def parts(self, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The content as parts of the OpenAI chat format.

        A user shows something and asks about it, so that images come first; a tool says what it shows, so that they
        come behind its text.
        """
        text = [{"type": "text", "text": self.content}]
        return images + text if self.role == "user" else text + images

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates and OpenAI-compatible servers take it; absent fields are left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.images:
            urls = [f"data:{image.mime};base64,{image.base64}" for image in self.images]
            out["content"] = self.parts([{"type": "image_url", "image_url": {"url": url}} for url in urls])
        if self.tool_calls:
            out["tool_calls"] = [_call_as_dict(call) for call in self.tool_calls]
        if self.name is not None:
            out["name"] = self.name
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out


@dataclass(frozen=True, slots=True)
class Sampled:
    """An action with what its sampler knows of it; a policy may return one wherever it may return an action.

    `action` is the text, or an assistant message with structured calls. `finish_reason` is the sampler's word for why
    it ended, as OpenAI-compatible servers give it: `length` where a limit of tokens cut it, "" where it is not known.
    `token_ids` are the ids as they were sampled, an end token included; () where they are not known. `logprobs` are
    their natural logarithms, one for each, and `prompt_token_ids` the ids that were continued; () where the sampler
    does not say.
    """

    action: str | Message
    finish_reason: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's answer to one action.

    `messages` are appended to the conversation (consecutive tool messages, or one user message). `text` is the same
    as a policy of raw text sees it, rendered by the dialect, generation prompt included ("" where the episode was
    started with a cut of its own: a tokenizer is bound, and its chat template renders the messages).
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    results: tuple[ToolResult, ...] = field(default=())
