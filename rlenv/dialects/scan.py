"""One message, told apart into content, thinking and calls from left to right, by the forms that a row's marks begin.

The forms are prepared once for each dialect."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from rlenv.dialects.base import calls_of, parsed_action
from rlenv.dialects.bodies import AnywhereForm, GemmaForm, PythonForm, TextForm
from rlenv.dialects.json_body import JsonForm, marks_of
from rlenv.dialects.reading import Call, Form, Outcome, Reading, malformed
from rlenv.dialects.tagged_body import TaggedForm
from rlenv.language.dialect import CallSpec, DialectSpec
from rlenv.messages import MalformedCall, ParsedAction, ToolCall

_FORMS: Final[dict[str, Any]] = {
    "json": JsonForm,
    "name_json": JsonForm,
    "pythonic": PythonForm,
    "tagged": TaggedForm,
    "gemma": GemmaForm,
    "text": TextForm,
}
_LONGEST_HEADER: Final = 128


class Grammar:
    """The marks of a row and the forms of calls behind them; stateless.

    Attributes:
        marks: all that begins something, thinking aside; the longest first, since one mark may be the beginning of
            another.
        forms: the forms of calls that each mark may open, () for one that opens none.
        sure: a form for each mark that no text holds by chance: it opens a call, whatever follows. A word or a code
            fence does only before what a call starts with.
        bare: the forms that need no mark at the message's start.
        lasting_section: the mark that opens a section which has to be closed; None where none does.
        spellings: the marks that are read with the leniency `spellings` alone.
        think_open, think_close: the marks around thinking, "" where the family has none.
        thinks_also: other pairs of marks around thinking.
        opens_thinking: whether the prompt ends inside a block of thinking.
        may_close_thinking: whether a message may close a block that it has not opened.
    """

    def __init__(self, spec: DialectSpec) -> None:
        self.lenient = frozenset(spec.lenient)
        self.think_open, self.think_close = spec.thinking_marks.open, spec.thinking_marks.close
        self.thinks_also = tuple((open, close) for open, close in spec.thinking_marks.also.items() if open and close)
        # A prompt that turns thinking off has closed the block that it opens.
        opens = None if spec.thinking_open and not spec.thinking else spec.thinking_open
        self.opens_thinking = bool(opens)
        self.may_close_thinking = opens is None and bool(self.think_open)
        self.section_open, self.section_close = spec.section_open, spec.section_close
        self.lasting_section = spec.section_open if spec.section_must_close else None
        self.dropped = frozenset(spec.drop)
        self.headers = {mark: close for mark, close in spec.headers.items() if mark}
        self.calls = calls_of(spec)
        others = tuple(mark for mark in (spec.section_close, spec.section_open, *spec.drop) if mark)
        stops = tuple(dict.fromkeys((*(mark for call in self.calls for mark in marks_of(call.open)), *others)))
        self.all_forms: list[Form] = [_form_of(call)(call, stops=stops, lenient=self.lenient) for call in self.calls]
        forms: dict[str, list[Form]] = {}
        for form in self.all_forms:
            if isinstance(form, TaggedForm) and spec.section_open:
                form.next_calls = (*form.opens, spec.section_open)
            for mark in form.opens:
                forms.setdefault(mark, []).append(form)
        for mark in (*others, *self.headers):
            forms.setdefault(mark, [])
        self.marks = tuple(sorted(forms, key=len, reverse=True))
        self.forms = {mark: tuple(forms[mark]) for mark in self.marks}
        self.sure = {m: some[0] for m, some in self.forms.items() if some and m[-1] in ">]" and m not in others}
        self.bare = tuple(form for form in self.all_forms if form.at_start)
        self.has_bare = bool(self.bare)
        usual = {mark for call in self.calls for mark in marks_of(call.open)}
        self.spellings = {mark for call in self.calls for mark in call.spellings} - usual

    def simple_form(self) -> JsonForm | None:
        """The only form, where each call is one JSON object between one pair of marks and nothing is read leniently."""
        call, form = self.calls[0], self.all_forms[0]
        if len(self.marks) != 1 or len(self.all_forms) != 1 or self.bare or self.lenient or self.thinks_also:
            return None
        is_plain = not call.starts and call.known == "anything" and len(marks_of(call.close)) == 1
        return form if is_plain and isinstance(form, JsonForm) and form.body_of is not None else None

    def form_at(self, mark: str, text: str, begin: int) -> Form | None:
        """The form of the call that `mark` opens, whose body is at `begin`; None where it opens none."""
        for form in self.forms[mark]:
            if form.begins(text, begin):
                return form
        return self.sure.get(mark)

    def bare_at(self, text: str, at: int) -> Form | None:
        """The form of the call without a mark that begins at `at`."""
        return next((form for form in self.bare if form.begins(text, at)), None)

    def begins_at(self, text: str) -> int:
        """The position of the family's first mark, the text's end where there is none."""
        return _first(text, (*self.marks, self.think_open, self.think_close, *dict(self.thinks_also)), len(text))

    def call_at(self, text: str) -> int:
        """The position of the first call or section of calls, -1 where there is none."""
        return _first(text, (mark for mark in self.marks if self.forms[mark] or mark == self.section_open), -1)

    def header_end(self, text: str, mark: str, begin: int) -> int:
        """The end of the header that `mark` opens, the text's end where that cuts it; `begin` where it opens none."""
        close = self.headers.get(mark)
        if not close:
            return begin
        end = text.find(close, begin, begin + _LONGEST_HEADER + len(close))
        if end < 0 and mark[0] == "<" and len(text) - begin < _LONGEST_HEADER and "\n" not in text[begin:]:
            return len(text)
        return begin if end < 0 or "\n" in text[begin:end] else end + len(close)


