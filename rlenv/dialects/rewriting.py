"""Writes calls that could not be read so that they are read as malformed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rlenv.dialects.writing import Writer
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

__all__ = ["rewritten"]

Call = ToolCall | MalformedCall


def rewritten(message: Message, writer: Writer, read: Callable[[str], ParsedAction]) -> str:
    """A message with malformed calls as text: of the ways to write them, the first that reads back kind by kind.

    One that was read from a text is written as it came, with the marks that it came with. One that came as data
    stands between marks; where a call could be anything between them, behind a mark that nothing closes.
    """
    wanted = [(type(call), call.name) for call in message.tool_calls]
    kinds = [kind for kind, _ in wanted]
    first = nearly = ""
    for text in _ways(message, writer):
        first = first or text
        found = [(type(call), call.name) for call in read(text).calls]
        if found == wanted:
            return text
        if not nearly and [kind for kind, _ in found] == kinds:
            nearly = text
    return nearly or first


def _ways(message: Message, writer: Writer) -> Iterator[str]:
    calls, row = message.tool_calls, writer.row
    mark, close = writer.marks
    head = writer.action(replace(message, tool_calls=())) + (writer.chat.calls_behind if message.content else "")
    between = row.between or "\n"
    if any(map(_came, calls)):
        yield head + between.join(_came(call) or writer.calls((call,)) for call in calls)
        if row.shape != "object":
            yield f"{head}{mark}[{', '.join(_item(call, writer) for call in calls)}]{close}"
    if not row.plain:  # any text is a call there, for a tool that takes one
        yield writer.action(message)
    for opened in ("{", "NAME("):
        given = [call if _came(call) else _behind(opened, call) for call in calls]
        yield writer.action(replace(message, tool_calls=tuple(given)))
    opened = writer.spec.section_open + mark
    yield head + between.join(
        opened + call.text if isinstance(call, MalformedCall) else writer.calls((call,)) for call in calls
    )


def _came(call: Call) -> str:
    """The text of a malformed call that was read from a text, so that its marks are in it; "" for any other."""
    return call.text if isinstance(call, MalformedCall) and call.start >= 0 else ""


def _item(call: Call, writer: Writer) -> str:
    """A call as it stands in a list, without what the list has around it."""
    text = call.text if isinstance(call, MalformedCall) else writer.calls((call,))
    return text[max(text.find("{"), 0) : text.rfind("}") + 1] or text


def _behind(opened: str, call: Call) -> Call:
    """A call that came as data, behind what opens one and is not closed."""
    if not isinstance(call, MalformedCall):
        return call
    return replace(call, text=opened.replace("NAME", call.name or "call") + call.text)
