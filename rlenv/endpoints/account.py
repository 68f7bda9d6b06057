"""The account of who asked which model for how much of an episode, and of whatever is played inside of a block.

Whoever asks says as whom (`asks("tool look_up")`), and a client adds what every try cost to the account of its task. A
context variable carries both, so that episodes that run at once on one client are never mixed, and a request that
several wait for is counted once: for the task that made it.

An account that is made inside of a role passes on what it counts: a nested episode's figures are also the outer one's,
under `agent NAME > policy`.

The wire format of OpenAI-compatible servers: messages to JSON and answers to messages.

Source: the OpenAI API reference, "Create chat completion" and "Create completion" (2025), as vLLM and SGLang serve it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from rlenv._base.bounded import SPARSE, UNRECORDED
from rlenv._base.strict_json import MAX_DEPTH, TooMuchJson, check_json, kind_of, load, value_fault
from rlenv.endpoints.sampled import SampledTokens, tokens_of
from rlenv.errors import EndpointError
from rlenv.messages import Image, MalformedCall, Message, ToolCall
from rlenv.trajectory import ModelUsage

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
    tape gave it. `tokens` are its ids and log-probabilities, None where the server says
    nothing of them.
    """

    message: Message
    finish_reason: str = ""
    usage: Usage = Usage()
    stopped_at: str | None = None
    refusal: str = field(default="", metadata=SPARSE)
    is_recorded: bool = field(default=False, metadata=UNRECORDED)
    tokens: SampledTokens | None = field(default=None, metadata=SPARSE)


def as_wire(message: Message) -> dict[str, Any]:
    """A message as the server takes it: arguments of calls are JSON text, images are data URLs."""
    out = message.as_dict()
    for call in out.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = json.dumps(arguments)
    return out


def as_sent(message: Message) -> dict[str, Any]:
    """A message of a conversation as a policy's server is sent it, its calls' arguments JSON text of an object.

    vLLM and SGLang refuse a conversation with others, as of a call that was cut, with all that follows: what was
    written stands in an object, under `unreadable`.
    """
    out = as_wire(message)
    for made, call in zip(message.tool_calls, out.get("tool_calls", ()), strict=False):
        if isinstance(made, MalformedCall):
            call["function"]["arguments"] = json.dumps({"unreadable": made.text})
    return out


def as_image(text: str) -> Image | None:
    """The image in a data URL, None where the text is not one."""
    match = _DATA_URL.fullmatch(text.strip())
    return Image(match[1], re.sub(r"\s+", "", match[2])) if match is not None else None


