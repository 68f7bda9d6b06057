"""What is legal and surely odd is warned of by its kind; what ships, and what is sound, is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted([*ROOT.glob("specs/*.yaml"), *ROOT.glob("examples/*/*.yaml")])

SOUND = """\
rlenv: 1
name: sound
tasks:
  train: {rows: [{question: "What is 2 + 3?", answer: 5}, {question: "What is 4 + 4?", answer: 8}]}
  test: {rows: [{question: "What is 7 + 6?", answer: 13}]}
prompt:
  system: Use the tools. Put the answer between <answer> and </answer>.
  user: "{{ task.question }}"
tools:
  calculate: {kind: calculator}
  look:
    kind: http
    url: "https://example.com/{{ args.place }}"
    description: Says what is at a place.
    parameters: {place: string}
    example: {place: bern}
answer: {from: tag, tag: answer}
limits: {turns: 6, tool_calls: 8, calls_per_turn: 4}
rewards:
  correct: {kind: rule, rule: numeric_match}
  form: {kind: rule, rule: valid_calls, weight: 0.1}
success: correct >= 1
oracle:
  - {call: {calculate: {expression: "1 + 1"}}}
  - {say: "<answer>{{ task.answer }}</answer>"}
"""
OWN = """\
import logging
import random
import threading
import time


def calculate(expression: str) -> str:
    "Calculates."
    return "0" * 60 + str(eval(expression)).rstrip("0") + "0" * 60


def one(context):
    return 1.0


def some(context):
    return 0.5 if context.answer is None else 0.5


def ignores(place: str, day: str) -> str:
    "Says where it is."
    return place


def twice(number: int) -> int:
    "Gives twice a number."
    time.sleep(0)
    return 2 * number


def box():
    return {}


def put(thing: str, box) -> str:
    "Puts a thing into the box."
    box[thing] = 1
    return thing


def shown(box) -> str:
    "Shows what is in the box."
    return " ".join(box)


KEPT = []


def keeps(thing: str) -> str:
    "Keeps a thing."
    KEPT.append(thing)
    return thing


def part(context):
    return float(bool(context.answer) and context.answer in context.task["answer"])


def percent(context):
    return 100.0 * (context.answer == str(context.task["answer"]))


def noise(context):
    return random.random()


def draw():
    return [{"question": f"q{random.random()}", "answer": number} for number in range(3)]


def signals(expression: str) -> str:
    "Fails, while somebody else logs."
    other = threading.Thread(target=logging.getLogger("rlenv.tools").warning, args=("of others",))
    other.start()
    other.join()
    raise RuntimeError(expression)


def half(number: int) -> float:
    "Gives half of a number."
    if number > 100:
        raise ValueError("too large")
    return number / 2


def breaks(context):
    return float(sum(int(part) for part in context.answer.split("+")) == eval(context.task["answer"]))


def lost(context):
    return context.final_message == "5"


def wrong(context):
    return 0.5 if context.answer == str(context.task["answer"]) else 1.0
