"""JSON whose whole numbers keep all of their digits."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

__all__ = ["MAX_CHARS", "loads"]

MAX_CHARS = 131_072
"""What a policy wrote is read as JSON up to this length, which takes some milliseconds on the event loop."""

# A float holds 15 to 17 digits; a run of fewer is read the same by everybody.
_LONG = re.compile(r"\d{16}")


def loads(text: str) -> Any:
    """The value of a JSON text, strictly read: no NaN, nothing beyond a float, nothing nested past 1,000 levels.

    Raises:
        ValueError: it is not JSON, or too deep.
    """
    value = orjson.loads(text)
    if _LONG.search(text) is None:
        return value
    try:
        return json.loads(text)  # what the strict reader took, where it makes floats of integers beyond 64 bit
    except RecursionError:
        return value
