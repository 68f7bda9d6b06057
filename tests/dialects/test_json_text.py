"""What stands outside the strings of a text, found once however often it is asked for."""

from __future__ import annotations

import random
import re

import pytest

from rlenv.dialects.json_text import Extent, Strings

PIECES = ('"', '"', "\\", '\\"', "<a>", "<ab>", "<", "a", " ", "\n", '"x y"', "{}", "x" * 50, "y" * 700)


def naive(text: str, begin: int, marks: tuple[str, ...], *, raw: bool) -> int:
    string = re.compile(r'"(?:[^"\\]|\\.)*"' if raw else r'"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*"', re.DOTALL)
    at = begin
    while at < len(text) and not text.startswith(marks, at):
        if text[at] == '"':
            found = string.match(text, at)
            if found is None:
                return at
            at = found.end()
        else:
            at += 1
    return at


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_end_is_the_same_whoever_asked_before(seed: int, raw: bool) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices(PIECES, k=rng.randint(1, 120)))
    marks = ("<ab>", "<a>")
    extent, strings = Extent(marks, raw=raw), Strings(text, raw=raw)
    for begin in sorted(rng.choices(range(len(text) + 1), k=60)):
        expected = naive(text, begin, marks, raw=raw)
        at_once = extent.whole.match(text, begin)
        assert at_once is not None
        assert extent.end(text, begin, strings) == at_once.end() == expected, (text, begin)
