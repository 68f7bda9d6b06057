"""What a policy would sample in a turn, in the words of its own template: found by rendering, without the encoder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.dialogues import Turn
from rlenv.tokens.encoder import TokenEncoder

__all__ = ["Speaker", "Spoken"]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn: `text` is sampled, its end mark apart; `told` is its message as the template is given it.

    `signs` are texts of it that a rendering shows, in order.
    """

    text: str
    message: Message
    told: dict[str, Any]
    signs: tuple[str, ...]


class Speaker:
    """Finds the words of turns for one template.

    Attributes:
        ends: the marks that may end a turn.
    """

    def __init__(self, encoder: TokenEncoder) -> None:
        self._template = encoder.template
        self.ends = tuple(mark for mark, number in encoder.vocabulary.added.items() if number in encoder.end_ids)
        self._marks = tuple(pair for pair in encoder.growth.reader.thinking if all(pair)) or (("<think>", "</think>"),)

    def of(self, message: Message) -> dict[str, Any]:
        """A message of the environment as templates are given it."""
        return message.as_dict()

    def forms_of(self, conversation: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The same conversation in each form of turns, with empty blocks of thinking and without."""
        for keeps in (True, False):
            for as_text in (False, True):
                for empty in ("", None):
                    forms = [_in_form(one, as_text=as_text, empty=empty) for one in conversation]
                    yield forms if keeps else [self._without_blocks(one) for one in forms]

    def _without_blocks(self, told: dict[str, Any]) -> dict[str, Any]:
        content = told.get("content")
        if told.get("role") != "assistant" or not isinstance(content, str):
            return told
        for opening, closing in self._marks:
            content = re.sub(rf"^\s*{re.escape(opening)}\s*{re.escape(closing)}\s*", "", content, count=1)
        return {**told, "content": content}

    def speak(
        self,
        conversation: Sequence[dict[str, Any]],
        turn: Turn,
        tools: Sequence[dict[str, Any]],
        *,
        now: datetime,
    ) -> Spoken:
        """The turn behind a conversation.

        Raises:
            UnsupportedTemplate: the template takes it in no form.
        """
        plain = replace(turn.said, thinking="")
        signs = _signs(plain)

        def render(messages: Sequence[dict[str, Any]], *, prompted: bool = False) -> str:
            return self._template.render(messages, tools=tools, add_generation_prompt=prompted, now=now)

        base, prompt = render(conversation), render(conversation, prompted=True)
        header = prompt[len(base) :] if prompt.startswith(base) else ""
        answers = [self.of(message) for message in turn.answers]
        told, whole = self._written(render, conversation, plain, signs, answers)
        body = self._body(whole, base, header, signs)
        opened = next((pair for pair in self._marks if header.rstrip().endswith(pair[0])), None)
        has_block = any(close in header for _, close in self._marks)
        if turn.thinks == "some" and turn.said.thinking:
            return self._thinking(render, conversation, turn, told, base, header, body, signs, opened)
        if opened is not None:
            return Spoken(_closed(opened, "", body), plain, told, signs)
        if turn.thinks == "empty" and not has_block:
            pair = self._marks[0]
            block = f"{pair[0]}\n\n{pair[1]}\n\n"
            if not self._has_field(render, conversation, told):  # thinking is a part of the content then, empty or not
                told = {**told, "content": block + (told.get("content") or "")}
                whole = render([*conversation, told])
                if pair[1] in whole[len(base) :]:
                    text = self._body(whole, base, header, signs, strips=False)
                    return Spoken(text, replace(plain, content=block + plain.content), told, signs)
            return Spoken(block + body, plain, told, signs)
        return Spoken(body, plain, told, signs)

    def _thinking(
        self,
        render: Any,
        conversation: Sequence[dict[str, Any]],
        turn: Turn,
        told: dict[str, Any],
        base: str,
        header: str,
        body: str,
        signs: tuple[str, ...],
        opened: tuple[str, str] | None,
    ) -> Spoken:
        thought = turn.said.thinking
        pair = opened or self._marks[0]
        written = f"{pair[0]}\n{thought}\n{pair[1]}\n\n"
        ways = ({**told, "reasoning_content": thought}, {**told, "content": written + (told.get("content") or "")})
        for way in ways:
            try:
                whole = render([*conversation, way])
            except UnsupportedTemplate:
                continue
            if thought in whole:
                text = self._body(whole, base, header, (thought, *signs), strips=False)
                return Spoken(text, turn.said, way, signs or (thought,))
        # No form shows it, even in the last turn; the policy has thought all the same.
        text = _closed(pair, thought, body) if opened is not None else f"{written}{body}"
        return Spoken(text, turn.said, told, signs)

    def _has_field(self, render: Any, conversation: Sequence[dict[str, Any]], told: dict[str, Any]) -> bool:
        """Whether the template writes thinking that it is given apart from the content, at least in the last turn."""
        try:
            return "thinkingsign" in render([*conversation, {**told, "reasoning_content": "thinkingsign"}])
        except UnsupportedTemplate:
            return False

    def _written(
        self,
        render: Any,
        conversation: Sequence[dict[str, Any]],
        said: Message,
        signs: Sequence[str],
        answers: Sequence[dict[str, Any]],
    ) -> tuple[dict[str, Any], str]:
        """The first form of a message that the template writes with all its calls, and its rendering."""
        refused = UnsupportedTemplate(f"chat template {self._template.name} writes no such turn")
        for as_text in (False, True):
            for empty in ("", None):
                told = _in_form(said.as_dict(), as_text=as_text, empty=empty)
                try:
                    whole = render([*conversation, told])
                    render([*conversation, told, *answers])
                except UnsupportedTemplate as error:
                    refused = error
                    continue
                if all(sign in whole for sign in signs):
                    return told, whole
        raise refused

    def _body(self, whole: str, base: str, header: str, signs: Sequence[str], *, strips: bool = True) -> str:
        """The words of the last turn of a rendering, from behind the generation prompt to its end mark."""
        begin = _common(whole, base + header)
        if begin < len(base):  # earlier turns are written otherwise while this one is the last
            begin = max(whole.rfind(header), 0) + len(header) if header and header in whole else begin
        at = begin
        for sign in signs:
            found = whole.rfind(sign)
            at = max(at, found + len(sign)) if found >= begin else at
        ends = [place for place in (whole.find(mark, at) for mark in self.ends) if place >= 0]
        text = whole[begin : min(ends, default=len(whole))]
        if not ends:
            text = text.rstrip("\n")
        if not strips:
            return text
        for opening, closing in self._marks:
            text = re.sub(rf"^\s*{re.escape(opening)}\s*{re.escape(closing)}\s*", "", text, count=1)
            # What is left of a block whose beginning stands in the generation prompt.
            if header.rstrip().endswith(opening):
                text = re.sub(rf"^\s*{re.escape(closing)}\s*", "", text, count=1)
        return text


def _closed(pair: tuple[str, str], thought: str, body: str) -> str:
    """What a policy writes whose prompt has opened its thinking."""
    return f"{thought}\n{pair[1]}\n\n{body}"


def _in_form(told: dict[str, Any], *, as_text: bool, empty: str | None) -> dict[str, Any]:
    if told.get("role") != "assistant":
        return told
    out = dict(told)
    if not out.get("content"):
        out["content"] = empty
    if calls := out.get("tool_calls"):
        out["tool_calls"] = [_call(call, as_text=as_text) for call in calls]
    return out


def _call(call: dict[str, Any], *, as_text: bool) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function["arguments"]
    if as_text and not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        function["arguments"] = json.loads(arguments)
    return {**call, "function": function}


def _signs(said: Message) -> tuple[str, ...]:
    """What shows that a template has written a turn."""
    found = []
    for call in said.tool_calls:
        value = getattr(call, "arguments", {}).get("x")
        found.append(value[:3] if isinstance(value, str) and len(value) > 2 else str(call.name))
    if not found and said.content.strip():
        found.append(said.content.strip().split("\n")[0])
    return tuple(found)


def _common(a: str, b: str) -> int:
    return next(
        (index for index, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b))
    )
