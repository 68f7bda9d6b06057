"""A finding says what lets a policy earn: which rows, parts, columns, bounds or ends it is, beside the attack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlenv.audit.report import AuditReport
from rlenv.audit.variants import constant_parts
from tests.support.rewarded import audited, holes

CODE = '''
import json
import math
import re

from rlenv.errors import ToolFailed


def said(context):
    return (context.answer or "").strip()


def newer(context):
    return float(re.match(f"{context.task['answer']}|{context.task['newer']}", said(context)) is not None)


def newer_too(context):
    return float(said(context) in (context.task["answer"], context.task["newer"] or context.task["answer"]))


def fields(context):
    try:
        given = json.loads(said(context))
        return sum(given.get(key) == value for key, value in context.task["answer"].items()) / 4
    except (ValueError, AttributeError):
        return 0.0


def close(context):
    try:
        wrong = abs(float(json.loads(said(context))["price"]) - context.task["answer"]["price"]) > 0.01
        return 0.0 if wrong else 1.0
    except (ValueError, TypeError, KeyError):
        return 0.0


def world(task):
    return {"pile": task["pile"], "over": False, "won": False, "held": [], "points": 0, "looks": 0, "door": ""}


def take(count: int, world: dict) -> str:
    """Takes stones; the other one takes as many."""
    world["pile"] -= count
    world["over"], world["won"] = world["pile"] <= 0, world["pile"] <= 0
    return "taken"


def lift(stone: str, world: dict, task: dict) -> str:
    """Lifts a stone onto the wall."""
    if stone not in task["stones"] or stone in world["held"]:
        raise ToolFailed("no such stone is here")
    world["held"].append(stone)
    world["points"] += 1
    return "it lies on the wall"


def lower(stone: str, world: dict) -> str:
    """Takes a stone from the wall."""
    if stone not in world["held"]:
        raise ToolFailed("none lies there")
    world["held"].remove(stone)
    return "it is in your hands"


def dig(place: str, world: dict, task: dict) -> str:
    """Digs at a place: north, south, east or west."""
    world["over"], world["won"] = True, place == task["place"]
    return "you found it" if world["won"] else "the mine has gone off"


def look(world: dict) -> str:
    """Looks at the pile."""
    world["looks"] += 1
    return "stones"


def glance(world: dict) -> str:
    """Looks at the pile."""
    return "stones"


def check(guest: str, world: dict) -> str:
    """Checks a guest's papers."""
    if guest in world["held"]:
        raise ToolFailed("these are checked")
    world["held"].append(guest)
    return "checked"


def admit(guest: str, world: dict) -> str:
    """Lets a guest in whose papers were checked."""
    if guest not in world["held"]:
        raise ToolFailed("check the papers first")
    world["door"] = guest
    return "in"


def wave(guest: str, world: dict) -> str:
    """Lets a guest of the house in."""
    world["door"] = guest
    return "in"


def ring(bell: str) -> str:
    """Rings a bell."""
    return bell
