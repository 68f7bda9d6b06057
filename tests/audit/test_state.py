"""State that is graded in part is found by the part: what else is done, an argument, a call; the whole passes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.run import audit

_SPEC = """
rlenv: 1
name: rooms
tasks: {train: {path: rows.jsonl}}
prompt: {user: "Book room {{ task.room }} for {{ task.who }}, then tell {{ task.who }}. Rooms: Oak, Elm, Ash, Fir."}
resources: {log: {kind: python, function: "tools.py:open_log"}}
tools:
  book: {kind: python, function: "tools.py:book", inject: [log], mutates: true}
  tell: {kind: python, function: "tools.py:tell", inject: [log], mutates: true}
rewards: {done: {kind: rule, function: "tools.py:done"}}
oracle:
  - call: {book: {room: "{{ task.room }}", guest: "{{ task.who }}"}}
  - call: {tell: {names: ["{{ task.who }}"]}}
  - say: "<answer>done</answer>"
"""
_TOOLS = '''
def open_log():
    return {{"booked": [], "told": []}}


def book(room: str, guest: str, log) -> str:
    """Books a room."""
    log["booked"].append((room, guest))
    return "booked"


def tell(names: list[str], log) -> str:
    """Tells people."""
    log["told"] += names
    return "told"


def done(context):
    booked, told = context.resources["log"]["booked"], context.resources["log"]["told"]
    room, who = context.task["room"], context.task["who"]
    return float({graded})
'''
_WHO = ["Ada", "Bruno", "Carla", "Dmitri", "Elif", "Farid", "Greta", "Hugo"]


@pytest.mark.slow  # each plays some thousand episodes
@pytest.mark.parametrize(
    ("graded", "expected", "said"),
    [
        ("booked == [(room, who)] and told == [who]", "", ""),
        ("(room, who) in booked and told == [who]", "every_value_tried", "each room"),
        ("booked == [(room, who)] and who in told", "every_value_tried", "all that are named as its names"),
        ("booked == [(room, who)]", "unchecked_call", "tell"),
        ("len(booked) == 1 and booked[0][1] == who and told == [who]", "unchecked_argument", "room"),
    ],
    ids=["the whole", "whether it was ever booked", "whether one was told", "the booking alone", "the guest alone"],
)
def test_a_part_of_the_state_that_is_graded_alone_is_named(
    graded: str, expected: str, said: str, tmp_path: Path
) -> None:
    rows = [{"who": who, "room": ["Oak", "Elm", "Ash", "Fir"][at % 4]} for at, who in enumerate(_WHO)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tools.py").write_text(_TOOLS.format(graded=graded))
    (tmp_path / "env.yaml").write_text(_SPEC)

    async def main() -> list[tuple[str, str]]:
        async with rlenv.load(tmp_path / "env.yaml") as environment:
            return [(one.code, one.message) for one in (await audit(environment)).findings]

    found = asyncio.run(main())
    assert {code for code, _ in found} == ({expected} if expected else set())
    assert all(said in message for _, message in found)


@pytest.mark.parametrize(("graded", "found"), [("say", ["unchecked_call"]), ("say and booked", [])])
def test_a_policy_is_not_taken_at_its_word_that_it_has_done_its_work(
    graded: str, found: list[str], tmp_path: Path
) -> None:
    rows = [{"who": who, "room": ["Oak", "Elm", "Ash", "Fir"][at % 4]} for at, who in enumerate(_WHO)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ends = """
    say = any(call.arguments.get("done") is True for turn in context.turns for call in turn.parsed.calls)
    booked = booked == [(room, who)] and told == [who]
    return float(bool(GRADED))


def finish(done: bool) -> str:
    \"\"\"Ends the work.\"\"\"
    return "bye"
"""
    head = _TOOLS.format(graded=0).replace("    return float(0)\n", ends.replace("GRADED", graded))
    (tmp_path / "tools.py").write_text(head)
    tool = 'tools:\n  finish: {kind: python, function: "tools.py:finish", ends: true}\n'
    spec = _SPEC.replace("tools:\n", tool).replace('say: "<answer>done</answer>"', "call: {finish: {done: true}}")
    (tmp_path / "env.yaml").write_text(spec)

    async def main() -> list[str]:
        async with rlenv.load(tmp_path / "env.yaml") as environment:
            return [one.code for one in (await audit(environment)).findings]

    assert asyncio.run(main()) == found
