"""One message, told apart into content, thinking and calls from left to right."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rlenv.dialects.grammar import Grammar
from rlenv.dialects.reading import Call, Outcome, Reading, malformed
from rlenv.messages import MalformedCall, ParsedAction, ToolCall

__all__ = ["Scan", "is_beginning"]


class Scan:
    """The reading of one message; used once.

    All in front of `_at` is told apart already. What follows is decided by whatever stands first: a mark of the
    grammar, or one that opens or closes thinking. A mark is looked up again only once it lies behind, so that no text
    is searched for it twice.
    """

    # What a message has that has none of it.
    _at = 0
    _is_cut = False
    _closes = False
    """Whether the next mark of thinking closes a block that this message has not opened."""
    _blank = 0
    """How many parts of the content from the first on are blank, looked at once each."""
    _behind = 0
    """How many parts of the content stood before the end of the last call."""
    _section: tuple[int, int, int] | None = None
    """Where an open section stands, with the number of calls and of parts of the content before it."""
    _reading: Reading | None = None

    def __init__(self, grammar: Grammar, text: str, tools: Any) -> None:
        self._grammar = grammar
        self._text = text
        self._tools = tools
        self._length = len(text)
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[Call] = []
        self._is_start = bool(grammar.bare)
        self._in_section = not grammar.spec.section_open
        self._may_be_inside = grammar.may_close_thinking

    def action(self) -> ParsedAction:
        """What the message says."""
        text, grammar = self._text, self._grammar
        if grammar.opens_thinking and not self._end_opened():
            return ParsedAction("", "".join(self._thinking).strip(), (), True)
        at, find, length = self._at, text.find, self._length
        self._places = [find(mark, at) for mark in grammar.marks]
        has_thinking = bool(grammar.think_open)
        self._next_open = find(grammar.think_open, at) if has_thinking else -1
        self._next_close = find(grammar.think_close, at) if has_thinking else -1
        if max(self._next_open, self._next_close, *self._places) < 0 and not at and not grammar.bare:
            return ParsedAction(text.strip())
        while self._at < length:
            place, mark = self._next_mark()
            horizon = self._next_thinking()
            outcome = self._bare_call(horizon) if self._is_start else None
            if outcome is not None:
                place = self._at
            elif mark and place < horizon:
                outcome = self._at_mark(place, mark)
            elif horizon < length:
                self._think(horizon)
            else:
                break
            if outcome is not None:
                self._take(outcome, place)
        return self._end()

    def _read(self) -> Reading:
        if self._reading is None:
            self._reading = Reading(self._text, self._tools, self._grammar.lenient)
        return self._reading

    # -- what stands next ----------------------------------------------------------------------------------------

    def _next_mark(self) -> tuple[int, str]:
        """The place and the text of the next mark of the grammar; the text's end and "" where there is none."""
        at, places, marks = self._at, self._places, self._grammar.marks
        place, which = self._length, -1
        for number, found in enumerate(places):
            if 0 <= found < at:
                found = places[number] = self._text.find(marks[number], at)
            if 0 <= found < place:
                place, which = found, number
        return (place, marks[which]) if which >= 0 else (place, "")

    def _next_thinking(self) -> int:
        """Where the next block of thinking begins, or ends that the prompt has begun; the text's end without any."""
        at = self._at
        if 0 <= self._next_open < at:
            self._next_open = self._text.find(self._grammar.think_open, at)
        horizon = self._next_open if self._next_open >= 0 else self._length
        if not self._may_be_inside:
            self._closes = False
            return horizon
        if 0 <= self._next_close < at:
            self._next_close = self._text.find(self._grammar.think_close, at)
        self._closes = 0 <= self._next_close < horizon
        return self._next_close if self._closes else horizon

    # -- thinking ------------------------------------------------------------------------------------------------

    def _end_opened(self) -> bool:
        """Reads the block of thinking that the prompt has opened. False where the message ends in it."""
        text, grammar = self._text, self._grammar
        begin = len(grammar.think_open) if text.startswith(grammar.think_open) else 0
        end = text.find(grammar.think_close, begin)
        self._at = end + len(grammar.think_close)
        if end < 0:
            end = self._at = grammar.call_at(text) if "open_thinking" in grammar.lenient else -1
            if end >= 0:
                self._read().used.append("open_thinking")
        self._thinking.append(text[begin:end] if end >= 0 else text[begin:])
        return end >= 0

    def _think(self, horizon: int) -> None:
        """Reads on from the mark of thinking at `horizon`, behind the block that it opens or closes."""
        if self._closes:
            self._end_unopened()
            return
        text, content, close = self._text, self._content, self._grammar.think_close
        content.append(text[self._at : horizon])
        begin = horizon + len(self._grammar.think_open)
        end = text.find(close, begin)
        self._is_cut = end < 0
        self._thinking.append(text[begin:] if end < 0 else text[begin:end])
        self._at = self._length if end < 0 else end + len(close)
        self._may_be_inside = False
        blank = self._blank
        while blank < len(content) and not content[blank].strip():
            blank += 1
        self._blank = blank
        self._is_start = bool(self._grammar.bare) and blank >= len(content)

    def _end_unopened(self) -> None:
        """A block is closed that this message has not opened: all so far was thinking."""
        self._thinking, self._content, self._calls = [self._text[: self._next_close]], [], []
        self._section, self._blank, self._may_be_inside = None, 0, False
        self._in_section = not self._grammar.spec.section_open
        self._at = self._next_close + len(self._grammar.think_close)
        self._is_start = bool(self._grammar.bare)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _bare_call(self, horizon: int) -> Outcome | None:
        """The calls without a mark that stand here, where a message may start with some."""
        form = self._grammar.bare_at(self._text, self._at)
        self._is_start = form is not None and self._at < horizon  # another one may stand right behind it
        return form.read(self._read(), self._at, self._at) if form is not None and self._is_start else None

    def _at_mark(self, place: int, mark: str) -> Outcome | None:
        """The calls that the mark at `place` opens. None where it opens none: it is a section's, say, or text."""
        text, grammar, reading = self._text, self._grammar, self._read()
        spec = grammar.spec
        begin = place + len(mark)
        self._content.append(text[self._at : place])
        form = grammar.form_at(mark, text, begin)
        if form is None:
            if mark == spec.section_open and spec.section_must_close and reading.find(spec.section_close, place) < 0:
                reason = f"the section of calls is not closed; expected {spec.section_close}"
                return [malformed(text, reason, place, self._length)], self._length, True
            self._pass(place, mark)
            return None
        if mark in grammar.spellings:
            reading.used.append("spellings")
        outcome = form.read(reading, place, begin)
        if self._in_section or mark == spec.section_open or reading.allows("bare_calls"):
            return outcome
        _, end, is_open = outcome
        reason = f"the call stands outside its section; expected {spec.section_open} before it"
        return [malformed(text, reason, place, max(end, begin))], end, is_open

    def _take(self, outcome: Outcome, start: int) -> None:
        """Takes the calls that begin at `start`, unless they are spoken of in thinking that ends inside them."""
        calls, end, is_open = outcome
        if self._reading is not None and self._reading.has_surrogates:
            calls = [_checked(self._text, call) for call in calls]
        if self._closes and end > self._next_close and any(type(call) is MalformedCall for call in calls):
            self._end_unopened()
            return
        self._calls += calls
        self._is_cut = is_open
        self._at = end if end > start else start + 1
        self._behind = len(self._content)

    # -- sections and other marks --------------------------------------------------------------------------------

    def _pass(self, place: int, mark: str) -> None:
        """Reads a mark that opens no call: of a section, of a header, or one that is dropped; any other is content."""
        spec, content = self._grammar.spec, self._content
        begin = place + len(mark)
        end = self._grammar.header_end(self._text, mark, begin)
        if mark == spec.section_open:
            self._in_section = True
            if self._section is None or len(self._calls) > self._section[1]:
                self._section = (place, len(self._calls), len(content))
        elif mark == spec.section_close:
            self._in_section = False
            self._end_section(begin)
        is_cut = end == self._length and mark in spec.headers and mark[0] == "<"
        if end == begin and not is_cut and mark not in (spec.section_open, spec.section_close, *spec.drop):
            content.append(mark)
        self._is_cut = self._is_cut or is_cut
        self._at = end

    def _end_section(self, end: int) -> bool:
        """Ends the open section, if there is one: without a call in it, it is a malformed one, and its content none."""
        if self._section is None:
            return False
        start, calls_before, content_before = self._section
        self._section = None
        if len(self._calls) > calls_before:
            return False
        grammar = self._grammar
        opens = " or ".join(m for m in grammar.marks if grammar.forms[m] and m != grammar.spec.section_open)
        reason = f"there is no call in the section; expected {opens}"
        self._calls.append(malformed(self._text, reason, start, end))
        del self._content[content_before:]
        return True

    def _end(self) -> ParsedAction:
        rest, calls, content = self._text[self._at :], self._calls, self._content
        is_part = bool(calls) and is_beginning(rest.strip(), self._grammar.marks)
        if is_part and not any(map(str.strip, content[self._behind :])):
            rest, self._is_cut = "", True  # nothing but a mark of the next call, or of the section's end, that was cut
        content.append(rest)
        is_cut = self._end_section(self._length) or self._is_cut
        used = tuple(self._reading.used) if self._reading is not None else ()
        return ParsedAction("".join(content).strip(), "\n".join(self._thinking).strip(), tuple(calls), is_cut, used)


def _checked(text: str, call: Call) -> Call:
    """The call, or a malformed one where it holds half a surrogate pair, which no JSON can."""
    if isinstance(call, ToolCall):
        try:
            json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return malformed(text, "the call is not valid Unicode (a lone surrogate)", call.start, call.end)
    return call


def is_beginning(text: str, marks: Iterable[str]) -> bool:
    """Whether `text` is the beginning of one of `marks`, and not all of it."""
    return bool(text) and any(len(text) < len(mark) and mark.startswith(text) for mark in marks)
