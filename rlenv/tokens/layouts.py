"""The text that a chat template writes behind an assistant's turn, as literal text and slots for messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens import dummies
from rlenv.tokens.vocabulary import ChatTemplate


class ContentsLost(UnsupportedTemplate):
    """The template writes some content not once, or not in order."""


class NoStopMark(UnsupportedTemplate):
    """The template ends an assistant's turn with no mark that is known; `near` is what stands there."""

    def __init__(self, name: str, near: str) -> None:
        self.near = near
        super().__init__(
            f"chat template {name} ends an assistant's turn with no known stop mark: {near!r}; name it by stop"
        )


TRANSFORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "tojson": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "ascii tojson": lambda text: json.dumps(text)[1:-1],
    "strip, tojson": lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
}


@dataclass(frozen=True, slots=True)
class MessageSlot:
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
    """The template's text behind an assistant's turn for messages of given roles.

    `stop` is the mark behind the turn. `ends_turns` says that the template ends a turn with a mark of its own; else
    `stop` is what the next message begins with. `opener` and `closer` are what a call begins and ends with ("" where
    none is known).
    """

    stop: str
    parts: tuple[str | MessageSlot, ...]
    form: dummies.CallForm = dummies.FORMS[0]
    ends_turns: bool = True
    opener: str = ""
    closer: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every observation looks its program up by its layout; to hash all of its parts takes a tenth of a turn.
        parts = (self.stop, self.parts, self.form, self.ends_turns, self.opener, self.closer)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def text(self, value: Callable[[MessageSlot], str]) -> str:
        """The text behind the stop mark with every slot filled."""
        return "".join([part if isinstance(part, str) else value(part) for part in self.parts])


def call_id(index: int) -> str:
    """The id of a call that has none, by its place in its turn; nine signs, as some templates demand."""
    return f"call{index:05d}"


def values_of(messages: Sequence[Message], plain: Callable[[str], str] = str) -> Callable[[MessageSlot], str]:
    """The text of each slot but those of images, for these messages; `plain` changes names and ids."""

    def value(slot: MessageSlot) -> str:
        message = messages[slot.index]
        if slot.field == "content":
            return slot.transform(message.content)
        if slot.field == "name":
            return plain(message.name or "tool")
        return plain(message.tool_call_id or call_id(slot.index))

    return value


