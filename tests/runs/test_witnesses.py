"""Terms that have to come out as they were recorded, since nothing that they measure has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main

SPEC = """
rlenv: 1
name: dice
tasks: {train: {rows: [{question: "Roll.", wanted: 1}, {question: "Rest.", wanted: 0}]}}
prompt: {user: "{{ task.question }}"}
answer: {from: final_message}
resources: {cup: {kind: python, factory: "t.py:cup", run_in: loop}}
tools: {roll: {kind: python, function: "t.py:roll", inject: [cup], run_in: loop, mutates: true}}
rewards:
  sum: {kind: rule, python: "t.py:total"}
  said: {kind: rule, rule: exact_match, expect: done, weight: 0.5}
  both: {kind: rule, rule: exact_match, expect: done, gate: sum >= 0, weight: 0.1}
"""
# Each roll gives one more than the last one of all episodes, and its result does not say so.
CODE = """
from pathlib import Path
ROLLS = Path(__file__).with_name("rolls")

def cup():
    yield []

def roll(cup) -> str:
    "Rolls."
    ROLLS.write_text(ROLLS.read_text() + "." if ROLLS.exists() else ".")
    cup.append(len(ROLLS.read_text()))
    return "rolled"

def total(context):
    return float(sum(context.resources["cup"]))
"""
ROLL = '<tool_call>\n{"name": "roll", "arguments": {}}\n</tool_call>'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(CODE)
    (tmp_path / "env.yaml").write_text(SPEC)
    (tmp_path / "plays.jsonl").write_text(json.dumps([ROLL, "done"]) + "\n" + json.dumps(["done"]) + "\n")
    policy = f"script:{tmp_path / 'plays.jsonl'}"
    assert main(["eval", str(tmp_path / "env.yaml"), "--policy", policy, "-o", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def told(capsys: pytest.CaptureFixture[str], run: Path, *argv: str) -> Any:
    capsys.readouterr()
    main(["rescore", str(run), "--spec", str(run.parent / "env.yaml"), "--json", "--max-invalid", "1", *argv])
    return json.loads(capsys.readouterr().out)


def test_a_state_that_chance_takes_part_in_is_no_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, run)
    (changed,) = found["changes"]  # the episode without a roll comes out as it was
    assert (changed["task_index"], changed["before"], changed["after"]) == (0, 1.6, None)
    assert "'sum' gave 1 when it was recorded and 2 now, with nothing changed" in changed["error"]
    # What has a gate that looks at it is not known either; what reads no state is.
    assert sorted(changed["terms"]) == ["both", "sum"]


def test_what_has_changed_may_come_out_differently(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "u.py").write_text(CODE.replace("return float(", "return 10 * float("))
    (run.parent / "env.yaml").write_text(SPEC.replace("t.py:total", "u.py:total"))
    (changed,) = told(capsys, run)["changes"]
    assert changed["terms"]["sum"] == [1.0, 20.0]


def test_nothing_says_that_a_run_without_a_lock_was_made_by_the_same(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run.parent / "episodes.jsonl"
    assert main(["runs", "export", str(run), "-o", str(lines)]) == 0
    (changed,) = told(capsys, lines)["changes"]
    assert changed["terms"]["sum"] == [1.0, 2.0]