'''
ADDS = """
def adds_up(context):
    try:
        return float(sum(map(int, (context.answer or '').split("+"))) == context.task["total"])
    except ValueError:
        return 0.0
"""
SCORES = """
import json


def precise(context):
    try:
        given = json.loads(context.answer or "")
        return sum(context.task["answer"].get(key) == value for key, value in given.items()) / len(given)
    except (ValueError, AttributeError, TypeError, ZeroDivisionError):
        return 0.0


def whole(context):
    try:
        return float(json.loads(context.answer or "") == context.task["answer"])
    except ValueError:
        return 0.0


def sides(context):
    try:
        read = [[*map(int, side.split("+"))] for side in context.answer.split("=")]
    except (ValueError, AttributeError):
        return []
    return [*map(sum, read)] if set(read[0]) <= set(context.task["given"]) else []


def balanced(context):
    one, *others = sides(context) or [None]
    return float(others == [one])


def balanced_with(context):
    return float(sides(context) == [context.task["total"]] * 2)
"""
WORDS = "amber birch cedar delta ember fjord grove heron inlet jetty knoll larch maple north otter pearl".split()
PARTS = [
    {
        "question": f"Number of part {word}?",
        "answer": f"{word[:2]}{at * 37 % 91 + 100}",
        "newer": "" if at % 4 else f"n{at * 53 % 97}",
    }
    for at, word in enumerate(WORDS)
]
BILLS = [
    {"question": f"Bill {at * 91}: {at * 7}", "answer": {"seller": "Ox", "land": "SE", "tax": 25, "sum": at * 7 + 3}}
    for at in range(16)
]
PRICES = [{"question": f"Price of {word}?", "answer": {"price": 13 * at + 2.5}} for at, word in enumerate(WORDS)]
SUMS = [
    {"question": f"In at most {2 + at % 3} parts: {51 + at * 7}", "answer": f"{50 + at * 5}+{1 + at * 2}",
     "total": 51 + at * 7, "most": 2 + at % 3}
    for at in range(16)
]  # fmt: skip
PILES = [{"question": f"Pile {at}", "pile": 4 + at % 3, "stones": list(range(4 + at % 3))} for at in range(16)]
WALLS: list[dict[str, Any]] = [{"question": f"Wall {at}", "pile": 9, "stones": WORDS[at : at + 3]} for at in range(12)]
MINES = [
    {"question": f"Field {at}", "pile": 1, "place": ("north", "south", "east", "west")[at * 7 % 16 // 4]}
    for at in range(16)
]
LETTERS = [
    {"question": f"Who wrote letter {at * 37}, from {word}, and where?", "answer": {"from": word, "who": f"c{at * 7}"}}
    for at, word in enumerate(WORDS)
]
EQUAL = [
    {"question": f"Of {50 + at * 5} and {1 + at * 2} make {51 + at * 7}", "answer": f"{row['answer']}={row['total']}",
     "total": row["total"], "given": [50 + at * 5, 1 + at * 2]}
    for at, row in enumerate(SUMS)
]  # fmt: skip
TOWNS = [
    {
        "question": f"In which town was {word} born?",
        "answer": f"{word}s",
        "names": [f"{word}s", f"Old {word}s", "a town"],
    }
    for word in WORDS
]
GUESTS = [
    {"question": f"Guest {word} is here.", "who": word, "pile": 1, "kind": "house" if at % 3 else "other"}
    for at, word in enumerate(WORDS)
]
WORLD = "resources: {world: {kind: python, function: 'code.py:world', run_in: loop}}\nanswer: {from: final_message}"
OBJECT = "- say: '<answer>{{ task.answer | tojson }}</answer>'"


def reward(name: str) -> str:
    return f'{{paid: {{kind: rule, function: "code.py:{name}"}}}}'


def value(text: str) -> str:
    return f'{{paid: {{kind: rule, rule: value, value: "{{{{ {text} }}}}", clip: [0, 1]}}}}'


def tools(*names: str, **more: str) -> str:
    given = "".join(f", {key}: {text}" for key, text in more.items())
    made = [
        f"{name}: {{kind: python, function: 'code.py:{name}', run_in: loop{given}, inject: [world"
        f"{', task' * (name in ('dig', 'lift'))}], mutates: {'false' if name in ('look', 'glance') else 'true'}}}"
        for name in names
    ]
    return f"{WORLD}\ntools: {{{', '.join(made)}}}"


TAKES = "- for_each: task.stones\n  call: [[{take: {count: 1}}]]\n- say: Done."
LIFTS = "- for_each: task.stones\n  call: [[{lift: {stone: '{{ item }}'}}]]\n- say: Done."
DIGS = "- call: {dig: {place: '{{ task.place }}'}}\n- say: Done."
OVER = "'{{ resources.world.over }}'"
ADMITS = """
- {call: {check: {guest: '{{ task.who }}'}}, when: task.kind == 'other'}
- {call: {admit: {guest: '{{ task.who }}'}}, when: task.kind == 'other'}
- {call: {wave: {guest: '{{ task.who }}'}}, when: task.kind == 'house'}
- say: Done.
"""
ADMITTED = value("resources.world.door == task.who and resources.world.held | length < 2")
NAMED = "{paid: {kind: rule, rule: exact_match, normalise: qa, expect: '{{ task.names }}'}}"
ONE_NAME = NAMED.replace("task.names", "task.names[:2]")
TYPED = "- say: '<answer>{{ task.answer }}</answer>'"
CAUSES: dict[str, tuple[str, str, Sequence[Mapping[str, Any]], dict[str, Any]]] = {
    "an empty value in a pattern": ("partial_tasks", "those where 'newer' is empty", PARTS,
        {"rewards": reward("newer")}),
    "a value that may be empty": ("", "", PARTS, {"rewards": reward("newer_too")}),
    "keys that never differ": ("constant_answer", "land, seller, tax", BILLS, {"oracle": OBJECT,
        "rewards": reward("fields")}),
    "a limit that is not read": ("", "never reads 'most'", SUMS, {"rewards": reward("adds_up"), "code": ADDS}),
    "no number": ("paid_when_unreadable", "isfinite", PRICES, {"rewards": reward("close"), "oracle": OBJECT}),
    "a number beyond the rules": ("unchecked_argument", "1000000 as its count", PILES, {"oracle": TAKES,
        "more": tools("take", ends=OVER), "rewards": value("resources.world.won")}),
    "points for what is taken back": ("paid_again", "what takes it back", WALLS, {"oracle": LIFTS,
        "more": tools("lift", "lower"), "rewards": value("resources.world.points / 3")}),
    "a part that the prompt shows": ("copied_input", "", LETTERS, {"oracle": OBJECT, "code": SCORES,
        "rewards": reward("precise")}),
    "all parts": ("", "", LETTERS, {"oracle": OBJECT, "code": SCORES, "rewards": reward("whole")}),
    "an equation with itself": ("copied_input", "", EQUAL, {"code": SCORES, "oracle": TYPED,
        "rewards": reward("balanced")}),
    "an equation with the row": ("", "", EQUAL, {"code": SCORES, "oracle": TYPED, "rewards": reward("balanced_with")}),
    "a kind for a name": ("merged_golds", "'town' is accepted beside 16", TOWNS, {"rewards": NAMED, "oracle": TYPED}),
    "names of one": ("", "", TOWNS, {"rewards": ONE_NAME, "oracle": TYPED}),
    "a way past a check": ("unused_tool", "wave", GUESTS, {"oracle": ADMITS, "more": tools("check", "admit", "wave"),
        "rewards": ADMITTED}),
    "a way for some": ("", "", GUESTS, {"oracle": ADMITS, "rewards": ADMITTED,
        "more": tools("check", "admit", "wave").replace("'code.py:wave'",
            "'code.py:wave', offered: \"{{ task.kind == 'house' }}\"")}),
    "the end of a world": ("paid_for_ending", "'over' is true after a failure", MINES, {"oracle": DIGS,
        "more": tools("dig", ends=OVER), "rewards": value("resources.world.over")}),
}  # fmt: skip


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", CAUSES)
def test_a_finding_names_its_cause_and_a_sound_twin_has_none(tmp_path: Path, kind: str) -> None:
    hole, said, rows, given = CAUSES[kind]
    made: dict[str, Any] = {"code": CODE, **given}
    report = audited(tmp_path, rows, **made)
    told = [f"{one.message} {one.hint}" for one in report.findings]
    assert (hole in holes(report)) if hole else (said or not told), told
    assert not said or any(said in one for one in told), told


def refused(folder: Path, rows: Sequence[Mapping[str, Any]], **given: Any) -> list[str]:
    report: AuditReport = audited(folder, rows, CODE, **given)
    return [one.message for one in report.findings if one.hole == "right_answer_refused"]


@pytest.mark.slow
@pytest.mark.parametrize(("look", "expected"), [("look", 1), ("glance", 0)])
def test_a_look_that_costs_the_right_work_its_reward_is_named(tmp_path: Path, look: str, expected: int) -> None:
    rows = [{**row, "gold": [{"name": "lift", "arguments": {"stone": one}} for one in row["stones"]]} for row in WALLS]
    rewards = "{paid: {kind: state, expect: '{{ task.gold }}'}}"
    told = refused(tmp_path, rows, more=tools("lift", look), rewards=rewards, oracle=LIFTS)
    assert len([one for one in told if f"after a look by '{look}'" in one]) == expected


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("asks", "expected"), [("Ring {0} and {1}.", 1), ("Ring {0}, then {1}.", 0)])
def test_calls_of_one_turn_in_another_order_are_the_same_work(tmp_path: Path, asks: str, expected: int) -> None:
    pairs = list(pairwise(WORDS))
    rows = [
        {
            "question": asks.format(other, one),
            "gold": [{"name": "ring", "arguments": {"bell": bell}} for bell in (one, other)],
        }
        for one, other in pairs
    ]
    more = "tools: {ring: {kind: python, function: 'code.py:ring'}}\nanswer: {from: final_message}\nlimits: {turns: 1}"
    rewards = "{paid: {kind: rule, rule: calls_match, expect: '{{ task.gold }}', order: true}}"
    told = refused(tmp_path, rows, more=more, rewards=rewards, oracle="- call: ['{{ task.gold }}']")
    assert len(told) == expected


@pytest.mark.slow
def test_a_column_that_a_split_lacks_is_named(tmp_path: Path) -> None:
    code = 'def right(context):\n    return float((context.answer or "?").startswith(context.task.get("answer", "")))\n'
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"question": w, "target": w[::-1]}) + "\n" for w in WORDS))
    rows = [{"question": word, "answer": word[::-1], "target": word[::-1]} for word in WORDS]
    splits, oracle = (
        "{train: {path: rows.jsonl}, test: {path: test.jsonl}}",
        "- say: '<answer>{{ task.target }}</answer>'",
    )
    report = audited(tmp_path, rows, code, rewards=reward("right"), oracle=oracle, splits=splits)
    assert any("the rows of 'test' have no 'answer', which 'train' has" in one.message for one in report.findings)


def test_parts_that_differ_are_not_constant() -> None:
    assert constant_parts([json.dumps({"a": 1, "b": at}) for at in range(9)]) == ["a"]
    assert constant_parts([json.dumps({"a": at % 2, "b": at}) for at in range(9)]) == []
    assert constant_parts([f"a {at}" for at in range(9)]) == []
