"""JSON whose whole numbers keep all of their digits."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from rlenv._base.strict_json import DuplicateKey, count_keys, has_keys, unique

__all__ = ["MAX_CHARS", "DuplicateKey", "loads"]

MAX_CHARS = 131_072
"""What a policy wrote is read as JSON up to this length, which takes some milliseconds on the event loop."""

# A float holds 15 to 17 digits; a run of fewer is read the same by everybody.
_LONG = re.compile(r"\d{16}")


def loads(text: str) -> Any:
    """The value of a JSON text, strictly read: no NaN, nothing beyond a float, nothing nested past 1,000 levels.

    Raises:
        ValueError: it is not JSON, or too deep; DuplicateKey where an object has a key twice.
    """
    value = orjson.loads(text)
    keys = count_keys(value, 1_000) if isinstance(value, (dict, list)) else 0
    if has_keys(text, keys) and _LONG.search(text) is None:
        return value
    try:  # what the strict reader took, where it makes floats of integers beyond 64 bit and keeps the last of two keys
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        return value
