"""Added tokens that write plain text stay what they are in contents; all others are control tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from rlenv.errors import UsageError
from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import load_tokenizer
from rlenv.tokens.vocabulary import Keep, Vocabulary, encode


def spaced() -> Tokenizer:
    """A tokenizer that spells a space `▁`, with white space of several signs among its added tokens, as Gemma 3."""
    signs = [*map(chr, range(32, 127)), "\n", "▁"]
    made = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(signs)}, merges=[]))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_tokens([AddedToken(text, special=False, normalized=True) for text in ("▁▁", "▁▁▁▁", "\n\n")])
    made.add_tokens([AddedToken("<b>", special=False, normalized=False)])
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"])
    return made


def test_white_space_among_added_tokens_is_one_id_in_contents_as_in_the_whole() -> None:
    whole = spaced()
    vocabulary = Vocabulary(whole)
    for text in ("a  b", "    x\n\ny", " ", "\n\n\n", "a   b    c"):
        assert encode(vocabulary.plain, text) == whole.encode(text, add_special_tokens=False).ids
    double = whole.token_to_id("▁▁")
    assert double in encode(vocabulary.plain, "a  b")
    assert double not in vocabulary.control_ids
    assert whole.token_to_id("<|im_end|>") not in encode(vocabulary.plain, "a <|im_end|>  b")
    assert whole.token_to_id("<b>") not in encode(vocabulary.plain, "<b>")
    assert vocabulary.leaks() == ()


def test_results_with_white_space_pieces_are_the_templates_own_ids() -> None:
    encoder = TokenEncoder(spaced(), chat_template=CHAT_TEMPLATE)
    for result in ("a  b\n\n    c", "    ", "\n\n", "x\n\n\n\n  y  "):
        trajectory = encoder.start([Message("user", "Q  ?")])
        trajectory.add_sampled(encoder.encode_text("look<|im_end|>"))
        assert trajectory.add_observation(Observation((Message("tool", result),)))
        text = encoder.decode(trajectory.context_ids)
        assert result in text
        assert trajectory.context_ids == encoder.encode_text(text)


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({"eos_token_id": [3, 1]}, (3, 1)),
        ({"eos_token_id": 2}, (2,)),
        ({"eos_token_id": None}, ()),
        ({}, ()),
        ([], ()),
    ],
)
def test_the_models_own_ends_are_read_beside_its_tokenizer(
    tmp_path: Path, config: object, ends: tuple[int, ...]
) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.end_ids == ends
    assert set(ends) <= set(TokenEncoder(loaded, chat_template=CHAT_TEMPLATE).stop_token_ids)


@pytest.mark.parametrize("text", ['{"eos_token_id": "x"}', '{"eos_token_id": [true]}', '{"eos_token_id": [-1]}', "{"])
def test_ends_that_cannot_be_read_are_said(tmp_path: Path, text: str) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="generation_config"):
        load_tokenizer(str(tmp_path))


# Contents cut by tokens

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
