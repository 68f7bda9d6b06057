"""Golds that stand where a policy can read them: each place, told from what a task shows by nature or by chance."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit
from tests.support.leaks_shown import FAILURE, LOOK, looked, shown_in
from tests.support.planted import WORDS, Row, capital, claims, plant, product, rows_of


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
def test_a_table_is_read_where_a_tool_may_write_and_behind_another_schema(tmp_path: Path) -> None:
    rows = rows_of(36, sale)
    shop(tmp_path, rows, "question", "answer")
    database = DATABASE.replace("read_only", "copy")
    assert shown_in(tmp_path, rows, more=database, call=SUM) == ["result"]
    with pytest.importorskip("duckdb").connect(str(tmp_path / "shop.duckdb")) as db:
        db.execute("create schema kept; create table kept.sheet (question text, answer text)")
        db.execute("create table sales (goods text, town text, amount integer)")
        for row in rows:
            db.execute("insert into kept.sheet values (?, ?)", [row["question"], row["answer"]])
            db.execute("insert into sales values (?, ?, ?)", [row["goods"], row["town"], row["answer"]])
    database = DATABASE.replace("sqlite", "duckdb")
    assert shown_in(tmp_path, rows, more=database, call=SUM) == ["result"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "columns", "call", "system", "expected"),
    [
        (36, ("question", "answer"), SUM, "", ["result"]),
        (36, ("goods", "town", "answer"), SUM, "", ["result"]),
        (36, ("question", "answer"), "", "", ["result"]),
        # More rows than the tool shows at once.
        (150, ("question", "answer"), SUM, "", ["result"]),
        # Instructions that name what all questions choose among.
        (36, ("goods", "town", "answer"), SUM, f"Of {', '.join(WORDS[:6])} we sell in {', '.join(WORDS)}.", ["result"]),
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


TRAIN = "train"


def audited(path: Path) -> AuditReport:
    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    return asyncio.run(main())


def places(report: AuditReport) -> list[tuple[str, str]]:
    return [(one.hole, one.where.partition(" ")[0]) for one in report.findings]


# prompts


@pytest.mark.parametrize(
    "shown",
    [
        "{question} (ref: {answer})",
        "Task {answer}: {question}",
        "[{answer}] {question}",
        "{question}\n\nid: q-{answer}-x",
        "{question}\nchecksum 00{answer}",
        "{question}\nbatch {answer}00",
        "{question}\n<!-- {answer} -->",
        "{question}\nsession={coded}",
    ],
)
def test_a_number_that_the_prompt_gives_away_is_named(tmp_path: Path, shown: str) -> None:
    def row(index: int) -> Row:
        made = product(index)
        coded = base64.b64encode(made["answer"].encode()).decode()
        return made | {"question": shown.format(**made, coded=coded)}

    assert shown_in(tmp_path, rows_of(30, row)) == ["prompt"]


@pytest.mark.parametrize("where", ["prompt", "system"])
def test_a_short_gold_that_an_identifier_shows_is_named(tmp_path: Path, where: str) -> None:
    rows = rows_of(40, lambda index: claims(48, lambda at: "ABCD"[at * at % 7 % 4])[index] | {"id": f"q{index:03}"})
    shown = "Sheet {{ task.id }}{{ task.answer }}\n"
    options: Any = {"prompt": f"{shown}{{{{ task.question }}}}"} if where == "prompt" else {"system": shown}
    assert shown_in(tmp_path, rows, **options) == ["prompt"]


@pytest.mark.parametrize(
    "shown",
    [
        "{{ 1 if task.answer == 'yes' else 0 }}",
        "{{ task.answer[:1] }}",
        "{{ task.answer[::-1] }}",
        "{{ task.answer | upper }}",
    ],
)
def test_a_flag_that_says_yes_or_no_is_named(tmp_path: Path, shown: str) -> None:
    rows = claims(48, lambda index: "yes" if index * 7 % 13 < 6 else "no")
    assert shown_in(tmp_path, rows, prompt="{{ task.question }}\nflag=" + shown) == ["prompt"]


@pytest.mark.slow
def test_a_leak_in_one_split_alone_is_named_with_an_episode_of_it(tmp_path: Path) -> None:
    leaky = rows_of(20, lambda index: product(index, "{question} (ref: {answer})"))
    report = audited(plant(tmp_path, {"train": rows_of(60, product)[20:], "warmup": leaky}))
    (finding,) = report.findings
    assert (finding.hole, finding.where) == ("leak", "prompt")
    assert finding.episode is not None
    assert finding.episode.split == "warmup"


STORY = "{name} buys {n} lamps for {price} coins each and gives {m} away. {ask}"


def story(index: int) -> Row:
    row: Row = {"name": WORDS[index], "n": 3 + index * 5 % 17, "price": 2 + index * 7 % 11, "m": 1 + index * 3 % 5}
    kind = ("n", "price", "m")[index * 2 % 3]
    ask = {"n": "How many lamps are bought?", "price": "What does one cost?", "m": "How many are given away?"}[kind]
    return row | {"question": STORY.format(ask=ask, **row), "answer": str(row[kind])}


def one_story(index: int) -> Row:
    row = story(index)
    question = f"The bridge at {row['name']} was built in {1700 + 13 * index}. When was the bridge built?"
    return {"question": question, "answer": str(1700 + 13 * index)}


def passage(index: int) -> Row:
    text = f"Passage: {WORDS[index]} is {index * 7 % 90 + 5} years old and lives in {WORDS[-index]}ton."
    return {"question": f"{text} Question: how old is she?", "answer": str(index * 7 % 90 + 5)}


def reversed_word(index: int) -> Row:
    return {"question": f"Write the word {WORDS[index]} backwards.", "answer": WORDS[index][::-1]}


def digit_sum(index: int) -> Row:
    one, other = index * 3 % 5, index * 7 % 4
    return {"question": f"{index}. What is {one} plus {other}?", "answer": str(one + other)}


def larger(index: int) -> Row:
    one, other = index * 37 % 91, index * 53 % 89
    return {"question": f"Which is larger, {one} or {other}?", "answer": str(max(one, other))}


@pytest.mark.parametrize("make", [story, one_story, passage, reversed_word, digit_sum, larger, product])
def test_golds_that_stand_in_the_prompt_by_nature_or_by_chance_are_sound(
    tmp_path: Path, make: Callable[[int], Row]
) -> None:
    assert shown_in(tmp_path, rows_of(40, make)) == []


# tools


@pytest.mark.slow
def test_a_tool_that_gives_the_gold_to_whatever_is_asked_is_named(tmp_path: Path) -> None:
    assert looked(tmp_path, "sheet-{task['answer']}.txt, other.txt") == ["result"]


def test_an_error_that_gives_the_gold_is_named(tmp_path: Path) -> None:
    assert looked(tmp_path, "expected {task['answer']}, found {about}", head=FAILURE) == ["error"]
    assert looked(tmp_path, "{task['question'][:7]}: found {about}", head=FAILURE) == []


HAND_IN = """
def hand_in(total: str, task) -> str:
    '''Hands the product in.'''
    if not total.isdigit():
        raise ValueError(f"TOLD, found {total!r}")
    return f"{task['answer']} was right"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("told", "found"), [("expected {task['answer']}", [("leak", "error")]), ("no number", [])])
