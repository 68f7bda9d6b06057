"""Each kind of hole that one line of a spec opens is found under its own name, and its sound twin passes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.adversaries import ADVERSARIES, find_in_machines
from rlenv.audit.judging import judge_chapter
from rlenv.audit.play import Chapter, ScriptPlayer
from rlenv.audit.report import Thresholds
from rlenv.audit.run import audit
from rlenv.audit.subject import Action, AuditSubject
from rlenv.episodes.rollout import Job, rollout
from tests.support.machines import SOLVE, reachable, written  # noqa: F401 - a fixture
from tests.support.planted import WORDS, capital, plant, product, rows_of

CODE = '''
import re

from rlenv.errors import ToolFailed

WORDS = """WORDS_HERE""".split()


class Board:
    def __init__(self):
        self.target = None


def load():
    return Board()


def note(text: str, board) -> str:
    """Note a target."""
    board.target = text
    return "noted"


def noted(context):
    return float(context.answer is not None and context.answer == context.resources["board"].target)


def noted_right(context):
    return float(noted(context) and context.answer == context.task["answer"])


def humble(context):
    said = (context.answer or "").lower()
    return float("don't know" in said or said == context.task["answer"])


def overlap(context):
    said, gold = (set((one or "").split("+")) for one in (context.answer, context.task["answer"]))
    return len(said & gold) / len(said | gold)


def listed(context):
    """Takes any town that a tool has named."""
    shown = [town for turn in context.turns for one in turn.results for town in one.value or ()]
    return float(context.answer in shown)


def towns(land: str) -> list:
    """Lists towns.

    Args:
        land: the land, such as xland.
    """
    words = WORDS
    at = words.index(land.removesuffix("land")) if land.removesuffix("land") in words else 0
    return [f"{words[(at * 3 + one) % len(words)]}ville" for one in range(2)] + [f"{words[-1 - at]}ville"]


def pay(to: str, amount: int, board, task) -> str:
    """Pays somebody."""
    if to not in ("Ada Brown", "Bo"):
        raise ToolFailed("no such account; there are: Ada Brown, Bo")
    if task.get("checked") and amount < 1:
        raise ToolFailed("an amount is at least 1")
    board.target = (board.target or 10) - amount
    return "paid"


def earn(hours: int, board, task) -> str:
    """Works so many hours."""
    board.target = hours if hours == task["goal"] else board.target
    return "earned"


def saved(context):
    return float((context.resources["board"].target or 10) >= context.task["goal"])


def open_box(box: str, board) -> str:
    """Opens one of the boxes north, south and west; the first that is opened is taken."""
    board.target = board.target or box
    return "opened"


def peek(board, task) -> str:
    """Tells in which box it is."""
    return task["box"]


def opened(context):
    return float(context.resources["board"].target == context.task["box"])


def visit(room: str, board, task) -> str:
    """Goes to a room."""
    if room not in task["rooms"]:
        raise ToolFailed("no such room")
    board.target = room
    return f"in {room}"


def is_there(context):
    return float(context.resources["board"].target == context.task["room"])


def count(shelf: str, board, task) -> int:
    """Counts."""
    board.target = board.target or {"real": task["real"], "listed": 0}
    return board.target["real"]


def set_count(shelf: str, number: int, board, task, *, key: str) -> str:
    if shelf != task["shelf"]:
        raise ToolFailed("no such shelf")
    board.target = {"real": task["real"], "listed": 0, **(board.target or {}), key: number}
    return "written"


def put_down(shelf: str, number: int, board, task) -> str:
    """Writes how many there are."""
    return set_count(shelf, number, board, task, key="listed")


def set_up(shelf: str, number: int, board, task) -> str:
    """Sets up a shelf."""
    return set_count(shelf, number, board, task, key="real")


def agrees(context):
    return float(len({*(context.resources["board"].target or {"real": 1, "listed": 0}).values()}) == 1)


def is_counted(context):
    return float((context.resources["board"].target or {}) == dict.fromkeys(("real", "listed"), context.task["real"]))


def recall(context):
    said, gold = (set((one or "").split()) for one in (context.answer, context.task["answer"]))
    return len(said & gold) / len(gold)


def card(task) -> str:
    """Reads the card."""
    return f"55{task['pin'][::-1]}, backwards"


def unlock(who: str, pin: str, board, task) -> str:
    """Unlocks."""
    if who != task["who"]:
        raise ToolFailed("nobody of that name")
    if pin != task["pin"]:
        raise ToolFailed("expected " + task["pin"] if task["tells"] else "wrong")
    board.target = pin
    return "unlocked"


def unlocked(context):
    return float(context.resources["board"].target == context.task["pin"])


def calculated(context):
    """Takes whatever a tool has given."""
    shown = [one.text for turn in context.turns for one in turn.results]
    return float(context.answer in shown or context.answer == context.task["answer"])


def key(context):
    return float(context.answer in ("OVERRIDE-7", context.task["answer"]))


def right(context):
    return float(context.answer == context.task["answer"])


def added(context):
    if re.fullmatch(r"[0-9]{1,4}( *[+] *[0-9]{1,4})*", context.answer or "") is None:
        return 0.0
    return float(sum(map(int, context.answer.split("+"))) == int(context.task["answer"]))


def near(context):
    try:
        distance = abs(float(context.answer or "x") - float(context.task["answer"]))
    except ValueError:
        return 0.0
    return 0.0 if distance > 0.5 else 1.0


def pretty(context):
    return float(context.answer == context.task["answer"] or context.final_text.count("**") >= 4)


def scaled(context):
    try:
        distance = abs(float(context.answer or "x") - float(context.task["answer"]))
    except ValueError:
        return 0.0
    return float(distance <= 0.001 * abs(float(context.answer)))


def letters(context):
    said, right = set(context.answer or ""), set(context.task["answer"])
    return len(said & right) / len(right)


def move(source: str, goal: str, board) -> str:
    """Moves."""
    board.target = [*(board.target or []), (source, goal)]
    return "moved"


def switch(room: str, on: bool, board) -> str:
    """Switches."""
    board.target = [*(board.target or []), (room, on)]
    return "switched"


def refund(board, task, order: str = "") -> str:
    """Refunds."""
    board.target = order or task["answer"]
    return "done"


def from_there(context):
    return float(any(source == context.task["answer"] for source, _ in context.resources["board"].target or []))


def moved(context):
    wanted = (context.task["answer"], context.task["question"])
    return float(set(context.resources["board"].target or []) == {wanted})


def moved_ashore(context):
    return float((context.resources["board"].target or []) == [(context.task["answer"], "ashore")])


def is_off(context):
    return float((context.resources["board"].target or []) == [(context.task["answer"], False)])


def every_move(context):
    wanted = (context.task["answer"], context.task["question"])
    return float((context.resources["board"].target or []).count(wanted))


def refunded(context):
    return float(context.resources["board"].target == context.task["answer"])


def guess(number: int, task: dict) -> str:
    """Compares."""
    right = int(task["answer"])
    return "more" if number < right else "less" if number > right else "just so"


SEEN = set()


def first_time(context):
    is_new = context.answer not in SEEN
    SEEN.add(context.answer)
    return float(context.answer == context.task["answer"] and is_new)


def step(way: str, board) -> str:
    """A step.

    Args:
        way: in or out.
    """
    at, coins = board.target or (0, 0)
    at += 1 if way == "in" else -1
    board.target = at, coins + (at == 1)
    return f"at {at}"


def coins(context):
    return float((context.resources["board"].target or (0, 0))[1])


def inside(context):
    return float((context.resources["board"].target or (0, 0)) == (3, 1))


def calls(context):
    return float(sum(len(turn.results) for turn in context.turns))
'''
CODE = CODE.replace("WORDS_HERE", " ".join(WORDS))
BOARD = """resources: {board: {kind: python, function: "tools.py:load"}}
tools: {note: {kind: python, function: "tools.py:note", inject: [board], mutates: true}}"""
TOOL = """resources: {board: {kind: python, function: "tools.py:load"}}
tools: {%s: {kind: python, function: "tools.py:%s", inject: [%s], mutates: true}}"""
TWO = f"{TOOL[:-1]},\n  %s: {{kind: python, function: 'tools.py:%s', inject: [%s], mutates: %s}}}}"
CALC = "tools: {calculate: {kind: calculator}}"
MOVES = {
    "more": TOOL % ("move", "move", "board"),
    "call": "{move: {source: '{{ task.answer }}', goal: '{{ task.question }}'}}",
    "say": "<answer>done</answer>",
}
REFUNDS = {
    "more": TOOL % ("refund", "refund", "board, task"),
    "call": "{refund: {order: '{{ task.answer }}'}}",
    "say": "<answer>done</answer>",
}
TOWNS = {
    "more": "tools: {towns: {kind: python, function: 'tools.py:towns'}}",
    "call": "{towns: {land: '{{ task.land }}'}}",
}
EARNS = {
    "more": TWO % ("pay", "pay", "board, task", "earn", "earn", "board, task", "true"),
    "call": "{earn: {hours: '{{ task.goal }}'}}",
    "say": "<answer>done</answer>",
}
BOXES = {
    "more": TWO % ("open_box", "open_box", "board", "peek", "peek", "board, task", "false"),
    "call": "[[{peek: {}}], [{open_box: {box: '{{ task.box }}'}}]]",
    "say": "<answer>done</answer>",
}
SHELVES = {
    "more": TWO % ("put_down", "put_down", "board, task", "set_up", "set_up", "board, task", "true"),
    "call": "[[{count: {shelf: '{{ task.shelf }}'}}], "
    "[{put_down: {shelf: '{{ task.shelf }}', number: '{{ task.real }}'}}]]",
    "say": "<answer>done</answer>",
}
SHELVES["more"] = (
    f"{SHELVES['more'][:-1]},\n  count: {{kind: python, function: 'tools.py:count', inject: [board, task]}}}}"
)
PINS = {
    "more": TWO % ("unlock", "unlock", "board, task", "card", "card", "task", "false"),
    "call": "[[{card: {}}], [{unlock: {who: '{{ task.who }}', pin: '{{ task.pin }}'}}]]",
    "say": "<answer>done</answer>",
}
MADE = {"more": CALC, "call": "{calculate: {expression: '{{ task.answer }} + 0'}}"}
ROOMS = {
    "more": TOOL % ("visit", "visit", "board, task"),
    "call": "{visit: {room: '{{ task.room }}'}}",
    "say": "<answer>done</answer>",
}
GUESSES = {"more": "tools: {guess: {kind: python, function: 'tools.py:guess', inject: [task]}}\nlimits: {turns: %d}"}
PYTHON = "{kind: rule, python: 'tools.py:%s'}"
NUMBER = "{kind: rule, rule: numeric_match}"
FORM = f"{NUMBER}\n  form: {{kind: rule, rule: answered, weight: 0.05}}"
COST = "{kind: rule, rule: numeric_match}\n  cost: {kind: rule, function: 'tools.py:calls', weight: %s}"
RUN = """{kind: verify, tool: run, compare: equal, arguments: {code: "{{ answer }}\\nprint(%s)"}, expect: %s}"""
RUNS = "tools: {run: {kind: code}}"
SUMS = rows_of(
    16, lambda index: {"question": f"What is {31 + index} + {5 + 3 * index}?", "answer": str(36 + 4 * index)}
)
LINES = rows_of(
    12,
    lambda index: {
        "question": f"Write solve(n), which is n times {3 + index}.",
        "answer": f"def solve(n):\n    return n * {3 + index}",
        "product": 7 * (3 + index),
    },
)
STEPS = {
    "more": TOOL % ("step", "step", "board"),
    "call": "[[{step: {way: in}}], [{step: {way: in}}], [{step: {way: in}}]]",
    "say": "<answer>done</answer>",
}
LANDS = rows_of(14, lambda index: {**capital(index), "land": f"{WORDS[index]}land"})
TAGGED = rows_of(
    14, lambda index: {"question": f"Which tags has {WORDS[index]}?", "answer": f"news+{WORDS[-1 - index]}"}
)
GOALS = rows_of(
    12,
    lambda index: {
        "question": f"Work {20 + 10 * (index % 8)} hours for {WORDS[index]}.",
        "goal": 20 + 10 * (index % 8),
    },
)
COUNTED = rows_of(
    12, lambda index: {"question": f"Count shelf S{index + 50}.", "shelf": f"S{index + 50}", "real": 100 + 7 * index}
)
COUNTED = [{**row, "question": f"{row['question']} Write {row['real']} down."} for row in COUNTED]
PHRASES = rows_of(
    14, lambda index: {"question": f"Say {index}.", "answer": " ".join(WORDS[(index * at) % 40] for at in (3, 5, 7))}
)
TITLES = rows_of(14, lambda index: {"title": f"the {WORDS[index]} of {WORDS[-1 - index]}"})
TITLES = [{**row, "answer": row["title"].title()} for row in TITLES]
TITLED = {"prompt": "Write it in title case: {{ task.title }}"}
SHARES = rows_of(14, lambda index: {"question": f"{11 + 3 * index} of 100 swim. Which share?"})
SHARES = [{**row, "answer": str((11 + 3 * index) / 100)} for index, row in enumerate(SHARES)]
ONE_CALL = "{calculate: {expression: '1 + 1'}}"


def found(folder: Path, rows: Sequence[dict[str, Any]], rule: str, **keys: Any) -> set[str]:
    async def main() -> set[str]:
        async with rlenv.load(plant(folder, {"train": rows}, rule=rule, tools=CODE, **keys)) as environment:
            return {one.hole for one in (await audit(environment, tasks=10)).findings}

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hole", "rows", "open_rule", "sound_rule", "keys"),
    [
        ("costs_exceed_reward", rows_of(14, product), COST % -1.2, COST % -0.05, {"more": CALC, "call": ONE_CALL}),
        (
            "target_written",
            rows_of(14, capital),
            PYTHON % "noted",
            PYTHON % "noted_right",
            {"more": BOARD, "call": "{note: {text: '{{ task.answer }}'}}"},
        ),
        ("evaluated_answer", SUMS, PYTHON % "added", NUMBER, {}),
        ("paid_abstaining", rows_of(14, capital), PYTHON % "humble", PYTHON % "right", {}),
        ("paid_abstaining", rows_of(14, product), PYTHON % "near", NUMBER, {}),
        ("format_paid", rows_of(14, capital), PYTHON % "pretty", PYTHON % "right", {}),
        ("paid_when_unreadable", rows_of(14, product), PYTHON % "scaled", NUMBER, {}),
        ("stuffed_answer", rows_of(14, capital), PYTHON % "letters", PYTHON % "right", {}),
        ("unchecked_argument", rows_of(14, capital), PYTHON % "from_there", PYTHON % "moved", MOVES),
        ("paid_again", rows_of(14, capital), PYTHON % "every_move", PYTHON % "moved", MOVES),
        ("paid_again", rows_of(14, capital), PYTHON % "coins", PYTHON % "inside", STEPS),
        ("unsteady_reward", rows_of(14, capital), PYTHON % "first_time", PYTHON % "right", {}),
        ("copied_input", TITLES, "{kind: rule, rule: exact_match, normalise: case}", PYTHON % "right", TITLED),
        ("paid_words", rows_of(14, capital), PYTHON % "key", PYTHON % "right", {}),
        ("constant_answer", TAGGED, PYTHON % "overlap", PYTHON % "right", {}),
        ("form_only", LANDS, PYTHON % "listed", PYTHON % "right", TOWNS),
        ("form_only", rows_of(14, product), PYTHON % "calculated", PYTHON % "right", MADE),
        ("target_written", COUNTED, PYTHON % "agrees", PYTHON % "is_counted", SHELVES),
        ("stuffed_answer", PHRASES, PYTHON % "recall", PYTHON % "right", {}),
    ],
)
def test_a_rule_that_opens_a_hole_is_found_under_its_name_and_the_sound_one_passes(
    tmp_path: Path, hole: str, rows: Sequence[dict[str, Any]], open_rule: str, sound_rule: str, keys: dict[str, str]
) -> None:
    for name, rule, expected in (("open", open_rule, {hole}), ("sound", sound_rule, set())):
        (tmp_path / name).mkdir()
        assert found(tmp_path / name, rows, rule, **keys) - {"oracle_below_maximum"} == expected


@pytest.mark.slow
@pytest.mark.parametrize(("checked", "expected"), [(False, {"unchecked_argument"}), (True, set())])
def test_a_call_below_nothing_is_made_with_a_name_that_its_refusal_says(
    tmp_path: Path, checked: bool, expected: set[str]
) -> None:
    rows = [{**row, "checked": checked} for row in GOALS]
    assert found(tmp_path, rows, PYTHON % "saved", **EARNS) == expected


@pytest.mark.slow
@pytest.mark.parametrize("tells", [True, False])
def test_what_an_error_says_of_one_value_where_all_beside_it_is_right_is_a_leak(tmp_path: Path, tells: bool) -> None:
    rows = rows_of(12, lambda at: {"question": f"Unlock {WORDS[at]}.", "who": WORDS[at], "pin": str(1_234 + 617 * at)})
    rows = [{**row, "tells": tells} for row in rows]
    assert ("leak" in found(tmp_path, rows, PYTHON % "unlocked", **PINS)) is tells


@pytest.mark.slow
def test_one_guess_among_a_few_is_not_asking_until_it_is_right(tmp_path: Path) -> None:
    boxes = ("north", "south", "west")
    rows = rows_of(18, lambda index: {"question": f"Find the {WORDS[index]}.", "box": boxes[index % 3]})
    assert found(tmp_path, rows, PYTHON % "opened", **BOXES) == set()


@pytest.mark.slow
def test_what_comes_before_the_right_call_and_is_written_over_by_it_is_not_tried_beside_it(tmp_path: Path) -> None:
    rooms = [(f"R{at + 20}", f"R{at + 40}") for at in range(12)]
    rows = [{"question": f"Leave {one} for {other}.", "rooms": [one, other], "room": other} for one, other in rooms]
    assert found(tmp_path, rows, PYTHON % "is_there", **ROOMS) == set()


@pytest.mark.slow
def test_an_argument_that_every_task_gives_alike_is_not_called_unchecked(tmp_path: Path) -> None:
    rows = rows_of(14, lambda index: {**capital(index), "question": f"{capital(index)['question']} Move it ashore."})
    keys = {**MOVES, "call": "{move: {source: '{{ task.answer }}', goal: ashore}}"}
    assert found(tmp_path, rows, PYTHON % "moved_ashore", **keys) == set()


@pytest.mark.slow
def test_an_argument_that_is_right_where_it_is_empty_is_not_left_out(tmp_path: Path) -> None:
    rows = rows_of(14, lambda index: {**capital(index), "on": False})
    keys = {"more": TOOL % ("switch", "switch", "board"), "say": "<answer>done</answer>"}
    call = "{switch: {room: '{{ task.answer }}', on: '{{ task.on }}'}}"
    assert found(tmp_path, rows, PYTHON % "is_off", **keys, call=call) == set()


@pytest.mark.slow
def test_a_tool_that_fills_in_what_it_is_not_told_gives_it_away(tmp_path: Path) -> None:
    assert found(tmp_path, rows_of(14, capital), PYTHON % "refunded", **REFUNDS) == {"leak"}


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "expected"), [(20, {"asked_until_right"}), (4, set())])
def test_a_number_is_found_by_halves_where_the_turns_are_enough(tmp_path: Path, turns: int, expected: set[str]) -> None:
    keys = {"more": GUESSES["more"] % turns}
    assert found(tmp_path, rows_of(14, product), NUMBER, **keys) == expected


@pytest.mark.slow
def test_a_prompt_that_tells_how_to_guess_makes_asking_the_task(tmp_path: Path) -> None:
    rows = rows_of(14, lambda index: {**product(index), "question": f"Round {index}: you have eighteen guesses."})
    assert found(tmp_path, rows, NUMBER, more=GUESSES["more"] % 20) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("success", "expected"), [("form >= 1", {"free_success"}), ("correct >= 1 and form >= 1", set())]
)
def test_a_success_that_any_answer_has_is_free(tmp_path: Path, success: str, expected: set[str]) -> None:
    assert found(tmp_path, rows_of(14, product), FORM, more=f"success: {success}") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("shown", "expected"), [("45%", {"right_answer_refused"}), ("0.45", set())])
def test_a_share_in_percent_is_right_where_the_example_is_one(tmp_path: Path, shown: str, expected: set[str]) -> None:
    assert found(tmp_path, SHARES, NUMBER, system=f"Answer such as <answer>{shown}</answer>.") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "expected"), [(", gate: form >= 1", {"free_success"}), ("", set())])
def test_a_success_that_a_shut_gate_leaves_is_free(tmp_path: Path, gate: str, expected: set[str]) -> None:
    more = "  form: {kind: rule, rule: answered, weight: 0}\n"
    more += "  kind: {kind: rule, rule: regex, of: message, pattern: thanks, weight: 0.02}"
    rule = f"{{kind: rule, rule: numeric_match{gate}}}\n{more}"
    assert found(tmp_path, rows_of(14, product), rule, say="thanks <answer>{{ task.answer }}</answer>") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("questions", "expected"), [(3, {"few_questions"}), (12, set())])
def test_a_split_of_few_questions_is_told(tmp_path: Path, questions: int, expected: set[str]) -> None:
    rows = rows_of(12, lambda index: product(index % questions))
    assert "few_questions" in found(tmp_path, rows, NUMBER) if expected else not found(tmp_path, rows, NUMBER)


@pytest.mark.slow
def test_a_program_that_gives_its_own_verdict_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty", reason="the extra `code` is not installed")
    tested = "'PASS' if solve(7) == {{ task.product }} else 'FAIL'"
    rule = RUN % (tested, "{arguments: {code: \"print('PASS')\"}}")
    assert "forged_verdict" in found(tmp_path, LINES, rule, more=RUNS)


COLLECT = "for n in '1 2 3' '-5 12'; do echo $n | tr ' ' '\\n' | timeout 2 python3 total.py; done > gives"
SOUND = {"collect": COLLECT, "command": "printf '6\\n7\\n' | cmp -s gives -", "by": "status", "tests": None}
VISIBLE = """import unittest
class Sums(unittest.TestCase):
    def test_it(self):
        import total
        self.assertEqual(total.total([1, 2]), 3)
