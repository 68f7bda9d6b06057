"""Which values of a prompt are marks on it: labels, parts of identifiers, brackets; and which are what is asked."""

from __future__ import annotations

import pytest

from rlenv.audit.marks import is_anywhere, is_glued, is_mark


@pytest.mark.parametrize(
    ("prompt", "value", "expected"),
    [
        ("What is 7 times 8? (ref: 56)", "56", True),
        ("Which town? [Oslo]", "Oslo", True),
        ("Task 56: what is 7 times 8?", "56", True),
        ("What does page_56.pdf say?", "56", True),
        ("Pick one. Sheet 3/C", "C", True),
        ("answer: 56. What is 7 times 8?", "56", True),
        ("What is 7 times 8?\nchecksum: 56", "56", True),
        ("What is 7 times 8?\n<!-- as was found in 1990: 56 -->", "56", True),
        # what is asked
        ("Lamp: red 56. Which red is it?", "56", False),
        ("Invoice 56 was paid. Which invoice was it?", "56", False),
        ("It weighs 56 kg. How heavy is it?", "56", False),
        ("How many coins are 56 pairs?", "56", False),
        # texts to be read
        ("Read the passage.\nroom: 56\nWhere is it?", "56", False),
        ("Extract the number from page_56.pdf", "56", True),
        ("Extract it: the file is called page_56.pdf", "56", False),
        ("Choose among the following:\n56\n57", "56", False),
        ("a: 1, b: 2\nroom: 56\nWhere is it?", "56", False),
        ("The room is light.\nroom: 56", "56", False),
        # amounts are no identifiers
        ("He has USD56 and wants more of it", "56", False),
        ("It is 56kg", "56", False),
    ],
)
def test_a_value_is_a_mark_or_what_is_asked(prompt: str, value: str, expected: bool) -> None:
    start = prompt.index(value)
    assert is_mark(prompt, start, start + len(value), "itself") is expected


def test_what_a_prompt_asks_to_be_turned_is_no_hidden_gold() -> None:
    assert not is_mark("Spell backwards (ref: olso)", 21, 25, "written backwards")
    assert is_mark("Which town? (ref: olso)", 18, 22, "written backwards")
    assert not is_anywhere("Convert km: 5", 12, 13, "times 1000")
    assert is_anywhere("It is a 5", 8, 9, "itself")


@pytest.mark.parametrize(("text", "is_part"), [("oak.jpeg", True), ("oak_3", True), ("oak. Then", False)])
def test_what_a_name_begins_with_is_a_part_of_it(text: str, is_part: bool) -> None:
    assert is_glued(text, 0, 3) is is_part
