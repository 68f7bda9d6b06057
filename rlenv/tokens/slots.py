"""Where a chat template puts a message's content and what it does to it, found by rendering.

A conversation is rendered with sentinels in the place of contents, cut behind the assistant's stop mark, and split
into literal text and slots. Contents of many kinds are then rendered in each slot's place: a template is accepted
only where what it writes is the literal text around a known transformation of the content, every time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.chat_template import ChatTemplate

__all__ = ["TRANSFORMS", "Layout", "Slot", "TextSlot", "derive", "split_slots"]

_S: Final = "\ue000"  # private use: stands in no template
_ASSISTANT: Final = f"{_S}a{_S}"
_SLOT: Final = re.compile(f"{_S}([cni])(\\d+){_S}")
_PROBES: Final = (
    "",
    "x",
    "5",
    "true",
    "[1, 2]",
    '{"a": "b"}',
    " \n q\"\\\n\té<&>' z\u2028 \r\n ",
    "\n\nlines\n\n",
    "   ",
)
_MOST_APART: Final = 16
"""The most messages whose contents are looked at one by one."""
TRANSFORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "tojson": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "ascii tojson": lambda text: json.dumps(text)[1:-1],
    "strip, tojson": lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "what"}}},
    },
}
# Ends of an assistant's turn where it is not the tokenizer's end token.
_STOPS: Final = (
    "<start_function_response>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "</s>",
    "<end_of_turn>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_text|>",
    "<|endoftext|>",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a field of message `index`; `transform` is what the template does to it.

    A slot of the field `image` stands for one placeholder; its `index` counts the images of all messages.
    """

    field: Literal["content", "name", "tool_call_id", "image"]
    index: int
    transform: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class TextSlot:
    """A content that is always the same: text, whatever it spells."""

    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """What a template writes behind an assistant's stop mark for messages of given roles.

    `drops_thinking`: the template leaves out earlier thinking once these messages follow. `rewrites`: it writes
    earlier turns otherwise than they were sampled even without thinking ("" where it does not, else how).
    """

    stop: str
    parts: tuple[str | Slot, ...]
    drops_thinking: bool
    rewrites: str


@dataclass(frozen=True, slots=True)
class _Form:
    """One way of writing the assistant's turn; templates differ in which they take."""

    content: str | None
    has_tools: bool
    arguments_as_text: bool

    def assistant(self, calls: int, mark: str = _ASSISTANT, **extra: Any) -> dict[str, Any]:
        if not calls:
            return {"role": "assistant", "content": mark, **extra}
        arguments: Any = {"x": mark}
        if self.arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {
            "role": "assistant",
            "content": self.content,
            "tool_calls": [
                {"id": _id(i), "type": "function", "function": {"name": _name(i), "arguments": arguments}}
                for i in range(calls)
            ],
            **extra,
        }


_FORMS: Final = tuple(
    _Form(content, has_tools, as_text)
    for as_text in (False, True)
    for has_tools in (False, True)
    for content in ("", None)
)


def _id(index: int) -> str:
    return f"{_S}i{index:06d}{_S}"  # nine characters, as Mistral's templates demand


def _name(index: int) -> str:
    return f"{_S}n{index}{_S}"


def _content(role: str, text: str, images: int) -> Any:
    """The content of a message as templates take it."""
    message = Message("user" if role == "user" else "tool", text)
    return message.parts([{"type": "image"}] * images) if images else text


def split_slots(text: str, *, name: str, contents: int) -> Iterator[str | tuple[str, int]]:
    """Literal text and (letter, index) of each slot, in order.

    Raises:
        UnsupportedTemplate: a content stands not exactly once, or out of order.
    """
    seen: list[int] = []
    at = 0
    for match in _SLOT.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        at = match.end()
        index = int(match[2])
        if match[1] == "c":
            seen.append(index)
        yield match[1], index
    if at < len(text):
        yield text[at:]
    if seen != list(range(contents)):
        raise UnsupportedTemplate(
            f"chat template {name} writes contents {seen} where messages 0 to {contents - 1} were given, each once"
        )


def derive(
    template: ChatTemplate,
    roles: tuple[str, ...],
    stops: Sequence[str],
    *,
    images: tuple[int, ...] = (),
    place: str = "",
) -> Layout:
    """The layout for messages of `roles` that follow an assistant's turn.

    Args:
        stops: the stop marks to look for first, best first.
        images: how many images each of the messages has; () where none has any.
        place: the placeholder that the template writes for an image.

    Raises:
        UnsupportedTemplate: no exact layout can be derived; the message names the template and the place.
    """
    first: UnsupportedTemplate | None = None
    for form in _FORMS:
        try:
            return _derive(template, roles, (*stops, *_STOPS), form, images or (0,) * len(roles), place)
        except UnsupportedTemplate as error:
            first = first if first is not None else error
    assert first is not None
    raise first


