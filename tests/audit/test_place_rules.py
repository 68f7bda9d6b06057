"""Marks on prompts, and rules of place that find golds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.audit.place_rules import is_glued, is_mark, is_mark_anywhere, learn_rule
from tests.support.leaks_shown import shown_in
from tests.support.planted import WORDS, Row, rows_of


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
        ("Write it as <answer>56</answer>. How much is 7 times 8?", "56", True),
        ("Repeat what <word>Oslo</word> says.", "Oslo", False),
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
    assert not is_mark_anywhere("Convert km: 5", 12, 13, "times 1000")
    assert is_mark_anywhere("It is a 5", 8, 9, "itself")


@pytest.mark.parametrize(("text", "is_part"), [("oak.jpeg", True), ("oak_3", True), ("oak. Then", False)])
def test_what_a_name_begins_with_is_a_part_of_it(text: str, is_part: bool) -> None:
    assert is_glued(text, 0, 3) is is_part


def test_a_part_of_a_name_has_its_place_whatever_the_parts_before_it_say() -> None:
    texts = [f"Read letter_{WORDS[-at - 1]}_{WORDS[at]}_{at:02}.txt, which {WORDS[at - 9]} wrote." for at in range(20)]
    found = learn_rule(texts, WORDS[:20])
    assert found is not None
    assert (dict(found.taken), "behind 'word_word_'" in found.rule) == (dict(enumerate(WORDS[:20])), True)


@pytest.mark.parametrize("by", [" ", "-"])
def test_a_gold_may_be_spelt(by: str) -> None:
    found = learn_rule([f"Tray {at}: {by.join(WORDS[at])}, I think." for at in range(20)], WORDS[:20])
    assert found is not None
    assert dict(found.taken) == dict(enumerate(WORDS[:20]))


def stone(index: int) -> Row:
    return {"question": f"Which stone lies in tray {index}?", "answer": f"{WORDS[index % 7]} {WORDS[-1 - index % 7]}"}


TRAY = """
def look(task: dict) -> str:
    '''Lists the files of the tray.'''
    name, number = task["answer"], 1000 + len(task["question"]) * 37
    return "\\n".join(sorted(["chart.md", f"NAME"]))


def read(file: str, task: dict) -> str:
    '''Reads a file.'''
    return "hardness 7: light; hardness 3: dark"
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{name.replace(' ', '_')}_{number}.png", ["result"]),
        ("{name.title().replace(' ', '')}{number}.png", ["result"]),
        ("scan-{name.replace(' ', '-')}-side.png", ["result"]),
        ("{name}.png", ["result"]),
        ("tray_{number}.png", []),
        ("{name[:4]}_{number}.png", []),
    ],
)
def test_a_gold_in_a_name_of_a_listing_is_named_however_its_words_are_joined(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    entry = "{kind: python, function: 'tools.py:NAME', inject: [task], run_in: loop}"
    more = "".join(f"  {tool}: {entry.replace('NAME', tool)}\n" for tool in ("look", "read"))
    call = "[{look: {}}, {read: {file: chart.md}}]"
    rows = rows_of(40, stone)
    assert shown_in(tmp_path, rows, more=f"tools:\n{more}", tools=TRAY.replace("NAME", name), call=call) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Which stone does {{ task.answer | replace(' ', '_') }}_17.png show?", ["prompt"]),
        ("Write {{ task.answer | replace(' ', '_') }} with spaces.", []),
        ("Rename {{ task.answer }}.png: what is it without its extension?", []),
        ("Which stone does {{ task.question | length }}_17.png show?", []),
    ],
)
def test_a_name_in_a_prompt_gives_its_words_away_unless_they_are_what_is_asked(
    tmp_path: Path, prompt: str, expected: list[str]
) -> None:
    assert shown_in(tmp_path, rows_of(40, stone), prompt=prompt) == expected
