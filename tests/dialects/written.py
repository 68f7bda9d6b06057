"""Texts with calls as each dialect writes them, for the laws that hold for every dialect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlenv import dialects
from rlenv.dialects.built_in import FAMILIES
from rlenv.dialects.engine import TextDialect
from rlenv.messages import Message, ParsedAction, ToolCall

TOOLS: dict[str, Any] = {
    "search": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "n": {"type": "number"},
                "i": {"type": "integer"},
                "o": {"type": "object"},
                "l": {"type": "array"},
                "b": {"type": "boolean"},
            },
            "required": ["query"],
        },
    }
}
CONTENT = "ÖÄ ÄÖ."
"""Letters that no call and no mark holds."""
THINKING = "ßß"
NAMES = tuple(FAMILIES)
TEXTS = ("yes <answer>5</answer> \\boxed{5} 5", 'say "no"\n\tat once')


def dialect(name: str, **options: Any) -> TextDialect:
    found = dialects.get(name, **options)
    assert isinstance(found, TextDialect)
    return found


def call(index: int, **arguments: Any) -> ToolCall:
    return ToolCall("search", arguments, f"functions.search:{index}")


@dataclass(frozen=True)
class Written:
    """A text with calls, how it reads, and where the opening mark of the first call (or their section) ends."""

    text: str
    whole: ParsedAction
    begin: int
    holds_marks: bool = False
    """A mark of the dialect's own stands in a value, and nothing sets it apart: cut there it looks like any other."""


def marks(name: str) -> tuple[str, ...]:
    """What closes a call, a string or a section of the dialect, and what opens a call."""
    spec = dialect(name).spec
    rows = spec.calls if isinstance(spec.calls, tuple) else (spec.calls,)
    found: list[str] = [spec.section_close]
    for row in rows:
        for mark in (row.open, row.close):
            found += [mark] if isinstance(mark, str) else mark
    return tuple(dict.fromkeys(mark for mark in found if mark))


def written(name: str) -> Iterator[Written]:
    """Calls of several shapes, alone and behind content and thinking; only what reads back as it was written."""
    reader = dialect(name)
    shapes: list[tuple[ToolCall, ...]] = [(call(0, query=text), call(1, query="two")) for text in TEXTS]
    shapes.append((call(0, query="x", n=-12.5, i=30, o={"k": ["é", None]}, l=[1, {"z": True}], b=False),))
    shapes += [(call(0, query=f"a {mark} b <answer>5</answer> c"),) for mark in marks(name)]
    think = reader.spec.thinking_marks
    # Where the prompt opens the thinking, what is written closes it.
    thought = think.open and not reader.spec.thinking_open and f"{think.open}{THINKING}{think.close}{CONTENT}"
    for number, calls in enumerate(shapes):
        for before in ("",) if number else ("", CONTENT, thought or ""):
            text = before + reader.render_action(Message("assistant", CONTENT if before == CONTENT else "", calls))
            text = text.removeprefix(before) if before == CONTENT else text
            whole = reader.parse(text, TOOLS)
            if [getattr(found, "arguments", None) for found in whole.calls] != [given.arguments for given in calls]:
                continue
            holds_marks = number > len(TEXTS) and reader.writer.row.body in ("tagged", "gemma", "text")
            yield Written(text, whole, _begin(reader, text, whole), holds_marks)


def _begin(reader: TextDialect, text: str, whole: ParsedAction) -> int:
    """Behind the first opening mark; for calls without one, where the text shows that one has begun."""
    start = whole.calls[0].start
    section = text.find(reader.spec.section_open) if reader.spec.section_open else -1
    if 0 <= section < start:
        return section + len(reader.spec.section_open)
    opened = max((len(mark) for mark in reader.marks if text.startswith(mark, start)), default=1)
    if opened > 1:
        return start + opened
    begin = next(end for end in range(start + 1, len(text)) if reader.parse(text[:end], TOOLS).calls)
    assert begin <= start + (len('{"name": "s') if text[:start].strip() else 1)
    return begin
