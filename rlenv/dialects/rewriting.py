"""Writes calls that could not be read so that they are read as malformed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rlenv.dialects.writing import Writer
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

__all__ = ["rewritten"]

Call = ToolCall | MalformedCall


def rewritten(message: Message, writer: Writer, read: Callable[[str], ParsedAction]) -> str:
    """A message with malformed calls as text: of the ways to write them, the first that reads back kind by kind.

    One that was read from a text is written as it came, with the marks that it came with; one that came as data
    stands between marks, or, where anything between them is a call, behind an opening mark that nothing closes.
    """
    wanted = [type(call) for call in message.tool_calls]
    ways = list(_ways(message, writer))
    for text in ways:
        if [type(call) for call in read(text).calls] == wanted:
            return text
    return ways[0]


def _ways(message: Message, writer: Writer) -> Iterator[str]:
    calls = message.tool_calls
    behind = writer.chat.calls_behind if message.content else ""
    between = writer.row.between or "\n"

    def together(parts: Sequence[str]) -> str:
        return message.content + behind + between.join(parts)

    def whole(call: Call) -> str:
        return writer.calls((call,))

    def came(call: Call) -> str:
        return call.text if isinstance(call, MalformedCall) and call.start >= 0 else whole(call)

    def element(call: Call) -> str:
        """An item of a list, with the marks of a list of its own."""
        if not isinstance(call, MalformedCall) or call.start < 0:
            return whole(call)
        mark, close = writer.marks
        inner = call.text.strip().removeprefix(mark).removesuffix(close).strip(" \t\r\n,")
        inner = inner if inner.startswith("[") else f"[{inner}"
        return mark + (inner if inner.endswith("]") else f"{inner}]") + close

    def left_open(call: Call) -> str:
        if not isinstance(call, MalformedCall):
            return whole(call)
        return writer.spec.section_open + writer.marks[0] + (call.text if call.start < 0 else "")

    if any(isinstance(call, MalformedCall) and call.start >= 0 for call in calls):
        yield together([came(call) for call in calls])
        yield together([element(call) for call in calls])
    yield writer.action(message)
    yield writer.action(replace(message, tool_calls=tuple(map(_without_text, calls))))
    yield together([left_open(call) for call in calls])


def _without_text(call: Call) -> Call:
    """A call that came as data with text that no JSON is, whatever stands around it."""
    return replace(call, text="{" + call.text) if isinstance(call, MalformedCall) and call.start < 0 else call
