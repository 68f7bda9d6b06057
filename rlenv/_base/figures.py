"""Numbers as tables show them."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["figure"]

_LARGE: Final = 1e6


def figure(value: float | None) -> str:
    """A number with three digits behind the point, a large one with four in all; "–" for none and for no finite one."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3e}"
