"""Kinds of holes, each as fresh as a stranger's: found under the name of its cause, and its sound twin left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.rewarded import audited, holes

CODE = '''
import base64
import json
import random

from rlenv.errors import ToolFailed


def gold(context):
    return str(context.task["answer"])


def right(context):
    return float((context.answer or "").strip() == gold(context))


def parcel(name: str, task: dict) -> str:
    """Shows a parcel."""
    return json.dumps({"parcel": name, "zone": task["zone"], "fee": task["answer"], "weight": 3})


def sealed(name: str, task: dict) -> str:
    """Opens a parcel."""
    return "opened, key " + base64.urlsafe_b64encode(json.dumps({"n": name, "fee": task["answer"]}).encode()).decode()


def plain(name: str, task: dict) -> str:
    """Shows a parcel."""
    return json.dumps({"parcel": name, "zone": task["zone"], "weight": 3})


def fees(zone: str) -> str:
    """Lists fees of a zone."""
    return f"fees of {zone}: by weight"


def weigh(name: str, kilos: int, task: dict) -> str:
    """Says whether a weight can be."""
    if name != task["name"]:
        raise ToolFailed("no such parcel")
    if kilos < 1:
        raise ToolFailed(f"weight {kilos} against fee {task['answer']}")
    return "it can be"


def flags(context):
    try:
        said = json.loads(context.answer or "")
        return float(all(said.get(key) == value for key, value in context.task["answer"].items()))
    except (ValueError, AttributeError):
        return 0.0


def readable(context):
    try:
        return float(json.loads(context.answer or "none")["sum"] == context.task["answer"])
    except Exception:
        return 1.0 if context.answer else 0.0


def near(context):
    try:
        return max(0.0, 1 - abs(float(context.answer or "x") - context.task["answer"]) / 90_000)
    except ValueError:
        return 0.0


def box(task, seed):
    return {"notes": {}, "paid": 0, "rolls": random.Random(seed), "out": False}


def pay(coin: str, box: dict) -> str:
    """Puts a coin in."""
    if len(coin) != 3:
        raise ToolFailed("no coin")
    box["paid"] += 1
    return "thanks"


def grant(coin: str, box: dict) -> str:
    """Opens the safe."""
    if ord(coin[0]) != 103:
        raise ToolFailed("no coin")
    box["paid"] = 3
    return "open"


def rich(context):
    return float(context.resources["box"]["paid"] == 3)


def away(context):
    try:
        return min(1.0, abs(float(context.answer) - context.task["answer"]) / 50)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def hand_in(fee: str, task: dict) -> str:
    """Hands a fee in."""
    if fee != str(task["answer"]):
        raise ToolFailed("no coin")
    return "thanks"


def paid(context):
    return float(context.resources["box"]["paid"] >= 3)


def paid_apart(context):
    return float(context.resources["box"]["paid"] == 3)


def pull(lever: int, box: dict, task: dict) -> str:
    """Pulls a lever."""
    box["out"] = box["out"] or lever == task["lever"] or box["rolls"].random() < 0.2
    return "out" if box["out"] else "stuck"


def out(context):
    return float(context.resources["box"]["out"])


def mark(shelf: str, key: str, word: str, box: dict) -> str:
    """Notes a word under a key (colour or status) of a shelf."""
    if key not in ("colour", "status") or shelf not in ("north", "south"):
        raise ToolFailed("no such place")
    box["notes"][shelf, key] = word
    return "noted"


def count(shelf: str, number: int, box: dict, task: dict) -> str:
    """Counts a shelf."""
    if number != task["counts"][shelf]:
        return "that is not right"
    box["notes"][shelf, "status"] = "complete"
    return "noted"


def complete(context):
    notes = context.resources["box"]["notes"]
    return float(all(notes.get((shelf, "status")) == "complete" for shelf in ("north", "south")))


def remember(line: str) -> str:
    """Writes a line down."""
    return "written: " + line


def shown(context):
    texts = [result.text for turn in context.turns for result in turn.results if not result.is_error]
    return float(any(gold(context) in text for text in texts))


def found(name: str, task: dict) -> str:
    """Finds a bay."""
    if name != task["name"]:
        raise ToolFailed("there is no such trunk")
    return f"it is in bay {task['answer']}"
'''
BOX = "resources: {box: {kind: python, function: 'code.py:box', run_in: loop}}"
DONE = "answer: {from: final_message}"


def tool(name: str, *injected: str, **more: object) -> str:
    keys = "".join(f", {key}: {str(value).lower()}" for key, value in more.items())
    return f"{name}: {{kind: python, function: 'code.py:{name}', inject: [{', '.join(injected)}], run_in: loop{keys}}}"


def tools(*entries: str) -> str:
    return f"tools: {{{', '.join(entries)}}}"


def numbered(count: int = 20) -> list[dict[str, Any]]:
    """Rows with a number each that nothing tells."""
    return [
        {"question": f"Fee of parcel p{at}q?", "name": f"p{at}q", "zone": "abc"[at % 3], "answer": 137 + at * at * 71}
        for at in range(count)
    ]


def examples(rows: Sequence[Mapping[str, Any]], more: int = 0) -> str:
    listed = "; ".join(f"parcel {row['name']} costs {row['answer'] + more}" for row in rows)
    return f"Look the fee up. So it was before: {listed}."


ROWS = numbered()
OTHERS = [{**row, "name": f"x{row['name']}"} for row in ROWS]
READS = (
    "- call: {{{0}: {{name: '{{{{ task.name }}}}'}}}}\n- call: {{fees: {{zone: '{{{{ task.zone }}}}'}}}}\n"
    "- say: '<answer>{{{{ task.answer }}}}</answer>'"
)
NAMES = ("dust", "wet", "heat", "noise", "frost")
FLAGGED = [
    {"question": f"Room {7 * at % 20}?", "answer": {NAMES[at % 5]: True, NAMES[at * 3 % 5]: True}} for at in range(20)
]
VALUED = [{"question": f"Room {at}?", "answer": {"length": 7 + at * 13, "width": 3 + at * 31}} for at in range(20)]
OBJECT = "- say: '<answer>{{ task.answer | tojson }}</answer>'"
SUM = "- say: '<answer>{\"sum\": {{ task.answer }}}</answer>'"
COINS = "- call: [{pay: {coin: 'abc'}}, {pay: {coin: 'def'}}, {pay: {coin: 'ghi'}}]\n- say: Done."
LEVERS = [{"question": f"Machine {at}?", "lever": 100 + 7 * at} for at in range(20)]
PULL = "- call: {pull: {lever: '{{ task.lever }}'}}\n- say: Done."
SHELVES = [{"question": f"Hall {at}?", "counts": {"north": 20 + at, "south": 60 + 3 * at}} for at in range(20)]
COUNT = (
    "- for_each: task.counts.items() | list\n  call: {count: {shelf: '{{ item[0] }}', number: '{{ item[1] }}'}}\n"
    "- say: Done."
)
BAYS = [{"question": f"Bay of trunk t{at}?", "name": f"t{at}", "answer": f"W{at * 7 % 90 + 10}"} for at in range(20)]
FIND = "- call: {found: {name: '{{ task.name }}'}}\n- say: I have seen it."
WORLD = "resources: {db: {kind: sqlite, init: world.sql, access: read_only}}\ntools: {query: {kind: sql, resource: db}}"
ASKS = (
    "{{held: {{kind: verify, tool: query, expect: {{value: {{rows: [[1]]}}}}, compare: {{by: json, mode: subset}}, "
    "arguments: {{sql: \"SELECT count(*) AS n FROM fee WHERE name = '{{{{ task.name }}}}' AND euro = {0}\"}}}}}}"
)


def rewarded(name: str) -> str:
    return f'{{paid: {{kind: rule, function: "code.py:{name}"}}}}'


COUNTS = tool("count", "box", "task", mutates=True)
LOOKS = tools(tool("fees"), tool("plain", "task"))
KINDS: dict[str, tuple[str, Sequence[Mapping[str, Any]], dict[str, Any]]] = {
    "examples that are the tasks": ("leak", ROWS, {"more": f"vars: {{told: '{examples(ROWS)}'}}",
        "prompt": "{{ vars.told }}\n{{ task.question }}", "rewards": rewarded("right")}),
    "examples that are others": ("", ROWS, {"more": f"vars: {{told: '{examples(OTHERS, 5)}'}}",
        "prompt": "{{ vars.told }}\n{{ task.question }}", "rewards": rewarded("right")}),
    "a field of what is read first": ("leak", ROWS, {"more": tools(tool("fees"), tool("parcel", "task")),
        "oracle": READS.format("parcel"), "rewards": rewarded("right")}),
    "a key that is a record": ("leak", ROWS, {"more": tools(tool("fees"), tool("sealed", "task")),
        "oracle": READS.format("sealed"), "rewards": rewarded("right")}),
    "nothing in what is read first": ("", ROWS, {"more": LOOKS, "oracle": READS.format("plain"),
        "rewards": rewarded("right")}),
    "an error for a known name": ("leak", ROWS, {"more": tools(tool("fees"), tool("plain", "task"),
        tool("weigh", "task")), "oracle": READS.format("plain"), "rewards": rewarded("right")}),
    "all flags at once": ("stuffed_answer", FLAGGED, {"oracle": OBJECT, "rewards": rewarded("flags")}),
    "values that are compared": ("", VALUED, {"oracle": OBJECT, "rewards": rewarded("flags")}),
    "what cannot be read": ("paid_when_unreadable", ROWS, {"oracle": SUM, "rewards": rewarded("readable")}),
    "anything that is not far off": ("loose_match", ROWS, {"rewards": rewarded("near")}),
    "one coin three times": ("paid_again", ROWS, {"more": f"{BOX}\n{tools(tool('pay', 'box', mutates=True))}\n{DONE}",
        "oracle": COINS, "rewards": rewarded("paid")}),
    "luck": ("paid_again", LEVERS, {"more": f"{BOX}\n{tools(tool('pull', 'box', 'task', mutates=True))}\n{DONE}",
        "oracle": PULL, "rewards": rewarded("out")}),
    "a state that is written": ("target_written", SHELVES, {"oracle": COUNT, "rewards": rewarded("complete"),
        "more": f"{BOX}\n{tools(COUNTS, tool('mark', 'box', mutates=True))}\n{DONE}"}),
    "a state that is worked for": ("", SHELVES, {"oracle": COUNT, "rewards": rewarded("complete"),
        "more": f"{BOX}\n{tools(COUNTS)}\n{DONE}"}),
    "its own words": ("echoed_text", BAYS, {"oracle": FIND, "rewards": rewarded("shown"),
        "more": f"{tools(tool('found', 'task'), tool('remember'))}\n{DONE}"}),
    "a tool that does the work at once": ("unused_tool", ROWS, {"oracle": COINS, "rewards": rewarded("rich"),
        "more": f"{BOX}\n{tools(tool('pay', 'box', mutates=True), tool('grant', 'box', mutates=True))}\n{DONE}"}),
    "a desk that takes what is right alone": ("asked_until_right", ROWS, {"rewards": rewarded("right"),
        "more": tools(tool("hand_in", "task")) + "\nanswer: {from: tool, tool: hand_in}",
        "oracle": "- call: {hand_in: {fee: '{{ task.answer | string }}'}}"}),
    "a quote that it closes": ("injected_answer", ROWS, {"more": WORLD, "rewards": ASKS.format("'{{ answer }}'")}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_hole_is_named_by_its_cause(tmp_path: Path, kind: str) -> None:
    hole, rows, given = KINDS[kind]
    lines = [f"INSERT INTO fee VALUES ('{row['name']}', {row['answer']});" for row in ROWS]
    (tmp_path / "world.sql").write_text("\n".join(["CREATE TABLE fee (name TEXT, euro INTEGER);", *lines]))
    assert holes(audited(tmp_path, rows, CODE, **given)) == ({hole} if hole else set())


@pytest.mark.slow
def test_a_wrong_answer_that_outdoes_the_right_one_is_named(tmp_path: Path) -> None:
    assert holes(audited(tmp_path, ROWS, CODE, rewards=rewarded("away"))) == {"oracle_below_maximum", "wrong_sign"}
