"""One made-up conversation that goes on by a turn and its answers: whether a chat template's text only grew by them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rlenv.errors import UnsupportedTemplate
from rlenv.tokens import dummies
from rlenv.tokens.layouts import Layout, MessageSlot, split_slots
from rlenv.tokens.shapes import Reader, Story
from rlenv.tokens.vocabulary import ChatTemplate

_DROPS: Final = "it drops the thinking of earlier turns once these messages follow"
_TORN_MARK: Final = re.compile("^[^\ue000]{0,8}\ue000|\ue000[^\ue000]{0,8}$")
RESPELLS: Final = "it spells a turn otherwise once it is answered than while it is the last"
_ID: Final = "\ue000i"
_FIRST_CALL: Final = r"qza\d+v\d+zq|\ue000.*"


@dataclass(frozen=True, slots=True)
class Spelling:
    """The template's text around a turn's thinking, its text and the first of its calls, and behind the last."""

    parts: tuple[str, ...]
    end: str

    def fits(self, text: str) -> bool:
        """True if a turn has this around words that have no white space at their ends."""
        at = 0
        for number, part in enumerate(self.parts):
            if number and not part:
                continue
            at = text.find(part, at)
            while number and at > 0 and text[at - 1].isspace():
                at = text.find(part, at + 1)
            if at < 0 or (not number and at):
                return False
            at += len(part)
            if text[at : at + 1].isspace():
                return False
        return text.endswith(self.end)


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """The template's change to a turn of a shape once it is answered.

    Attributes:
        fault: how it writes the history otherwise; "" where the text only grows.
        layout: what it writes behind the turn.
        opens: whether the next prompt ends inside a block of thinking.
        is_refused: whether the template takes no such conversation at all; `fault` says why.
        needs_ids: whether there is no fault where the turn writes the ids of its calls itself.
        spelled: how such a turn is written while it is the last, and how once it is answered; None where that is one.
    """

    fault: str
    layout: Layout
    layout_roles: tuple[str, ...]
    opens: bool = False
    is_refused: bool = False
    needs_ids: bool = False
    spelled: tuple[Spelling, Spelling] | None = None

    def rewrites(self, text: str) -> bool:
        """True if a turn is spelled as the template does while it is the last, and otherwise than later."""
        return self.spelled is not None and self.spelled[0].fits(text) and not self.spelled[1].fits(text)


@dataclass(frozen=True, slots=True)
class Voice:
    """A chat template with how it is spoken to.

    Attributes:
        way: how it is given thinking.
        reader: knows the marks around thinking.
        place: the placeholder of an image.
    """

    template: ChatTemplate
    way: dummies.Way
    reader: Reader
    place: str

    def render(self, story: Story, conversation: Sequence[Any], *, add_generation_prompt: bool = True) -> str:
        """A conversation with the tools and at the time of `story`."""
        return self.template.render(
            conversation, tools=story.tools, now=story.now, add_generation_prompt=add_generation_prompt
        )


class Grown:
    """A story that was told, and one turn more.

    Args:
        layout: what the template writes behind `turn` in a short conversation.
    """

    def __init__(
        self,
        voice: Voice,
        story: Story,
        told: Sequence[dummies.TurnShape],
        turn: dummies.TurnShape,
        layout: Layout,
        form: dummies.CallForm,
    ) -> None:
        self._voice = voice
        self._story = story
        self._turn = turn
        self._layout = layout
        self._form = form
        self._number = len(told)
        self._conversation = list(story.messages)
        self._calls = 0
        """The calls before the turn."""
        for number, one in enumerate(told):
            contents = [f" qzr{number}v{index}zq\n" for index in range(len(one.roles))]  # some trim what is old
            self._conversation.append(dummies.turn_message(form, voice.way, one, number, self._calls))
            self._conversation += dummies.answer_messages(form, one, contents, self._calls)
            self._calls += one.calls
        self._said = dummies.turn_message(form, voice.way, turn, self._number, self._calls)
        self._marks = [dummies.content_mark(index) for index in range(len(turn.roles))]
        self._answers = dummies.answer_messages(form, turn, self._marks, self._calls)

    def finding(self) -> AnsweredTurn:
        """The template's change to the turn.

        Raises:
            UnsupportedTemplate: it refuses the conversation, or exact ids cannot be promised for the answers.
        """
        voice, turn, layout = self._voice, self._turn, self._layout
        before = self.prompt()
        after = voice.render(self._story, [*self._conversation, self._said, *self._answers])
        found = AnsweredTurn("", layout, turn.roles, voice.reader.is_left_open(after))
        if not after.startswith(before):
            return replace(found, fault=_rewritten_place(before, after, self._number))
        grown = after[len(before) :]
        fault, end = self._words_fault(grown, is_open=voice.reader.is_left_open(before))
        if fault:
            return replace(found, fault=fault)
        at = grown.find(layout.stop, end)
        limit = grown.find(self._marks[0], end)
        if at < 0 or 0 <= limit < at:
            return replace(found, fault=f"it ends such a turn without {layout.stop}")
        found = replace(
            found, layout=self._own_layout(grown[at + len(layout.stop) :]), spelled=self._spellings(before, grown[:at])
        )
        ids = after.count(_ID, 0, len(before) + at)
        if ids > before.count(_ID) and self._render_alone().count(_ID) < ids:
            return replace(found, fault="it writes the ids of calls once results follow, not before", needs_ids=True)
        return found

    def prompt(self) -> str:
        """The conversation before the turn, with its generation prompt."""
        return self._voice.render(self._story, self._conversation)

    def _spellings(self, before: str, grown: str) -> tuple[Spelling, Spelling] | None:
        """The spelling of the turn while it is the last and later; None where that is the same, or is not known."""
        words, reader = self._turn.words(self._number), self._voice.reader
        try:
            alone = self._render_alone()
        except UnsupportedTemplate:
            return None
        alone = alone[len(before) :] if alone.startswith(before) else ""
        if not words or (self._turn.calls and self._form.is_plain) or any(alone.count(word) != 1 for word in words):
            return None
        last = max(alone.find(word) + len(word) for word in words)
        end = alone.find(self._layout.stop, last)  # some end it by another mark while it is the last
        alone, grown = (
            (alone[:end], grown) if end >= 0 else (alone[:last], grown[: grown.find(words[-1]) + len(words[-1])])
        )
        is_open = reader.is_left_open(before)
        if alone.count(_ID) != grown.count(_ID):
            return None
        held = {reader.blocks(text.partition(words[0])[0], is_open=is_open) for text in (alone, grown)}
        if alone == grown or len(held) > 1:
            return None
        tails = [text[text.rfind(words[-1]) + len(words[-1]) :] for text in (alone, grown)]
        same = len(dummies.shared_text(*tails))
        own = [word for word in words if word[2] != "a" and (word[2] == "t" or self._turn.text == "before")]
        firsts = [re.split("|".join([*own, _FIRST_CALL]), text) for text in (alone, grown)]
        found = [Spelling(tuple(one[: len(own) + 1]), tail[same:]) for one, tail in zip(firsts, tails, strict=True)]
        return None if found[0] == found[1] else (found[0], found[1])

    def _render_alone(self) -> str:
        """The conversation that ends with the turn."""
        return self._voice.render(self._story, [*self._conversation, self._said], add_generation_prompt=False)

    def _words_fault(self, grown: str, *, is_open: bool) -> tuple[str, int]:
        """The change in the turn's own words ("" where there is none), and their end."""
        turn, reader, words = self._turn, self._voice.reader, self._turn.words(self._number)
        at = 0
        for word in words:
            count = grown.count(word)
            if count != 1:
                if word[2] == "t" and not count:
                    return _DROPS, 0
                what = {"t": "thinking", "x": "text beside calls" if turn.calls else "text", "a": "call"}[word[2]]
                return f"it {'leaves out' if not count else 'repeats'} the {what} of a turn", 0
            place = grown.find(word)
            if place < at:
                return "it writes the text of a turn on the other side of its calls", 0
            at = place + len(word)
        if turn.text == "both":
            return "it writes the text of a turn on one side of its calls", 0
        first = grown.find(words[0]) if words else 0
        gap = grown[:first]
        if not words:
            gap = grown.partition("\ue000")[0]
        held = reader.blocks(gap, is_open=is_open)
        if turn.thinking in ("none", "left", "stray") and held != "none":
            what = "a mark that closes" if held == "closed" else "an empty block of"
            return f"it writes {what} thinking where a turn has none", 0
        if turn.thinking == "closed" and held != "closed":
            return "it leaves out a mark that closes thinking, which no mark has opened", 0
        if turn.thinking == "stray" and not reader.closes(grown[first:].partition("\ue000")[0]):
            return "it leaves out a mark that closes thinking, which no mark has opened", 0
        if turn.thinking in ("cut", "left") and reader.closes(grown[at:].partition("\ue000")[0]):
            return "it closes a block of thinking that a turn left open", 0
        if turn.thinking == "empty" and held != "empty":
            return "it leaves out the empty block of thinking of a turn", 0
        return "", at

    def _own_layout(self, tail: str) -> Layout:
        """The layout as it is here, where the history stands, by what is written behind the stop mark."""
        turn, layout, calls = self._turn, self._layout, self._calls

        def value(slot: MessageSlot) -> str:
            if slot.field == "image":
                return self._voice.place
            text = (
                dummies.content_mark(slot.index) if slot.field == "content" else self._answers[slot.index][slot.field]
            )
            return slot.transform(text)

        if layout.text(value) == tail:
            return layout
        name = self._voice.template.name
        if turn.images:
            raise UnsupportedTemplate(
                f"chat template {name} writes images otherwise in this conversation than in a short one"
            )
        numbers = [index for index, role in enumerate(turn.roles) if role == "tool"]
        changes = {
            part.index: part.transform
            for part in layout.parts
            if isinstance(part, MessageSlot) and part.field == "content"
        }
        parts: list[str | MessageSlot] = []
        for part in split_slots(tail, name=name, contents=len(turn.roles)):
            if isinstance(part, str):
                parts.append(part)
            elif part[0] == "c":
                parts.append(MessageSlot("content", part[1], changes[part[1]]))
            else:
                parts.append(MessageSlot("name" if part[0] == "n" else "tool_call_id", numbers[part[1] - calls], str))
        return replace(layout, parts=tuple(parts))


def _rewritten_place(before: str, after: str, number: int) -> str:
    """The place where two renderings part, in words."""
    for turn in range(number):
        if dummies.thought_mark(turn) in before and dummies.thought_mark(turn) not in after:
            return _DROPS
    at = len(dummies.shared_text(before, after))
    shown = (dummies.ANY_MARK.sub("…", text[max(at - 20, 0) : at + 30]) for text in (after, before))
    new, old = (_TORN_MARK.sub("…", text) for text in shown)
    return f"after turn {number + 1} it writes {new!r} where {old!r} stood"
