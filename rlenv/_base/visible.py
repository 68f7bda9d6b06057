"""Text of others made fit for a terminal: what would act on it is shown as an escape."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["visible"]

# What a terminal obeys or reorders by: C0 but tab and newline, DEL, C1 (ECMA-48), the bidirectional controls (Unicode
# UAX #9, section 2) and all other format characters (Cf) that have no glyph of their own: what nobody sees can hide in
# a word. So are the separators that some take for newlines, and lone surrogates, which cannot be written at all.
_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""`text` with every character that a terminal would act on as an escape, such as `\x1b`.

    Tabs and newlines stay, and a carriage return before a newline goes. Inside of JSON the result is JSON that means
    the same.
    """
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
