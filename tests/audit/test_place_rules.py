"""Golds in names, whose words are joined otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.leaks_shown import shown_in
from tests.support.planted import WORDS, Row, rows_of


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
