"""What nobody would see of a text is shown."""

from __future__ import annotations

import sys
import unicodedata

from rlenv._base.text import visible

WITH_GLYPHS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Format characters that are shown themselves, before or around a number (Unicode, Prepended_Concatenation_Mark)."""


def test_every_format_character_without_a_glyph_is_shown_as_an_escape() -> None:
    formats = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"]
    hidden = [code for code in formats if code not in WITH_GLYPHS and visible(chr(code)) == chr(code)]
    assert [f"{code:x}" for code in hidden] == []
    assert visible("pass\u200bword") == "pass\\u200bword"
