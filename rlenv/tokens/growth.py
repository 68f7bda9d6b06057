"""Whether a chat template only grows: found by rendering made-up conversations of the shape of the one that is played.

The law, for each observation: the text of the conversation before the turn, its generation prompt included, is the
beginning of the text behind it; there follow, in order and once, the turn's thinking, text and calls as they were
sampled, the stop mark, and what the layout of these answers writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.dummies import (
    KEYS,
    TOOL,
    USER,
    Form,
    Marks,
    Turn,
    Way,
    answer_messages,
    argument_mark,
    content_mark,
    said_mark,
    shared_text,
    thought_mark,
    turn_message,
)
from rlenv.tokens.shapes import Reader, Story, shorter
from rlenv.tokens.slots import Layout, Slot, split_slots

__all__ = ["Finding", "Growth"]

_KEPT: Final = 4096
_DROPS: Final = "it drops the thinking of earlier turns once these messages follow"
_ANY_MARK: Final = re.compile("qz[tx]\\d+zq|qza\\d+v\\d+zq|\ue000[cni]\\d+\ue000")
_TORN_MARK: Final = re.compile("^[^\ue000]{0,8}\ue000|\ue000[^\ue000]{0,8}$")
_NAMED_END: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>$")  # as Kimi K3 writes: three tokens, one of them a word
_NAMED_BEGIN: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>")
_ID: Final = "\ue000i"
_LONGEST_NAME: Final = 20
_First = Sequence[Mapping[str, Any]]
Derive = Callable[[tuple[str, ...], tuple[int, ...], _First | None, _First], Layout]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a template does once a turn of a shape is answered.

    Attributes:
        fault: how it writes the history otherwise; "" where the text only grows.
        layout: what it writes behind the turn.
        opens: whether the next prompt ends inside a block of thinking.
        is_refused: whether the template takes no such conversation at all; `fault` says why.
    """

    fault: str
    layout: Layout
    layout_roles: tuple[str, ...]
    opens: bool = False
    is_refused: bool = False