def test_what_takes_the_answer_may_say_it_where_it_refuses_another(
    tmp_path: Path, told: str, found: list[tuple[str, str]]
) -> None:
    entry = (
        "{kind: python, function: 'tools.py:hand_in', inject: [task], errors: [ValueError], run_in: loop, ends: true}"
    )
    more = f"tools: {{hand_in: {entry}}}\nanswer: {{from: tool, tool: hand_in}}"
    call = "{hand_in: {total: '{{ task.answer }}'}}"
    made = plant(tmp_path, {"train": rows_of(24, product)}, more=more, tools=HAND_IN.replace("TOLD", told), call=call)
    made.write_text(made.read_text().partition("  - say:")[0])
    assert places(audited(made)) == found


def test_a_call_without_arguments_that_the_oracle_makes_on_every_row_is_the_task(tmp_path: Path) -> None:
    head = 'def look(task: dict) -> str:\n    """Looks at the scales."""\n    return f"{expression}"\n'
    assert looked(tmp_path, "The scales show {task['answer']}", head=head, call="{look: {}}") == []
    assert looked(tmp_path, "The scales show {task['answer']}", head=head) == ["result"]


def test_what_the_oracle_reads_may_be_read_by_other_calls(tmp_path: Path) -> None:
    head = (
        'def look(about: str, long: bool = False, *, task: dict) -> str:\n    """Looks up."""\n'
        '    return f"{task[\'answer\']} is what there is" + (f", and {about}" if long else "")\n'
    )
    assert looked(tmp_path, "", head=head, call="{look: {about: '{{ task.answer[:1] }}'}}") == ["result"]
    assert looked(tmp_path, "", head=head, call="{look: {about: it}}") == []


