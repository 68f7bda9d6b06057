"""A Gymnasium space of texts."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

from gymnasium.spaces import Space

__all__ = ["TextSpace"]

_ALPHABET = string.ascii_letters + string.digits + " .,:;!?<>/{}[]\"'()+-*=\n"
_LONGEST_SAMPLE = 64


class TextSpace(Space[str]):
    """All texts of at most `max_length` characters, whatever they hold.

    `gymnasium.spaces.Text` lists its characters one by one: an all-Unicode space takes seconds and tens of megabytes
    to make, pickle and batch. Membership here is a length check; samples come from a small alphabet.
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed shape."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short random text."""
        length = int(self.np_random.integers(min(_LONGEST_SAMPLE, self.max_length) + 1))
        return "".join(_ALPHABET[i] for i in self.np_random.integers(len(_ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        """True for a str within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Texts are JSON already."""
        return [str(sample) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"
