"""How rows become a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["jsonl"]


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON object a line, UTF-8, keys in the order of the row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
