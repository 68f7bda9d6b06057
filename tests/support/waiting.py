"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(is_true: Callable[[], bool], *, what: str, seconds: float = 300.0) -> None:
    """Returns as soon as `is_true`, and fails after `seconds`."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)