"""
MODEL = {"base_url": "https://example.com/v1", "model": "m"}
JUDGE = {"kind": "judge", "endpoint": "m", "prompt": "Is this right for {{ task.question }}? {{ answer }}"}
ASK = {
    "kind": "model",
    "endpoint": "m",
    "description": "Asks.",
    "prompt": "{{ args.q }}",
    "parameters": {"q": "string"},
}
EXACT = {"kind": "rule", "rule": "exact_match"}
PARTLY_PAID = {"kind": "rule", "function": "own.py:some", "weight": 0.2}
PERSON = {"kind": "model", "endpoint": "m", "prompt": "You want {{ task.answer }}. Write ###STOP### then."}
TESTS = {"kind": "tests", "entry": "solve"}
COMMAND = {"kind": "command", "command": ["/bin/echo", "{{ args.word }}"], "description": "Echoes.",
           "parameters": {"word": "string"}}  # fmt: skip


def rows(*found: Mapping[str, Any]) -> dict[str, Any]:
    return {"tasks.train.rows": list(found)}


def asks(**more: Any) -> dict[str, Any]:
    """The sound spec with a model that a tool asks."""
    return {"endpoints": {"m": MODEL | more.pop("endpoint", {})}, "tools.ask": ASK | more}


def judged(**more: Any) -> dict[str, Any]:
    judge = JUDGE if "judges" not in more else {key: value for key, value in JUDGE.items() if key != "endpoint"}
    return {
        "endpoints": {"m": MODEL | (more.pop("endpoint", None) or {}), **({"n": MODEL} if "judges" in more else {})},
        "rewards.good": judge | more,
    }


def talks(**more: Any) -> dict[str, Any]:
    return {"endpoints": {"m": MODEL}, "user": PERSON | more, "oracle": None}


def scripted(**more: Any) -> dict[str, Any]:
    """The sound spec with a user whom the oracle asks first."""
    say = [{"say": "Which one?"}, {"say": "<answer>{{ task.answer }}</answer>"}]
    return {"user": {"kind": "scripted", "replies": ["a"]} | more, "oracle": say}


CASES = [{"args": [1], "expected": 1}, {"args": [2], "expected": 2}]
TOWNS = ("Senn", "Ulm", "Dorrow", "Brint", "Halden")
ORDERS = {
    "resources": {"db": {"kind": "sqlite", "init": "own.sql"}},
    "tools.query": {"kind": "sql", "resource": "db"},
}


def golds(*given: str) -> dict[str, Any]:
    """The sound spec with texts as gold values, which are compared as such."""
    one = {"tasks.test.rows": [{"question": "c", "answer": given[0]}], "rewards.correct": EXACT, "oracle": None}
    return rows(*({"question": f"q{n}", "answer": gold} for n, gold in enumerate(given))) | one


def gold(query: str) -> dict[str, Any]:
    check = {"kind": "verify", "tool": "query", "arguments": {"sql": "{{ answer }}"}, "compare": "rows"}
    return {"rewards.same": check | {"expect": {"arguments": {"sql": query}}}}


ODD: dict[str, tuple[str, Mapping[str, Any]]] = {
    # what is written otherwise than it is meant
    "damaged golds alone": (
        "odd-gold",
        golds("GemÃ¤lde", "MusÃ©e", "SchloÃŸ", "FundaÃ§Ã£o") | {"rewards.correct": EXACT},
    ),
    "a judge of what is right who knows nothing": (
        "blind-judge",
        judged(prompt="Is what they answered right? {{ answer }}", rubric=["5: right", "1: wrong"]),
    ),
    "a penalty for what succeeds alone": (
        "wrong-gate",
        {
            "rewards.harm": {"kind": "rule", "rule": "regex", "pattern": "zq", "weight": -2, "gate": "correct >= 1"},
            "success": "correct >= 1 and harm < 1",
        },
    ),
    "a length beside a judge that may be down": (
        "only-form",
        judged(required=False) | {"rewards.correct": {"kind": "rule", "rule": "length", "max": 60, "weight": 0.3}},
    ),
    "a function that fails whatever is said": (
        "unmeasured",
        {"rewards.own": {"kind": "rule", "function": "own.py:lost"}, "oracle": None},
    ),
    "a judge who decides on success": ("judged-success", judged() | {"success": None}),
    # rows
    "a prompt that names no column": ("same-prompt", {"prompt.user": "Say something."}),
    "rows that ask the same": ("same-prompt", rows({"question": "q", "answer": 1}, {"question": "q", "answer": 2})),
    "a row twice": (
        "duplicate-rows",
        rows(*[{"question": "What is 2 + 3?", "answer": 5}] * 2, {"question": "a", "answer": 1}),
    ),
    "a row in both splits": (
        "shared-rows",
        rows({"question": "What is 7 + 6?", "answer": 13}, {"question": "a", "answer": 1}),
    ),
    "a limit above the rows": ("idle-limit", {"tasks.train.limit": 50}),
    "groups of one row": ("idle-groups", {"tasks.train.report_by": "question"}),
    "a column that is null": ("odd-column", rows({"question": None, "answer": 5}, {"question": "b", "answer": 1})),
    "a column that is empty": (
        "odd-column",
        {"prompt.user": "Q: {{ task.question }}"} | rows({"question": "", "answer": 5}, {"question": "b", "answer": 1}),
    ),
    "a message that is empty": ("empty-prompt", rows({"question": "", "answer": 5}, {"question": "b", "answer": 1})),
    "a list shown as Python": (
        "odd-column",
        rows({"question": ["a", "b"], "answer": 5}, {"question": ["c"], "answer": 1}),
    ),
    "an empty gold": (
        "empty-gold",
        {**rows({"question": "a", "answer": ""}, {"question": "b", "answer": "x"}), "rewards.correct": EXACT},
    ),
    "one gold for all": ("constant-gold", rows(*[{"question": f"q{n}", "answer": 5} for n in range(9)])),
    "golds that the answer rule never reads": (
        "gold-not-earned",
        {
            **rows({"question": "a", "answer": "Bern"}, {"question": "b", "answer": "Rome"}),
            "rewards.correct": EXACT,
            "answer": {"from": "last_number"},
            "oracle": None,
            "tools": {},
        },
    ),
    # prompts
    "single braces": ("single-braces", {"prompt.user": "{{ task.question }} {task.question}"}),
    "a dollar and a column": ("single-braces", {"prompt.user": "{{ task.question }} ${question}"}),
    "percent and a column": ("single-braces", {"prompt.user": "{{ task.question }} %(question)s"}),
    "another tag": ("answer-form", {"prompt.system": "Write <result>x</result>."}),
    "a box": ("answer-form", {"prompt.system": "Write \\boxed{x}."}),
    "no word of how to answer": ("answer-form", {"prompt.system": "Be brief."}),
    "tags and the whole message": ("answer-form", {"answer": {"from": "final_message"}}),
    "another pattern": ("answer-form", {"answer": {"from": "regex", "pattern": "Final result: (.+)"}, "oracle": None}),
    "thoughts that the dialect does not know": (
        "think-marks",
        {"dialect": "mistral", "prompt.system": "Think in <think> marks, then <answer>."},
    ),
    "another family's calls": (
        "call-marks",
        {"dialect": "mistral", "prompt.system": "Call by <tool_call>. Then <answer>."},
    ),
    "a control token": ("control-token", {"prompt.system": "<|im_start|>system\nPut it in <answer>."}),
    "a tool that is not there": ("unknown-tool", {"prompt.system": "Use the `browse` tool. Then <answer>."}),
    "tools where there are none": (
        "no-tools",
        {"prompt.system": "Use the tools. Then <answer>.", "tools": {}, "oracle": None},
    ),
    "unfinished": ("unfinished", {"prompt.system": "TODO: say it. Then <answer>."}),
    "the gold in the prompt": ("gold-in-prompt", {"prompt.user": "{{ task.question }} ({{ task.answer }})"}),
    # tools
    "an example that does not fit": ("odd-example", {"tools.look.example": {"plac": "x"}}),
    "a parameter that nothing reads": (
        "unread-parameter",
        {"tools.look.parameters": {"place": "string", "day": "string"}},
    ),
    "a command's parameter": ("unread-parameter", {"tools.say": COMMAND | {"command": ["/bin/echo", "x"]}}),
    "a model's parameter": ("unread-parameter", asks(prompt="Hello {{ task.question }}")),
    "two of one description": (
        "same-description",
        {"tools.say": COMMAND | {"description": "Says what is at a place."}},
    ),
    "a try longer than the call": ("limits", {"tools.look.attempt_s": 30, "tools.look.timeout_s": 5}),
    "braces in a description": ("literal-braces", {"tools.look.description": "Looks at {{ place }}."}),
    "tools without an oracle": ("no-oracle", {"oracle": None}),
    # what is never used
    "a constant": ("unused-constant", {"vars": {"unit": "m"}}),
    "a resource": ("unused-resource", {"resources": {"work": {"kind": "tempdir"}}}),
    "an endpoint": ("unused-endpoint", {"endpoints": {"m": MODEL}}),
    # limits
    "one turn with tools": ("limits", {"limits.turns": 1, "oracle": [{"say": "<answer>{{ task.answer }}</answer>"}]}),
    "a call longer than the episode": ("limits", {"tools.look.timeout_s": 900}),
    "a call longer than its turn": ("limits", {"limits.turn_s": 2, "calls.timeout_s": 5}),
    "more calls a turn than in all": ("limits", {"limits.calls_per_turn": 20}),
    "more invalid actions than turns": ("limits", {"limits.invalid_actions": 20}),
    "no room for an answer": ("limits", {"limits.response_tokens": 4}),
    "a result longer than the episode": ("limits", {"limits.response_tokens": 100, "observation.max_tokens": 500}),
    "a request longer than its tool": ("limits", asks(endpoint={"timeout_s": 90})),
    "a verdict longer than the reward": ("limits", judged(timeout_s=900)),
    "results that are not shown": ("no-result", {"observation": {"format": "template", "template": "done"}}),
    # answers
    "a pattern that fits nothing": (
        "any-answer",
        {"answer": {"from": "regex", "pattern": "answer (.*)|()"}, "oracle": None},
    ),
    # rewards
    "a gold without braces": ("no-braces", {"rewards.correct": EXACT | {"expect": "task.answer"}}),
    "a regex for anything": (
        "free-success",
        {"rewards.correct": {"kind": "rule", "rule": "regex", "pattern": "[0-9]*"}},
    ),
    "a tolerance for any number": ("any-answer", {"rewards.correct.tolerance": 1e9}),
    "golds that stand everywhere": ("short-gold", {"rewards.correct": {"kind": "rule", "rule": "contains"}}),
    "more turns than there are": ("never-pays", {"rewards.long": {"kind": "rule", "rule": "turn_count", "min": 9}}),
    "more calls than there are": (
        "never-pays",
        {"rewards.long": {"kind": "rule", "rule": "tool_call_count", "min": 20}},
    ),
    "a count that always holds": ("always-pays", {"rewards.short": {"kind": "rule", "rule": "turn_count", "max": 6}}),
    "a weight that turns it around": ("paid-for-silence", {"rewards.correct.weight": -1, "rewards.form.weight": 1}),
    "only the form": ("only-form", {"rewards.correct.weight": 0}),
    "success of the form": ("only-form", {"success": "form >= 1"}),
    "one value for all": ("constant-term", {"rewards.form.clip": [1, 2]}),
    "a range that is not the rule's": ("odd-range", {"rewards.correct.range": [0, 100], "success": "correct > 0"}),
    "a gate that always holds": ("idle-gate", {"rewards.form.gate": "correct >= 0"}),
    "the same term twice": ("same-term", {"rewards.again": {"kind": "rule", "rule": "numeric_match", "weight": 0.3}}),
    "a judge who is told nothing": ("blind-judge", judged(prompt="Good? {{ answer }}")),
    "another scale": ("other-scale", judged(prompt="{{ task.question }} {{ answer }} Score from 0 to 10.")),
    "a verdict of two tokens": ("odd-sampling", judged(sampling={"max_tokens": 2})),
    # the oracle
    "a wrong oracle": ("wrong-oracle", {"oracle": [{"say": "<answer>999</answer>"}]}),
    "the wrong column": (
        "wrong-oracle",
        {
            **rows({"question": "a", "answer": 1, "other": 7}),
            "tasks.test": {"rows": [{"question": "b", "answer": 2, "other": 8}]},
            "oracle": [{"say": "<answer>{{ task.other }}</answer>"}],
        },
    ),
    # users
    "a user who never ends": ("user-never-ends", talks(prompt="You want {{ task.answer }}.")),
    "a user without an end": ("user-never-ends", talks(stop=None)),
    "one person for all": (
        "same-prompt",
        talks(prompt="You want a refund. Write ###STOP### then.") | {"prompt.user": "Good morning."},
    ),
    "replies that are never said": (
        "limits",
        {"user": {"kind": "scripted", "replies": ["a", "b", "c"]}, "limits.turns": 2, "oracle": None},
    ),
    # endpoints
    "no path": ("address", asks(endpoint={"base_url": "https://example.com"})),
    "no time for a call": ("limits", {"calls.timeout_s": 0.001}),
    "no room for a result": ("limits", {"observation.max_chars": 16}),
    "a description that says nothing": ("no-description", {"tools.look.description": "TODO"}),
    "no call at all": ("always-pays", {"rewards.f": {"kind": "rule", "rule": "tool_called", "tool": "look", "min": 0}}),
    "a weight that is lost": ("lost-weight", {"rewards.correct.weight": 1e-9}),
    "form above all": ("only-form", {"rewards.form.weight": 100}),
    "a range beside a scale": ("odd-range", judged(range=[1, 5])),
    "noise": ("odd-sampling", asks(sampling={"temperature": 9})),
    # golds and rules that do not fit each other
    "words compared where numbers are": ("other-rule", {"rewards.correct": {"kind": "rule", "rule": "f1"}}),
    "a tolerance of the whole": ("any-answer", {"rewards.correct.relative_tolerance": 1.0}),
    "a schema for any JSON": ("only-form", {"rewards.f": {"kind": "rule", "rule": "json_schema", "schema": {}}}),
    "a gold at every turn": ("odd-turns", {"rewards.correct.when": "turn"}),
    "success turned around": ("wrong-success", {"success": "correct < 1"}),
    "success over what some rows skip": (
        "wrong-success",
        {"rewards.form.gate": "task.answer > 5", "success": "correct >= 1 and form >= 1"},
    ),
    "no success, and a term that is never at 1": ("wrong-success", {"success": None, "rewards.some": PARTLY_PAID}),
    "no success, and such a term behind a gate": (
        "wrong-success",
        {"success": None, "rewards.some": PARTLY_PAID | {"gate": "correct >= 1"}},
    ),
    "a call that the tool refuses": (
        "wrong-oracle",
        {
            "oracle": [
                {"call": {"calculate": {"expression": "2 apples"}}},
                {"say": "<answer>{{ task.answer }}</answer>"},
            ]
        },
    ),
    "an answer that is cut away": (
        "cut-answer",
        {
            **rows({"question": "a", "answer": 7712}, {"question": "b", "answer": 7814}),
            "observation.max_chars": 64,
            "oracle": [
                {"call": {"calculate": {"expression": "10 ** 90 * {{ task.answer }} * 10 ** 60"}}},
                {"say": "<answer>{{ task.answer }}{{ results[-1][:0] }}</answer>"},
            ],
            "tools.calculate": {"kind": "python", "function": "own.py:calculate"},
        },
    ),
    "a term that reads nothing": ("unread-parameter", {"rewards.f": {"kind": "rule", "function": "own.py:one"}}),
    "a term that tells nothing apart": (
        "constant-term",
        {"rewards.f": {"kind": "rule", "function": "own.py:some", "range": [0, 1]}},
    ),
    "a term that pays for silence": ("paid-for-nothing", {"rewards.f": {"kind": "rule", "function": "own.py:wrong"}}),
    "a success of anything": (
        "free-success",
        {"rewards.f": {"kind": "rule", "function": "own.py:one"}, "success": "f > 0"},
    ),
    **{
        f"a success of anything by {rule}, which pays for form beside what is right": (
            "free-success",
            {
                "rewards.correct": {"kind": "rule", "rule": rule, "expect": "{{ task.answer }}"},
                "success": "correct > -9",
            },
        )
        for rule in ("rl_factory_search", "search_r1_format")
    },
    # rows beside prompts
    "a task with two golds": (
        "conflicting-rows",
        rows(
            {"id": 1, "question": "What?", "answer": 5},
            {"id": 2, "question": "What", "answer": 6},
            {"id": 3, "question": "b", "answer": 6},
        ),
    ),
    "a task of train in test": (
        "shared-rows",
        rows({"id": 1, "question": "What is 7 + 6", "answer": 13}, {"id": 2, "question": "b", "answer": 6}),
    ),
    "tasks that are drawn anew": ("unsteady", {"tasks.train": {"function": "own.py:draw"}}),
    "a key that the prompt lacks": (
        "answer-form",
        {
            "rewards.f": {
                "kind": "rule",
                "rule": "json_schema",
                "schema": {"type": "object", "required": ["tools", "sum"]},
            }
        },
    ),
    # what the prompt tells
    "a name that is nothing": ("unknown-tool", {"prompt.system": "Look with find_place. Put it in <answer>."}),
    "a tool that no form calls": (
        "unreachable-tool",
        {
            "dialect": {
                "base": "search_r1",
                "calls": {"open": "<sum>", "close": "</sum>", "body": "text", "tool": "calculate"},
            }
        },
    ),
    # values
    "milliseconds": ("limits", {"tools.look.timeout_s": 30_000}),
    "a place that nobody filled in": ("unfinished", asks(endpoint={"model": "your-model"})),
    "a shell's sign": ("no-shell", {"tools.say": COMMAND | {"command": ["/bin/echo", "{{ args.word }}", "|", "wc"]}}),
    "results kept over tasks": (
        "shared-state",
        {"tools.look.cache": {"key": "arguments"}, "tools.look.query": {"q": "{{ task.question }}"}},
    ),
    # terms
    "a gate for what is wrong": ("wrong-gate", {"rewards.form.gate": "correct < 1", "rewards.form.weight": 1}),
    "a sum over turns": ("paid-for-length", {"rewards.form.when": "turn", "rewards.form.over_turns": "sum"}),
    "another key": ("other-scale", judged(prompt='{{ task.question }} {{ answer }} Write {"rating": 3}.')),
    "the question as the gold": (
        "odd-pair",
        judged(prompt="Is {{ answer }} right? The right one is {{ task.question }}."),
    ),
    "a share in percent": ("odd-range", {"rewards.f": {"kind": "rule", "function": "own.py:percent"}}),
    "a reward that draws": ("unsteady", {"rewards.f": {"kind": "rule", "function": "own.py:noise"}}),
    "a list of all that is right": (
        "paid-for-nothing",
        {
            **rows({"question": "a", "answer": "Rome"}, {"question": "b", "answer": "Oslo"}),
            "rewards.correct": {"kind": "rule", "rule": "contains"},
        },
    ),
    "a part of what is right": (
        "paid-for-nothing",
        {
            **rows({"question": "a", "answer": "Rome"}, {"question": "b", "answer": "Oslo"}),
            "tasks.test.rows": [{"question": "c", "answer": "Bern"}],
            "rewards.correct": {"kind": "rule", "function": "own.py:part"},
        },
    ),
    "a pattern for every row": ("any-answer", {"rewards.correct": {"kind": "rule", "rule": "regex", "pattern": "\\d"}}),
    # what is told, and what stands apart
    "a user who tells": ("gold-in-prompt", scripted(replies=["It is {{ task.answer }}."])),
    "an oracle that asks with the answer": (
        "wrong-oracle",
        {
            "oracle": [
                {"call": {"calculate": {"expression": "{{ task.answer }} + 0"}}},
                {"say": "<answer>{{ task.answer }}</answer>"},
            ],
            "rewards.correct": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.answer }}"},
        },
    ),
    "a parameter that the function ignores": (
        "unread-parameter",
        {"tools.own": {"kind": "python", "function": "own.py:ignores"}},
    ),
    "a change that nobody declares": (
        "odd-policy",
        {
            "resources.box": {"kind": "python", "function": "own.py:box"},
            "tools.own": {"kind": "python", "function": "own.py:put", "inject": ["box"]},
        },
    ),
    "an example that fails": (
        "odd-example",
        {"tools.calculate": {"kind": "calculator", "example": {"expression": "2 apples"}}},
    ),
    "a type that is not the function's": (
        "other-type",
        {"tools.own": {"kind": "python", "function": "own.py:twice", "parameters": {"number": "string"}}},
    ),
    "every bug as a failure": (
        "odd-policy",
        {"tools.own": {"kind": "python", "function": "own.py:twice", "errors": ["Exception"]}},
    ),
    "any file of the machine": ("unused-roots", {"roots": ["/"]}),
    "an oracle that is too short": (
        "wrong-oracle",
        {"rewards.f": {"kind": "rule", "rule": "length", "min": 200, "unit": "words", "of": "answer"}},
    ),
    "an oracle that calls too much": ("wrong-oracle", {"rewards.f": {"kind": "rule", "rule": "turn_count", "max": 1}}),
    "form above what is right": ("only-form", {"rewards.form.weight": 1.5}),
    "taste above what is right": ("only-form", judged(weight=5)),
    "tests that are everybody's": (
        "constant-gold",
        {"rewards.t": TESTS | {"calls": [{"args": [1], "expected": 1}]}},
    ),
    "a row without tests": (
        "empty-gold",
        {
            **rows({"question": "a", "answer": 1, "cases": []}, {"question": "b", "answer": 2, "cases": []}),
            "tasks.test": {"rows": [{"question": "c", "answer": 3, "cases": []}]},
            "rewards.t": TESTS | {"calls": "{{ task.cases }}"},
        },
    ),
    "tests of another name": ("wrong-oracle", {"rewards.t": TESTS | {"calls": [{"args": [1], "expected": 1}]}}),
    # what is shown nothing
    "a judge who is shown nothing": ("unread-answer", judged(prompt="Is {{ task.question }} clear?")),
    "tests that are shown nothing": (
        "unread-answer",
        {"rewards.t": TESTS | {"calls": [{"args": [1], "expected": 1}], "code": "{{ task.question }}"}},
    ),
    "a call that is shown nothing": (
        "unread-answer",
        {"rewards.v": {"kind": "verify", "tool": "calculate", "arguments": {"expression": "1"}, "expect": "1"}},
    ),
    # judges
    "a rubric of another scale": ("other-scale", judged(rubric=["10: good", "0: bad"])),
    "a schema of another scale": (
        "other-scale",
        judged(schema={"type": "object", "properties": {"score": {"type": "number", "maximum": 100}}}),
    ),
    "a judge who dices": ("odd-sampling", judged(sampling={"temperature": 1.5})),
    "an answer against the question": (
        "odd-pair",
        judged(prompt="Better? {{ first }} {{ second }}", pairwise={"with": "{{ task.question }}"}),
    ),
    "a request longer than its reward": ("limits", judged(endpoint={"timeout_s": 600})),
    # policies
    "kept for no time": ("idle-cache", {"tools.look.cache": {"ttl_s": 0.01}}),
    "a breaker at once": ("odd-policy", {"calls.breaker": {"failures": 1}}),
    "processor time above the call's": ("limits", {"tools.say": COMMAND | {"cpu_s": 60, "timeout_s": 5}}),
    # users
    "a cue that hides another": (
        "hidden-cue",
        scripted(cues=[{"pattern": ".*", "say": "Yes."}, {"pattern": "number", "say": "7"}]),
    ),
    "a cue that nobody meets": ("unmet-cue", scripted(cues=[{"pattern": "xyzzy", "say": "Yes."}])),
    "a user who ends at once": ("user-ends", scripted(replies=["###STOP###"])),
    # rows, prompts
    "what nobody has filled in": (
        "odd-column",
        rows({"question": "TODO", "answer": 5}, {"question": "b", "answer": 1}),
    ),
    "keys that the prompt never names": (
        "answer-form",
        {
            "prompt.system": "Write JSON with the key sum between <answer> and </answer>.",
            "rewards.correct": {"kind": "rule", "rule": "json_match", "expect": {"total": 5}},
            "oracle": None,
        },
    ),
    "a query that chance answers": ("gold-query", {**ORDERS, **gold("SELECT name FROM goods LIMIT 1")}),
    "a best answer that is punished": (
        "paid-for-silence",
        {"rewards.best": {"kind": "group", "of": "correct", "by": "rank", "weight": -0.5}},
    ),
    "an exception that no key names": (
        "odd-policy",
        {"tools.half": {"kind": "python", "function": "own.py:half"}},
    ),
    "a comparator that wrong answers break": (
        "self-masking",
        {
            **rows({"question": "2 + 3?", "answer": "2 + 3"}, {"question": "4 + 4?", "answer": "4 + 4"}),
            "tasks.test.rows": [{"question": "7 + 6?", "answer": "7 + 6"}],
            "rewards.correct": {"kind": "rule", "function": "own.py:breaks"},
        },
    ),
    "a guarded column of nearly its name": (
        "odd-column",
        {"prompt.user": "{{ task.question }}{% if task.answr is defined %}{{ task.answr }}{% endif %}"},
    ),
    "a form that pays as much": ("only-form", {"rewards.form.weight": 1.0}),
    "a cue that another one answers": (
        "hidden-cue",
        scripted(
            cues=[{"pattern": "one", "say": "Any {{ task.question }}."}, {"pattern": "which one|what", "say": "That."}]
        ),
    ),
    "a judge of an answer that nobody asks for": (
        "answer-form",
        judged() | {"prompt.system": "Solve it.", "rewards": None, "success": "good >= 1"},
    ),
    "tests that are all the same": ("constant-gold", {"rewards.t": TESTS | {"calls": [CASES[0]] * 3}}),
    # forms of golds
    # what prompts make of columns
    # programs, requests and stores
    "an outage that is an answer": ("odd-policy", {"tools.look.expect": [200, 503]}),
    "a DELETE that changes nothing": ("odd-policy", {"tools.look.method": "DELETE"}),
    "a key in clear": (
        "address",
        {
            "tools.look.url": "http://api.example.com/{{ args.place }}",
            "tools.look.headers": {"X-Key": "{{ task.answer }}"},
        },
    ),
    "a file where the program does not start": (
        "no-file",
        {"tools.say": COMMAND | {"command": ["/bin/grep", "--", "{{ args.word }}", "own.py"]}},
    ),
    "a list of the file's": (
        "shared-state",
        {"tools.own": {"kind": "python", "function": "own.py:keeps", "mutates": True}},
    ),
    "a folder of one name for rows of several": (
        "same-file",
        {
            "resources": {"work": {"kind": "tempdir", "path": "towns/mild"}},
            **rows({"question": "a", "answer": 1, "of": "mild"}, {"question": "b", "answer": 2, "of": "wild"}),
        },
    ),
    "numbers that are sorted as texts": (
        "odd-order",
        {
            "tasks.train.order": "task.level",
            **rows({"question": "a", "answer": 1, "level": "9"}, {"question": "b", "answer": 2, "level": "10"}),
        },
    ),
    "a shell for what is written": (
        "no-sandbox",
        {"tools.say": COMMAND | {"command": ["/bin/bash", "-c", "{{ args.word }}"]}},
    ),
    "a folder with the answers": (
        "gold-in-prompt",
        {"tasks.train": {"path": "train.jsonl"}, "resources": {"work": {"kind": "tempdir", "path": "."}}},
    ),
    # signs
    "a bonus that takes away": (
        "wrong-sign",
        {"rewards.brief": {"kind": "rule", "rule": "length", "of": "message", "max": 90, "weight": -0.1}},
    ),
    "a floor": ("paid-for-nothing", {"rewards.correct.clip": [0.5, 1]}),
    "programs that assert nothing": (
        "any-answer",
        {"rewards.t": {"kind": "tests", "programs": ["solve(1)", "solve(2)"]}},
    ),
    "one hidden test": ("constant-gold", {"rewards.t": TESTS | {"calls": [{"args": [1], "expected": 1}]}}),
    "hidden tests that are shown": (
        "gold-in-prompt",
        {
            **rows(*({"question": f"q{n}", "answer": n, "cases": [{"args": [n], "expected": n}] * 2} for n in (1, 2))),
            "tasks.test": {"rows": [{"question": "q", "answer": 3, "cases": [{"args": [3], "expected": 3}] * 2}]},
            "prompt.user": "{{ task.question }} {{ task.cases }}",
            "rewards.t": TESTS | {"calls": "{{ task.cases }}"},
        },
    ),
    # what nothing reads, shows or reaches
    "a tool that no row is offered": ("unused-tool", {"tools.spare": {"kind": "calculator", "offered": False}}),
    "a tool of another row": (
        "unused-tool",
        {"tools.spare": {"kind": "calculator", "offered": "{{ task.answer > 99 }}"}},
    ),
    "a gate that no row opens": ("never-pays", {"rewards.form.gate": "task.answer >= 99"}),
    "one database twice": ("unused-resource", {"resources": {"a": {"kind": "tempdir"}, "b": {"kind": "tempdir"}}}),
    "a list as Python writes it": (
        "odd-column",
        {"prompt.user": "{{ task.question }} {{ task.names }}", "tasks.test": None}
        | rows(*({"question": f"Which is {n}?", "names": "['a', 'b', 'c']", "answer": n} for n in range(3))),
    ),
    "roles of another template": ("control-token", {"prompt.user": "Go on.\n### Human: {{ task.question }}"}),
}


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # where files of overrides are looked for
    path = tmp_path / "env.yaml"
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for name in ("mild", "wild"):
        (tmp_path / "towns" / name).mkdir(parents=True)
    texts = [json.dumps({"id": str(number), "title": "t", "text": f"text {number}"}) for number in range(9)]
    asked = [json.dumps({"id": f"a{n}", "title": "t", "text": f"Where is the well-known place number {n}? In {town}."})
             for n, town in enumerate(TOWNS)]  # fmt: skip
    (tmp_path / "asked.jsonl").write_text("\n".join(asked), encoding="utf-8")
    (tmp_path / "sums.csv").write_text("question,answer,more\na,1,2\nb,3,4\n", encoding="utf-8")
    (tmp_path / "own.sql").write_text("CREATE TABLE goods (name TEXT);", encoding="utf-8")
    (tmp_path / "train.jsonl").write_text('{"question": "c", "answer": 3}\n')
    (tmp_path / "test.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "b", "answer": 2}\n')
    (tmp_path / "own.jsonl").write_text("\n".join(texts), encoding="utf-8")
    path.write_text(SOUND, encoding="utf-8")
    return path


def without_none(given: Mapping[str, Any], text: str) -> str:
    """The spec without the sections that are given as None."""
    gone = {key for key, value in given.items() if value is None and "." not in key}
    lines, keep = [], True
    for line in text.splitlines(keepends=True):
        if line[:1].isalpha():
            keep = line.partition(":")[0] not in gone
        lines += [line] if keep else []
    return "".join(lines)


def _needs_the_sandbox(given: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) and value.get("kind") == "tests" for value in given.values())


@pytest.mark.slow(but=40)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sandbox) if _needs_the_sandbox(ODD[name][1]) else name for name in ODD],
)
def test_what_is_odd_is_said_by_its_kind_with_a_fix(sound: Path, name: str) -> None:
    code, given = ODD[name]
    sound.write_text(without_none(given, SOUND), encoding="utf-8")
    report = validate([sound], set={key: value for key, value in given.items() if value is not None or "." in key})
    assert report.faults == ()
    assert code in {warning.code for warning in report.warnings}, [str(one) for one in report.warnings]
    assert all(warning.hint and warning.level == "warning" for warning in report.warnings)


LISTED = {"prompt.user": "{{ [[task.question]][0][0] }}"}
GATED = {"rewards.form.weight": 8, "rewards.form.gate": "correct >= 1"}
WRITING = {**judged(weight=5), "rewards.correct": {"kind": "rule", "rule": "regex", "pattern": "[0-9]"}}
STATE = {
    "resources.box": {"kind": "python", "function": "own.py:box"},
    "tools.put": {"kind": "python", "function": "own.py:put", "inject": ["box"], "mutates": True},
    "tools.shown": {"kind": "python", "function": "own.py:shown", "inject": ["box"]},
    "answer": {"from": "final_message"},
    "prompt.system": "Put the number into the box, and say that it is done.",
    "rewards": {"done": {"kind": "verify", "tool": "shown", "arguments": {}, "expect": "no. {{ task.answer }}"}},
    "success": "done >= 1",
    "oracle": [{"call": {"put": {"thing": "no. {{ task.answer }}"}}}, {"say": "Done."}],
}
SOUND_TOO = [{}, asks(), judged(), {"tools.say": COMMAND}, talks(), LISTED, GATED, WRITING, STATE]
SEEN = {"tasks.train": {"path": "test.jsonl"}, "tasks.seen": {"path": "test.jsonl", "limit": 2}}
DRAWN = rows(*({"number": n % 3, "answer": n % 3} for n in range(9))) | {
    "tasks.test.rows": [{"number": 2, "answer": 2}],
    "prompt.user": "Which number is {{ task.number }} + 0?",
}
PARTLY = judged(weight=0.2, gate="correct < 1")
GRAPHQL = {
    "tools.graph": {
        "kind": "http", "url": "https://example.com", "description": "Asks.", "parameters": {"question": "string"},
        "body": {"query": "{ question(text: $text) { id } }", "variables": {"text": "{{ args.question }}"}},
    }
}  # fmt: skip
ANCHORED = {"vars": {"labels": [1, 2], "shown": [1, 2]}, "prompt.user": "{{ task.question }} {{ vars.shown|length }}"}
BOUNDED = {"rewards.form": {"kind": "rule", "rule": "valid_calls", "when": "turn", "over_turns": "sum",
                            "weight": 0.02, "clip": [0, 5]}}  # fmt: skip
SECOND = {"endpoint": "n", "prompt": "As a layman, is it right for {{ task.question }}? {{ answer }}"}
PANEL = judged(judges=[{"endpoint": "m"}, {"endpoint": "n"}, SECOND], combine="median")
FOUND = {"tools.say": COMMAND | {"command": ["/bin/grep", "-e", "{{ args.word }}"], "expect": [0, 1]}}
HELD = {"tools.say": COMMAND | {"command": ["/bin/sh", "-c", "{{ args.word }}"], "sandbox": "bubblewrap"}}
POSTED = {
    "tools.look.method": "POST",
    "tools.look.url": "http://127.0.0.1/x",
    "tools.look.body": {"x": "{{ args.place }}"},
    "tools.look.headers": {"X-Key": "{{ task.question }}"},
}
FLAKY = {"calls.faults": {"error": 0.2}, "tools.look.description": "Says what is at a place; it may fail."}
LONG = {"rewards.long": {"kind": "rule", "rule": "length", "of": "message", "min": 500, "weight": -0.1}}
SHORT = {"prompt.user": "{{ task.question[:4000] }}"}
SMALL = golds("7", "1,200", "950", "23,450")
SOUND_TOO += [SHORT, SMALL | {"oracle": [{"say": "<answer>{{ task.answer }}</answer>"}]}]
NONE = rows({"question": "Which of 1 and 2?", "answer": [1]}, {"question": "Which of 3 and 5?", "answer": []})
NONE |= {
    "rewards.correct": {"kind": "rule", "rule": "json_match"},
    "prompt.system": "Write a JSON list between <answer> and </answer>.",
    "oracle.1": {"say": "<answer>{{ task.answer|tojson }}</answer>"},
}
SOUND_TOO += [NONE, {"vars": {"u": "http://rates.localhost:8931"}, "tools.look.url": "{{ vars.u }}/{{ args.place }}"}]
STUB = {
    "tools.own": {"kind": "python", "function": "own.py:ignores"},
    "rewards.calls": {"kind": "rule", "rule": "calls_match", "expect": [], "weight": 0},
}
VERSIONS = rows({"question": "Which is out?", "version": "1.4"}, {"question": "Which is next?", "version": "2.0"}) | {
    "tasks.test.rows": [{"question": "Which was first?", "version": "0.9"}],
    "rewards.correct": {"kind": "rule", "rule": "exact_match", "expect": "{{ task.version }}"},
    "oracle": [{"say": "<answer>{{ task.version }}</answer>"}],
}
SOUND_TOO += [STUB, VERSIONS]
SOUND_TOO += [PANEL, FOUND, POSTED, FLAKY, LONG]
SOUND_TOO += [SEEN, DRAWN, PARTLY, GRAPHQL, ANCHORED, BOUNDED]


@pytest.mark.parametrize("given", [*SOUND_TOO, pytest.param(HELD, marks=pytest.mark.sandbox)], ids=str)
def test_what_is_sound_is_left_alone(sound: Path, given: Mapping[str, Any]) -> None:
    allowed = {"no-oracle"} if "user" in given else set()
    sound.write_text(without_none(given, SOUND), encoding="utf-8")
    report = validate([sound], set={key: value for key, value in given.items() if value is not None})
    assert report.faults == ()
    assert {one.code for one in report.warnings} - allowed == set(), [str(one) for one in report.warnings]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_ships_has_no_warning(file: Path) -> None:
    assert [str(one) for one in validate([file]).warnings] == []


def test_a_warning_has_its_place_and_counts_only_if_asked(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound.write_text(
        SOUND.replace("turns: 6", "turns: 1").replace('  - {call: {calculate: {expression: "1 + 1"}}}\n', "")
    )
    assert main(["validate", str(sound)]) == 0
    shown = capsys.readouterr().out
    assert f"{sound}:18:17: warning: limits.turns: " in shown
    assert shown.endswith("1 file: no faults, 1 warning\n")
    assert main(["validate", "--strict", str(sound)]) == 1
    capsys.readouterr()
    assert main(["validate", "--strict", "--json", str(sound)]) == 1
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert (warning["level"], warning["code"], warning["line"]) == ("warning", "limits", 18)


def test_a_copy_of_a_row_is_named_with_the_row_that_it_copies(sound: Path) -> None:
    sound.write_text(SOUND.replace("8}]", '8}, {question: other, answer: 1}, {question: "What is 2 + 3?", answer: 5}]'))
    (told,) = [one.message for one in validate([sound]).warnings if one.code == "duplicate-rows"]
    assert told == "1 of 4 rows are copies (row 4 is row 1)", told


def test_what_is_played_silences_nobody_else(sound: Path, caplog: pytest.LogCaptureFixture) -> None:
    sound.write_text(SOUND.replace("kind: calculator", 'kind: python, function: "own.py:signals", run_in: loop'))
    (told,) = [one.message for one in validate([sound]).warnings if one.code == "wrong-oracle"]
    assert told.endswith("the tool calculate failed: RuntimeError: 1 + 1")
    assert {one.getMessage() for one in caplog.records} == {"of others"}


def test_a_comment_on_its_line_allows_a_warning_by_its_code(sound: Path) -> None:
    text = SOUND.replace('  - {call: {calculate: {expression: "1 + 1"}}}\n', "").replace("turns: 6", "turns: 1")
    for comment, count in (("limits", 0), ("same-prompt limits", 0), ("same-prompt", 1)):
        sound.write_text(text.replace("calls_per_turn: 4}", f"calls_per_turn: 4}} # rlenv: allow {comment}"))
        assert len(validate([sound]).warnings) == count


WRITTEN = {
    "a comment that cuts a text": ("unfinished", "user: Write the sum of the two numbers after #### and no more"),
    "a file's name for its content": ("unfinished", "user: prompts/ask.md"),
    "a comment that a number makes of a text": ("unfinished", "user: Add {{ task.question }} to #1"),
    "a comment that a value makes of a text": ("unfinished", "user: <b>Add</b> #{{ task.question }}"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_text_of_a_spec_does_otherwise_than_it_looks_is_said(sound: Path, name: str) -> None:
    code, text = WRITTEN[name]
    sound.write_text(SOUND.replace('user: "{{ task.question }}"', text))
    assert code in {one.code for one in validate([sound]).warnings}


HEAD = "rlenv: 1\nname: sound\n"
MIXED = {
    "gates by row": """
