"""Reads a message as a row of data says; one engine for every family whose row it can follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlenv.dialect_spec import CallSpec, DialectSpec
from rlenv.dialects.anywhere import AnywhereForm
from rlenv.dialects.base import SameTurn
from rlenv.dialects.gemma_body import GemmaForm, TextForm
from rlenv.dialects.json_body import JsonForm, marks_of
from rlenv.dialects.python_body import PythonForm
from rlenv.dialects.quick import parsed_action, tool_call
from rlenv.dialects.reading import Form, Outcome, Reading, malformed
from rlenv.dialects.tagged_body import TaggedForm
from rlenv.dialects.writing import Writer
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

__all__ = ["TextDialect"]

_FORMS: Final[dict[str, Any]] = {
    "json": JsonForm,
    "name_json": JsonForm,
    "pythonic": PythonForm,
    "tagged": TaggedForm,
    "gemma": GemmaForm,
    "text": TextForm,
}


class TextDialect:
    """A dialect that finds calls between marks; stateless, safe to share between threads.

    `parse` takes time linear in the text: each mark is looked for once, and each character is read by a grammar a
    bounded number of times.

    Args:
        name: how the dialect is called.
        spec: the whole row, `base` filled in already.
    """

    def __init__(self, name: str, spec: DialectSpec) -> None:
        self.name = name
        self.spec = spec
        self.writer = Writer(spec)
        self._thinking_open = spec.thinking_open
        self._thinking = spec.thinking_marks
        self._lenient = frozenset(spec.lenient)
        calls = (spec.calls,) if isinstance(spec.calls, CallSpec) else spec.calls
        stops = [mark for call in calls for mark in marks_of(call.open)]
        stops += [mark for mark in (spec.section_close, spec.section_open, *spec.drop) if mark]
        forms: list[Form] = [
            _form_of(call)(call, stops=tuple(dict.fromkeys(stops)), lenient=self._lenient) for call in calls
        ]
        self._bare = tuple(form for form in forms if form.at_start)
        opens: dict[str, list[Form]] = {}
        for form in forms:
            for mark in form.opens:
                opens.setdefault(mark, []).append(form)
        for mark in (spec.section_open, spec.section_close, *spec.drop, *spec.headers):
            if mark:
                opens.setdefault(mark, [])
        # The longest first: where one mark is the beginning of another, the longer one stands there.
        self._marks = tuple(sorted(opens, key=len, reverse=True))
        self._forms = {mark: tuple(opens[mark]) for mark in self._marks}
        self._simple: JsonForm | None = None
        if len(self._marks) == 1 and len(forms) == 1 and not self._bare and not self._lenient:
            form = forms[0]
            closes = marks_of(calls[0].close)
            if isinstance(form, JsonForm) and form.body_of is not None and len(closes) == 1 and not calls[0].starts:
                self._simple = form
                self._body_of = form.body_of
                self._open, self._close = form.opens[0], closes[0]
                self._think_open, self._think_close = self._thinking.open, self._thinking.close
                # Both marks mostly end alike (<think>, </think>): a text without that end is searched once, not twice.
                self._think_sign = _common_end(self._think_open, self._think_close)

    @property
    def same_turn(self) -> SameTurn | None:
        """How observations go on in the assistant's turn; None where they have turns of their own."""
        return self.writer.same_turn

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction:
        """The message's content, thinking and calls; never raises, whatever `text` holds.

        A call ends at the first closing mark outside its strings. One that is followed by another opening mark
        first, or by nothing, is malformed. Marks inside thinking are thinking. `content` and `thinking` have no
        white space around them.

        Args:
            tools: the tools by name, for families whose values are typed by their schemas.
        """
        if self._simple is not None:
            quick = self._quick(text)
            if quick is not None:
                return quick
        think_open, think_close = self._thinking.open, self._thinking.close
        find = text.find
        at = 0
        content: list[str] = []
        thinking: list[str] = []
        calls: list[ToolCall | MalformedCall] = []
        is_cut = False
        if self._thinking_open:
            end = find(think_close)
            if end < 0:
                return ParsedAction("", text.strip(), (), True)
            thinking.append(text[:end])
            at = end + len(think_close)
        marks = self._marks
        places = [find(mark, at) for mark in marks]
        next_open = find(think_open, at) if think_open else -1
        next_close = find(think_close, at) if think_open else -1
        if next_open < 0 and next_close < 0 and not at and not self._bare and max(places, default=-1) < 0:
            return ParsedAction(text.strip())
        length = len(text)
        reading: Reading | None = None
        in_section = not self.spec.section_open
        may_be_inside = self._thinking_open is None and bool(think_open)
        is_start = bool(self._bare)
        section: tuple[int, int, int] | None = None  # where an open section stands, with the calls and content before
        while at < length:
            # Each mark is looked up again only once it lies behind, so that no text is searched for it twice.
            if 0 <= next_open < at:
                next_open = find(think_open, at)
            if 0 <= next_close < at and may_be_inside:
                next_close = find(think_close, at)
            place, which = length, -1
            for number, found in enumerate(places):
                if 0 <= found < at:
                    found = places[number] = find(marks[number], at)
                if 0 <= found < place:
                    place, which = found, number
            horizon = next_open if next_open >= 0 else length
            closes = may_be_inside and 0 <= next_close < horizon
            if closes:
                horizon = next_close
            outcome: Outcome | None = None
            start = place
            if is_start:
                is_start = False
                bare = self._bare_form(text, at)
                if bare is not None and at < horizon:
                    reading = reading or Reading(text, tools, self._lenient)
                    start = at
                    outcome = bare.read(reading, at, at)
            if outcome is None:
                if which < 0 or place >= horizon:
                    if horizon == length:
                        break
                    if closes:
                        # A block is closed that this message has not opened: all so far was thinking.
                        thinking, content, calls, section = [text[:next_close]], [], [], None
                        in_section = not self.spec.section_open
                        at = next_close + len(think_close)
                    else:
                        content.append(text[at:next_open])
                        begin = next_open + len(think_open)
                        end = find(think_close, begin)
                        is_cut = end < 0
                        thinking.append(text[begin:] if is_cut else text[begin:end])
                        at = length if is_cut else end + len(think_close)
                    may_be_inside = False
                    is_start = bool(self._bare) and not any(part.strip() for part in content)
                    continue
                mark = marks[which]
                begin = place + len(mark)
                content.append(text[at:place])
                reading = reading or Reading(text, tools, self._lenient)
                form = next((form for form in self._forms[mark] if form.begins(text, begin)), None)
                if form is None:
                    in_section, is_text = self._section(reading, mark, place, in_section)
                    if is_text and self._behind_header(text, mark, begin) == begin:
                        content.append(mark)
                    elif mark == self.spec.section_open:
                        section = section or (place, len(calls), len(content))
                    elif mark == self.spec.section_close and section is not None:
                        self._end_section(text, section, begin, calls, content)
                        section = None
                    at = self._behind_header(text, mark, begin)
                    continue
                if not in_section and mark != self.spec.section_open and not reading.allows("bare_calls"):
                    content.append(mark)
                    at = begin
                    continue
                outcome = form.read(reading, place, begin)
            found_calls, end, is_open = outcome
            if reading is not None and reading.has_surrogates:
                found_calls = [_checked(text, call) for call in found_calls]
            if closes and end > next_close and any(type(call) is MalformedCall for call in found_calls):
                # Not a call but the mention of one, in thinking that ends here.
                thinking, content, calls, section = [text[:next_close]], [], [], None
                in_section = not self.spec.section_open
                at = next_close + len(think_close)
                may_be_inside = False
                is_start = bool(self._bare)
                continue
            calls += found_calls
            is_cut = is_open
            at = max(end, start + 1)
        content.append(text[at:])
        if section is not None and self._end_section(text, section, length, calls, content):
            is_cut = True
        used = tuple(reading.used) if reading is not None else ()
        return ParsedAction("".join(content).strip(), "\n".join(thinking).strip(), tuple(calls), is_cut, used)

    def _quick(self, text: str) -> ParsedAction | None:
        """The common message, read without a look at anything rare: at most one block of thinking, which stands first
        and is closed, and whole calls. None for any other; `parse` gives the same for these, only slower."""
        assert self._body_of is not None
        find, call_open, call_close, body_of = text.find, self._open, self._close, self._body_of
        at = 0
        thinking = ""
        if self._think_close:
            sign = self._think_sign
            if sign in text if sign else find(self._think_close) >= 0 or find(self._think_open) >= 0:
                close = find(self._think_close)
                opened = 0 if self._thinking_open else find(self._think_open)
                if opened > 0 or not 0 <= opened < close:
                    return None
                at = close + len(self._think_close)
                if find(self._think_close, at) >= 0 or find(self._think_open, at) >= 0:
                    return None
                thinking = text[0 if self._thinking_open else len(self._think_open) : close].strip()
            elif self._thinking_open:
                return None
        place = find(call_open, at)
        if place < 0:
            return parsed_action(text[at:].strip(), thinking)
        size, tail = len(call_open), len(call_close)
        calls: list[ToolCall | MalformedCall] = []
        content: list[str] = []
        while place >= 0:
            end = find(call_close, place)
            if end < 0:
                return None
            read = body_of(text[place + size : end])
            if type(read) is not tuple:
                return None
            if place > at:
                content.append(text[at:place])
            at = end + tail
            calls.append(tool_call(read[0], read[1], place, at))
            place = find(call_open, at)
        if at < len(text):
            content.append(text[at:])
        return parsed_action("".join(content).strip(), thinking, tuple(calls))

    def _behind_header(self, text: str, mark: str, begin: int) -> int:
        """The end of the header that `mark` opens; `begin` where it opens none."""
        close = self.spec.headers.get(mark)
        if not close:
            return begin
        end = text.find(close, begin, begin + 128 + len(close))
        return begin if end < 0 or "\n" in text[begin:end] else end + len(close)

    def _bare_form(self, text: str, at: int) -> Form | None:
        return next((form for form in self._bare if form.begins(text, at)), None)

    def _end_section(
        self,
        text: str,
        section: tuple[int, int, int],
        end: int,
        calls: list[ToolCall | MalformedCall],
        content: list[str],
    ) -> bool:
        """Adds a malformed call for a section without any, from its mark to `end`, in the place of its content."""
        start, calls_before, content_before = section
        if len(calls) > calls_before:
            return False
        opens = " or ".join(mark for mark in self._marks if self._forms[mark] and mark != self.spec.section_open)
        calls.append(malformed(text, f"there is no call in the section; expected {opens}", start, end))
        del content[content_before:]
        return True

    def _section(self, reading: Reading, mark: str, place: int, in_section: bool) -> tuple[bool, bool]:
        """Whether calls may follow a mark that opens none, and whether the mark is plain text."""
        spec = self.spec
        if mark == spec.section_open:
            if spec.section_must_close and reading.find(spec.section_close, place) < 0:
                return in_section, True
            return True, False
        if mark == spec.section_close:
            return False, False
        return in_section, mark not in spec.drop

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the family writes it, the generation prompt at its end."""
        return self.writer.prompt(messages, tools)

    def render_action(self, message: Message) -> str:
        """An assistant message as its family would write it: content, then its calls.

        A call that could not be read is written between the marks as it came, so that it reads as malformed again.
        """
        return self.writer.action(message)

    def render_observation(self, messages: Sequence[Message]) -> str:
        """What follows the policy's last character: the end of its turn, the messages and a new generation prompt."""
        return self.writer.observation(messages)


def _form_of(call: CallSpec) -> Any:
    """The class that reads calls written so."""
    return AnywhereForm if call.anywhere and call.body == "json" else _FORMS[call.body]


def _checked(text: str, call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    """The call, or a malformed one where it holds half a surrogate pair, which no JSON can."""
    if isinstance(call, ToolCall):
        try:
            json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return malformed(text, "the call is not valid Unicode (a lone surrogate)", call.start, call.end)
    return call


def _common_end(one: str, other: str) -> str:
    """The longest text that both end with."""
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]
