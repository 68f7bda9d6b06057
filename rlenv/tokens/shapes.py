"""The shapes of turns, read from what was sampled, the shape of a conversation so far, and what ends turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from rlenv.dialects.base import SameTurn
from rlenv.dialects.reading import MarkPositions
from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.dummies import TurnShape

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder
    from rlenv.tokens.growth import Growth


def words_of(mark: str) -> set[str]:
    """The words in a mark, which one that closes what it opens mostly shares with it."""
    return set(re.findall("[a-z]{4,}", mark.lower()))


_MOST = 2
"""The most turns of one shape, one behind the other, that a template is taken to tell apart."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads what a turn is made of from its text alone; linear in the text.

    Attributes:
        thinking: the marks around thinking, those of the template first.
        opener: what a call begins with; "" where it is not known.
        closer: what a call, or a turn's calls, end with; "" where it is not known.
        header: what the template writes before a turn: a policy that writes several parts writes it too.
        paired: the marks of `thinking` of which the second names what it closes.
        marks: each mark of `thinking` once.
    """

    thinking: tuple[tuple[str, str], ...]
    opener: str = ""
    closer: str = ""
    header: str = ""
    paired: tuple[tuple[str, str], ...] = field(init=False)
    marks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(dict.fromkeys(mark for pair in self.thinking for mark in pair if mark)))
        # Others close with a mark that ends much else, too.
        paired = ((open, close) for open, close in self.thinking if open and words_of(open) & words_of(close))
        object.__setattr__(self, "paired", tuple(paired))

    def turn(self, text: str, roles: tuple[str, ...], images: tuple[int, ...], *, is_open: bool) -> TurnShape:
        """The shape of a turn.

        Args:
            is_open: whether the prompt has opened a block of thinking.
        """
        has_calls = "tool" in roles
        thinking, before, at = self._find_thinking(text, is_open=is_open, opener=self.opener if has_calls else "")
        if not has_calls:
            return TurnShape(thinking, "before" if before else "", roles, images)
        behind = False
        if at >= 0 and self.closer:
            end = text.rfind(self.closer, at)
            behind = end >= 0 and bool(text[end + len(self.closer) :].strip())
        # Calls that cannot be found are not looked for: what was sampled may be a call that could not be read.
        before = before and at >= 0
        where = "both" if before and behind else "before" if before else "behind" if behind else ""
        return TurnShape(thinking, where, roles, images)

    def _find_thinking(self, text: str, *, is_open: bool, opener: str) -> tuple[str, bool, int]:
        """The kind of thinking, whether other text stands before the first call, and where that begins (or -1)."""
        thinking, at, has_text = "none", 0, False
        if not is_open and not self.thinks(text):  # the common turn, for which nothing below finds anything else
            call = text.find(opener) if opener else -1
            return thinking, self._is_text(text[:call] if call >= 0 else text), call
        if is_open:
            end, size = self._close(text, 0)
            if size:
                thinking = "some" if text[:end].strip() else "empty"
            elif self._call(text, 0, opener) < 0:
                return "left", False, -1
            at = end + size if size else 0
        else:
            thinking, at = self._find_unopened(text, opener)
        places, call = MarkPositions(text), self._call(text, at, opener)
        while True:
            if 0 <= call < at:
                call = self._call(text, at, opener)
            limit = call if call >= 0 else len(text)
            begins = [(places.find(pair[0], at), pair) for pair in self.thinking if pair[0]]
            begins = [one for one in begins if 0 <= one[0] <= limit - len(one[1][0])]
            begin, pair = min(begins, default=(-1, ("", "")))
            has_text = has_text or self._is_text(text[at : begin if begin >= 0 else limit])
            if begin < 0:
                return thinking, has_text, call
            body = begin + len(pair[0])
            end = places.find(pair[1], body)
            if end < 0:
                return "cut", has_text, -1
            if thinking in ("closed", "stray"):
                thinking = "stray"
            elif text[body:end].strip():
                thinking = "some"
            elif thinking == "none":
                thinking = "empty"
            at = end + len(pair[1])

    def _find_unopened(self, text: str, opener: str) -> tuple[str, int]:
        """The kind of a block that is closed and that nothing has opened, and where it ends."""
        for open, close in self.paired:
            end = text.find(close)
            if end < 0 or open in text[:end] or 0 <= self._call(text, 0, opener) < end:
                continue
            if not any(other and other in text[:end] for other, _ in self.thinking):
                return "stray" if text[:end].strip() else "closed", end + len(close)
        return "none", 0

    def _call(self, text: str, at: int, opener: str) -> int:
        """The beginning of the first call, -1 where there is none; a mark of thinking may begin as calls do."""
        place = text.find(opener, at) if opener else -1
        while place >= 0:
            word = place + len(opener) - len(opener.lstrip())
            mark = next((one for pair in self.thinking for one in pair if one and text.startswith(one, word)), "")
            if not mark:
                return place
            place = text.find(opener, word + len(mark))
        return -1

    def _close(self, text: str, at: int) -> tuple[int, int]:
        found = [(text.find(close, at), len(close)) for _, close in self.thinking if close]
        return min((one for one in found if one[0] >= 0), default=(len(text), 0))

    def _is_text(self, text: str) -> bool:
        text = text.strip()
        if self.header and self.header in text:
            text = text.replace(self.header, "").strip()
        return bool(text)

    def thinks(self, text: str) -> bool:
        """True if a mark of thinking stands in a text."""
        for mark in self.marks:  # noqa: SIM110 (every turn asks, and a generator takes four times as long)
            if mark in text:
                return True
        return False

    def is_left_open(self, prompt: str) -> bool:
        """True if a prompt ends inside a block of thinking that it has opened."""
        end = prompt[-200:].rstrip()
        return any(open and end.endswith(open) for open, _ in self.thinking)

    def closes(self, text: str) -> bool:
        """True if a text closes a block of thinking."""
        return any(close and close in text for _, close in self.thinking)

    def blocks(self, text: str, *, is_open: bool) -> str:
        """The kind of thinking that the text before a turn's own words holds, behind a prompt that opens a block."""
        opens = any(open and open in text for open, _ in self.thinking)
        if self.closes(text):
            is_closed = not opens and not is_open and any(close in text for _, close in self.paired)
            return "closed" if is_closed else "empty"
        return "some" if opens else "none"


