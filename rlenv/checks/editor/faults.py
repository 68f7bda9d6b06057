"""The faults of a text that need no file of the author's to run: what stands in it, and its types."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlenv.checks.editor.lines import Lines
from rlenv.errors import Finding, SpecError
from rlenv.language.loader import load_document, loaded_of

__all__ = ["Mark", "diagnose", "marks"]

_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_WORD = re.compile(r"[^\s,:\[\]{}#\"']+")


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault as an editor underlines it: from a line and column up to another, both from 1, the last one excluded.

    One that stands in another file (a spec that is extended) is marked where that file is named, and `message` says
    where it stands.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    path: str
    message: str
    hint: str
    quote: str = ""
    """The line that the fault was found on, as it stood."""
    level: str = "fault"
    """`fault`, or `warning` for what is legal and odd."""


def diagnose(text: str, *, path: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """The faults of reading and of types, in order of place; none of them is missing from `rlenv validate`.

    Nothing of the author's is imported, so that it can be asked at every pause of typing. Any text is taken.

    Args:
        path: where the text would be saved; what it extends is read relative to it.
    """
    try:
        loaded_of(load_document(path, text=text))
    except SpecError as error:
        return error.faults
    return ()


def marks(faults: Iterable[Finding], text: str, *, path: str | os.PathLike[str]) -> tuple[Mark, ...]:
    """Faults as marks in `text`, which is what stands at `path`."""
    lines = Lines(text)
    return tuple(_mark(fault, lines, os.fspath(path)) for fault in faults)


def _mark(fault: Finding, lines: Lines, path: str) -> Mark:
    if fault.file != path or not fault.line:
        where = f"{Path(fault.file).name}:{fault.line}:{fault.column}" if fault.line else fault.file
        line, column, end = _extends(lines)
        message = f"{where}: {fault.message}"
        return Mark(line, column, line, end, fault.path, message, fault.hint, lines.line(line), fault.level)
    end = fault.column + _length(lines.line(fault.line), fault.column - 1)
    number, quote = fault.line, lines.line(fault.line)
    return Mark(number, fault.column, number, end, fault.path, fault.message, fault.hint, quote, fault.level)


def _extends(lines: Lines) -> tuple[int, int, int]:
    for number in range(1, len(lines) + 1):
        if lines.line(number).startswith("extends:"):
            return number, 1, len(lines.line(number).rstrip()) + 1
    return 1, 1, max(len(lines.line(1)), 1) + 1


def _length(line: str, start: int) -> int:
    """How much of a line belongs to what begins at `start`: a quoted text, a word, or one character."""
    found = _QUOTED.match(line, start) or _WORD.match(line, start)
    return found.end() - start if found is not None else 1
