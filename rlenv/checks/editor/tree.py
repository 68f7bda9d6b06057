"""The readable part of a text that is not whole: the sections that stand, and the cursor in them.

A text is broken while it is typed. Sections at the top of a spec are read one by one, so that one that is broken does
not hide the others, and the section with the cursor is read with a mark in the cursor's place: where the mark lands in
the tree is what the cursor stands on, whatever style of YAML is around it.

Positions in a text: lines and columns as faults count them, and as the Language Server Protocol does.

A fault counts lines as YAML does and columns in characters, both from 1. The protocol counts from 0, knows fewer line
breaks, and counts columns in units of UTF-16 (LSP 3.17, "Position"): a character outside of the first plane is two.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import KeyPath, parts_of
from rlenv.errors import SpecError
from rlenv.language.yamltree import YAML_BREAK, Node, Span, parse_part, parse_text, text_span

_LSP_BREAK: Final = re.compile("\r\n|[\n\r]")


class LineIndex:
    """The beginnings and ends of a text's lines. Any position can be asked for; the nearest that exists is taken."""

    def __init__(self, text: str, *, is_lsp: bool = False) -> None:
        self.text = text
        breaks = list((_LSP_BREAK if is_lsp else YAML_BREAK).finditer(text))
        self._starts = [0, *(found.end() for found in breaks)]
        self._ends = [*(found.start() for found in breaks), len(text)]

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, number: int) -> str:
        """A line without its break, from 1; "" where there is none."""
        return self.text[self._starts[number - 1] : self._ends[number - 1]] if 0 < number <= len(self) else ""

    def offset(self, line: int, column: int) -> int:
        """The character of the text that stands at a line and column, both from 1."""
        if line < 1:
            return 0
        if line > len(self):
            return len(self.text)
        return min(self._starts[line - 1] + max(column - 1, 0), self._ends[line - 1])

    def place(self, offset: int) -> tuple[int, int]:
        """The line and column, both from 1, of a character of the text."""
        line = bisect.bisect_right(self._starts, max(offset, 0))
        return line, min(max(offset, 0), self._ends[line - 1]) - self._starts[line - 1] + 1


def to_utf16(text: str, column: int) -> int:
    """The column in units of UTF-16, from 0, of a column in characters, from 1."""
    before = text[: max(column - 1, 0)]
    return len(before) + sum(character > "\uffff" for character in before)


def from_utf16(text: str, units: int) -> int:
    """The column in characters, from 1, of one in units of UTF-16, from 0; the inside of a pair is its character."""
    seen = 0
    for index, character in enumerate(text):
        seen += 2 if character > "\uffff" else 1
        if seen > units:
            return index + 1
    return len(text) + 1


class EditorPlaces:
    """Positions as editors count them (lines and units of UTF-16, both from 0) to those of faults, over one text."""

    def __init__(self, text: str) -> None:
        self.lines = LineIndex(text)
        self._own = LineIndex(text, is_lsp=True)

    def offset(self, line: int, character: int) -> int:
        """The character of the text at an editor's position; the nearest where there is none."""
        return self._own.offset(line + 1, from_utf16(self._own.line(line + 1), character))

    def given(self, line: int, character: int) -> tuple[int, int]:
        """The line and column, from 1, of an editor's position."""
        return self.lines.place(self.offset(line, character))

    def at(self, line: int, column: int) -> tuple[int, int]:
        """An editor's position of a line and column, from 1."""
        number, own_column = self._own.place(self.lines.offset(line, column))
        return number - 1, to_utf16(self._own.line(number), own_column)


_MARK: Final = "rlenvCursorHere"
_WORD: Final = re.compile(r"[\w-]*", re.ASCII)
_WORD_BEFORE: Final = re.compile(r"[\w-]*\Z", re.ASCII)
_NOT_BREAKS: Final = re.compile("[^\n\r\x85\u2028\u2029]")
_TRIES: Final = 3
_PAIRS: Final = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Cursor:
    """One reading of what the cursor stands on: a key of the mapping at `path`, or the value at `path`.

    `before` is what stands before the cursor in that key or value, without the word that is being typed.
    """

    path: KeyPath
    is_key: bool
    before: str = ""


@dataclass(frozen=True, slots=True)
class CursorReadings:
    """The readings of a cursor. `start` is the offset of the word that is being typed; `data` is what can be read of
    the text, without that word unless it is a key that stands; `has_colon` is true where a colon follows it already."""

    cursors: tuple[Cursor, ...]
    start: int
    data: dict[str, Any]
    has_colon: bool = False


def read_tree(text: str) -> Node:
    """The tree of a text, or of those of its sections that can be read; an empty mapping where there is none."""
    whole = _parsed(text)
    if whole is not None:
        return whole
    merged: dict[str, Node] = {}
    all_of_it, lines = text_span(text, file="", base=Path()), LineIndex(text)
    for start, end in _sections(text):
        part = _standing(all_of_it, lines, start, end)
        if part is not None and isinstance(part.value, dict):
            merged.update(part.value)
    return Node(merged, parse_text("a: 1", file="", base=Path()).span)