def shorter(turn: TurnShape) -> TurnShape:
    """A turn with at most two answers of one role in a row: what later turns can tell of it."""
    roles = turn.roles
    if len(roles) <= _MOST:
        return turn if not turn.images else turn._replace(images=())
    kept = tuple(
        role for index, role in enumerate(roles) if index < _MOST or roles[index - _MOST : index] != (role,) * _MOST
    )
    return turn._replace(roles=kept, images=())


class Story:
    """A conversation's first messages, its tools, and the shapes of its turns so far; used by one task at a time.

    Attributes:
        now: the time that the template is told, the same for the whole conversation.
        turns: every turn so far.
    """

    __slots__ = ("_key", "_settled", "_since", "messages", "now", "tools", "turns")

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], now: datetime
    ) -> None:
        self.messages = messages
        self.tools = tools
        self.now = now
        self.turns: list[TurnShape] = []
        self._settled: frozenset[TurnShape] = frozenset()
        self._since: tuple[tuple[TurnShape, int], ...] = ()
        self._key: Any = None

    def of_prompt(self) -> Any:
        """A hashable that is the same for prompts of one shape: roles and forms of messages, and their tools."""
        if self._key is None:
            roles = tuple((message.get("role"), type(message.get("content")) is str) for message in self.messages)
            try:
                tools = orjson.dumps(self.tools) if self.tools else b""
                told = [message for message in self.messages if message.get("role") not in ("system", "user")]
                self._key = hash((roles, tools, orjson.dumps(self.messages) if told else b""))
            except TypeError:  # of no JSON: a conversation of its own
                self._key = object()
        return self._key

    def add(self, turn: TurnShape) -> None:
        """Goes on behind a turn and what answers it."""
        self.turns.append(turn)
        turn = shorter(turn)
        if turn.roles[-1] != "tool":
            self._settled |= {*(one for one, _ in self._since), turn}
            self._since = ()
            return
        for place, (one, count) in enumerate(self._since):
            if one == turn:
                if count < _MOST:
                    self._since = (*self._since[:place], (turn, count + 1), *self._since[place + 1 :])
                return
        self._since += ((turn, 1),)

    def after(self, turn: TurnShape) -> Story:
        """The conversation that goes on behind a turn and what answers it; this one is unchanged."""
        out = Story(self.messages, self.tools, self.now)
        out.turns = [*self.turns]
        out._settled, out._since, out._key = self._settled, self._since, self._key
        out.add(turn)
        return out

    @property
    def history(self) -> tuple[frozenset[TurnShape], tuple[tuple[TurnShape, int], ...]]:
        """The shapes so far, without their number: those before the last reply, and those since."""
        return self._settled, self._since

    def told(self) -> list[TurnShape]:
        """A short conversation of the shapes so far: each once before the last reply, at most twice since."""
        before = sorted(self._settled, key=lambda turn: (turn.roles[-1] != "tool", turn))
        return [*before, *(turn for turn, count in self._since for _ in range(count))]