tasks: {train: {rows: [
  {kind: sum, q: "What is 17 times 23?", a: "391"}, {kind: sum, q: "What is 9 times 9?", a: "81"},
  {kind: fact, q: "What is the capital of Peru?", a: Lima}, {kind: fact, q: "Who wrote Faust?", a: Goethe},
  {kind: look, q: "Look up the code of Bern.", a: null, city: Bern, code: "77812"}]}}
prompt: {system: "Write the answer, one word or number, between <answer> and </answer>.", user: "{{ task.q }}"}
tools: {code: {kind: calculator, offered: "{{ task.kind == 'look' }}"}}
rewards:
  number: {kind: rule, rule: numeric_match, expect: "{{ task.a }}", gate: task.kind == "sum"}
  word: {kind: rule, rule: exact_match, expect: "{{ task.a }}", gate: task.kind == "fact"}
  found: {kind: rule, rule: exact_match, expect: "{{ task.code }}", gate: task.kind == "look" and number == 0}
success: number >= 1 or word >= 1 or found >= 1
oracle:
  - {call: {code: {expression: "{{ task.city | length }} + 0"}}, for_each: "[1] if task.kind == 'look' else []"}
  - say: "<answer>{{ task.a or task.code }}</answer>"
""",
    "a function that is asked for": """
