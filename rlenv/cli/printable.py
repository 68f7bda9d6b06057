"""Text that others wrote, for a terminal: what would move its cursor, colour it or turn its letters is shown."""

from __future__ import annotations

import re

from rich.markup import escape

__all__ = ["in_markup", "printable"]

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with a visible escape for each control character but newline and tab, and for what turns the direction."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_markup(text: str) -> str:
    """`printable` text that stands in rich's markup and is none."""
    return escape(printable(text))
