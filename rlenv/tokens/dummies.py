"""Made-up turns that show by rendering what a chat template does: marks stand for every text that a turn may have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from rlenv._base.text import shared_length
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.vocabulary import ChatTemplate

USER: Final = {"role": "user", "content": "u"}
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "what"}}},
    },
}
_S: Final = "\ue000"  # private use: stands in no template
SLOT: Final = re.compile(f"{_S}([cni])(\\d+){_S}")
"""A mark of an answer: its letter (content, name, id) and its number."""
ANY_MARK: Final = re.compile(f"qz[tx]\\d+zq|qz[ar]\\d+v\\d+zq|{_S}[cni]\\d+{_S}")
_TORN_MARK: Final = re.compile(r"[<\[][^>\]]*$")
_TORN_WORD: Final = re.compile(r"[a-zA-Z0-9_=]+$")
KEYS: Final = ("reasoning_content", "reasoning", "thinking", "thought")
"""The names under which templates look for an assistant's thinking, the common one first."""
THINKING: Final = ("none", "empty", "some", "cut", "left", "closed", "stray")
"""Kinds of thinking: none at all, a block without words, one with words, and one that was not closed.

"left": the prompt's own block was not closed, so that all of the turn stands in it. "closed" and "stray": a block is
closed that nobody opened, with no words before it, or with some.
"""


def content_mark(index: int) -> str:
    """The content of the answer `index` of the last turn."""
    return f"{_S}c{index}{_S}"


def _dummy_id(index: int) -> str:
    return f"{_S}i{index:06d}{_S}"  # nine characters, as Mistral's templates demand


def tool_mark(index: int) -> str:
    """The name of the tool that a call asks for."""
    return f"{_S}n{index}{_S}"


# What an assistant says is written by letters alone, which JSON and other forms leave as they are.
def thought_mark(turn: int) -> str:
    """The thinking of a turn."""
    return f"qzt{turn}zq"


def said_mark(turn: int) -> str:
    """The text of a turn."""
    return f"qzx{turn}zq"


def argument_mark(turn: int, call: int) -> str:
    """The argument of a call."""
    return f"qza{turn}v{call}zq"


class TurnShape(NamedTuple):
    """The shape of one turn: all that a template's treatment of it may depend on.

    `thinking` is one of THINKING. `text` says where text stands beside calls: "", "before", "behind" or "both"; of a
    turn without calls, "before" says that there is any. `roles` are those of the messages that answer it, `images` how
    many each of them shows (() where none shows any).
    """

    thinking: str
    text: str
    roles: tuple[str, ...]
    images: tuple[int, ...] = ()

    @property
    def calls(self) -> int:
        """The number of its calls: as many as results answer it."""
        return self.roles.count("tool")

    def words(self, number: int) -> list[str]:
        """The marks of its own words as turn `number` of a conversation, in the order in which they are written."""
        thought = [thought_mark(number)] if self.thinking in ("some", "cut", "left", "stray") else []
        said = [said_mark(number)] if self.text else []
        calls = [argument_mark(number, index) for index in range(self.calls)]
        return [*thought, *calls, *said] if self.text == "behind" else [*thought, *said, *calls]