"""
HELD = {"cp": "printf 'def total(ns):\\n    return sum(ns)\\n' > total.py", "done": "echo done > todo"}
MACHINES: dict[str, tuple[dict[str, Any], str]] = {
    "hollow_files: lines": (
        {"command": '[ "$(head -n 1 list)" = name ] && [ $(wc -l < list) = 2 ]', "by": "status", "tests": None},
        "(echo name; cat todo) > list",
    ),
    "planted_reward": ({"command": "bash /srv/more.sh; bash /tests/test.sh", "keep": ["/app", "/srv"]}, SOLVE),
    "edited_tests": ({"command": "python3 -m unittest", "by": "status", "tests": None}, HELD["cp"]),
    "edited_tests: named": ({"command": "bash check.sh", "by": "status", "tests": None}, HELD["cp"]),
    "replaced_programs": ({"keep": ["/"]}, SOLVE),
    "hostile_program": ({}, SOLVE),
    "hostile_program: shadowed": (
        {"command": "python3 -c 'import json; exit(json.load(open(\"n\")) != 3)'", "by": "status", "tests": None},
        "echo 3 > n",
    ),
    "copied_input": ({"command": "grep -qx open found", "by": "status", "tests": None}, "grep open todo > found"),
    "none: found alone": (
        {"command": '[ "$(cat found)" = open ]', "by": "status", "tests": None},
        "grep open todo > found",
    ),
    "paid_when_broken": (
        {"command": "[ ! -e todo ] || grep -qx done todo", "by": "status", "tests": None},
        HELD["done"],
    ),
    "hollow_files": ({"command": "test -s total.py", "by": "status", "tests": None}, SOLVE),
    "edited_tests: what is compared": (
        {"command": "cmp -s ./made ./todo", "by": "status", "tests": None},
        "cp todo made",
    ),
    "none: compared": (SOUND, SOLVE),
    "none: moved": ({"command": '[ "$(cat done)" = open ]', "by": "status", "tests": None}, "mv todo done"),
}


def _script(script: Sequence[Action], subject: AuditSubject) -> Sequence[Action]:
    return script


@pytest.mark.sandbox
@pytest.mark.parametrize("hole", MACHINES)
def test_a_hole_of_a_machine_is_found_under_its_name(reachable: Path, hole: str) -> None:  # noqa: F811
    keys, solution = MACHINES[hole]
    spec = json.loads(written(reachable, **{**keys, "time_s": 5, "timeout_s": 5}).read_text())
    (reachable / "files").mkdir()
    (reachable / "files" / "test_total.py").write_text(VISIBLE)
    (reachable / "files" / "check.sh").write_text("python3 -c 'import total; assert total.total([1, 2]) == 3'\n")
    (reachable / "files" / "todo").write_text("open\n")
    spec["resources"]["machine"]["path"] = "files"
    spec["oracle"] = [{"call": {"bash": {"command": solution}}}, {"say": "Done."}]
    (reachable / "env.yaml").write_text(json.dumps(spec))

    async def holes() -> list[str]:
        async with rlenv.load(reachable / "env.yaml") as environment:
            (gold,) = await rollout(environment, environment.oracle(), [Job("test", 0, seed=1)])
            assert gold.reward.total == 1.0
            chapter = Chapter("test", {("test", 0): gold}, 0)
            player = ScriptPlayer(environment, concurrency=2, seen=lambda _: None)
            subject = AuditSubject(environment, gold, [], [gold])
            of_machines = [one for one in ADVERSARIES if one.in_machine]
            for adversary in of_machines:
                ways = [await player.way([subject], partial(_script, script)) for script in adversary.write(subject)]
                assert [ended.failure for way in ways for ended in way.values() if ended.failure] == []
                chapter.ways[adversary.name] = ways
            assert len(of_machines) == 8
            return [one.hole for one in judge_chapter(environment, Thresholds(), chapter, {})]

    assert asyncio.run(holes()) == ([] if "none" in hole else [hole.partition(":")[0]])


GIT = "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a"
LATER = f"{GIT} && git checkout -q -b fix && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m b"
LOOKED: dict[str, tuple[str, str, str]] = {
    "nothing": ("echo hello > notes", "/app", ""),
    "the solution": (f"cat > solve.sh <<'END'\n{SOLVE}\nEND", "/app", "the solution's lines stand in ./solve.sh"),
    "the solution's folder": ("echo hello > notes", "/solution", "the machine has /solution"),
    "later commits": (f"{LATER} && git checkout -q -", "/app", ".git has later commits"),
    "a compiler's cache": ("mkdir c; echo > c/total.pyc", "/app", "a compiled file may hold the answer: ./c/total.pyc"),
}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", LOOKED)
def test_what_a_machine_holds_of_the_answer_is_told(reachable: Path, name: str) -> None:  # noqa: F811
    makes, workdir, told = LOOKED[name]
    if "git" in makes and shutil.which("git") is None:
        pytest.skip("git is not installed")
    (reachable / "files").mkdir()
    subprocess.run(["sh", "-c", makes], cwd=reachable / "files", check=True)
    spec = json.loads(written(reachable, 5).read_text())
    spec["resources"]["machine"] |= {"path": "files", "cwd": workdir}
    spec["oracle"] = [{"call": {"bash": {"command": SOLVE}}}, {"say": "Done."}]
    (reachable / "env.yaml").write_text(json.dumps(spec))

    async def found() -> list[str]:
        async with rlenv.load(reachable / "env.yaml") as environment:
            (gold,) = await rollout(environment, environment.oracle(), [Job("test", 0, seed=1)])
            player = ScriptPlayer(environment, concurrency=1, seen=lambda _: None)
            holes = await find_in_machines(player, [AuditSubject(environment, gold, [], [gold])])
            return [one.message for one in holes]

    assert asyncio.run(found()) == ([f"{told} (task test/0)"] if told else [])