class Growth:
    """Looks conversations up by shape, and renders one of each new shape; shared by all trajectories of a process.

    Args:
        template: the chat template.
        derive: the layout of roles and images, for first messages and tools (None: made-up ones).
        added: the tokenizer's added tokens and their ids.
        thinking: pairs of marks that the policy may write around thinking.
        place: the placeholder of an image.
    """

    def __init__(
        self,
        template: ChatTemplate,
        derive: Derive,
        *,
        added: Mapping[str, int],
        thinking: Sequence[tuple[str, str]],
        place: str = "",
    ) -> None:
        marks = Marks(tuple(added))
        self._added = added
        self._template = template
        self._derive = derive
        self._place = place
        self._marks = marks
        self._findings: dict[Any, Finding] = {}
        self._opens: dict[Any, bool] = {}
        self._layouts: dict[Any, Layout | UnsupportedTemplate] = {}
        self._told_apart: dict[Any, None] = {}
        self.way, pairs, header = _thinking_of(template, marks, thinking)
        self.reader = Reader(pairs, header=header)
        self._calls: Reader | None = None

    def read(
        self,
        story: Story,
        text: str,
        roles: tuple[str, ...],
        images: tuple[int, ...],
        said: Message | None,
        *,
        is_open: bool,
        ids: Callable[[], Collection[int]],
    ) -> Turn:
        """The shape of a turn of this text that messages of these roles answer.

        Args:
            said: how it was read, which says whether text stands beside its calls; None: found by the template's marks.
            is_open: whether its prompt ends inside a block of thinking.
            ids: what was sampled: a mark that is a token and was only spelled is text.
        """
        if self._calls is None and "tool" in roles:
            layout = self._layout(story, Turn("none", "", ("tool",)))
            self._calls = replace(self.reader, opener=layout.opener, closer=layout.closer)
        reader = self._calls or self.reader
        spelled = [pair for pair in reader.thinking if (pair[0] in text or pair[1] in text) and self._numbers(pair)]
        if spelled:
            sampled = ids()
            if spelled := [pair for pair in spelled if not any(number in sampled for number in self._numbers(pair))]:
                left = tuple(pair for pair in reader.thinking if pair not in spelled)
                reader = replace(reader, thinking=left)
        turn = reader.turn(text, roles, images, is_open=is_open)
        if said is not None and turn.calls and bool(said.content.strip()) != bool(turn.text):
            turn = turn._replace(text="before" if said.content.strip() else "")
        return turn

    def _numbers(self, pair: tuple[str, str]) -> list[int]:
        return [self._added[mark] for mark in pair if mark in self._added]

    def opens(self, story: Story) -> bool:
        """Whether the prompt of a conversation ends inside a block of thinking."""
        key = story.of_prompt()
        found = self._opens.get(key)
        if found is None:
            found = self._opens[key] = self.reader.is_left_open(self._render(story, story.messages))
            _bound(self._opens)
        return found

    def is_plain(self, story: Story) -> bool:
        """Whether the template knows no calls, so that they are content as they were sampled."""
        try:
            return self._layout(story, Turn("none", "", ("tool",))).form.is_plain
        except UnsupportedTemplate:
            return False

    def closes(self, story: Story) -> bool:
        """Whether the prompt of a conversation ends behind a block of thinking that it opens and closes itself."""
        end = self._render(story, story.messages)[-200:].rstrip()
        for open, close in self.reader.thinking:
            _, mark, inside = end.removesuffix(close).rpartition(open)
            if close and open and end.endswith(close) and mark and not inside.strip():
                return True
        return False

    def key(self, story: Story, turn: Turn) -> Any:
        """What findings are kept by."""
        prompt = story.of_prompt()
        if prompt in self._told_apart:
            return prompt, tuple(story.turns), turn
        return prompt, story.history, _short(turn)

    def knows(self, story: Story, turn: Turn) -> bool:
        """Whether a conversation of this shape was looked at before."""
        return self.key(story, turn) in self._findings

    def look(self, story: Story, turn: Turn) -> Finding:
        """What the template does with a conversation that goes on by a turn and its answers.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these answers at all.
        """
        key = self.key(story, turn)
        found = self._findings.get(key)
        if found is None:
            found = self._look(story, turn)
            if self._tells_apart(story, turn, found):
                key = self.key(story, turn)
                found = self._look(story, turn)
            self._findings[key] = found
            _bound(self._findings)
        if len(turn.roles) != len(found.layout_roles):
            return replace(found, layout=self._layout(story, turn), layout_roles=turn.roles)
        return found

    def base(self, story: Story, turn: Turn) -> Layout:
        """The layout of the answers, derived for a short conversation, or for this prompt where that is refused.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for them.
        """
        return self._layout(story, turn)

    def last_end(self, story: Story, turn: Turn, ends: Collection[str]) -> str:
        """The first of some marks that the template writes behind a turn that is the last; "" where there is none."""
        try:
            layout = self._layout(story, turn)
            said = turn_message(layout.form, self.way, turn, 0, 0)
            text = self._template.render(
                [*story.messages, said], tools=story.tools, now=story.now, add_generation_prompt=False
            )
        except UnsupportedTemplate:
            return ""
        places = [text.rfind(word) + len(word) for word in _words(turn, 0) if word in text]
        found = [(text.find(mark, max(places, default=len(text))), mark) for mark in ends]
        return min((one for one in found if one[0] >= 0), default=(-1, ""))[1]

    def marks_of_turns(self) -> tuple[frozenset[str], frozenset[str]]:
        """The marks that an assistant's turn begins with behind its prompt, and those inside turns."""
        begins: set[str] = set()
        inside: set[str] = set()
        for thinking in ("none", "some"):
            for turn in (Turn(thinking, "before", ("user",)), Turn(thinking, "", ("tool",))):
                grown = self._grown(turn)
                words = [place for word in _words(turn, 0) if (place := grown.find(word)) >= 0]
                found = self._marks.find(grown[: max(words)]) if words else []
                if thinking == "none":
                    begins |= {mark for at, mark in found if not grown[:at].strip()}
                inside |= {mark for _, mark in found}
        return frozenset(begins), frozenset(inside)

    def _grown(self, turn: Turn) -> str:
        """What a template writes of a first turn behind its prompt; "" where it takes no such turn."""
        story = Story([USER], (), datetime(2000, 1, 1))
        try:
            form = self._layout(story, turn).form
            if form.has_tools:
                story = Story([USER], (TOOL,), story.now)
            before = self._render(story, story.messages)
            said = turn_message(form, self.way, turn, 0, 0)
            answers = answer_messages(form, turn, ["r"] * len(turn.roles), 0)
            after = self._render(story, [*story.messages, said, *answers])
        except UnsupportedTemplate:
            return ""
        return after[len(_shared(before, after)) :]

    # -- one shape -----------------------------------------------------------------------------------------------

    def _look(self, story: Story, turn: Turn) -> Finding:
        is_whole = story.of_prompt() in self._told_apart
        if not is_whole:
            turn = _short(turn)
        layout = self._layout(story, turn)
        told = story.turns if is_whole else story.told()
        refused: UnsupportedTemplate | None = None
        for form in (
            (layout.form,)
            if layout.form.is_plain
            else dict.fromkeys((layout.form, replace(layout.form, arguments_as_text=not layout.form.arguments_as_text)))
        ):
            try:
                return self._play(story, told, turn, layout, form)
            except UnsupportedTemplate as error:
                refused = refused if refused is not None else error
        return Finding(str(refused), layout, turn.roles, is_refused=True)

    def _play(self, story: Story, told: Sequence[Turn], turn: Turn, layout: Layout, form: Form) -> Finding:
        conversation = list(story.messages)
        calls = 0
        for number, one in enumerate(told):
            contents = [f"qzr{number}v{index}zq" for index in range(len(one.roles))]
            conversation.append(turn_message(form, self.way, one, number, calls))
            conversation += answer_messages(form, one, contents, calls)
            calls += one.calls
        number = len(told)
        before = self._render(story, conversation)
        marks = [content_mark(index) for index in range(len(turn.roles))]
        said = turn_message(form, self.way, turn, number, calls)
        after = self._render(story, [*conversation, said, *answer_messages(form, turn, marks, calls)])
        opens = self.reader.is_left_open(after)
        if not after.startswith(before):
            return Finding(_rewritten(before, after, number), layout, turn.roles, opens)
        grown = after[len(before) :]
        words = _words(turn, number)
        fault, end = self._words_fault(grown, words, turn, is_open=self.reader.is_left_open(before))
        if fault:
            return Finding(fault, layout, turn.roles, opens)
        at = grown.find(layout.stop, end)
        limit = grown.find(marks[0], end)
        if at < 0 or 0 <= limit < at:
            return Finding(f"it ends such a turn without {layout.stop}", layout, turn.roles, opens)
        ids = after.count(_ID, 0, len(before) + at)
        if ids > before.count(_ID) and self._alone(story, [*conversation, said]).count(_ID) < ids:
            return Finding("it writes the ids of calls once results follow, not before", layout, turn.roles, opens)
        return self._tail(story, turn, layout, grown[at + len(layout.stop) :], calls, form, opens)

    def _alone(self, story: Story, conversation: Sequence[Mapping[str, Any]]) -> str:
        return self._template.render(conversation, tools=story.tools, now=story.now, add_generation_prompt=False)

    def _words_fault(self, grown: str, words: Sequence[str], turn: Turn, *, is_open: bool) -> tuple[str, int]:
        """How a turn's own words are written otherwise ("" where they are not), and where they end."""
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
        held = self.reader.blocks(gap, is_open=is_open)
        if turn.thinking in ("none", "left", "stray") and held != "none":
            what = "a mark that closes" if held == "closed" else "an empty block of"
            return f"it writes {what} thinking where a turn has none", 0
        if turn.thinking == "closed" and held != "closed":
            return "it leaves out a mark that closes thinking, which no mark has opened", 0
        if turn.thinking == "stray" and not self.reader.closes(grown[first:].partition("\ue000")[0]):
            return "it leaves out a mark that closes thinking, which no mark has opened", 0
        if turn.thinking in ("cut", "left") and self.reader.closes(grown[at:].partition("\ue000")[0]):
            return "it closes a block of thinking that a turn left open", 0
        if turn.thinking == "empty" and held != "empty":
            return "it leaves out the empty block of thinking of a turn", 0
        return "", at

    def _tail(
        self, story: Story, turn: Turn, layout: Layout, tail: str, calls: int, form: Form, opens: bool
    ) -> Finding:
        """The finding where the history stands, by what is written behind the stop mark."""
        numbers = [index for index, role in enumerate(turn.roles) if role == "tool"]
        fields = answer_messages(form, turn, [content_mark(index) for index in range(len(turn.roles))], calls)

        def value(slot: Slot) -> str:
            if slot.field == "image":
                return self._place
            field = "content" if slot.field == "content" else slot.field
            text = content_mark(slot.index) if field == "content" else fields[slot.index][field]
            return slot.transform(text)

        if layout.text(value) == tail:
            return Finding("", layout, turn.roles, opens)
        if turn.images:
            raise UnsupportedTemplate(
                f"chat template {self._template.name} writes images otherwise in this conversation than in a short one"
            )
        changes = {
            part.index: part.transform for part in layout.parts if isinstance(part, Slot) and part.field == "content"
        }
        parts: list[str | Slot] = []
        for part in split_slots(tail, name=self._template.name, contents=len(turn.roles)):
            if isinstance(part, str):
                parts.append(part)
            elif part[0] == "c":
                parts.append(Slot("content", part[1], changes[part[1]]))
            else:
                parts.append(Slot("name" if part[0] == "n" else "tool_call_id", numbers[part[1] - calls], str))
        return Finding("", replace(layout, parts=tuple(parts)), turn.roles, opens)

    def _tells_apart(self, story: Story, turn: Turn, found: Finding) -> bool:
        """Whether a template was just seen to write answers otherwise than in a short conversation.

        It may count calls or turns, so that shapes alone do not tell its conversations apart: from now on each
        conversation of this prompt is looked at by itself.
        """
        prompt = story.of_prompt()
        if prompt in self._told_apart or found.fault:
            return False
        if found.layout.parts == self._layout(story, _short(turn)).parts:
            return False
        self._told_apart[prompt] = None
        _bound(self._told_apart)
        return True

    def _layout(self, story: Story, turn: Turn) -> Layout:
        """The layout of the answers, derived for a short conversation, or for this prompt where that is refused."""
        key = (turn.roles, turn.images)
        found = self._layouts.get(key)
        if found is None:
            found = self._kept(key, lambda: self._derive(turn.roles, turn.images, None, ()))
        if isinstance(found, UnsupportedTemplate):
            own = (story.of_prompt(), *key)
            refused, found = found, self._layouts.get(own)
            if found is None:
                found = self._kept(own, lambda: self._derive(turn.roles, turn.images, story.messages, story.tools))
            if isinstance(found, UnsupportedTemplate):
                raise UnsupportedTemplate(str(refused)) from found
        return found

    def _kept(self, key: Any, derive: Callable[[], Layout]) -> Layout | UnsupportedTemplate:
        found: Layout | UnsupportedTemplate
        try:
            found = derive()
        except UnsupportedTemplate as error:
            found = error
        self._layouts[key] = found
        _bound(self._layouts)
        return found

    def _render(self, story: Story, conversation: Sequence[Mapping[str, Any]]) -> str:
        return self._template.render(conversation, tools=story.tools, now=story.now)