@dataclass(frozen=True, slots=True)
class Way:
    """The way a template takes thinking: under a key of the message, or between marks in its content (`key` is "")."""

    key: str
    open: str = "<think>"
    close: str = "</think>"

    def write(self, message: dict[str, Any], thinking: str, thought: str) -> dict[str, Any]:
        """A message with thinking of a kind."""
        content = message["content"] or ""
        if thinking == "none" or (thinking in ("empty", "closed") and self.key):
            return message
        if thinking == "left":
            return {**message, "content": thought + content}
        if self.key:
            return {**message, self.key: thought}
        if thinking in ("closed", "stray"):
            return {**message, "content": f"{thought if thinking == 'stray' else ''}{self.close}{content}"}
        block = f"{self.open}\n{thought if thinking != 'empty' else ''}\n{self.close}\n\n"
        if thinking == "cut":
            block = f"{self.open}\n{thought}"
        return {**message, "content": block + content}


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way of writing calls; templates differ in which they take.

    `content` is that of a turn with calls and no text. `name` is a tool's, where a template looks names up. `is_plain`:
    the template knows no calls, so that they stand in the content as they were sampled. `joins`: it takes thinking or
    text beside calls and not both, so that the text is given as the end of the thinking (gpt-oss).
    """

    content: str | None = ""
    has_tools: bool = False
    arguments_as_text: bool = False
    name: str = ""
    is_plain: bool = False
    joins: bool = False

    def calls(self, turn: int, count: int, first: int) -> list[dict[str, Any]]:
        """The calls of a turn, `first` of which is the number of the first."""
        out = []
        for index in range(count):
            arguments: Any = {"x": argument_mark(turn, index)}
            if self.arguments_as_text:
                arguments = json.dumps(arguments)
            function = {"name": self.name or tool_mark(first + index), "arguments": arguments}
            out.append({"id": _dummy_id(first + index), "type": "function", "function": function})
        return out


FORMS: Final = (
    *(
        CallForm(content, has_tools, as_text)
        for as_text in (False, True)
        for has_tools in (False, True)
        for content in ("", None)
    ),
    CallForm(is_plain=True),
)


def with_arguments(message: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    """An assistant's message with its calls' arguments as JSON text, or as data."""
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str) != as_text:
            arguments = json.dumps(arguments, ensure_ascii=False) if as_text else json.loads(arguments)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else dict(message)


def turn_message(form: CallForm, way: Way, turn: TurnShape, number: int, first: int) -> dict[str, Any]:
    """The assistant's message of a turn, with marks for all that it says."""
    calls = turn.calls
    message: dict[str, Any] = {"role": "assistant", "content": said_mark(number) if turn.text else ""}
    if calls and form.is_plain:
        message["content"] += " ".join(argument_mark(number, index) for index in range(calls))
    elif calls:
        message = {
            "role": "assistant",
            "content": said_mark(number) if turn.text else form.content,
            "tool_calls": form.calls(number, calls, first),
        }
    if form.joins and calls and turn.text and turn.thinking == "some":
        message["content"] = form.content
        return way.write(message, "some", f"{thought_mark(number)}\n\n{said_mark(number)}")
    return way.write(message, turn.thinking, thought_mark(number))


def answer_messages(form: CallForm, turn: TurnShape, contents: Sequence[str], first: int) -> list[dict[str, Any]]:
    """The messages that answer a turn, with these contents."""
    out: list[dict[str, Any]] = []
    number = first
    for index, (role, content) in enumerate(zip(turn.roles, contents, strict=True)):
        count = turn.images[index] if turn.images else 0
        message: dict[str, Any] = {"role": role, "content": shown_content(role, content, count)}
        if role == "tool":
            message |= {"tool_call_id": _dummy_id(number), "name": form.name or tool_mark(number)}
            number += 1
        out.append(message)
    return out


def shared_text(one: str, other: str) -> str:
    """The common beginning of two texts."""
    return one[: shared_length(one, other)]


def shown_content(role: str, text: str, images: int) -> Any:
    """The content of a message as templates take it."""
    message = Message("user" if role == "user" else "tool", text)
    return message.parts([{"type": "image"}] * images) if images else text


