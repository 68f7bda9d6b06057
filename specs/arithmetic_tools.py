"""Tools of arithmetic.yaml."""

from __future__ import annotations

__all__ = ["clock"]


def clock() -> str:
    """Tell the time of day."""
    # Always the same: an episode depends on nothing but its task, its seed and its actions.
    return "09:41"
