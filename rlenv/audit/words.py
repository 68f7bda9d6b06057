"""Words that say nothing: what a policy without merit writes must not hold the right answer by accident.

A long text with numbers in it holds one task's number, "I do not know" holds a "no" and the letter D. What earns by
that would be named after its length or its silence, and the hole is another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, islice

__all__ = ["holds", "like", "nonce", "shrug"]

_HARD, _SOFT = "zqxvkwjbfg", "uoiyae"
_SHRUGS = ("I do not know.", "Unsure.", "Hmm.", "?")
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"(\s+)")


def nonce(number: int, *, without: Sequence[str]) -> list[str]:
    """So many different words of no language: no digits, and none of these texts in any of them."""
    texts = _plain(without)
    letters = {one for text in texts if len(text) <= 2 for one in text}
    hard = [one for one in _HARD if one not in letters]
    soft = [one for one in _SOFT if one not in letters]
    parts = [first + second for first in hard for second in soft]
    made = (_numbered(index, parts) + hard[index % len(hard)] for index in count())
    return list(islice((word for word in made if not any(text in word for text in texts)), number))


def _plain(texts: Sequence[str]) -> list[str]:
    return [plain for text in texts if (plain := text.casefold().strip())]


def _numbered(index: int, parts: list[str]) -> str:
    low, high = parts[index % len(parts)], parts[index // len(parts) % len(parts)]
    more = index // len(parts) ** 2
    return low + high + (_numbered(more - 1, parts) if more else "")


def like(text: str, *, without: Sequence[str]) -> str:
    """A text of as many words as this one, each as long, that says nothing."""
    pieces = _SPACE.split(text)
    words = iter(nonce(len(pieces), without=without))
    return "".join(piece if piece.isspace() or not piece else _as_long(next(words), len(piece)) for piece in pieces)


def _as_long(word: str, length: int) -> str:
    return (word * (length // len(word) + 1))[:length]


def shrug(without: Sequence[str]) -> str:
    """Says that the policy does not know, in words that hold none of these texts."""
    texts = _plain(without)
    return next((said for said in _SHRUGS if not any(text in said.casefold() for text in texts)), "")


def holds(text: str, right: str) -> bool:
    """Whether a text holds the right answer as words of its own."""
    wanted = _WORD.findall(right.casefold())
    if not wanted:
        return False
    between = r"\W+".join(map(re.escape, wanted))
    return re.search(rf"(?<!\w){between}(?!\w)", text.casefold()) is not None
