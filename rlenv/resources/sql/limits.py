"""What one statement may use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

__all__ = ["CPU_SHARE", "MAX_SIZE", "MAX_SQL", "Limits", "limits_for"]

MAX_SQL: Final = 100_000
"""Characters of a statement."""
MAX_SIZE: Final = 8_000_000
"""Of a result's cells together, in characters as JSON."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Until when, on the clock of `time.monotonic()`, how much processor time, and how much may come of it."""

    deadline: float
    cpu_s: float
    max_rows: int
    max_size: int
    is_urgent: bool = False
    """Before others in the queue: what a reward asks for."""


CPU_SHARE: Final = 0.25
"""How much of its time limit a statement may use as processor time."""
_LEAST_CPU_S: Final = 0.02


def limits_for(
    deadline: float, *, cpu_s: float | None, max_rows: int, max_size: int, is_urgent: bool = False
) -> Limits:
    """The limits of a statement that is given now; without `cpu_s` a quarter of its time is for the processor."""
    if cpu_s is None:
        cpu_s = max((deadline - time.monotonic()) * CPU_SHARE, _LEAST_CPU_S)
    return Limits(deadline, cpu_s, max_rows, max_size, is_urgent)
