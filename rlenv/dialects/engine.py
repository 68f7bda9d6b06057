"""Reads and writes a message as a row of data says; one engine for every family whose row it can follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rlenv.dialects.base import SameTurn, parsed_action, tool_call
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.scan import Grammar, Scan, is_beginning
from rlenv.dialects.schema import schema_of
from rlenv.dialects.writing import Writer
from rlenv.language.dialect import CallSpec, DialectSpec, ThinkingSpec
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

_TAG: Final = re.compile(r"(</?\w+)>")


def suffixed(spec: DialectSpec, suffix: str) -> DialectSpec:
    """The row with `suffix` behind the name in each of its marks."""

    def marked(value: Any) -> Any:
        if isinstance(value, str):
            return _TAG.sub(lambda match: f"{match[1]}{suffix}>", value)
        if isinstance(value, dict):
            return {marked(key): item for key, item in value.items()}
        return tuple(map(marked, value)) if isinstance(value, (list, tuple)) else value

    def renamed(row: CallSpec) -> CallSpec:
        return row.model_copy(update={key: marked(getattr(row, key)) for key in type(row).model_fields})

    calls = renamed(spec.calls) if isinstance(spec.calls, CallSpec) else tuple(map(renamed, spec.calls))
    marks = spec.thinking_marks
    thinking = ThinkingSpec(open=marked(marks.open), close=marked(marks.close), written=marked(marks.written))
    section = {key: marked(getattr(spec, key)) for key in ("section_open", "section_close", "drop")}
    return spec.model_copy(update={"calls": calls, "thinking_marks": thinking, "suffixes": (), **section})


Call = ToolCall | MalformedCall


def rewritten(message: Message, writer: Writer, read: Callable[[str], ParsedAction]) -> str:
    """A message with malformed calls as text: of the ways to write them, the first that reads back kind by kind.

    One that was read from a text is written as it came, with the marks that it came with. One that came as data
    stands between marks; where a call could be anything between them, behind a mark that nothing closes.
    """
    wanted = [(type(call), call.name) for call in message.tool_calls]
    kinds = [kind for kind, _ in wanted]
    first = nearly = ""
    for text in _list_ways(message, writer):
        first = first or text
        found = [(type(call), call.name) for call in read(text).calls]
        if found == wanted:
            return text
        if not nearly and [kind for kind, _ in found] == kinds:
            nearly = text
    return nearly or first


def _list_ways(message: Message, writer: Writer) -> Iterator[str]:
    calls, row = message.tool_calls, writer.row
    mark, close = writer.marks
    head = writer.action(replace(message, tool_calls=())) + (writer.chat.calls_behind if message.content else "")
    between = row.between or "\n"
    if any(map(_text_as_read, calls)):
        yield head + between.join(_text_as_read(call) or writer.calls((call,)) for call in calls)
        if row.shape != "object":
            yield f"{head}{mark}[{', '.join(_list_item(call, writer) for call in calls)}]{close}"
    if not row.plain:  # any text is a call there, for a tool that takes one
        yield writer.action(message)
    for opened in ("{", "NAME("):
        given = [call if _text_as_read(call) else _put_behind(opened, call) for call in calls]
        yield writer.action(replace(message, tool_calls=tuple(given)))
    opened = writer.spec.section_open + mark
    yield head + between.join(
        opened + call.text if isinstance(call, MalformedCall) else writer.calls((call,)) for call in calls
    )


def _text_as_read(call: Call) -> str:
    """The text of a malformed call that was read from a text, so that its marks are in it; "" for any other."""
    return call.text if isinstance(call, MalformedCall) and call.start >= 0 else ""


def _list_item(call: Call, writer: Writer) -> str:
    """A call as it stands in a list, without what the list has around it."""
    text = call.text if isinstance(call, MalformedCall) else writer.calls((call,))
    return text[max(text.find("{"), 0) : text.rfind("}") + 1] or text


def _put_behind(opened: str, call: Call) -> Call:
    """A call that came as data, behind what opens one and is not closed."""
    if not isinstance(call, MalformedCall):
        return call
    return replace(call, text=opened.replace("NAME", call.name or "call") + call.text)


BodyReader = Callable[[str], tuple[str, dict[str, Any]] | str]


class TextDialect:
    """A dialect that finds calls between marks; stateless, safe to share between threads.

    `parse` takes time linear in the text: each mark is looked for once, and each character is read by a grammar a
    bounded number of times.

    Args:
        spec: the whole row, `base` filled in already.
    """

    def __init__(self, name: str, spec: DialectSpec) -> None:
        self.name = name
        self._others = tuple(TextDialect(name, suffixed(spec, suffix)) for suffix in spec.suffixes[1:])
        """The same for the other suffixes that the family's marks may have."""
        spec = suffixed(spec, spec.suffixes[0]) if spec.suffixes else spec
        self.spec = spec
        self.writer = Writer(spec, self._reads_back)
        grammar = self._grammar = Grammar(spec)
        form = grammar.simple_form()
        self._body_of = form.body_of if form is not None else None
        if form is not None:
            self._opens_thinking = grammar.opens_thinking
            self._open, self._close = form.opens[0], marks_of(grammar.calls[0].close)[0]
            self._think_open, self._think_close = grammar.think_open, grammar.think_close
            # Both marks mostly end alike (<think>, </think>): a text without that end is searched once, not twice.
            self._think_sign = _common_end(self._think_open, self._think_close)

    @property
    def marks(self) -> tuple[str, ...]:
        """All that begins a call, a section or a header, or is dropped; the longest first."""
        return self._grammar.marks

    @property
    def begins(self) -> bool:
        """True if prompts start with the family's mark for a conversation's beginning."""
        return bool(self.writer.chat.begin)

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """The mark behind an assistant's turn, () where the family has none."""
        return self.writer.turn_ends

    @property
    def same_turn(self) -> SameTurn | None:
        """The marks by which observations go on in the assistant's turn; None where they have turns of their own."""
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
            reader = min((self, *self._others), key=lambda one: one._grammar.begins_at(text))
            if reader is not self:
                return reader.parse(text, tools)
        if self._body_of is not None:
            quick = self._parse_common(text, self._body_of)
            if quick is not None:
                return quick
        return Scan(self._grammar, text, tools).action()

    def _parse_common(self, text: str, body_of: BodyReader) -> ParsedAction | None:
        """The common message, read without a look at anything rare: at most one block of thinking, which stands first
        and is closed, and whole calls. None for any other; `parse` gives the same for these, only slower."""
        find, call_open, call_close = text.find, self._open, self._close
        at = 0
        thinking = ""
        if self._think_close:
            sign = self._think_sign
            if sign in text if sign else find(self._think_close) >= 0 or find(self._think_open) >= 0:
                close = find(self._think_close)
                opened = 0 if self._opens_thinking else find(self._think_open)
                if opened > 0 or not 0 <= opened < close:
                    return None
                at = close + len(self._think_close)
                if find(self._think_close, at) >= 0 or find(self._think_open, at) >= 0:
                    return None
                thinking = text[len(self._think_open) if text.startswith(self._think_open) else 0 : close].strip()
            elif self._opens_thinking:
                return None
        place = find(call_open, at)
        if place < 0:
            return parsed_action(text[at:].strip(), thinking, (), False, (), ((at, len(text)),))
        size, tail = len(call_open), len(call_close)
        calls: list[ToolCall | MalformedCall] = []
        content: list[tuple[int, int]] = []
        while place >= 0:
            end = find(call_close, place)
            if end < 0:
                return None
            read = body_of(text[place + size : end])
            if type(read) is not tuple:
                return None
            if place > at:
                content.append((at, place))
            at = end + tail
            calls.append(tool_call(read[0], read[1], None, place, at))
            place = find(call_open, at)
        if at < len(text):
            if calls and is_beginning(text[at:].strip(), (call_open,)):
                return None
            content.append((at, len(text)))
        if len(content) == 1:  # most messages: joining takes longer
            start, end = content[0]
            said = text[start:end].strip()
        else:
            said = "".join([text[start:end] for start, end in content]).strip()
        return parsed_action(said, thinking, tuple(calls), False, (), tuple(content))

    def _reads_back(self, text: str, call: ToolCall) -> bool:
        """True if `text` is read as `call`, and as nothing else."""
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
        """The text that follows the policy's last character: the end of its turn, the messages and a new generation
        prompt.
        """
        return self.writer.observation(messages)


def _common_end(one: str, other: str) -> str:
    """The longest text that both end with."""
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]