def find_cursor(text: str, offset: int) -> CursorReadings:
    """The readings at a character of a text; none in a comment, or where no repair makes it readable."""
    start = offset - len(_word_before(text, offset))
    end = _end_of_word(text, offset)
    before, after = text[:start], text[end:]
    has_colon = re.match(r"[ \t]*:(?=[ \t\r\n]|$)", after) is not None
    marked = f"{before}{_MARK}{after}"
    section = next(((one, to) for one, to in _sections(marked) if one <= start < to), (0, len(marked)))
    for tries in _repairs(before, after, section[0], section[1] - len(_MARK) - start, has_colon):
        found: dict[Cursor, None] = {}
        data: dict[str, Any] = {}
        for tried in tries:
            # All before it is spaces: every place stays where it is.
            node = _parsed(_NOT_BREAKS.sub(" ", tried[: section[0]]) + tried[section[0] :])
            for cursor in _marked(node, ()) if node is not None else ():
                found[cursor] = None
                stands = text[start:end] if has_colon else ""
                data = data or _without_mark(node.plain() if node is not None else {}, stands)
        if found:
            rest = read_tree(before[: section[0]] + text[section[1] - len(_MARK) + (end - start) :]).plain()
            return CursorReadings(tuple(found), start, {**rest, **data}, has_colon)
    return CursorReadings((), start, read_tree(text).plain(), has_colon)


def _word_before(text: str, offset: int) -> str:
    found = _WORD_BEFORE.search(text, max(0, offset - 200), offset)
    return found.group() if found is not None else ""


def _end_of_word(text: str, offset: int) -> int:
    found = _WORD.match(text, offset)
    return found.end() if found is not None else offset


def _repairs(before: str, after: str, start: int, rest: int, has_colon: bool) -> Iterator[list[str]]:
    """Texts to try, the most faithful first; those of one list are readings that may both hold."""
    inside = after[: max(rest, 0)]
    line_end = YAML_BREAK.search(inside)
    below = inside[line_end.start() :] if line_end is not None else ""
    as_key = _MARK if has_colon else f"{_MARK}: "
    closing = _closers(before[start:])
    for tail, closers in ((inside, ""), (below, closing), ("", closing)):
        yield [f"{before}{as_key}{closers}{tail}", f"{before}{_MARK}{closers}{tail}"]
    yield [f"{before}{as_key}{after}", f"{before}{_MARK}{after}"]


def _closers(text: str) -> str:
    """The signs that close the quotes and brackets left open on the last lines of a text."""
    opened: list[str] = []
    quote = ""
    line = text[text.rfind("\n") + 1 :]
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (index == 0 or line[index - 1] in " \t{[,:"):
            quote = character
        elif character in _PAIRS:
            opened.append(_PAIRS[character])
        elif opened and character == opened[-1]:
            opened.pop()
    return quote + "".join(reversed(opened))


def _parsed(text: str) -> Node | None:
    try:
        return parse_text(text, file="", base=Path())
    except SpecError:
        return None


def _standing(whole: Span, lines: LineIndex, start: int, end: int) -> Node | None:
    """The readable part of a section: all, or the part before its first fault."""
    for _ in range(_TRIES):
        try:
            return parse_part(whole, start, end, line=lines.place(start)[0])
        except SpecError as error:
            cut = lines.offset(error.faults[0].line, 1)
            if not start < cut < end:
                return None
            end = cut
    return None


def _sections(text: str) -> list[tuple[int, int]]:
    """The beginnings and ends of the parts of a text that a key at the left edge begins."""
    starts = []
    begin = 0
    for found in [*YAML_BREAK.finditer(text), None]:
        stop = found.start() if found is not None else len(text)
        if stop > begin and text[begin] not in " \t#-}]":
            starts.append(begin)
        if found is not None:
            begin = found.end()
    return list(zip(starts, [*starts[1:], len(text)], strict=False))


def _marked(node: Node, path: KeyPath) -> Iterator[Cursor]:
    if isinstance(node.value, str) and _MARK in node.value:
        yield Cursor(path, is_key=False, before=node.value.partition(_MARK)[0])
    for key, child in parts_of(node.value):
        if key == _MARK:
            yield Cursor(path, is_key=True)
        else:
            yield from _marked(child, (*path, key))


def _without_mark(value: Any, word: str) -> Any:
    """The content without the mark; the key that it stands for is `word`, none where that is ""."""
    if isinstance(value, dict):
        named = ((word if key == _MARK else key, item) for key, item in value.items())
        return {key: _without_mark(item, word) for key, item in named if key}
    if isinstance(value, list):
        return [_without_mark(item, word) for item in value]
    return value.replace(_MARK, "") if isinstance(value, str) else value
