"""What a policy without merit writes holds the right answer by no accident."""

from __future__ import annotations

import pytest

from rlenv.audit.words import holds, like, nonce, shrug


@pytest.mark.parametrize("right", ["", "7", "B", "o", "no", "zoz", "quz", "the old mill"])
def test_nonce_words_are_different_and_hold_neither_digits_nor_the_right_answer(right: str) -> None:
    words = nonce(2_000, without=[right])
    assert len(set(words)) == 2_000
    assert all(word.isalpha() for word in words)
    assert not right or right.casefold() not in " ".join(words)


@pytest.mark.parametrize("right", ["no", "D", "w", "do", "unsure", "yes"])
def test_who_does_not_know_says_no_answer(right: str) -> None:
    assert right.casefold() not in shrug([right]).casefold()
    assert shrug(["Paris", ""]) == "I do not know."


def test_a_text_like_another_has_its_words_in_number_and_length() -> None:
    text = "It is 12:30,\n<answer>no</answer> I think."
    made = like(text, without=["no"])
    assert [len(word) for word in made.split()] == [len(word) for word in text.split()]
    assert "\n" in made
    assert not any(sign.isdigit() or sign in "<>:" for sign in made)


def test_an_answer_is_held_as_words_of_its_own() -> None:
    assert holds("the score is 5.", "5")
    assert holds("a Red,  fox", "red fox")
    assert not holds("the score is 55", "5")
    assert not holds("nothing", "no")
    assert not holds("anything", "?")
