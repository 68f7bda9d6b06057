"""State that is emptied until it fits: what is there is found by the calls that the oracle makes too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit
from rlenv.errors import SpecError
from tests.support.planted import WORDS, plant, rows_of

TOOLS = '''
from rlenv.errors import ToolFailed


def load(task):
    return [dict(one) for one in task["people"]]


def find(filter: str, people) -> list:
    """Lists the names that a filter matches, written as town=NAME."""
    key, _, value = filter.partition("=")
    if key != "town" or not value:
        raise ToolFailed("write town=NAME")
    return [one["name"] for one in people if one["town"] == value]


def remove(name: str, people) -> str:
    """Takes somebody out."""
    people[:] = [one for one in people if one["name"] != name]
    return f"{len(people)} left"
'''
MORE = """resources: {people: {kind: python, function: 'tools.py:load', run_in: loop}}
tools:
  find: {kind: python, function: 'tools.py:find', inject: [people], run_in: loop}
  remove: {kind: python, function: 'tools.py:remove', inject: [people], run_in: loop, mutates: true}
limits: {turns: 8}"""
RULE = "{kind: verify, tool: find, arguments: {filter: '{{ answer }}'}, expect: EXPECT}"


COUNT = """async def score(context):
    counted = await context.call("query", {"sql": context.task["sql"]})
    wanted = context.task["answer"] if "FROM kept" in context.task["sql"] else counted.value["rows"][0][0]
    return float(context.answer == str(wanted))
"""
STOCK = """resources: {db: {kind: sqlite, init: stock.sql, access: copy}}
tools: {query: {kind: sql, resource: db}}
limits: {turns: 6}"""


@pytest.mark.slow
@pytest.mark.parametrize(("table", "holes"), [("stock", ["emptied_state"]), ("kept", [])])
def test_a_table_that_is_empty_gives_what_is_counted_in_it(tmp_path: Path, table: str, holes: list[str]) -> None:
    made = [f"INSERT INTO {table} VALUES ('{word}', {n + 3});" for n, word in enumerate(WORDS[:12])]
    (tmp_path / "stock.sql").write_text("\n".join([f"CREATE TABLE {table} (name TEXT, n INTEGER);", *made]))
    (tmp_path / "score.py").write_text(COUNT)
    rows = rows_of(
        12,
        lambda index: {
            "question": f"How many {WORDS[index]}s are there?",
            "answer": str(index + 3),
            "sql": f"SELECT coalesce(sum(n), 0) FROM {table} WHERE name = '{WORDS[index]}'",
        },
    )
    rule = "{kind: rule, function: 'score.py:score'}"
    path = plant(tmp_path, {"train": rows}, rule=rule, more=STOCK, call="{query: {sql: '{{ task.sql }}'}}")

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    assert sorted({one.hole for one in asyncio.run(main()).findings}) == holes


@pytest.mark.slow
def test_a_value_that_is_expected_of_a_state_is_no_hole(tmp_path: Path) -> None:
    """A gold call would find what every filter finds, once the state is empty: it is refused before."""
    towns = [f"{word}ton" for word in WORDS[:24]]
    rows = rows_of(
        24,
        lambda index: {
            "question": f"Which filter finds those of {towns[index]}?",
            "answer": f"town={towns[index]}",
            "found": [f"{WORDS[index]} one"],
            "people": [{"name": f"{WORDS[at]} one", "town": towns[at]} for at in {index, 0, 1}],
        },
    )
    path = plant(
        tmp_path,
        {"train": rows},
        rule=RULE.replace("EXPECT", "{value: '{{ task.found }}'}"),
        more=MORE,
        tools=TOOLS,
        call="{find: {filter: '{{ task.answer }}'}}",
    )

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    assert not asyncio.run(main()).findings
    path.write_text(
        path.read_text().replace("{value: '{{ task.found }}'}", "{arguments: {filter: '{{ task.answer }}'}}")
    )
    with pytest.raises(SpecError, match="'remove' changes state"):
        rlenv.load(path)


BOXES = '''
import random


class Shelf:
    def __init__(self, task, seed):
        chance = random.Random(f"{seed} {task['shelf']}")
        self.box, self.code = chance.randint(1, 9), str(chance.randint(1000, 9999))
        self.done = False


def peek(box: int, shelf) -> str:
    """Looks into a box."""
    return f"code {shelf.code}" if box == shelf.box else "nothing"


def unlock(code: str, shelf) -> str:
    """Unlocks the shelf."""
    shelf.done = code == shelf.code
    return "tried"


def play(task):
    for box in range(1, 10):
        told = (yield {"name": "peek", "arguments": {"box": box}})[-1]
        if told.startswith("code "):
            yield {"name": "unlock", "arguments": {"code": told[5:]}}
            return
'''
SHELVES = """
rlenv: 1
name: shelves
tasks: {train: {rows: [ROWS]}}
prompt: {user: "Unlock shelf {{ task.shelf }} by the code in one of its nine boxes."}
resources: {shelf: {kind: python, function: "tools.py:Shelf", run_in: loop}}
tools:
  peek: {kind: python, function: "tools.py:peek", inject: [shelf], run_in: loop}
  unlock: {kind: python, function: "tools.py:unlock", inject: [shelf], run_in: loop, mutates: true, ends: true}
limits: {turns: 12, calls_per_turn: 1}
rewards: {done: {kind: rule, rule: value, value: "{{ resources.shelf.done }}"}}
oracle: {function: "tools.py:play"}
"""


@pytest.mark.slow
def test_to_look_through_is_no_hole_where_it_is_the_oracle_s_way(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(BOXES, encoding="utf-8")
    path = tmp_path / "env.yaml"
    path.write_text(SHELVES.replace("ROWS", ", ".join(f"{{shelf: {n}}}" for n in range(16))), encoding="utf-8")

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    assert "asked_until_right" not in [one.hole for one in asyncio.run(main()).findings]


SUBMIT = """
def submit(letter: str, task) -> str:
    '''Submits a letter.'''
    if letter != task["answer"]:
        REFUSED
    return "accepted"


def accepted(context):
    return float(context.answer == context.task["answer"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "holes"), [("raise ValueError('try again')", ["asked_until_right"]), ("return 'wrong'", [])]
)
def test_what_takes_a_listed_answer_and_refuses_others_is_asked_until_it_takes_one(
    tmp_path: Path, refused: str, holes: list[str]
) -> None:
    rows = rows_of(
        24, lambda at: {"question": f"Box {at * 7 + 100}: A, B, C, D, E or F?", "answer": "ABCDEF"[at * 5 % 6]}
    )
    entry = (
        "{kind: python, function: 'tools.py:submit', inject: [task], errors: [ValueError], run_in: loop, ends: true}"
    )
    path = plant(
        tmp_path,
        {"train": rows},
        rule="{kind: rule, function: 'tools.py:accepted'}",
        more=f"tools: {{submit: {entry}}}\nanswer: {{from: tool, tool: submit}}",
        tools=SUBMIT.replace("REFUSED", refused),
        call="{submit: {letter: '{{ task.answer }}'}}",
    )
    path.write_text(path.read_text().partition("  - say:")[0])

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    assert [one.hole for one in asyncio.run(main()).findings] == holes