def _form_of(call: CallSpec) -> Any:
    """The class that reads calls written so."""
    return AnywhereForm if call.anywhere and call.body == "json" else _FORMS[call.body]


def _first(text: str, marks: Iterable[str], default: int) -> int:
    return min((place for mark in marks if mark and (place := text.find(mark)) >= 0), default=default)


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
    _next_open = _next_close = -1
    """Where thinking is opened and closed next, -1 where it is not."""
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
        self._length = self._horizon = len(text)
        """Where the next mark of thinking stands that counts, the text's end without any."""
        self._content: list[tuple[int, int]] = []
        """Where its parts stand in the text."""
        self._thinking: list[str] = []
        self._calls: list[Call] = []
        self._is_start = grammar.has_bare
        self._in_section = not grammar.section_open
        self._may_be_inside = grammar.may_close_thinking

    def action(self) -> ParsedAction:
        """The parsed message."""
        text, grammar, length = self._text, self._grammar, self._length
        if grammar.opens_thinking and not self._end_opened():
            return parsed_action("", "".join(self._thinking).strip(), (), True)
        at, find = self._at, text.find
        self._places = [find(mark, at) for mark in grammar.marks]
        if grammar.think_open:
            self._next_open, self._next_close = find(grammar.think_open, at), find(grammar.think_close, at)
        self._pair = (grammar.think_open, grammar.think_close)
        self._also = {pair: find(pair[0], at) for pair in grammar.thinks_also}
        is_plain = max(self._next_open, self._next_close, *self._places, *self._also.values()) < 0
        if is_plain and not at and not grammar.has_bare:
            return parsed_action(text.strip(), "", (), False, (), ((0, length),))
        self._find_mark()
        self._find_thinking()
        while self._at < length:
            if self._place < self._at:
                self._find_mark()
            if self._horizon < self._at:
                self._find_thinking()
            if self._is_start and (outcome := self._bare_call()) is not None:
                self._take(outcome, self._at)
            elif self._place < self._horizon:
                self._read_mark(self._place, self._mark)
            elif self._horizon == length:
                break
            elif self._closes:
                self._end_unopened()
            else:
                self._think()
        return self._end()

    # -- what stands next ----------------------------------------------------------------------------------------

    def _find_mark(self) -> None:
        """Finds the next mark of the grammar: its place and its text, the text's end and "" where there is none."""
        at, places, marks = self._at, self._places, self._grammar.marks
        place, which = self._length, -1
        for number, found in enumerate(places):
            if 0 <= found < at:
                found = places[number] = self._text.find(marks[number], at)
            if 0 <= found < place:
                place, which = found, number
        self._place = place
        self._mark = marks[which] if which >= 0 else ""

    def _find_thinking(self) -> None:
        """Finds where the next block of thinking begins, or ends that this message has not opened."""
        at = self._at
        if 0 <= self._next_open < at:
            self._next_open = self._text.find(self._grammar.think_open, at)
        horizon = self._next_open if self._next_open >= 0 else self._length
        if self._may_be_inside:
            if 0 <= self._next_close < at:
                self._next_close = self._text.find(self._grammar.think_close, at)
            self._closes = 0 <= self._next_close < horizon
            horizon = self._next_close if self._closes else horizon
        if self._also:
            self._pair = (self._grammar.think_open, self._grammar.think_close)
            for pair, place in self._also.items():
                if 0 <= place < at:
                    place = self._also[pair] = self._text.find(pair[0], at)
                if 0 <= place < horizon:
                    self._pair, self._closes, horizon = pair, False, place
        self._horizon = horizon

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
                self._reading = Reading(text, self._tools, grammar.lenient)
                self._reading.used.append("open_thinking")
        self._thinking.append(text[begin:end] if end >= 0 else text[begin:])
        return end >= 0

    def _think(self) -> None:
        """Reads the block of thinking that begins next, and those that follow before any other mark."""
        text, content, grammar = self._text, self._content, self._grammar
        find, at, start, place = text.find, self._at, self._horizon, self._place
        opened, closed = self._pair
        while True:
            content.append((at, start))
            begin = start + len(opened)
            end = find(closed, begin)
            self._thinking.append(text[begin:end] if end >= 0 else text[begin:])
            at = end + len(closed) if end >= 0 else self._length
            start = find(opened, at)
            if not at <= start < place or grammar.has_bare or self._also:
                break
        self._at, self._is_cut = at, end < 0
        if self._pair in self._also:  # an own block may still be open around it
            self._also[self._pair] = start
        else:
            self._next_open = start
            self._may_be_inside = self._closes = False
        self._find_thinking()
        if grammar.has_bare:
            blank = self._blank
            while blank < len(content) and not self._said(content[blank]):
                blank += 1
            self._blank, self._is_start = blank, blank >= len(content)

    def _end_unopened(self) -> None:
        """A block is closed that this message has not opened: all so far was thinking."""
        self._thinking, self._content, self._calls = [self._text[: self._next_close]], [], []
        self._section, self._blank, self._may_be_inside, self._closes = None, 0, False, False
        self._in_section = not self._grammar.section_open
        self._at = self._next_close + len(self._grammar.think_close)
        self._is_start = self._grammar.has_bare
        self._find_thinking()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _bare_call(self) -> Outcome | None:
        """The calls without a mark that stand here, where a message may start with some."""
        at, grammar = self._at, self._grammar
        form = grammar.bare_at(self._text, at)
        self._is_start = form is not None and at < self._horizon  # another one may stand right behind it
        if form is None or not self._is_start:
            return None
        reading = self._reading = self._reading or Reading(self._text, self._tools, grammar.lenient)
        return form.read(reading, at, at)

    def _read_mark(self, place: int, mark: str) -> None:
        """Reads the calls that the mark at `place` opens, or the mark itself: of a section, say, or as text."""
        text, grammar = self._text, self._grammar
        begin = place + len(mark)
        self._content.append((self._at, place))
        reading = self._reading = self._reading or Reading(text, self._tools, grammar.lenient)
        form = grammar.form_at(mark, text, begin) if grammar.forms[mark] else None
        if form is None:
            if mark != grammar.lasting_section or reading.find(grammar.section_close, place) >= 0:
                self._pass(place, mark)
                return
            reason = f"the section of calls is not closed; expected {grammar.section_close}"
            self._take(([malformed(text, reason, place, self._length)], self._length, True), place)
            return
        if mark in grammar.spellings:
            reading.used.append("spellings")
        outcome = form.read(reading, place, begin)
        if not self._in_section and mark != grammar.section_open and not reading.allows("bare_calls"):
            _, end, is_open = outcome
            reason = f"the call stands outside its section; expected {grammar.section_open} before it"
            outcome = [malformed(text, reason, place, max(end, begin))], end, is_open
        self._take(outcome, place)

    def _take(self, outcome: Outcome, start: int) -> None:
        """Takes the calls that begin at `start`, unless they are spoken of in thinking that ends inside them."""
        calls, end, is_open = outcome
        if self._reading is not None and self._reading.has_surrogates:
            calls = [_check_call(self._text, call) for call in calls]
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
        grammar = self._grammar
        begin = self._at = place + len(mark)
        is_cut = False
        if mark in grammar.headers:
            self._at = grammar.header_end(self._text, mark, begin)
            is_cut = self._at == self._length and mark[0] == "<"
            self._is_cut = self._is_cut or is_cut
        if mark == grammar.section_open:
            self._in_section = True
            if self._section is None or len(self._calls) > self._section[1]:
                self._section = (place, len(self._calls), len(self._content))
        elif mark == grammar.section_close:
            self._in_section = False
            self._end_section(begin)
        elif mark not in grammar.dropped and self._at == begin and not is_cut:
            self._content.append((place, begin))

    def _end_section(self, end: int) -> bool:
        """Ends the open section, if there is one: without a call in it, it is a malformed one, and its content none."""
        if self._section is None:
            return False
        start, calls_before, content_before = self._section
        self._section = None
        if len(self._calls) > calls_before:
            return False
        grammar = self._grammar
        opens = " or ".join(m for m in grammar.marks if grammar.forms[m] and m != grammar.section_open)
        reason = f"there is no call in the section; expected {opens}"
        self._calls.append(malformed(self._text, reason, start, end))
        del self._content[content_before:]
        return True

    def _end(self) -> ParsedAction:
        text, calls, content = self._text, self._calls, self._content
        rest = (self._at, self._length)
        is_mark = bool(calls) and is_beginning(self._said(rest), self._grammar.marks)
        if is_mark and not any(map(self._said, content[self._behind :])):
            rest, self._is_cut = (0, 0), True  # only a mark of the next call, or of the section's end, that was cut
        content.append(rest)
        is_cut = self._end_section(self._length) or self._is_cut
        used = tuple(self._reading.used) if self._reading is not None else ()
        said = "".join([text[start:end] for start, end in content]).strip()
        return parsed_action(said, "\n".join(self._thinking).strip(), tuple(calls), is_cut, used, tuple(content))

    def _said(self, part: tuple[int, int]) -> str:
        return self._text[part[0] : part[1]].strip()


def _check_call(text: str, call: Call) -> Call:
    """The call, or a malformed one where it holds half a surrogate pair, which no JSON can."""
    if isinstance(call, ToolCall):
        try:
            json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return malformed(text, "the call is not valid Unicode (a lone surrogate)", call.start, call.end)
    return call


def is_beginning(text: str, marks: Iterable[str]) -> bool:
    """True if `text` is the beginning of one of `marks`, and not all of it."""
    return bool(text) and any(len(text) < len(mark) and mark.startswith(text) for mark in marks)
