"""Regular expressions of a spec's author, run on text that a policy wrote.

Python's engine cannot be interrupted and a policy may write anything, so two guards stand in front of it: a pattern
whose repeats can blow up is refused when the spec is compiled, and only a bounded part of a text is searched.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rlenv.errors import UsageError

__all__ = ["SEARCHED_CHARS", "compile_pattern", "last_match"]

SEARCHED_CHARS = 16_384
"""A pattern sees at most this many characters, counted from the end of the text, where answers stand."""

_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")
_OPTIONAL = re.compile(r"[?]|\{0?,\d+\}")


@lru_cache(maxsize=256)
def compile_pattern(source: str) -> re.Pattern[str]:
    """Compiles an author's pattern (`re.DOTALL`: an answer may have several lines).

    Raises:
        UsageError: it does not compile, or repeats a repeat with nothing fixed between them, as `(a+)+` does.
    """
    try:
        pattern = re.compile(source, re.DOTALL)
    except re.error as error:
        raise UsageError(f"pattern {source!r} does not compile: {error}") from error
    if place := _nested_repeat(source):
        raise UsageError(
            f"pattern {source!r} repeats a repeat at character {place}, which can take exponential time; "
            "put something fixed between the repeats, or drop the outer one"
        )
    return pattern


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match in the last `SEARCHED_CHARS` characters of `text`, or None."""
    last: re.Match[str] | None = None
    for match in pattern.finditer(text[-SEARCHED_CHARS:]):
        last = match
    return last


def _nested_repeat(source: str) -> int:
    """The 1-based place of an outer repeat whose group can be a bare repeat, 0 where there is none.

    It is a guard against slips and no proof: overlapping alternatives are not looked at.
    """
    # For each open group: does it hold an unbounded repeat, and does it hold anything that must match beside one?
    groups: list[list[bool]] = [[False, False]]
    index = 0
    while index < len(source):
        char = source[index]
        if char == "(":
            groups.append([False, False])
            prefix = re.compile(r"\(\?(?:P<\w+>|<[=!]|[aiLmsux-]*:|[=!>])?").match(source, index)
            index = prefix.end() if prefix else index + 1
            continue
        if char == "|":
            groups[-1][1] = False
            index += 1
            continue
        if char == ")" and len(groups) > 1:
            inner_repeats, inner_fixed = groups.pop()
            index += 1
        else:
            inner_repeats = inner_fixed = False
            index = _atom_end(source, index)
        repeat = _UNBOUNDED.match(source, index)
        optional = None if repeat else _OPTIONAL.match(source, index)
        if repeat is not None:
            if inner_repeats and not inner_fixed:
                return index + 1
            groups[-1][0] = True
        elif inner_repeats:
            groups[-1][0] = True
            groups[-1][1] |= inner_fixed and optional is None
        elif optional is None:
            groups[-1][1] = True
        if found := repeat or optional:
            index = found.end()
            if source[index : index + 1] in ("?", "+"):
                index += 1
    return 0


def _atom_end(source: str, index: int) -> int:
    if source[index] == "\\":
        return index + 2
    if source[index] != "[":
        return index + 1
    end = index + (2 if source[index + 1 : index + 2] == "^" else 1)
    end += 1  # a bracket right after the opening one is a literal
    while end < len(source) and source[end] != "]":
        end += 2 if source[end] == "\\" else 1
    return end + 1
