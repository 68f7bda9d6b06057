"""What running one piece of a model's code gave, whatever sandbox ran it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlenv._base.bounded import encodable
from rlenv._base.reasons import Whose

__all__ = ["Outcome", "is_plain", "plain"]

_MAX_DEPTH = 20
_MAX_PARTS = 2_000
_MAX_CHARS = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a piece of code ended.

    `output` is what it printed, `shown` its last expression as text (None without one), `result` that as JSON.
    `error` says why it did not end well, None where it did; `reason` is then a word of `rlenv._base.reasons`, and
    `whose` whose doing it was where the word alone does not tell. `calls` are the tools that it called, in order:
    `{"tool", "arguments", "outcome"}`.
    """

    output: str = ""
    is_cut: bool = False
    shown: str | None = None
    result: Any = None
    error: str | None = None
    reason: str = "failed"
    whose: Whose | None = None
    calls: tuple[Mapping[str, Any], ...] = ()


def is_plain(value: Any) -> bool:
    """Whether `value` is JSON of exactly the built-in types, and not much of it."""
    rest: list[tuple[Any, int]] = [(value, 0)]
    parts = chars = 0
    while rest:
        item, depth = rest.pop()
        kind = type(item)
        parts += 1
        if kind is str:
            chars += len(item)
        elif kind is int:
            chars += item.bit_length() // 3
        elif kind is float:
            if not math.isfinite(item):
                return False
        elif kind is list or kind is dict:
            if depth >= _MAX_DEPTH or len(item) > _MAX_PARTS:
                return False
            if kind is dict:
                if any(type(key) is not str for key in item):
                    return False
                chars += sum(map(len, item))
            rest.extend((one, depth + 1) for one in (item.values() if kind is dict else item))
        elif kind is not bool and item is not None:
            return False
        if parts > _MAX_PARTS or chars > _MAX_CHARS:
            return False
    return True


def plain(value: Any) -> Any:
    """A copy of what `is_plain` took, each text such that any reader takes it."""
    kind = type(value)
    if kind is str:
        return encodable(value)
    if kind is list:
        return [plain(item) for item in value]
    if kind is dict:
        return {encodable(key): plain(item) for key, item in value.items()}
    return value