def _derive(
    template: ChatTemplate,
    roles: tuple[str, ...],
    stops: Sequence[str],
    form: _Form,
    images: tuple[int, ...],
    place: str,
) -> Layout:
    calls = sum(role == "tool" for role in roles)
    tools = (_TOOL,) if form.has_tools else ()
    stop = ""

    def messages(contents: Sequence[str]) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        number = 0
        for role, content, count in zip(roles, contents, images, strict=True):
            message: dict[str, Any] = {"role": role, "content": _content(role, content, count)}
            if role == "tool":
                message |= {"tool_call_id": _id(number), "name": _name(number)}
                number += 1
            out.append(message)
        return out

    def render(conversation: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        return template.render(conversation, tools=tools, add_generation_prompt=generate)

    user = {"role": "user", "content": "u"}
    marks = [f"{_S}c{i}{_S}" for i in range(len(roles))]

    def tail(contents: Sequence[str]) -> str:
        text = render([user, form.assistant(calls), *messages(contents)])
        end = text.find(stop, text.rfind(_ASSISTANT))
        if end < 0:
            raise UnsupportedTemplate(f"chat template {template.name} writes {stop} only for some contents")
        return text[end + len(stop) :]

    text = render([user, form.assistant(calls), *messages(marks)])
    start = text.rfind(_ASSISTANT)
    if start < 0:
        raise UnsupportedTemplate(f"chat template {template.name} does not write an assistant's calls")
    end = text.find(marks[0], start)
    end = end if end >= 0 else len(text)
    stop = next((mark for mark in stops if mark and 0 <= text.find(mark, start) < end), "")
    if not stop:
        near = text[start + len(_ASSISTANT) : end][:60]
        raise UnsupportedTemplate(
            f"chat template {template.name} ends an assistant's turn with no known stop mark: {near!r}; name it by stop"
        )
    whole = tail(marks)
    parts = list(split_slots(whole, name=template.name, contents=len(roles)))
    number_of = [i for i, role in enumerate(roles) if role == "tool"]
    slots: list[str | Slot] = []
    placed = 0
    change = _transform_of_all(tail, whole, marks) if len(roles) > 1 else None
    if change is None and len(roles) > _MOST_APART:
        raise UnsupportedTemplate(
            f"chat template {template.name} changes the contents of {len(roles)} messages in a way that is not known"
        )
    for part in parts:
        if isinstance(part, str):
            literals = part.split(place) if any(images) else [part]
            slots.append(literals[0])
            for literal in literals[1:]:
                slots += [Slot("image", placed, TRANSFORMS["as it is"]), literal]
                placed += 1
        elif part[0] == "c":
            one = change if change is not None else _transform(template.name, tail, whole, marks, part[1])
            slots.append(Slot("content", part[1], one))
        else:
            field: Literal["name", "tool_call_id"] = "name" if part[0] == "n" else "tool_call_id"
            slots.append(Slot(field, number_of[part[1]], TRANSFORMS["as it is"]))
    if placed != sum(images):
        raise UnsupportedTemplate(
            f"chat template {template.name} writes {placed} times {place} for the {sum(images)} images of messages of"
            f" {', '.join(roles)}; expected one for each"
        )
    if placed:
        seen = {"role": "user", "content": _content("user", "u", 1)}
        later = render([seen, form.assistant(calls), *messages(marks)])
        if not later.endswith(stop + whole):
            raise UnsupportedTemplate(
                f"chat template {template.name} writes images otherwise where others stand before them (it counts them)"
            )
    return Layout(
        stop,
        tuple(part for part in slots if part != ""),
        _drops_thinking(render, form, calls, user, messages(marks)),
        _rewrites(render, form, calls, user, messages(marks)),
    )


def _transform(
    name: str, tail: Callable[[Sequence[str]], str], whole: str, marks: Sequence[str], index: int
) -> Callable[[str], str]:
    before, _, after = whole.partition(marks[index])
    left = dict(TRANSFORMS)
    for probe in _PROBES:
        given = list(marks)
        given[index] = probe
        text = tail(given)
        left = {key: change for key, change in left.items() if text == before + change(probe) + after}
        if not left:
            raise UnsupportedTemplate(
                f"chat template {name} changes the content {probe!r} of message {index + 1} in a way that is not known:"
                f" {text[len(before) : len(text) - len(after)][:60]!r}"
            )
    return next(iter(left.values()))


def _transform_of_all(
    tail: Callable[[Sequence[str]], str], whole: str, marks: Sequence[str]
) -> Callable[[str], str] | None:
    """The transformation that a template does to all contents alike, None where there is none such.

    One rendering a probe, so that many results of one turn cost no more than their number.
    """
    split = re.split("|".join(map(re.escape, marks)), whole)
    left = dict(TRANSFORMS)
    for probe in _PROBES:
        text = tail([probe] * len(marks))
        left = {key: change for key, change in left.items() if text == change(probe).join(split)}
        if not left:
            return None
    return next(iter(left.values()))


def _drops_thinking(
    render: Callable[..., str], form: _Form, calls: int, user: dict[str, Any], following: list[dict[str, Any]]
) -> bool:
    thought = f"{_S}t{_S}"
    ways = (
        form.assistant(calls, reasoning_content=thought),
        {**form.assistant(calls), "content": f"<think>\n{thought}\n</think>\n\n{'' if calls else _ASSISTANT}"},
    )
    for assistant in ways:
        try:
            if thought in render([user, assistant, *following]):
                return False
        except UnsupportedTemplate:
            continue
    return True


def _rewrites(
    render: Callable[..., str], form: _Form, calls: int, user: dict[str, Any], following: list[dict[str, Any]]
) -> str:
    """How the template breaks the law that a conversation's text only grows, "" where it keeps it."""
    # An empty thinking block in the generation prompt is kept by templates that are told of it in one of these ways.
    place = ""
    for extra in ({}, {"reasoning_content": "\n"}, {"reasoning_content": f"{_S}t{_S}"}):
        conversation = [user]
        before = render(conversation)
        for number in (1, 2):
            conversation = [*conversation, form.assistant(calls, f"{_S}a{number}{_S}", **extra), *following]
            after = render(conversation)
            if not after.startswith(before):
                at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
                place = place or (
                    f"after turn {number} it writes {after[max(at - 20, 0) : at + 20]!r} where "
                    f"{before[max(at - 20, 0) : at + 20]!r} stood"
                )
                break
            before = after
        else:
            return ""
    return place