class Marks:
    """The marks of a template, or of a tokenizer, in a text.

    Args:
        added: the tokenizer's added tokens; None where there is no tokenizer, so that marks are what looks like one.
    """

    _LIKE: Final = re.compile(r"<\|[^<>|\s]{1,60}\|?>|<[^<>\s]{1,60}\|>|<｜[^<>｜\s]{1,60}｜>|</?[A-Za-z_][\w:.]{0,40}>"
                              r"|\[/?[A-Z_]{2,40}\]")  # fmt: skip

    def __init__(self, added: Sequence[str] | None = None) -> None:
        self._added = None if added is None else frozenset(added)
        longest = sorted((text for text in added or () if text.strip()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else self._LIKE

    def find(self, text: str) -> list[tuple[int, str]]:
        """The place and the text of each mark, in order."""
        return [(match.start(), match[0]) for match in self._pattern.finditer(text)]

    def has(self, mark: str) -> bool:
        """True if a text can be a mark at all."""
        return self._added is None or mark in self._added

    def first(self, text: str) -> str:
        """The mark that `text` begins with, "" where it begins with none."""
        match = self._pattern.match(text) or self._LIKE.match(text)
        return match[0] if match else ""


def shared_marks(one: str, other: str) -> str:
    """The common beginning of two texts, up to the last white space or mark's end, so that no mark is torn apart."""
    at = len(shared_text(one, other))
    if at == len(one) or at == len(other):
        return one[:at]
    torn = _TORN_MARK.search(one, max(at - 40, 0), at)
    if torn is None and (one[at].isalnum() or other[at].isalnum()):
        torn = _TORN_WORD.search(one, max(at - 40, 0), at)
    return one[: torn.start()] if torn else one[:at]


_NAMED_END: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>$")  # as Kimi K3 writes: three tokens, one of them a word
_NAMED_BEGIN: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>")
_LONGEST_NAME: Final = 20


def thinking_of(
    template: ChatTemplate, marks: Marks, given: Sequence[tuple[str, str]]
) -> tuple[Way, tuple[tuple[str, str], ...], str]:
    """The way the template takes thinking, the marks around it, and the text before an assistant's turn."""
    asked = "qzuzq"
    user = {"role": "user", "content": asked}
    now = datetime(2000, 1, 1)

    def render(*messages: Mapping[str, Any], generate: bool) -> str:
        try:
            return template.render([user, *messages], add_generation_prompt=generate, now=now)
        except UnsupportedTemplate:
            return ""

    opening = render(generate=True)
    # Behind the user's words: what stands before them may be another with a prompt than without.
    tail, ended = (text.rpartition(asked)[2] for text in (opening, render(generate=False)))
    header = tail[len(shared_marks(tail, ended)) :]
    pairs = tuple((open, close) for open, close in given)
    form = CallForm()
    for key in KEYS:
        for turn in (
            TurnShape("some", "before", ("user",)),
            TurnShape("some", "before", ("tool",)),
            TurnShape("some", "", ("tool",)),
        ):
            said = turn_message(form, Way(key), turn, 0, 0)
            answers = answer_messages(form, turn, ["r"] * len(turn.roles), 0) if turn.calls else []
            text = render(said, *answers, generate=bool(answers))
            before, mark, behind = text.partition(thought_mark(0))
            if not mark:
                continue
            bare = render(
                turn_message(form, Way(key), turn._replace(thinking="none"), 0, 0), *answers, generate=bool(answers)
            )
            pair = _thinking_marks(before, behind, opening, bare, marks)
            if pair is not None:
                pairs = tuple(dict.fromkeys((pair, *pairs)))
                header = header.partition(pair[0])[0]
            return Way(key), pairs, header.strip()
    first = pairs[0] if pairs else ("<think>", "</think>")
    for open, _ in pairs:
        header = header.partition(open)[0]
    return Way("", *first), pairs, header.strip()


def _thinking_marks(before: str, behind: str, opening: str, bare: str, marks: Marks) -> tuple[str, str] | None:
    """The marks around thinking, from the text before and behind it."""
    named = _NAMED_END.search(before.rstrip()), _NAMED_BEGIN.match(behind.lstrip())
    if named[0] and named[1] and named[0][1] == named[1][1]:
        return named[0][0], named[1][0]
    start = before[len(opening) :].strip() if before.startswith(opening) else ""
    if not start:
        start = before[len(shared_marks(before, bare)) :].strip()
    if not start:
        found = marks.find(before[-100:].rstrip()) or Marks().find(before[-100:].rstrip())
        start = before[-100:].rstrip()[found[-1][0] :] if found else ""
        if len(start) > len(found[-1][1]) + _LONGEST_NAME if found else True:
            start = ""
    end = marks.first(behind.lstrip()) or behind.lstrip().partition("\n")[0][:40]
    end = ANY_MARK.split(end)[0].strip()
    return (start, end) if start and end else None