tasks: {train: {rows: [
  {q: "Write a Python function `twice` to double 4.", a: "8", sum: 2 * 4}, {q: "Double 5.", a: "10", sum: 2 * 5}]}}
prompt: {system: "Write the number between <answer> and </answer>.", user: "{{ task.q }}"}
tools: {calculate: {kind: calculator}}
rewards: {right: {kind: rule, rule: numeric_match, expect: "{{ task.a }}"}}
oracle: [{call: {calculate: {expression: "{{ task.sum }}"}}}, {say: "<answer>{{ task.a }}</answer>"}]
""",
}


@pytest.mark.parametrize("kind", MIXED)
def test_sound_specs_of_these_kinds_have_no_finding(tmp_path: Path, kind: str) -> None:
    (tmp_path / "env.yaml").write_text(HEAD + MIXED[kind], encoding="utf-8")
    report = validate([tmp_path / "env.yaml"])
    assert [str(one) for one in (*report.faults, *report.warnings)] == []


def test_what_a_row_s_gate_lets_through_is_looked_at(tmp_path: Path) -> None:
    text = MIXED["gates by row"].replace('"81"', "null").replace("city: Bern, ", "")
    (tmp_path / "env.yaml").write_text(HEAD + text, encoding="utf-8")
    said = {one.message for one in validate([tmp_path / "env.yaml"]).faults}
    assert {"row 2 of split 'train' gives null; expected a gold value", "split 'train' has no column 'city'"} <= said


def test_a_tool_for_rewards_alone_is_no_tool_of_the_policys(sound: Path) -> None:
    said = "kind: calculator, offered: false, example: {expression: 1 + 1}"
    text = SOUND.replace('  - {call: {calculate: {expression: "1 + 1"}}}\n', "").replace("turns: 6", "turns: 1")
    look = text[text.index("  look:") : text.index("answer: {from")]
    sound.write_text(text.replace(look, "").replace("kind: calculator", said))
    assert {one.code for one in validate([sound]).warnings} & {"limits", "odd-example"} == set()


NOTES = """\
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("notes", version="1.0", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def add(text: str) -> str:
    "Adds a note."
    return text


server.run()
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("scope", "codes"), [("process", {"shared-state"}), ("episode", set())])
def test_a_server_that_all_episodes_change_is_said(sound: Path, scope: str, codes: set[str]) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    (sound.parent / "notes.py").write_text(NOTES)
    told = {"tools.notes": {"kind": "mcp", "command": ["python", "notes.py"], "scope": scope, "timeout_s": 60}}
    assert {one.code for one in validate([sound], set=told).warnings} == codes
