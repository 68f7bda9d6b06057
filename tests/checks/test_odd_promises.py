"""What a prompt promises and the spec does not keep is said by its kind; what is kept is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate

ROWS = [{"question": f"Which is the name of number {n}?", "note": f"n{n}", "answer": a} for n, a in enumerate("pqrs")]
SPEC: dict[str, Any] = {
    "rlenv": 1,
    "name": "promised",
    "tasks": {"train": {"rows": ROWS}},
    "prompt": {"system": "", "user": "{{ task.question }}"},
    "tools": {"look": {"kind": "calculator", "description": "Looks."}},
    "rewards": {"correct": {"kind": "rule", "rule": "exact_match"}},
    "oracle": [{"say": "<answer>{{ task.answer }}</answer>"}],
}
ANSWER = " Write it between <answer> and </answer>."
CODE = {"tools": {"run": {"kind": "code"}}}
SESSION = {"tools": {"run": {"kind": "code", "session": True}}}
FOLDER = {
    "resources": {"work": {"kind": "tempdir"}},
    "tools": {"read": {"kind": "python", "function": "own.py:read", "inject": ["work"]}},
}
SEARCH = {"dialect": "search_r1", "tools": {"search": {"kind": "calculator", "description": "Looks."}}}
CORPUS = {"tools": {"find": {"kind": "search", "path": "own.jsonl", "top_k": 3}}}
MESSAGE = {"answer": {"from": "final_message"}, "oracle": [{"say": "{{ task.answer }}"}]}
PLAYER = {
    "endpoints": {"m": {"base_url": "https://example.com/v1", "model": "m"}},
    "user": {
        "kind": "model",
        "endpoint": "m",
        "prompt": "You are a friendly support agent. {{ task.question }} ###STOP###",
    },
}


def answers(*golds: str) -> dict[str, Any]:
    return {"tasks": {"train": {"rows": [row | {"answer": gold} for row, gold in zip(ROWS, golds, strict=False)]}}}


def column(**given: str) -> dict[str, Any]:
    return {"tasks": {"train": {"rows": [row | {k: f"{v} {row['note']}" for k, v in given.items()} for row in ROWS]}}}


def line(pattern: str) -> dict[str, Any]:
    return {"answer": {"from": "regex", "pattern": pattern}, "oracle": [{"say": "ANSWER: {{ task.answer }}"}]}


ODD: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "calls": ("limits", "You may make up to ten tool calls.", {"limits": {"tool_calls": 2}}),
    "times": ("limits", "You may use the calculator 5 times.", {"limits": {"tool_calls": 2}}),
    "turns": ("limits", "You have nine attempts.", {"limits": {"turns": 4}}),
    "results": ("limits", "The search gives the 20 best hits.", CORPUS),
    "words": ("limits", "Write at least 300 words first.", {"limits": {"response_tokens": 64}}),
    "calls at once": ("limits", "Look both up in one message.", {"limits": {"calls_per_turn": 1}}),
    "a session": ("no-session", "Variables stay from call to call.", CODE),
    "an interpreter that remembers": ("no-session", "The interpreter remembers what you define.", CODE),
    "no session": ("no-session", "Each call starts afresh.", SESSION),
    "a package": ("no-package", "You can import pandas.", CODE),
    "files": ("no-file", "The folder holds the reports.", FOLDER),
    "a file for code": ("no-file", "The file rain.csv lies there.", CODE),
    "a passage in a column": (
        "unread-column",
        "Answer about the passage.",
        column(passage="a long text of many words"),
    ),
    "a clue in a column": ("unread-column", "Use the given clue.", column(clue="it barks")),
    "a table that is nowhere": ("unread-column", "Use the table below.", {}),
    "tags in the whole message": ("answer-form", "Think in <why> and </why>, then write the name alone.", MESSAGE),
    "12 hours": ("gold-form", "Write a time such as 9:05 pm.", answers("14:25", "18:10", "20:00", "21:30")),
    "24 hours": ("gold-form", "Write a time such as 14:30.", answers("2:25 pm", "6:10 pm", "8 pm", "9:30 pm")),
    "a date": ("gold-form", "Write it as DD/MM/YYYY.", answers("2024-03-01", "2024-04-01", "2024-05-01", "2024-06-01")),
    "JSON": ("gold-form", "Answer with a JSON object.", {}),
    "a script": ("gold-form", "Answer in Russian.", answers("dog", "cat", "cow", "hen")),
    "units": ("other-unit", "Answer in kilometres.", answers("12 miles", "3 miles", "4 miles", "5 miles")),
    "words that are counted as characters": (
        "limits",
        "Explain in at most 60 words.",
        {"rewards": SPEC["rewards"] | {"short": {"kind": "rule", "rule": "length", "max": 60, "weight": 0.2}}},
    ),
    "per cent without the sign": (
        "gold-form",
        "Write per cent, such as 30%.",
        {**answers("45", "15", "88", "5"), "rewards": {"correct": {"kind": "rule", "rule": "math_equal"}}},
    ),
    "decimals behind a comma": (
        "gold-form",
        "Write three decimals.",
        {
            **answers("1,590", "2,500", "3,125", "7,250"),
            "rewards": {"correct": {"kind": "rule", "rule": "numeric_match"}},
        },
    ),
    "a user in the policy's part": ("odd-role", "Ask what is wanted.", PLAYER),
    "calls that nobody explains": ("untold-tool", "Look it up.", SEARCH),
}
SOUND: dict[str, tuple[str, Mapping[str, Any]]] = {
    "calls that are kept": ("You may make up to ten tool calls.", {"limits": {"tool_calls": 10}}),
    "times of a number": ("The answer is 50 times as large.", {"limits": {"tool_calls": 2}}),
    "words that fit": ("Write at most 30 words first.", {"limits": {"response_tokens": 64}}),
    "a session that is there": ("Variables stay from call to call.", SESSION),
    "no session that is said": ("No variables are kept: each call starts afresh.", CODE),
    "no package": ("There is no numpy.", CODE),
    "a passage that is shown": ("Answer about the passage.", column(passage="a long text of many words")
                                | {"prompt": {"user": "{{ task.passage }} {{ task.question }}"}}),
    "a column that is no passage": ("Say the name of the note.", {}),
    "a line anywhere": ("Think first, then write ANSWER: x", line(r"(?m)^ANSWER: (\w+)$")),
    "a line alone": ("Write ANSWER: x and nothing else.", line(r"^ANSWER: (\w+)$")),
    "times from one form into the other": ("Turn 24-hour into 12-hour times.", answers("2 pm", "3 pm", "4 pm", "5 pm")),
    "a tool that gives JSON": ("The tool returns a JSON object.", {}),
    "units that golds have": ("Answer in kilometres.", answers("12 km", "3 km", "4 km", "5 km")),
    "kinds that are listed": ("Write a time (HH:MM), a number, yes or no.", answers("14:25", "no", "40", "06:20")),
    "steps of what is written": ("Write a recipe in at most twelve steps.", {"limits": {"turns": 4}}),
    "calls that are explained": ("Look it up with <search>1 + 1</search>.", SEARCH),
}  # fmt: skip


def warned(folder: Path, system: str, more: Mapping[str, Any]) -> set[str]:
    is_own = more.get("answer", {}).get("from") in ("regex", "final_message")
    prompt = SPEC["prompt"] | more.get("prompt", {}) | {"system": system + ("" if is_own else ANSWER)}
    texts = [json.dumps({"id": str(n), "title": "t", "text": f"text {n} p q r s"}) for n in range(9)]
    (folder / "own.py").write_text("def read(name: str, work) -> str:\n    'Reads.'\n    return name + str(work)\n")
    (folder / "own.jsonl").write_text("\n".join(texts), encoding="utf-8")
    (folder / "env.yaml").write_text(json.dumps({**SPEC, **more, "prompt": prompt}), encoding="utf-8")
    report = validate([folder / "env.yaml"])
    assert report.faults == ()
    return {one.code for one in report.warnings}


@pytest.mark.parametrize("name", ODD)
def test_a_promise_that_nothing_keeps_is_said(tmp_path: Path, name: str) -> None:
    code, system, more = ODD[name]
    assert code in warned(tmp_path, system, more)


@pytest.mark.parametrize("name", SOUND)
def test_a_promise_that_is_kept_is_left_alone(tmp_path: Path, name: str) -> None:
    assert warned(tmp_path, *SOUND[name]) == set()
