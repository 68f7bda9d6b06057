"""One piece of a model's code: how it is run, and what that gave, whatever sandbox ran it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlenv._base.bounded import encodable
from rlenv._base.reasons import Whose

__all__ = ["Limits", "Outcome", "Request", "plain"]


class Limits(Protocol):
    """What a piece of code may use: its own seconds, what it may hold, how much of what it prints is kept."""

    @property
    def time_s(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What is run: `told` with its `mode` (see `_zygote.run`); `fds` are its input and its end of a socket, or nothing.

    `sent` is called once a sandbox has them. `patience_s` is how long it is waited for where that is more than the
    time that the limits give to the code itself.
    """

    told: Mapping[str, Any]
    fds: tuple[int, ...] = ()
    sent: Callable[[], None] = lambda: None
    patience_s: float = 0.0


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


def plain(value: Any) -> Any:
    """A copy of what `is_plain` of `_zygote` took, each text such that any reader takes it."""
    kind = type(value)
    if kind is str:
        return encodable(value)
    if kind is list:
        return [plain(item) for item in value]
    if kind is dict:
        return {encodable(key): plain(item) for key, item in value.items()}
    return value
