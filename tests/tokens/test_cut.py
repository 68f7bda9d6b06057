"""Contents cut by tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.vocabulary import Keep

ENCODER = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)


def tokens(text: str) -> int:
    return len(ENCODER.encode_content(text))


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.integers(1, 80),
    st.sampled_from(["head", "tail", "head_tail"]),
)
def test_a_cut_text_fits_and_holds_whole_characters(text: str, limit: int, keep: Keep) -> None:
    short = ENCODER.cut(max_tokens=limit, keep=keep)(text)
    assert tokens(short) <= limit
    if tokens(text) <= limit:
        assert short == text
    elif " characters left out …" in short:
        first, _, rest = short.partition("… ")
        left, _, last = rest.partition(" characters left out …")
        first, last = first.removesuffix("\n"), last.removeprefix("\n")
        assert text.startswith(first)
        assert text.endswith(last)
        assert len(first) + int(left) + len(last) == len(text)


@pytest.mark.parametrize(
    ("keep", "first", "last"), [("head", True, False), ("tail", False, True), ("head_tail", True, True)]
)
def test_the_part_that_is_asked_for_is_kept(keep: Keep, first: bool, last: bool) -> None:
    text = "BEGIN " + "世界 🎉 " * 200 + "END"
    short = ENCODER.cut(max_tokens=60, keep=keep)(text)
    assert short.startswith("BEGIN") is first
    assert short.endswith("END") is last
    assert "left out" in short


def test_a_limit_without_room_for_a_note_still_holds() -> None:
    for limit in range(1, 12):
        assert tokens(ENCODER.cut(max_tokens=limit)("the quick brown fox " * 20)) <= limit


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        ENCODER.cut(max_tokens=0)