@pytest.mark.parametrize(("name", "expected"), [("grading/key.json", ["result"]), ("more/other.json", [])])
def test_a_listed_file_whose_name_tells_is_read_where_the_oracle_reads_one_file_on_all_tasks(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    head = (
        'def look(file: str = "", *, task: dict) -> str:\n    """Lists files, or reads one."""\n'
        f'    texts = {{"": "{name}\\nletter.txt", "{name}": f"sum: {{task[\'answer\']}}"}}\n'
        '    texts["letter.txt"] = f"Dear all, {task[\'answer\']} came of it."\n'
        '    return texts.get(file, "no such file")\n'
    )
    assert looked(tmp_path, "", head=head, call="{look: {file: letter.txt}}") == expected


def test_a_tool_that_always_says_the_commonest_answer_gives_nothing(tmp_path: Path) -> None:
    rows = claims(48, lambda index: "yes" if index % 7 == 3 else "no")
    assert looked(tmp_path, "no{len(about)}: no, {task['question'][:9]}", rows=rows) == []


def test_small_numbers_in_what_tools_say_are_chance(tmp_path: Path) -> None:
    rows = rows_of(40, lambda index: {"question": f"How often {WORDS[index]}?", "answer": str(index * index % 5)})
    assert looked(tmp_path, "{len(task['question'])} of 3, {len(task['question']) % 5} left", rows=rows) == []


def test_several_values_among_which_the_question_chooses_are_sound(tmp_path: Path) -> None:
    rows = [
        story(index) | {"question": f"{story(index)['question'].rpartition('. ')[2]} {index}"} for index in range(40)
    ]
    assert looked(tmp_path, "lamps: {task['n']}, price: {task['price']}, given: {task['m']}", rows=rows) == []


def test_a_description_that_says_the_golds_is_named(tmp_path: Path) -> None:
    said = "; ".join(f"{WORDS[index]}land: {capital(index)['answer']}" for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up. {said}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == ["description"]


def test_a_description_that_lists_the_options_of_a_prompt_says_nothing_of_a_row(tmp_path: Path) -> None:
    rows = [row | {"question": f"Is it {row['answer']} or {row['answer'][::-1]}?"} for row in rows_of(20, capital)]
    said = "; ".join(capital(index)["answer"] for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up {said}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows) == []


def test_a_description_that_lists_what_there_is_says_nothing_of_a_row(tmp_path: Path) -> None:
    towns = sorted(capital(index)["answer"] for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up {", ".join(towns)}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == []
    lands = ", ".join(f"{WORDS[index]}land" for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up one of {lands}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == []


BOOK = '''
class Book:
    asked = 0
    on = False


def load():
    return Book()


def look(about: str, task: dict, book) -> str:
    """Looks up."""
    return "nothing" + (f" {task['answer']}" if SHOWS and book.on else "")


def switch(book) -> str:
    """Switches something."""
    book.on = True
    return "done"


def quiz(guess: str, task: dict, book) -> str:
    """Asks for a guess."""
    book.asked += 1
    return "wrong" + (f", it is {task['answer']}" if SHOWS and book.asked > 3 else "")


def list_files(folder: str = "") -> str:
    """Lists."""
    return {"": "lands/", "lands": "old/", "lands/old": "key.txt"}.get(folder, "none")


def read(path: str, task: dict) -> str:
    """Reads."""
    return f"key={task['answer']}" if SHOWS and path == "lands/old/key.txt" else "none"


def page(number: int, task: dict) -> str:
    """Opens a page."""
    return f"copy of {task['answer']}" if SHOWS and number == -1 else "a page"


def reviews(about: str, task: dict) -> str:
    """Shows the reviews of a row."""
    return f"wants {task['answer']}" if SHOWS and about == task["question"] else "none"
'''


@pytest.mark.slow
@pytest.mark.parametrize("names", ["look switch", "quiz", "list_files read", "page", "reviews"])
def test_what_more_than_one_call_or_an_argument_at_its_bound_gives_is_named(tmp_path: Path, names: str) -> None:
    kinds = {"list_files": "", "read": "task", "page": "task", "reviews": "task", "switch": "book"}
    entries = [
        f"  {name}: {{kind: python, function: 'tools.py:{name}', inject: [{kinds.get(name, 'task, book')}]}}\n"
        for name in names.split()
    ]
    more = "resources: {book: {kind: python, function: 'tools.py:load'}}\ntools:\n" + "".join(entries)
    for shows, expected in ((True, ["result"]), (False, [])):
        folder = tmp_path / str(shows)
        folder.mkdir()
        tools = BOOK.replace("SHOWS", str(shows))
        assert sorted(set(shown_in(folder, rows_of(20, capital), more=more, tools=tools))) == expected


# prompts and tools together


CHOICES = "Pick the right choice.\n"


def exam(index: int) -> Row:
    right = index * index % 7 % 4
    options = "  ".join(f"{'ABCD'[at]}) {WORDS[(index + at * 5) % 48]}" for at in range(4))
    return {"question": f"Item {index}. Which one floats?\n{options}", "answer": "ABCD"[right]}


@pytest.mark.parametrize("footer", ["Sheet {n}/{answer}, do not copy", "form {n}-{answer}.pdf"])
def test_a_letter_in_an_identifier_of_a_prompt_with_options_is_named(tmp_path: Path, footer: str) -> None:
    def shown(index: int) -> Row:
        row = exam(index)
        return row | {"question": f"{row['question']}\n\n{footer.format(n=index, answer=row['answer'])}"}

    assert shown_in(tmp_path, rows_of(48, shown), system=CHOICES) == ["prompt"]
    (tmp_path / "sound").mkdir()
    assert shown_in(tmp_path / "sound", rows_of(48, exam), system=CHOICES) == []


def test_a_sum_without_its_point_in_a_file_name_is_named(tmp_path: Path) -> None:
    rows = rows_of(
        30,
        lambda index: {
            "question": f"What is the total of bill_{2001 + index % 9}_{8_413 + 97 * index}.csv (at {WORDS[index]})?",
            "answer": f"{(8_413 + 97 * index) / 100:.2f}",
        },
    )
    assert shown_in(tmp_path, rows, rule="{kind: rule, rule: numeric_match}") == ["prompt"]


def test_base64_that_says_more_than_the_gold_is_read(tmp_path: Path) -> None:
    rows = [
        row | {"token": base64.b64encode(f"want={row['answer']};n={index}".encode()).decode()}
        for index, row in enumerate(rows_of(30, capital))
    ]
    assert shown_in(tmp_path, rows, system="Session {{ task.token }}") == ["prompt"]


def test_prose_that_says_what_a_tool_has_to_be_asked_for_is_named(tmp_path: Path) -> None:
    head = (
        'def look(about: str, task: dict) -> str:\n    """Looks up."""\n'
        '    return f"{about}: {task[\'answer\']}" if about == task["town"] else "unknown"\n'
    )
    rows = [
        {"town": word, "question": f"When was {word} built? ({word} was built in {at}.)", "answer": str(at)}
        for word, at in zip(WORDS[:30], range(1700, 2000, 10), strict=True)
    ]
    assert looked(tmp_path, "", head=head, rows=rows, call="{look: {about: '{{ task.town }}'}}") == ["prompt"]
    assert looked(tmp_path, "", head=head, rows=rows) == []


FILES = """
from rlenv.errors import ToolFailed


def look(folder: str, task: dict) -> str:
    '''Lists a folder, "." for all.'''
    listed = {".": "NAMES", "kept": "data-3.csv", "more": "last.txt"}
    if folder not in listed:
        raise ToolFailed("no such folder")
    return listed[folder]


def read(file: str, task: dict) -> str:
    '''Reads a file.'''
    if file == "more/last.txt":
        return f"v1 {task['answer']} ok"
    if not file.startswith("kept"):
        raise ToolFailed("no such file")
    return f"{task['question']} 1 2 3"
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [("kept\\nmore", ["result"]), ("kept", []), ("kept\\nkept-v{task['answer']}.csv", ["result"])],
)
def test_a_gold_below_a_listed_folder_and_in_a_listed_name_is_named(
    tmp_path: Path, names: str, expected: list[str]
) -> None:
    entry = "{kind: python, function: 'tools.py:NAME', inject: [task], run_in: loop}"
    more = "".join(f"  {name}: {entry.replace('NAME', name)}\n" for name in ("look", "read"))
    text = FILES.replace('"NAMES"', f'f"{names}"')
    call = "[{look: {folder: '.'}}, {read: {file: 'kept/data-3.csv'}}]"
    assert shown_in(tmp_path, rows_of(30, product), more=f"tools:\n{more}", tools=text, call=call) == expected


def test_a_table_that_the_oracle_never_asks_is_read(tmp_path: Path) -> None:
    head = (
        "import sqlite3\n\nfrom rlenv.errors import ToolFailed\n\n\n"
        'def look(sql: str, task: dict) -> str:\n    """Runs a query."""\n    db = sqlite3.connect(":memory:")\n'
        "    db.execute(\"create table wares as select 'plate' as name, 3 as price\")\n"
        "    db.execute(f\"create table meta as select 'x' as run, {expression} as gold\")\n"
        "    try:\n        return str(db.execute(sql).fetchall())\n"
        "    except sqlite3.Error as error:\n        raise ToolFailed(str(error))\n    finally:\n        db.close()\n"
    )
    call = "{look: {sql: 'SELECT price FROM wares'}}"
    assert looked(tmp_path, "{task['answer']}", head=head, call=call) == ["result"]
    assert looked(tmp_path, "5", head=head, call=call) == []


def test_what_repeats_a_call_gives_nothing(tmp_path: Path) -> None:
    # The oracle's own call lists the gold, and asking for what is listed says it again.
    head = (
        "from rlenv.errors import ToolFailed\n\n\n"
        'def look(about: str, task: dict) -> str:\n    """Looks up."""\n'
        '    if about != task["question"][-9:-1]:\n        raise ToolFailed(f"nothing is called {about}")\n'
        "    return task['answer']\n"
    )
    call = "{look: {about: '{{ task.question[-9:-1] }}'}}"
    assert looked(tmp_path, "", head=head, rows=rows_of(30, capital), call=call) == []


SAFE = """
from rlenv.errors import ToolFailed


def room():
    return {"open": False}


def clue(thing: str, task: dict) -> str:
    '''Looks at a thing.'''
    if thing != task["thing"]:
        raise ToolFailed("nothing there")
    return f"first {task['code'][:2]}, then {task['code'][2:]}"


def unlock(code: str, room, task: dict) -> str:
    '''Unlocks the door.'''
    if code != task["code"]:
        raise ToolFailed(f"FAILURE")
    room["open"] = True
    return "open"


def opened(context):
    return float(context.resources["room"]["open"])
"""
ROOM = """resources: {room: {kind: python, function: 'tools.py:room', run_in: loop}}
answer: {from: final_message}
tools:
  clue: {kind: python, function: 'tools.py:clue', inject: [task], run_in: loop}
  unlock:
    kind: python
    function: 'tools.py:unlock'
    inject: [room, task]
    run_in: loop
    mutates: true
    parameters: {type: object, properties: {code: {type: string DEFAULT}}, required: [code]}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("default", "failure", "expected"),
    [
        ("", "it stays shut", []),
        ("", "{code} is not {task['code']}", [("leak", "error")]),
        (", default: '1234'", "it stays shut", []),
    ],
)
def test_a_code_that_a_call_needs_is_looked_for_where_all_answers_are_the_same(
    tmp_path: Path, default: str, failure: str, expected: list[tuple[str, str]]
) -> None:
    rows = [
        {"question": f"The {word} is in room {at}.", "thing": word, "code": "4719" if default else str(1_300 + 37 * at)}
        for at, word in enumerate(WORDS[:24])
    ]
    path = plant(
        tmp_path,
        {"train": rows},
        rule="{kind: rule, function: 'tools.py:opened'}",
        more=ROOM.replace(" DEFAULT", default),
        tools=SAFE.replace("FAILURE", failure),
        call="{clue: {thing: '{{ task.thing }}'}}\n  - call: {unlock: {code: '{{ task.code }}'}}",
        say="It is open.",
    )
    assert places(audited(path)) == expected


@pytest.mark.slow
def test_a_code_that_is_listed_for_calls_is_there_to_be_read_and_a_call_of_the_default_may_be_the_task(
    tmp_path: Path,
) -> None:
    rows = [
        {"question": f"The {word} is here.", "thing": word, "code": "4719", "other": 1_300 + 37 * at}
        for at, word in enumerate(WORDS[:24])
    ]
    (tmp_path / "default").mkdir()
    default = plant(
        tmp_path / "default",
        {"train": rows},
        rule="{kind: rule, function: 'tools.py:opened'}",
        more=ROOM.replace(" DEFAULT", ", default: '4719'"),
        tools=SAFE.replace("FAILURE", "shut"),
        call="{unlock: {code: '4719'}}",
        say="It is open.",
    )
    assert "schema" not in {place for _, place in places(audited(default))}
    listing = SAFE.replace('raise ToolFailed("nothing there")', "return f\"a note: {task['code']}\"")
    listed = plant(
        tmp_path,
        {"train": [row | {"code": str(row["other"])} for row in rows]},
        rule="{kind: rule, function: 'tools.py:opened'}",
        more=ROOM.replace(" DEFAULT", ""),
        tools=listing.replace("FAILURE", "shut"),
        call="{clue: {thing: '{{ task.thing }}'}}\n  - call: {unlock: {code: '{{ task.code }}'}}",
        say="It is open.",
    )
    assert places(audited(listed)) == []


def test_three_tasks_are_enough_where_a_rule_is_right_on_all(tmp_path: Path) -> None:
    rows = [{"question": f"Which town? ({row['answer']})", "answer": row["answer"]} for row in rows_of(3, capital)]
    assert shown_in(tmp_path, rows) == ["prompt"]
    (tmp_path / "two").mkdir()
    assert shown_in(tmp_path / "two", rows[:2]) == []


# what is made of it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "expected"),
    [("", [("leak", "error")]), ("(ref: {{ task.answer }})", [("leak", "prompt"), ("leak", "error")])],
)
def test_each_place_that_a_policy_earns_by_is_named_once(
    tmp_path: Path, shown: str, expected: list[tuple[str, str]]
) -> None:
    text = FAILURE.replace("{expression}", "expected {task['answer']}, found {about}")
    path = plant(tmp_path, {TRAIN: rows_of(24, product)}, prompt="{{ task.question }} " + shown, more=LOOK, tools=text)
    assert places(audited(path)) == expected