def read_chat(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a chat completion. A call whose arguments cannot be read is a MalformedCall in it.

    Raises:
        UnreadableAnswer: the answer is not of the format.
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
        calls.append(read_call(function, identity if isinstance(identity, str) else f"call_{index}"))
    text, images = _parse_content(message.get("content"))
    # Servers that generate images list them beside the text.
    extra = message.get("images")
    images += _parse_content(extra)[1] if isinstance(extra, list) else ()
    thinking = next((word for key in _THINKING if (word := _text_or_empty(message.get(key)))), "")
    made = Message("assistant", text, tuple(calls), images=images, thinking=thinking)
    refusal = _text_or_empty(message.get("refusal"))[:_MAX_SHOWN]
    told, usage = _text_or_empty(choice.get("finish_reason")), usage_of(answer)
    return Completion(made, told, usage, refusal=refusal, tokens=tokens_of(answer, choice))


def read_text(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a completion of raw text; raises UnreadableAnswer where it is not of the format."""
    choice, text = _choice(answer, "text", str, "the completion holds no text")
    made, told = Message("assistant", text), _text_or_empty(choice.get("finish_reason"))
    return Completion(made, told, usage_of(answer), _stopped_at(choice), tokens=tokens_of(answer, choice))


def _stopped_at(choice: Mapping[str, Any]) -> str | None:
    """The stop text by vLLM (`stop_reason`) or SGLang (`matched_stop`); an end token's id, or null, where none
    was met."""
    for key in ("stop_reason", "matched_stop"):
        if key in choice:
            return _text_or_empty(choice[key])
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


def _parse_content(content: Any) -> tuple[str, tuple[Image, ...]]:
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


def read_call(function: Mapping[str, Any], identity: str) -> ToolCall | MalformedCall:
    """A call as the server gives it, under the guarantees of a call that is read from text.

    Servers give no arguments as `""`, as null or not at all where the model wrote none: that is an empty object.
    """
    name = function.get("name")
    raw = function.get("arguments")
    name = name if isinstance(name, str) else ""
    shown = raw if isinstance(raw, str) else "" if raw is None else repr(raw)
    arguments, reason = _parse_arguments({} if raw is None else raw)
    if not name:
        reason = "the call has no name; expected the name of a tool"
    elif not reason and value_fault(name):
        reason = "the name is not valid Unicode (a lone surrogate)"
    if reason:
        return MalformedCall(shown[:_MAX_SHOWN], reason, name=name, id=identity)
    return ToolCall(name, arguments, identity)


def _parse_arguments(raw: Any) -> tuple[dict[str, Any], str]:
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
    prompt, completion = _token_count(usage, "prompt_tokens"), _token_count(usage, "completion_tokens")
    if not prompt or completion is None:
        return Usage()  # half of what an answer took is no sum of it
    cached = _token_count(usage.get("prompt_tokens_details"), "cached_tokens") or 0
    reasoning = _token_count(usage.get("completion_tokens_details"), "reasoning_tokens") or 0
    return Usage(prompt, completion, min(cached, prompt), min(reasoning, completion))


def _token_count(held: Any, name: str) -> int | None:
    count = held.get(name) if isinstance(held, dict) else None
    return count if type(count) is int and 0 <= count < _MOST_TOKENS else None


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


_BARRED_SHARE: Final = 0.1
_COUNTS: Final = tuple(one.name for one in fields(ModelUsage) if one.type in ("int", "float"))


class Account:
    """Sums by role and model. For one event loop."""

    __slots__ = ("_above", "_barring", "_entries", "_since", "barred_s")

    def __init__(self) -> None:
        self._above = _asking.get()
        self.barred_s = 0.0
        """Seconds that the policy has waited, between tries, for a server that limits its rate or is away."""
        self._barring, self._since = 0, 0.0
        self._entries: dict[tuple[str, str, bool], ModelUsage] | None = None

    def entries(self) -> tuple[ModelUsage, ...]:
        """The entries so far, in the order in which a role first asked; () where nothing was."""
        return tuple(self._entries.values()) if self._entries else ()

    def barred(self, seconds: float) -> str:
        """The reason that kept the policy from its server for a tenth of so many seconds, or longer; "" for none."""
        barred_s = self.barred_s + (time.monotonic() - self._since if self._barring else 0.0)
        told = f"limits of rate, or no connection, took {barred_s:.3g} of the episode's {seconds:.3g} s"
        return told if 0.0 < _BARRED_SHARE * seconds <= barred_s else ""

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Counts the time of a block in `barred_s`, and that of several at once as one."""
        self._since = self._since if self._barring else time.monotonic()
        self._barring += 1
        try:
            yield
        finally:  # or the time of whoever asks is over meanwhile
            self._barring -= 1
            self.barred_s += 0.0 if self._barring else time.monotonic() - self._since

    def add(self, usage: ModelUsage) -> None:
        """Adds to the sums of the usage's role and model."""
        if self._entries is None:
            self._entries = {}
        _add_usage(self._entries, usage)
        if self._above is not None:
            self._above.account.add(replace(usage, role=_role_below(self._above.role, usage.role)))


class Asking:
    """An account, and the role that its requests are counted for."""

    __slots__ = ("account", "role")

    def __init__(self, account: Account, role: str) -> None:
        self.account = account
        self.role = role

    def tried(
        self, model: str, usage: Usage, *, failed: bool = False, seconds: float = 0.0, is_recorded: bool = False
    ) -> None:
        """Counts one try: with its tokens, as one of unknown tokens where a good answer does not say them."""
        self.account.add(
            ModelUsage(
                self.role,
                model,
                requests=1,
                failed=int(failed),
                unknown=int(not failed and not usage.is_known),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens,
                seconds=seconds,
                is_recorded=is_recorded,
            )
        )

    def unread(self, model: str, *, is_recorded: bool = False) -> None:
        """Counts a try that was taken for a good one as failed: what it said could not be read."""
        self.account.add(ModelUsage(self.role, model, failed=1, is_recorded=is_recorded))

    def known(self, model: str) -> None:
        """Counts a question whose answer was there already."""
        self.account.add(ModelUsage(self.role, model, cached=1))


_asking: Final[ContextVar[Asking | None]] = ContextVar("rlenv_asking", default=None)

asking: Final = _asking.get
"""For whom the task asks; None where nobody counts."""


class counted:
    """Counts what a block, and the tasks that it starts, ask for in `account`; None changes nothing."""

    __slots__ = ("_asking", "_token")

    def __init__(self, account: Account | None, role: str = "") -> None:
        self._asking = None if account is None else Asking(account, role)

    def __enter__(self) -> None:
        self._token = None if self._asking is None else _asking.set(self._asking)

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            _asking.reset(self._token)


class asks(counted):
    """Names who asks in a block, below whoever does around it; where nobody counts it changes nothing."""

    __slots__ = ()

    def __init__(self, role: str) -> None:
        around = _asking.get()
        super().__init__(*((None,) if around is None else (around.account, _role_below(around.role, role))))


def as_recorded(entries: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """The usage of a recorded episode, as figures of one that is made of it: nobody asks for it again."""
    return merge_usage(replace(one, is_recorded=True) for one in entries)


def merge_usage(entries: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """One entry for each role and model, and for what was recorded apart."""
    found: dict[tuple[str, str, bool], ModelUsage] = {}
    for one in entries:
        _add_usage(found, one)
    return tuple(found.values())


def _add_usage(entries: dict[tuple[str, str, bool], ModelUsage], usage: ModelUsage) -> None:
    key = (usage.role, usage.model, usage.is_recorded)
    before = entries.get(key)
    if before is not None:
        usage = replace(before, **{name: getattr(before, name) + getattr(usage, name) for name in _COUNTS})
    entries[key] = usage


def _role_below(role: str, inner: str) -> str:
    return f"{role} > {inner}" if role and inner else role or inner


AWAY: Final = frozenset({502, 503, 504})
"""What a proxy answers where the server behind it is away."""


def is_away(error: EndpointError) -> bool:
    """True where the server did not have the request, as far as the error says."""
    is_told = error.status is not None or error.is_garbled or error.is_late or error.is_held
    return not is_told or error.status in AWAY


@dataclass(slots=True)
class ServerSeen:
    """What the clients of one address have seen of the server there.

    `cuts` are requests that it fell over, or beside: the connection broke, or a proxy said that it went, which had
    answered until then.
    """

    cuts: int = 0
    is_up: bool = False


TWO_LOGINS: Final = "the address holds a user and a password, and a key is sent as Authorization too"


def two_logins(address: str, headers: Mapping[str, str]) -> bool:
    """True where an address holds credentials beside a header that does: a request has one Authorization."""
    try:
        has_user = "@" in urlsplit(address).netloc
    except ValueError:
        return False
    return has_user and any(name.lower() == "authorization" for name in headers)


def seconds_of(retry_after: str | None) -> float:
    """The wait that a server asks for: seconds, or a date (RFC 9110, section 10.2.3); 0 where there is none."""
    if retry_after is None:
        return 0.0
    try:
        seconds = float(retry_after := retry_after[:100])
        return max(0.0, seconds) if seconds == seconds else 0.0
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
