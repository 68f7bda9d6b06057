"""Where JSON values stand in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

__all__ = ["elements", "value_end"]

_DECODER: Final = json.JSONDecoder()
_RAW_DECODER: Final = json.JSONDecoder(strict=False)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{},]', re.DOTALL)


def value_end(text: str, at: int, stop: int, *, raw: bool) -> int:
    """Where the JSON object or list at `at` ends, at `stop` at the latest; -1 where there is none."""
    if not text.startswith(("{", "["), at):
        return -1
    decoder = _RAW_DECODER if raw else _DECODER
    # In windows, so that many values in one text cost no more than their length.
    size = 4096
    while True:
        window = text[at : min(at + size, stop)]
        try:
            return at + decoder.raw_decode(window)[1]
        except (ValueError, RecursionError):
            if at + size >= stop:
                return -1
        size *= 4


def elements(text: str, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """The places of the elements of the list in `text[begin:stop]`."""
    depth = 0
    first = -1
    for match in _TOKEN.finditer(text, begin, stop):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth == 1:
                first = match.end()
        elif token in "]}":
            depth -= 1
            if depth == 0:
                yield first, match.start()
                return
        elif token == "," and depth == 1:
            yield first, match.start()
            first = match.end()
