"""Positions in a text: lines and columns as faults count them, and as the Language Server Protocol does.

A fault counts lines as YAML does and columns in characters, both from 1. The protocol counts from 0, knows fewer line
breaks, and counts columns in units of UTF-16 (LSP 3.17, "Position"): a character outside of the first plane is two.
"""

from __future__ import annotations

import bisect
import re
from typing import Final

__all__ = ["Lines", "Places", "from_utf16", "to_utf16"]

YAML_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_LSP_BREAK: Final = re.compile("\r\n|[\n\r]")


class Lines:
    """Where the lines of a text begin and end. Any position can be asked for; the nearest that exists is taken."""

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


class Places:
    """Positions as editors count them (lines and units of UTF-16, both from 0) to those of faults, over one text."""

    def __init__(self, text: str) -> None:
        self.lines = Lines(text)
        self._own = Lines(text, is_lsp=True)

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
