"""Whether a value in a prompt is a mark on it, or part of what is asked."""

from __future__ import annotations

import re
from collections.abc import Set

__all__ = ["is_anywhere", "is_glued", "is_mark", "words_of"]

_STEM = 5
_WORD = re.compile(r"[^\W\d_]{3,}")
_BOUNDS = re.compile(r"[.?!:](?=\s)|[\n()\[\]{}|;<>]")
_LABEL = re.compile(r"([^\W\d_]+)[\"']?\s*[:=#]*\s*(?:no\.?|number)?\s*[\"'(\[]?[\w/.-]*$", re.IGNORECASE)
_FIELD = re.compile(r"[^\W\d_]+[\"']?\s*[:=]\s*[\"']?[\w-]")
_ASKED = re.compile(r"[^.?!\n:\]>]*\?")
_RECORD = 3
_OPENS, _CLOSES = tuple("([{<"), tuple(")]}>")
_REST = re.compile(r"[\w-]*(?: ?[-(][\w )-]*)?\.[a-z]\w{1,4}\b|_\w")
_EMPTY = frozenset(
    "the and are was were has have had for with that this what which who how many much does did you your".split()
)
# A prompt that says so shows its gold by nature.
_READ = re.compile(
    r"\b(?:passages?|texts?|documents?|contexts?|paragraphs?|articles?|excerpts?|e-?mails?|messages?|tables?|extract\w*|cop(?:y|ies)"
    r"|repeat\w*|quot(?:e|ed)|story|log|transcript|snippets?|sentences?|extensions?|renam\w*|domains?|urls?)\b",
    re.IGNORECASE,
)
_LISTED = re.compile(r"\b(?:following|below|above|lists?|options?|choose|pick)\b", re.IGNORECASE)
_TURNS = re.compile(
    r"\b(?:revers\w*|backwards?|mirror\w*|hex\w*|base ?64|(?:en|de)cod\w*|rot-?13|cipher\w*|caesar|cents?|per ?cent\w*"
    r"|alphabet\w*|convert\w*|binary|letters?|spell\w*|underscores?|hyphen\w*|snake|camel|kebab|slugs?|spaces?|kilo\w*|milli\w*|met(?:er|re)s?|grams?|thousands?|hundreds?)\b",
    re.IGNORECASE,
)
_GIVEN = frozenset(
    "answer ans gold golden solution sol soln result target label ref reference hint debug expected correct secret"
    " truth gt key".split()
)


def is_mark(text: str, start: int, end: int, transform: str) -> bool:
    """Whether a value in a prompt is a mark on it and no part of what is asked: a label's, or in an identifier.

    Prose that says the gold is what a task reads: "It weighs 5 kg. How heavy is it?"

    Args:
        text: the whole prompt.
        start: where the value begins.
        end: where it ends.
        transform: what hides it, "itself" for nothing.
    """
    if text.rfind("<!--", 0, start) > text.rfind("-->", 0, start):
        return True  # nobody is shown a comment to read it
    bounds = [0, *(match.end() for match in _BOUNDS.finditer(text)), len(text)]
    first = max(at for at in bounds if at <= start)
    last = min((at for at in bounds if at >= end), default=len(text))
    begin = text.rfind("\n", 0, start) + 1
    line = text[begin:start]
    label = _LABEL.search(line)
    elsewhere = f"{text[: min(first, begin + label.start()) if label else first]} {text[last:]}"
    named = words_of(label[1]) if label else frozenset()
    asked = {word for match in _ASKED.finditer(text) for word in words_of(match[0])}
    if named & asked or (transform != "itself" and _TURNS.search(text)):
        return False
    if label and (label[1].casefold() in _GIVEN or label[1].casefold().rstrip("s") in _GIVEN):
        return True
    if is_glued(text, start, end):
        return not _READ.search(elsewhere)
    # A record, or a text to be read: its fields are its own.
    if (
        _READ.search(text)
        or _LISTED.search(text)
        or len(_FIELD.findall(text)) >= _RECORD
        or named & words_of(elsewhere)
    ):
        return False
    inside, after = text[first:start], text[end : end + 1]
    if "?" in text[:first] and text[start - 1 : start] in _OPENS and after in _CLOSES:
        return True  # alone in brackets behind the question
    if text[end:last].rstrip().endswith("?") and words_of(inside):
        return False
    if not re.search(r"[^\W\d_]", line):
        # The number of a task, in front of it.
        return after in ("", "\n") or not (after.isalnum() or after.isspace() or after in "+*/=<>,%-")
    is_alone = after in ("", "\n") or not text[end:last].strip(" .)]}>;:|")
    words = re.findall(r"\w+", inside)
    return label is not None and (not words or (len(words) == 1 and (is_alone or after == ":")))


def is_anywhere(text: str, start: int, end: int, transform: str) -> bool:
    """As `is_mark`, where the answer is no part of the prompt: whatever is not written otherwise on purpose."""
    return transform == "itself" or not _TURNS.search(text)


def is_glued(text: str, start: int, end: int, transform: str = "itself") -> bool:
    """Whether a value is part of an identifier: `12/C`, `q007B`, `2001_report.csv`; not so `5kg` or `$5`."""
    if _REST.match(text, end):
        return True
    before = re.search(r"[\w/#.-]*$", text[:start])
    ahead = before[0] if before else ""
    is_named = re.search(r"[^\W\d_]", ahead + text[start:end])
    parts = re.search(r"[/#_.-]\w{0,3}$", ahead) or (re.search(r"[^\W\d_]", ahead) and re.search(r"\d", ahead))
    return bool(is_named and parts and re.search(r"\w", ahead))


def words_of(text: str) -> Set[str]:
    """The beginnings of a text's words that mean something, by which two are taken for one."""
    return {word[:_STEM] for word in _WORD.findall(text.casefold()) if word not in _EMPTY}
