"""Golds in tables and files that all tasks share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.run import audit
from tests.support.leaks_shown import shown_in
from tests.support.planted import WORDS, Row, plant, rows_of


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


@pytest.mark.slow
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


def test_an_error_that_repeats_the_name_that_was_asked_for_gives_nothing_away(tmp_path: Path) -> None:
    rows = [{"question": f"Which sign has gate {at}?", "gate": at, "answer": WORDS[at]} for at in range(14)]
    values = ", ".join(f"({row['gate']}, '{row['answer']}')" for row in rows)
    (tmp_path / "make.sql").write_text(f"CREATE TABLE gates (gate INT, sign TEXT); INSERT INTO gates VALUES {values};")
    more = DATABASE.replace("path: shop.sqlite, access: read_only", "init: make.sql")
    call = '{query: {sql: "SELECT sign FROM gates WHERE gate = {{ task.gate }}"}}'
    assert shown_in(tmp_path, rows, more=more, call=call) == []


@pytest.mark.slow
@pytest.mark.parametrize(("question", "expected"), [("Sold {at}?", True), ("How much was sold in week {at}?", False)])
def test_questions_that_are_too_short_to_be_known_in_a_sheet_are_a_note(
    tmp_path: Path, question: str, expected: bool
) -> None:
    rows = [{"question": question.format(at=at), "answer": WORDS[at]} for at in range(14)]
    text = (
        'def look() -> str:\n    """Lists the files."""\n    return "old.csv"\n\n\n'
        'def read(file: str) -> str:\n    """Reads a file."""\n    return "nothing\\nof use"\n'
    )
    more = "".join(f"  {tool}: {{kind: python, function: 'tools.py:{tool}'}}\n" for tool in ("look", "read"))
    path = plant(tmp_path, {"train": rows}, more=f"tools:\n{more}", tools=text)

    async def main() -> bool:
        async with rlenv.load(path) as environment:
            return any("too short to know" in note for note in (await audit(environment, tasks=4)).notes)

    assert asyncio.run(main()) == expected