def end_marks(
    growth: Growth, named: Sequence[str], written: Sequence[str], same_turn: SameTurn | None
) -> tuple[frozenset[str], tuple[str, ...], frozenset[str]]:
    """All marks that end a turn, what is odd about them, in words, and the marks that begin an assistant's turn.

    A mark that the template writes behind a turn and inside one (gpt-oss ends each channel with `<|end|>`) ends none.

    Args:
        named: the marks that were given and the tokenizer's end token.
        written: the marks that the template writes behind turns.
    """
    given = frozenset(mark for mark in named if mark)
    if same_turn is not None:
        return given | frozenset(written), (), frozenset()
    begins, inside = growth.marks_of_turns()
    remarks = [f"the template writes {text!r} behind a turn, and no token is in it" for text in growth.untold_end()]
    for mark in sorted(given):
        if mark in growth.reader.header or mark in begins:
            remarks.append(
                f"{mark} ends a turn by the tokenizer's word, and begins the assistant's turn in the template"
            )
        elif mark in inside:
            remarks.append(f"{mark} ends a turn by the tokenizer's word, and stands inside turns in the template")
    found = frozenset(written) - inside
    # Generation would end before a turn's first word.
    kept = given - begins if found - begins else given
    return kept | found, tuple(remarks), frozenset(begins | {mark for mark in given if mark in growth.reader.header})


def end_of(encoder: TokenEncoder, story: Story, turn: TurnShape, *, is_last: bool) -> int:
    """The id with which the template ends a turn: behind it stands what answers it, or nothing.

    Args:
        turn: its shape, with the roles of what answers it; that of a user's message for the last one.
        is_last: whether nothing answers it. A template may end such a turn otherwise (gpt-oss: `<|return|>`).

    Raises:
        UnsupportedTemplate: exact ids cannot be promised for these answers at all.
    """
    if encoder.same_turn is not None:
        return encoder.stop_id
    added = encoder.vocabulary.added
    if not is_last:
        return added[encoder.look(story, turn).layout.stop]
    mark = encoder.growth.last_end(story, turn, encoder.vocabulary.texts(encoder.end_ids))
    if not mark:  # it writes none behind a last turn (GLM): the one that the next message begins with
        try:
            mark = encoder.growth.layout(story, turn).stop
        except UnsupportedTemplate:  # it takes no user's message here
            mark = encoder.stop
    return added[mark]