def _short(turn: Turn) -> Turn:
    return turn if turn.images else shorter(turn)


def _bound(kept: dict[Any, Any]) -> None:
    while len(kept) > _KEPT:
        kept.pop(next(iter(kept)), None)


def _words(turn: Turn, number: int) -> list[str]:
    words = [thought_mark(number)] if turn.thinking in ("some", "cut", "left", "stray") else []
    calls = [argument_mark(number, index) for index in range(turn.calls)]
    if turn.text == "behind":
        return [*words, *calls, said_mark(number)]
    return [*words, *((said_mark(number),) if turn.text else ()), *calls]


def _rewritten(before: str, after: str, number: int) -> str:
    """Where two renderings part, in words."""
    for turn in range(number):
        if thought_mark(turn) in before and thought_mark(turn) not in after:
            return _DROPS
    at = len(shared_text(before, after))
    shown = (_ANY_MARK.sub("…", text[max(at - 20, 0) : at + 30]) for text in (after, before))
    new, old = (_TORN_MARK.sub("…", text) for text in shown)
    return f"after turn {number + 1} it writes {new!r} where {old!r} stood"


def _thinking_of(
    template: ChatTemplate, marks: Marks, given: Sequence[tuple[str, str]]
) -> tuple[Way, tuple[tuple[str, str], ...], str]:
    """How the template is given thinking, the marks around it, and what stands before an assistant's turn."""
    user = {"role": "user", "content": "u"}
    now = datetime(2000, 1, 1)

    def render(*messages: Mapping[str, Any], generate: bool) -> str:
        try:
            return template.render([user, *messages], add_generation_prompt=generate, now=now)
        except UnsupportedTemplate:
            return ""

    opening = render(generate=True)
    header = opening[len(_shared(opening, render(generate=False))) :]
    pairs = tuple((open, close) for open, close in given)
    form = Form()
    for key in KEYS:
        for turn in (Turn("some", "before", ("user",)), Turn("some", "before", ("tool",)), Turn("some", "", ("tool",))):
            said = turn_message(form, Way(key), turn, 0, 0)
            answers = answer_messages(form, turn, ["r"] * len(turn.roles), 0) if turn.calls else []
            text = render(said, *answers, generate=bool(answers))
            before, mark, behind = text.partition(thought_mark(0))
            if not mark:
                continue
            bare = render(
                turn_message(form, Way(key), turn._replace(thinking="none"), 0, 0), *answers, generate=bool(answers)
            )
            pair = _pair(before, behind, opening, bare, marks)
            if pair is not None:
                pairs = tuple(dict.fromkeys((pair, *pairs)))
                header = header.partition(pair[0])[0]
            return Way(key), pairs, header.strip()
    first = pairs[0] if pairs else ("<think>", "</think>")
    for open, _ in pairs:
        header = header.partition(open)[0]
    return Way("", *first), pairs, header.strip()


