"""What running one piece of a model's code gave, whatever sandbox ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a piece of code ended.

    `output` is what it printed, `shown` its last expression as text (None without one), `result` that as JSON. `error`
    says why it did not end well, None where it did; `is_late` where its time was up. `calls` are the tools that it
    called, in order: `{"tool", "arguments", "outcome"}`.
    """

    output: str = ""
    is_cut: bool = False
    shown: str | None = None
    result: Any = None
    error: str | None = None
    is_late: bool = False
    calls: tuple[Mapping[str, Any], ...] = ()
