"""Golds in names, in texts that all tasks share, and behind a value that a tool's prose says."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlenv.audit.marks import is_glued
from tests.support.leaks_shown import looked, shown_in
from tests.support.planted import WORDS, Row, rows_of

# names


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


@pytest.mark.parametrize(("text", "is_part"), [("oak.jpeg", True), ("oak_3", True), ("oak. Then", False)])
def test_what_a_name_begins_with_is_a_part_of_it(text: str, is_part: bool) -> None:
    assert is_glued(text, 0, 3) is is_part


# tables and files


def sale(index: int) -> Row:
    goods, town = WORDS[index % 6], WORDS[-1 - index // 6]
    return {
        "question": f"How much {goods} was sold in {town}?",
        "goods": goods,
        "town": town,
        "answer": str(100 + index * 37 % 719),
    }


def shop(folder: Path, rows: Sequence[Row], *columns: str) -> None:
    """A database of sales in two parts each, and, with columns, a table of what is asked with its answer."""
    db = sqlite3.connect(folder / "shop.sqlite")
    db.execute("create table sales (goods, town, amount)")
    for row in rows:
        total = int(row["answer"])
        parts = [(row["goods"], row["town"], part) for part in (total // 3, total - total // 3)]
        db.executemany("insert into sales values (?, ?, ?)", parts)
    if columns:
        db.execute(f"create table probe_sheet ({', '.join(columns)})")
        for row in rows:
            db.execute(
                f"insert into probe_sheet values ({', '.join('?' * len(columns))})", [row[one] for one in columns]
            )
    db.commit()
    db.close()


DATABASE = """resources: {shop: {kind: sqlite, path: shop.sqlite, access: read_only}}
tools: {query: {kind: sql, resource: shop}}"""
SUM = "{query: {sql: \"SELECT SUM(amount) FROM sales WHERE goods = '{{ task.goods }}' AND town = '{{ task.town }}'\"}}"
ASKED = "{query: {sql: \"SELECT answer FROM probe_sheet WHERE question = '{{ task.question }}'\"}}"


@pytest.mark.parametrize(
    ("count", "columns", "call", "system", "expected"),
    [
        (36, ("question", "answer"), SUM, "", ["result"]),
        (36, ("goods", "town", "answer"), SUM, "", ["result"]),
        (36, ("question", "answer"), "", "", ["result"]),
        # More rows than the tool shows at once.
        (150, ("question", "answer"), SUM, "", ["result"]),
        (36, ("goods", "town"), SUM, "", []),
        (36, (), SUM, "", []),
        # Looking up a word, in a database that the oracle has no need of.
        (36, ("goods", "town", "answer"), "", "", []),
        (36, ("question", "answer"), ASKED, "", []),
        (36, ("question", "answer"), SUM, "There are the tables sales and probe_sheet.", []),
    ],
)
def test_a_table_of_all_tasks_that_nobody_was_to_ask_is_named(
    tmp_path: Path, count: int, columns: tuple[str, ...], call: str, system: str, expected: list[str]
) -> None:
    rows = rows_of(count, sale)
    shop(tmp_path, rows, *columns)
    rule = "{kind: rule, rule: numeric_match}"
    assert shown_in(tmp_path, rows, more=DATABASE, call=call, system=system, rule=rule) == expected


@pytest.mark.parametrize(("said", "expected"), [("{question};{answer}", ["result"]), ("{goods};{town}", [])])
def test_a_listed_file_of_all_tasks_that_nobody_was_to_read_is_named(
    tmp_path: Path, said: str, expected: list[str]
) -> None:
    rows = rows_of(36, sale)
    sheet = "\n".join(said.format(**row) for row in rows)
    text = (
        "from rlenv.errors import ToolFailed\n\n\n"
        "def look(task: dict) -> str:\n    '''Lists the files.'''\n    return 'till.csv\\nold.csv'\n\n\n"
        "def read(file: str, task: dict) -> str:\n    '''Reads a file.'''\n"
        f"    files = {{'till.csv': f\"{{task['question']}} 1 2\", 'old.csv': {sheet!r}}}\n"
        "    if file not in files:\n        raise ToolFailed('no such file')\n    return files[file]\n"
    )
    entry = "{kind: python, function: 'tools.py:NAME', inject: [task], run_in: loop}"
    more = "".join(f"  {tool}: {entry.replace('NAME', tool)}\n" for tool in ("look", "read"))
    call = "[{look: {}}, {read: {file: till.csv}}]"
    assert shown_in(tmp_path, rows, more=f"tools:\n{more}", tools=text, call=call) == expected


# values that prose says


@pytest.mark.parametrize(
    ("kind", "default", "prose", "value"),
    [
        ("str", "'name'", "what is wanted, or % for every field there is.", "%"),
        ("str", "'name'", "brief or exhaustive.", "exhaustive"),
        ("str", "'name'", "", "all"),
        ("int", "1", "how many levels, -1 for no limit.", -1),
    ],
)
def test_what_one_value_of_an_argument_shows_is_named_where_prose_says_the_value(
    tmp_path: Path, kind: str, default: str, prose: str, value: object
) -> None:
    args = f"\n\n    Args:\n        part: {prose}\n    " if prose else ""
    head = (
        f'def look(about: str, part: {kind} = {default}, *, task: dict) -> str:\n    """Looks up.{args}"""\n'
        f'    return f"{{about}}: " + (task["answer"] if part == {value!r} else "nothing")\n'
    )
    rows = rows_of(40, stone)
    call = "{look: {about: it}}"
    assert looked(tmp_path, "", head=head, rows=rows, call=call) == ["result"]
    # The same tool where no word of the prose does anything.
    idle = head.replace(f"part == {value!r}", "part == 7919")
    assert looked(tmp_path, "", head=idle, rows=rows, call=call) == []
