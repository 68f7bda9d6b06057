"""Reads a message as a row of data says; one engine for every family whose row it can follow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rlenv.dialect_spec import CallSpec, DialectSpec
from rlenv.dialects.anywhere import AnywhereForm
from rlenv.dialects.base import SameTurn
from rlenv.dialects.gemma_body import GemmaForm, TextForm
from rlenv.dialects.json_body import JsonForm, marks_of
from rlenv.dialects.python_body import PythonForm
from rlenv.dialects.quick import parsed_action, tool_call
from rlenv.dialects.reading import Form, Outcome, Reading, malformed
from rlenv.dialects.rewriting import rewritten
from rlenv.dialects.schema import schema_of
from rlenv.dialects.suffixes import suffixed
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
        self._others = tuple(TextDialect(name, suffixed(spec, suffix)) for suffix in spec.suffixes[1:])
        """The same for the other suffixes that the family's marks may have."""
        spec = suffixed(spec, spec.suffixes[0]) if spec.suffixes else spec
        self.spec = spec
        self.writer = Writer(spec, self._reads_back)
        # A prompt that turns thinking off has closed the block that it opens.
        self._thinking_open = None if spec.thinking_open and not spec.thinking else spec.thinking_open
        self._thinking = spec.thinking_marks
        self._lenient = frozenset(spec.lenient)
        calls = (spec.calls,) if isinstance(spec.calls, CallSpec) else spec.calls
        stops = [mark for call in calls for mark in marks_of(call.open)]
        stops += [mark for mark in (spec.section_close, spec.section_open, *spec.drop) if mark]
        forms: list[Form] = [
            _form_of(call)(call, stops=tuple(dict.fromkeys(stops)), lenient=self._lenient) for call in calls
        ]
        for form in forms:
            if isinstance(form, TaggedForm) and spec.section_open:
                form.next_calls = (*form.opens, spec.section_open)
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
        # A mark that no text holds by chance is a call's, whatever follows; a word or a code fence is it only before
        # what a call starts with.
        others = {spec.section_open, spec.section_close, *spec.drop}
        self._sure = {m: fs[0] for m, fs in self._forms.items() if fs and m[-1] in ">]" and m not in others}
        usual = {mark for call in calls for mark in marks_of(call.open)}
        self._spellings = {mark for call in calls for mark in call.spellings} - usual
        self._simple: JsonForm | None = None
        if len(self._marks) == 1 and len(forms) == 1 and not self._bare and not self._lenient:
            form = forms[0]
            closes = marks_of(calls[0].close)
            is_plain = not calls[0].starts and calls[0].known == "anything"
            if isinstance(form, JsonForm) and form.body_of is not None and len(closes) == 1 and is_plain:
                self._simple = form
                self._body_of = form.body_of
                self._open, self._close = form.opens[0], closes[0]
                self._think_open, self._think_close = self._thinking.open, self._thinking.close
                # Both marks mostly end alike (<think>, </think>): a text without that end is searched once, not twice.
                self._think_sign = _common_end(self._think_open, self._think_close)

    @property
    def begins(self) -> bool:
        """Whether prompts start with the family's mark for a conversation's beginning."""
        return bool(self.writer.chat.begin)

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """The mark behind an assistant's turn, () where the family has none."""
        return self.writer.turn_ends

    @property
    def same_turn(self) -> SameTurn | None:
        """How observations go on in the assistant's turn; None where they have turns of their own."""
        return self.writer.same_turn

    def parse(self, text: str, tools: Mapping[str, Any] | Sequence[Any] | None = None) -> ParsedAction:
        """The message's content, thinking and calls; never raises, whatever `text` and `tools` hold.

        A call ends at the first closing mark outside its strings. One that is followed by another opening mark
        first, or by nothing, is malformed. Marks inside thinking are thinking. `content` and `thinking` have no
        white space around them.

        Args:
            tools: the tools, by name or as a list as OpenAI's interface has it, for families whose values are typed
                by their schemas. A schema that was given once is not to be changed: it is resolved once.
        """
        if self._others:
            reader = min((self, *self._others), key=lambda one: one._begins_at(text))
            if reader is not self:
                return reader.parse(text, tools)
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
        reading: Reading | None = None
        if self._thinking_open:
            begin = len(think_open) if text.startswith(think_open) else 0
            end = find(think_close, begin)
            at = end + len(think_close)
            if end < 0:
                end = at = self._call_at(text) if "open_thinking" in self._lenient else -1
                if at < 0:
                    return ParsedAction("", text[begin:].strip(), (), True)
                reading = Reading(text, tools, self._lenient)
                reading.used.append("open_thinking")
            thinking.append(text[begin:end])
        marks = self._marks
        places = [find(mark, at) for mark in marks]
        next_open = find(think_open, at) if think_open else -1
        next_close = find(think_close, at) if think_open else -1
        if next_open < 0 and next_close < 0 and not at and not self._bare and max(places, default=-1) < 0:
            return ParsedAction(text.strip())
        length = len(text)
        in_section = not self.spec.section_open
        may_be_inside = self._thinking_open is None and bool(think_open)
        is_start = bool(self._bare)
        blank = 0  # how many parts of the content from the first on are blank, looked at once each
        behind = 0  # how many parts of the content stood before the end of the last call
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
                    is_start = True  # another one may stand right behind it
            if outcome is None:
                if which < 0 or place >= horizon:
                    if horizon == length:
                        break
                    if closes:
                        # A block is closed that this message has not opened: all so far was thinking.
                        thinking, content, calls, section, blank = [text[:next_close]], [], [], None, 0
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
                    while blank < len(content) and not content[blank].strip():
                        blank += 1
                    is_start = bool(self._bare) and blank >= len(content)
                    continue
                mark = marks[which]
                begin = place + len(mark)
                content.append(text[at:place])
                reading = reading or Reading(text, tools, self._lenient)
                form = next((form for form in self._forms[mark] if form.begins(text, begin)), self._sure.get(mark))
                if form is None and self._is_lost(reading, mark, place):
                    reason = f"the section of calls is not closed; expected {self.spec.section_close}"
                    outcome = [malformed(text, reason, place, length)], length, True
                elif form is None:
                    in_section, is_text = self._section(mark, in_section)
                    header_end = self._behind_header(text, mark, begin)
                    is_cut_header = header_end == length and mark in self.spec.headers and mark[0] == "<"
                    if is_text and header_end == begin and not is_cut_header:
                        content.append(mark)
                    elif mark == self.spec.section_open:
                        if section is None or len(calls) > section[1]:
                            section = (place, len(calls), len(content))
                    elif mark == self.spec.section_close and section is not None:
                        self._end_section(text, section, begin, calls, content)
                        section = None
                    at = header_end
                    is_cut = is_cut or is_cut_header
                    continue
                else:
                    if mark in self._spellings:
                        reading.used.append("spellings")
                    outcome = form.read(reading, place, begin)
                    if not in_section and mark != self.spec.section_open and not reading.allows("bare_calls"):
                        _, end, is_open = outcome
                        reason = f"the call stands outside its section; expected {self.spec.section_open} before it"
                        outcome = [malformed(text, reason, place, max(end, begin))], end, is_open
            found_calls, end, is_open = outcome
            if reading is not None and reading.has_surrogates:
                found_calls = [_checked(text, call) for call in found_calls]
            if closes and end > next_close and any(type(call) is MalformedCall for call in found_calls):
                # Not a call but the mention of one, in thinking that ends here.
                thinking, content, calls, section, blank = [text[:next_close]], [], [], None, 0
                in_section = not self.spec.section_open
                at = next_close + len(think_close)
                may_be_inside = False
                is_start = bool(self._bare)
                continue
            calls += found_calls
            is_cut = is_open
            at = max(end, start + 1)
            behind = len(content)
        rest = text[at:]
        if calls and _is_beginning(rest.strip(), self._marks) and not any(map(str.strip, content[behind:])):
            rest, is_cut = "", True  # nothing but a mark of the next call, or of the section's end, that was cut
        content.append(rest)
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
                thinking = text[len(self._think_open) if text.startswith(self._think_open) else 0 : close].strip()
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
            if calls and _is_beginning(text[at:].strip(), (call_open,)):
                return None
            content.append(text[at:])
        return parsed_action("".join(content).strip(), thinking, tuple(calls))

    def _behind_header(self, text: str, mark: str, begin: int) -> int:
        """The end of the header that `mark` opens, the text's end where that cuts it; `begin` where it opens none."""
        close = self.spec.headers.get(mark)
        if not close:
            return begin
        end = text.find(close, begin, begin + 128 + len(close))
        if end < 0 and mark[0] == "<" and len(text) - begin < 128 and "\n" not in text[begin:]:
            return len(text)
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

    def _is_lost(self, reading: Reading, mark: str, place: int) -> bool:
        """Whether a section begins here that has to be closed and is not."""
        spec = self.spec
        is_open = mark == spec.section_open and spec.section_must_close
        return is_open and reading.find(spec.section_close, place) < 0

    def _section(self, mark: str, in_section: bool) -> tuple[bool, bool]:
        """Whether calls may follow a mark that opens none, and whether the mark is plain text."""
        spec = self.spec
        if mark == spec.section_open:
            return True, False
        if mark == spec.section_close:
            return False, False
        return in_section, mark not in spec.drop

    def _begins_at(self, text: str) -> int:
        """Where the first mark of the family stands, the text's end where there is none."""
        marks = (*self._marks, self._thinking.open, self._thinking.close)
        return min((place for mark in marks if mark and (place := text.find(mark)) >= 0), default=len(text))

    def _call_at(self, text: str) -> int:
        """Where the first call or section of calls stands, -1 where there is none."""
        marks = (mark for mark in self._marks if self._forms[mark] or mark == self.spec.section_open)
        return min((place for mark in marks if (place := text.find(mark)) >= 0), default=-1)

    def _reads_back(self, text: str, call: ToolCall) -> bool:
        """Whether `text` is read as `call`, and as nothing else."""
        tools = {call.name: {"parameters": schema_of(dict(call.arguments))}}
        read = self.parse(self.writer.closing + text, tools)
        if len(read.calls) != 1 or read.content or read.leniencies:
            return False
        found = read.calls[0]
        return isinstance(found, ToolCall) and found.name == call.name and found.arguments == dict(call.arguments)

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the family writes it, the generation prompt at its end."""
        return self.writer.prompt(messages, tools)

    def render_action(self, message: Message) -> str:
        """An assistant message as its family would write it: content, then its calls.

        A call that could not be read is written so that it reads as one malformed call again: as it came, with the
        marks that it came with, or between marks where it came as data.
        """
        if any(isinstance(call, MalformedCall) for call in message.tool_calls):
            return rewritten(message, self.writer, self.parse)
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


def _is_beginning(text: str, marks: Iterable[str]) -> bool:
    """Whether `text` is the beginning of one of `marks`, and not all of it."""
    return bool(text) and any(len(text) < len(mark) and mark.startswith(text) for mark in marks)


def _common_end(one: str, other: str) -> str:
    """The longest text that both end with."""
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]