def _pair(before: str, behind: str, opening: str, bare: str, marks: Marks) -> tuple[str, str] | None:
    """The marks around thinking, from the text before and behind it."""
    named = _NAMED_END.search(before.rstrip()), _NAMED_BEGIN.match(behind.lstrip())
    if named[0] and named[1] and named[0][1] == named[1][1]:
        return named[0][0], named[1][0]
    start = before[len(opening) :].strip() if before.startswith(opening) else ""
    if not start:
        shared = _shared(before, bare)
        start = before[len(shared) :].strip()
    if not start:
        found = marks.find(before[-100:].rstrip()) or Marks().find(before[-100:].rstrip())
        start = before[-100:].rstrip()[found[-1][0] :] if found else ""
        if len(start) > len(found[-1][1]) + _LONGEST_NAME if found else True:
            start = ""
    end = marks.first(behind.lstrip()) or behind.lstrip().partition("\n")[0][:40]
    end = _ANY_MARK.split(end)[0].strip()
    return (start, end) if start and end else None


def _shared(one: str, other: str) -> str:
    """What two texts begin with alike, up to the last white space or mark's end, so that no mark is torn apart."""
    at = len(shared_text(one, other))
    if at == len(one) or at == len(other):
        return one[:at]
    torn = max(one.rfind(sign, max(at - 40, 0), at) for sign in "<[")
    whole = max(one.rfind(sign, max(at - 40, 0), at) for sign in ">]")
    return one[:torn] if torn > whole else one[:at]