def split_slots(text: str, *, name: str, contents: int) -> Iterator[str | tuple[str, int]]:
    """Literal text and (letter, index) of each slot, in order.

    Raises:
        UnsupportedTemplate: a content stands not exactly once, or out of order.
    """
    seen: list[int] = []
    at = 0
    for match in dummies.SLOT.finditer(text):
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
        lost = "" if seen else "; it leaves out what these messages say, so that no policy would read it"
        raise ContentsLost(
            f"chat template {name} writes contents {seen} where messages 0 to {contents - 1} were given, each once"
            + lost
        )


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
    "a long one. " * 1_000,
)
_MOST_APART: Final = 16
"""The most messages whose contents are looked at one by one."""
STOPS: Final = tuple(
    "<start_function_response> <|im_end|> <|eot_id|> <|eom_id|> <|eot|> <|eom|> </s> <end_of_turn> <turn|>"
    " <｜end▁of▁sentence｜> <|end_of_text|> <|endoftext|>".split()
)
"""Ends of an assistant's turn where it is neither the tokenizer's end token nor one that the model's files name."""
_NO_CALLS: Final = "does not write an assistant's calls"
_ONE_WAY: Final = dummies.Way("")


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives what a template writes behind an assistant's turn.

    Attributes:
        stops: the stop marks to look for first.
        marks: the tokenizer's; without one, what looks like a mark.
        place: the placeholder that the template writes for an image.
        skipped: marks that may stand before a call and are none of it, as those of thinking.
    """

    template: ChatTemplate
    stops: Sequence[str]
    marks: dummies.Marks = field(default_factory=dummies.Marks)
    place: str = ""
    skipped: Sequence[str] = ()

    def layout(
        self,
        roles: tuple[str, ...],
        *,
        images: tuple[int, ...] = (),
        before: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Layout:
        """The layout for messages of `roles` that follow an assistant's turn.

        Args:
            images: how many images each of the messages has; () where none has any.
            before: the first messages; None: a user's message, and made-up tools where the template asks for some.

        Raises:
            UnsupportedTemplate: no exact layout can be derived; the message names the template and the place.
        """
        turn = dummies.TurnShape("none", "" if "tool" in roles else "before", roles, images)
        first: UnsupportedTemplate | None = None
        for form in dummies.FORMS:
            if before is not None and form.has_tools:
                continue
            if form.is_plain and first is not None and _NO_CALLS not in str(first):
                continue  # it knows calls, and something else is amiss
            given = (dummies.TOOL,) if form.has_tools else tuple(tools)
            for named in _named_forms(form, given):
                try:
                    return _Derivation(self, named, turn, before, given).layout()
                except UnsupportedTemplate as error:
                    first = error if first is None or (named.is_plain and _NO_CALLS in str(first)) else first
        assert first is not None
        raise first


def _named_forms(form: dummies.CallForm, tools: Sequence[Mapping[str, Any]]) -> Iterator[dummies.CallForm]:
    """A form with a made-up name of the tool called, and one with the name of a tool that is there."""
    yield form
    function = tools[0].get("function", tools[0]) if tools else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(name, str) and name and not form.is_plain:
        yield dummies.CallForm(form.content, form.has_tools, form.arguments_as_text, name)


class _Derivation:
    """One try to derive a layout, in one form of the assistant's message."""

    def __init__(
        self,
        given: Deriver,
        form: dummies.CallForm,
        turn: dummies.TurnShape,
        before: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> None:
        self.template, self.marks, self.stops, self.place = given.template, given.marks, given.stops, given.place
        self.skipped = [mark for mark in given.skipped if mark]
        self.form = form
        self.turn = turn
        self.before = list(before) if before is not None else [dummies.USER]
        self.tools = tools
        self.said = dummies.turn_message(form, _ONE_WAY, turn, 0, 0)
        self.last = dummies.argument_mark(0, turn.calls - 1) if turn.calls else dummies.said_mark(0)

    def render(self, *more: Mapping[str, Any], before: Any = None, generate: bool = True) -> str:
        conversation = [*(self.before if before is None else before), *more]
        return self.template.render(conversation, tools=self.tools, add_generation_prompt=generate)

    def layout(self) -> Layout:
        name = self.template.name
        contents = [dummies.content_mark(index) for index in range(len(self.turn.roles))]
        text = self._render_answers(contents)
        start = text.rfind(self.last)
        if start < 0 or (self.turn.calls and dummies.argument_mark(0, 0) not in text):
            raise UnsupportedTemplate(f"chat template {name} {_NO_CALLS}")
        start += len(self.last)
        end = text.find(contents[0], start)
        tail = text[start : end if end >= 0 else len(text)]
        ends_turns = self._ends_turns()
        stop, at = self._stop(tail, ends_turns)
        whole = text[start + at + len(stop) :]
        slots = self._split_slots(whole, contents, lambda given: self._tail_of(given, stop))
        has_marks = self.turn.calls and not self.form.is_plain
        opener, closer = self._call_marks(text, tail[:at]) if has_marks else ("", "")
        layout = Layout(stop, tuple(slots), self.form, ends_turns, opener, closer)
        if self.turn.images:
            self._check_images(layout, whole, contents)
        return layout

    def _render_answers(self, contents: Sequence[str], before: Any = None) -> str:
        return self.render(self.said, *dummies.answer_messages(self.form, self.turn, contents, 0), before=before)

    def _tail_of(self, contents: Sequence[str], stop: str) -> str:
        text = self._render_answers(contents)
        end = text.find(stop, text.rfind(self.last))
        if end < 0:
            raise UnsupportedTemplate(f"chat template {self.template.name} writes {stop} only for some contents")
        return text[end + len(stop) :]

    def _ends_turns(self) -> bool:
        """True if the template writes a mark behind an answer that nothing follows."""
        try:
            answer = {"role": "assistant", "content": dummies.said_mark(0)}
            text = self.render(answer, generate=False)
        except UnsupportedTemplate:
            return True
        _, mark, behind = text.rpartition(dummies.said_mark(0))
        return not mark or bool(self.marks.find(behind))

    def _stop(self, tail: str, ends_turns: bool) -> tuple[str, int]:
        """The mark that ends the turn in the text behind it, and its place there.

        One that is known ends it where it first stands. Else it is found by what the template writes of a turn that
        nothing follows: its last mark there, or, where it ends no turn, the mark that the next message begins with.
        """
        shared = dummies.shared_text(tail, self._tail_alone())
        inside = [(at, mark) for at, mark in self.marks.find(tail) if at + len(mark) <= len(shared)]
        places = [(tail.find(one), -len(one), one) for one in (*self.stops, *STOPS) if one and self.marks.has(one)]
        at, size, known = min((place for place in places if place[0] >= 0), default=(-1, 0, ""))
        # A known mark behind the turn's own last one is of what follows: an end token that begins turns.
        if known and (not ends_turns or not inside or at - size <= len(shared)):
            return known, at
        behind = [(at, mark) for at, mark in self.marks.find(tail) if at + len(mark) > len(shared)]
        if inside and (ends_turns or not behind):
            at, mark = inside[-1]
            if more := shared[at + len(mark) :].strip():  # its own end mark is no token
                raise NoStopMark(self.template.name, more[:60])
            return mark, at
        if not behind:
            raise NoStopMark(self.template.name, tail[:60])
        return behind[0][1], behind[0][0]

    def _tail_alone(self) -> str:
        """The template's text behind the last word of the turn where nothing follows it."""
        try:
            text = self.render(self.said, generate=False)
        except UnsupportedTemplate:
            return ""
        return text[text.rfind(self.last) + len(self.last) :] if self.last in text else ""

    def _call_marks(self, text: str, behind: str) -> tuple[str, str]:
        """The opening and closing marks of a call."""
        opening = self.render()
        places = [text.find(dummies.argument_mark(0, 0))]
        begin = self._begin(opening, text[: places[0]])
        if begin < 0:
            return "", ""
        match = dummies.SLOT.search(text, begin)
        places.append(match.start() if match is not None and match[1] in "ni" else -1)
        places.append(text.find(self.form.name, begin) if self.form.name else -1)
        gap = text[begin : min(place for place in places if place >= 0)].lstrip()
        while mark := next((mark for mark in self.skipped if gap.startswith(mark)), ""):
            gap = gap[len(mark) :].lstrip()
        opener = self.marks.first(gap) or (gap.split(maxsplit=1)[0] if gap[:1].isalnum() else gap[:1])
        found = self.marks.find(behind) or dummies.Marks().find(behind)
        return opener, found[-1][1] if found else ""

    def _begin(self, opening: str, text: str) -> int:
        """The beginning of a turn in a text that ends inside it; -1 where that is not found."""
        if text.startswith(opening):
            return len(opening)
        header = opening[len(dummies.shared_text(opening, self.render(generate=False))) :]
        for mark in self.skipped:
            header = header.partition(mark)[0]
        header = header.strip()
        at = text.rfind(header) if header else -1
        return at + len(header) if at >= 0 else -1

    def _split_slots(
        self, whole: str, contents: Sequence[str], tail: Callable[[Sequence[str]], str]
    ) -> list[str | MessageSlot]:
        name = self.template.name
        parts = list(split_slots(whole, name=name, contents=len(contents)))
        number_of = [index for index, role in enumerate(self.turn.roles) if role == "tool"]
        change: Any = None
        if len(contents) > 1:  # one rendering a probe, so that many results of one turn cost no more than their number
            split = re.split("|".join(map(re.escape, contents)), whole)
            change = transform_of(split, lambda probe: tail([probe] * len(contents)))
        if isinstance(change, tuple) and len(contents) > _MOST_APART:
            raise UnsupportedTemplate(
                f"chat template {name} changes the contents of {len(contents)} messages in a way that is not known"
            )
        slots: list[str | MessageSlot] = []
        placed = 0
        for part in parts:
            if isinstance(part, str):
                literals = part.split(self.place) if any(self.turn.images) else [part]
                slots.append(literals[0])
                for literal in literals[1:]:
                    slots += [MessageSlot("image", placed, TRANSFORMS["as it is"]), literal]
                    placed += 1
            elif part[0] == "c":
                one = change if callable(change) else self._find_transform(tail, whole, contents, part[1])
                slots.append(MessageSlot("content", part[1], one))
            else:
                field: Literal["name", "tool_call_id"] = "name" if part[0] == "n" else "tool_call_id"
                slots.append(MessageSlot(field, number_of[part[1]], TRANSFORMS["as it is"]))
        if placed != sum(self.turn.images):
            raise UnsupportedTemplate(
                f"chat template {name} writes {placed} times {self.place} for the {sum(self.turn.images)} images of"
                f" messages of {', '.join(self.turn.roles)}; expected one for each"
            )
        return [part for part in slots if part != ""]

    def _find_transform(
        self, tail: Callable[[Sequence[str]], str], whole: str, contents: Sequence[str], index: int
    ) -> Callable[[str], str]:
        before, _, after = whole.partition(contents[index])
        found = transform_of((before, after), lambda probe: tail([*contents[:index], probe, *contents[index + 1 :]]))
        if callable(found):
            return found
        probe, text = found
        raise UnsupportedTemplate(
            f"chat template {self.template.name} changes the content {probe[:40]!r} of message {index + 1} in a way"
            f" that is not known: {text[len(before) : len(text) - len(after)][:60]!r}"
        )

    def _check_images(self, layout: Layout, whole: str, contents: Sequence[str]) -> None:
        seen = {"role": "user", "content": dummies.shown_content("user", "u", 1)}
        later = self._render_answers(contents, before=[seen])
        if not later.endswith(layout.stop + whole):
            raise UnsupportedTemplate(
                f"chat template {self.template.name} writes images otherwise where others stand before them (it counts"
                " them)"
            )


def transform_of(
    split: Sequence[str], render: Callable[[str], str], probes: Sequence[str] = _PROBES
) -> Callable[[str], str] | tuple[str, str]:
    """The template's change to a content that stands between the texts of `split`, alike wherever it stands.

    Where that is not known: a content that shows it, and what is written of that.
    """
    left = list(TRANSFORMS.values())
    for probe in probes:
        text = render(probe)
        left = [change for change in left if text == change(probe).join(split)]
        if not left:
            return probe, text
    return left[0]
