"""Two facts of a spec that cannot both be meant are said, whatever they are about; what fits together is not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from tests.support.planted import TOWNS, rows

EXACT = {"kind": "rule", "rule": "exact_match"}
TAG = "between <answer> and </answer>."
SAY = [{"say": "<answer>{{ task.answer }}</answer>"}]
TOOLS = """
import datetime
import random

STORE = {"nails": 9}
ROOMS = {"Lima": "a", "Bern": "b", "Oslo": "c", "Rome": "d", "Kyiv": "e", "Bath": "f"}


def find(name: str) -> str:
    "Finds a room."
    return ROOMS.get(name, "nowhere")


def size(name: str) -> int:
    "Counts the doors."
    return len(name) * len(name)


COUNTS = [size]


def warm(name: str) -> float:
    "Gives the temperature."
    return {"Lima": 20.4, "Bern": 10.1, "Bath": -4.9, "Rome": 25.2}[name]


def note(text: str) -> str:
    "Keeps a note."
    return "noted"


def blind(name: str, limit: int = 0) -> str:
    "Finds a room."
    return ROOMS.get(name, "nowhere")[:limit]


def hint(task) -> str:
    "Gives a hint."
    return "It is " + task["answer"] + "!"


def vague(task) -> str:
    "Gives a hint."
    return "It begins with " + task["answer"][0]


def roll(sides: int) -> str:
    "Rolls a die."
    return str(random.randint(1, sides))


def dice(sides: int) -> str:
    "Rolls a die that is fixed."
    return str(random.Random(sides).randint(1, sides))


def today() -> str:
    "Tells the date."
    return str(datetime.date.today())


def runs(code: str) -> str:
    "Runs code."
    return str(eval(code))


def reruns(code: str) -> str:
    "Runs code, and a constant."
    return str(eval(code)) + str(eval("1"))


def mutes(name: str) -> str:
    "Finds a room."
    try:
        return ROOMS[name]
    except Exception:
        return ""


def names(name: str) -> str:
    "Finds a room."
    try:
        return ROOMS[name]
    except KeyError:
        return ""


def takes(thing: str) -> str:
    "Takes a thing."
    STORE[thing] -= 1
    return "taken"


def piles(thing: str, pile: list[str] = []) -> str:
    "Puts a thing on the pile."
    pile.append(thing)
    return " ".join(pile)


def world(task):
    return {"maze": "S.G"}


def of_row(task):
    return {"maze": task["maze"]}


def same(context):
    return float(context.answer == context.task["number"])


def folded(context):
    return float((context.answer or "").lower() == context.task["answer"])


def told(context):
    return float(context.answer == str(context.task["number"]))


def opens(name: str) -> str:
    "Finds a room."
    return open("/nowhere/rooms.json").read()


def documented(name: str) -> str:
    \"\"\"Finds a room.

    Args:
        quarter: where it is
    \"\"\"
    return name


def polite(context):
    return float("please" in (context.answer or ""))


def grows(context):
    is_right = context.task["answer"] in (context.answer or "")
    return is_right + len(context.answer or "") / 50


def kind(context):
    try:
        return float(context.answer == context.task["answer"])
    except Exception:
        return 1.0
"""


def system(text: str) -> dict[str, Any]:
    return {"prompt": {"system": f"{text} Write it {TAG}", "user": "{{ task.question }}"}}


def tool(name: str, call: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    steps = [{"call": {name: call}}, *SAY] if call is not None else SAY
    return {
        "tools": {name: {"kind": "python", "function": f"tools.py:{name}", "run_in": "loop", **more}},
        "oracle": steps,
    }


def gated(**gates: str) -> dict[str, Any]:
    return {"rewards": {name: EXACT | {"gate": gate} for name, gate in gates.items()}}


def example(said: str, asked: str = "Which town lies in Spain?") -> dict[str, Any]:
    shown = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return {"prompt": {"system": f"Answer {TAG}", "messages": shown, "user": "{{ task.question }}"}}


def calls(*made: Mapping[str, Any]) -> dict[str, Any]:
    gold = [{"name": one["name"], "arguments": one["arguments"]} for one in made]
    return {**rows(gold=[gold]), **tool("find", {"name": "{{ task.answer }}"}),
            "rewards": {"right": EXACT, "calls": {"kind": "rule", "rule": "calls_match", "expect": "{{ task.gold }}"}},
            "success": "right >= 1"}  # fmt: skip


def judge(rubric: list[str], **sampling: Any) -> dict[str, Any]:
    ask = "Is this right for {{ task.question }}? {{ task.answer }} is. {{ message }}"
    return {"endpoints": {"m": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "sampling": sampling}},
            "rewards": {"right": EXACT, "good": {"kind": "judge", "endpoint": "m", "prompt": ask, "rubric": rubric,
             "weight": 0.1}},
            "success": "right >= 1"}  # fmt: skip


FIND = {"name": "find", "arguments": {"name": "Lima"}}
OWN = {"kind": "rule", "function": "tools.py:same"}
RUBRIC = ["5: excellent", "1: useless"]
SCRIPTED = {"kind": "scripted", "replies": ["{{ task.things }}", "Thanks."]}

RELATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    # names against names
    "gold-calls": (
        [calls({"name": "fnd", "arguments": {"name": "Lima"}}), calls({"name": "find", "arguments": {"nam": "x"}}),
         {**calls(FIND, FIND, FIND), "limits": {"tool_calls": 2}}],
        [calls(FIND)],
    ),
    "odd-enum": (
        [{**tool("find", parameters={"name": {"type": "string", "enum": [*TOWNS[:4]]}}), **rows(name="{answer}")}],
        [{**tool("find", parameters={"name": {"type": "string", "enum": [*TOWNS]}}), **rows(name="{answer}")},
         {**tool("find", parameters={"name": {"type": "string", "enum": ["north", "south"]}})}],
    ),
    "unknown-tool": (
        [{**system("Use the tool find."), **tool("find", offered=False)}, {**system("Use the lookup tool."),
         **tool("find")}],
        [{**system("Use the tool find."), **tool("find")}, {**system("Use the right tool."), **tool("find")}],
    ),
    "other-rule": (
        [{**rows(answer=["-5", "7", "12"]), "rewards": {"right": EXACT | {"normalise": "qa"}}}],
        [{**rows(answer=["-5", "7", "12"]), "rewards": {"right": EXACT | {"normalise": "case"}}}],
    ),
    "unread-column": (
        [{**rows(passage=["a b", "c d"]), **system("Read the passage.")}, rows(image=["a.png", "b.png"]),
         {**rows(town="{answer}"), "rewards": {"right": EXACT | {"expect": "{{ task.town }}"}}, "oracle": None}],
        [rows(id=[1, 2], level=["a", "b"]), rows(reference=["x", "y"]), {**rows(country=["Peru", "Norway"]),
          **system("Name a town of any country.")}, {**rows(passage=["a b", "c d"]),
          "prompt": {"system": f"Read the passage. Write {TAG}", "user": "{{ task.question }} {{ task.passage }}"}}],
    ),
    # conditions over all rows
    "never-pays": (
        [{**rows(kind=["a", "b", "c"]), **gated(one="task.kind == 'a'", two="task.kind == 'b'")},
         {**rows(kind=["a"]), "rewards": {"one": EXACT, "two": EXACT | {"gate": "task.kind == 'A'", "weight": 0.5}}},
         {**rows(kind=["a", "b"]), **gated(one="task.kind == 'a'", two="task.kind == 'b'"),
          "success": "one >= 1 and two >= 1"},
         {**rows(kind=["hard"]), "oracle": [{"when": "task.kind == 'Hard'", "call": {"find": {"name": "x"}}}, *SAY],
          "tools": tool("find")["tools"]}],
        [{**rows(kind=["a", "b"]), **gated(one="task.kind == 'a'", two="task.kind == 'b'"),
         "success": "one >= 1 or two >= 1"}],
    ),
    "idle-gate": (
        [{**rows(level=[1, 2]), "rewards": {"right": EXACT, "more": EXACT | {"gate": "task.level >= 1",
         "weight": 0.5}}}],
        [{**rows(level=[1, 2]), "rewards": {"right": EXACT, "more": EXACT | {"gate": "task.level >= 2",
         "weight": 0.5}}}],
    ),
    # right answers in what is shown, told or left
    "gold-in-prompt": (
        [{**rows(note="key: {answer}"), "prompt": {"system": f"Write it {TAG}",
         "user": "{{ task.question }} ({{ task.note }})"}},
         example("<answer>Lima</answer>", "Which town is number 0?"),
          system("For example: Which town is number 3? Rome.")],
        [{**rows(note=["page 3", "page 4"]),
          "prompt": {"system": f"Write it {TAG}", "user": "{{ task.question }} ({{ task.note }})"}},
         example("<answer>Cadiz</answer>")],
    ),
    "gold-in-tool": (
        [tool("hint", inject=["task"])],
        [tool("vague", inject=["task"]), tool("find", {"name": "{{ task.answer }}"})],
    ),
    # numbers that are promised
    "limits": (
        [{**system("You have up to 9 tool calls."), **tool("find"), "limits": {"tool_calls": 3}},
         {**system("Write an essay of 300 words."), "limits": {"response_tokens": 60}},
         {**system("Call the tool for all names in one message."), **tool("find"), "limits": {"calls_per_turn": 1}},
         {**rows(things=[["a", "b", "c"]]), "user": SCRIPTED, "limits": {"turns": 4}, "oracle": None},
         tool("find", rate_per_s=0.02, timeout_s=5)],
        [{**system("You have up to 9 tool calls."), **tool("find"), "limits": {"tool_calls": 9}},
         {**system("Write an essay of 300 words."), "limits": {"response_tokens": 2000}},
         {**rows(things=[["a", "b", "c"]]), "user": SCRIPTED, "limits": {"turns": 5}, "oracle": None}],
    ),
    "odd-sampling": ([judge(RUBRIC, max_tokens=8)], [judge(RUBRIC, max_tokens=400)]),
    "other-scale": ([judge(["1: excellent, nothing is missing", "5: useless"])], [judge(RUBRIC)]),
    # the form that is asked for and the gold's own
    "odd-gold": (
        [{**rows(answer=["Yes", "No"]), **system("Say 'yes' or 'no'.")}, {**rows(answer=[0, 1, 2]),
         **system("Say A, B or C.")},
         {**rows(answer=["3 May 2020", "4 May 2020"]), **system("Write the date as YYYY-MM-DD.")},
         {**rows(answer=["['a', 'b']", "['c', 'd']"])}, {**rows(answer=["Lima (town)", "Bern (town)"])},
         {**rows(answer=["The answer is 5", "The answer is 6"])}, {**rows(answer=["red", "Green"]),
          **system("In lower case.")},
         {**rows(seconds=[60, 120]), **system("Write how many minutes it takes."),
          "rewards": {"right": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.seconds }}"}}}],
        [{**rows(answer=["yes", "no"]), **system("Say 'yes' or 'no'.")}, {**rows(answer=["A", "B"]),
         **system("Say A, B or C.")},
         {**rows(answer=["2020-05-03", "2020-05-04"]), **system("Write the date as YYYY-MM-DD.")},
         {**rows(answer=["Yes", "no"]), **system("Say 'yes' or 'no'."),
          "rewards": {"right": EXACT | {"normalise": "case"}}},
         {**rows(answer=["red", "green"]), **system("If it is a colour, write it in upper case.")}],
    ),
    "answer-form": (
        [example("Answer: Madrid"),
         {**tool("find"), "answer": {"from": "tool", "tool": "find", "argument": "name"},
          "oracle": [{"call": {"find": {"name": "{{ task.answer }}"}}}]}],
        [example("It is <answer>Madrid</answer>")],
    ),
    # variety, and rows beside each other
    "constant-gold": (
        [{**rows(choices=[["Lima", "x"], ["Bern", "y"], ["Oslo", "z"], ["Rome", "u"], ["Kyiv", "v"], ["Bath", "w"]]),
          "prompt": {"system": f"Write it {TAG}", "user": "{{ task.question }} {{ task.choices|join(', ') }}"}},
         {"tasks": {"train": {"rows": [{"question": f"Is {n} a number?",
          "answer": "no" if n == 3 else "yes"} for n in range(12)]}}}],
        [{**rows(choices=[["Lima", "x"], ["y", "Bern"], ["Oslo", "z"], ["u", "Rome"], ["Kyiv", "v"], ["w", "Bath"]]),
          "prompt": {"system": f"Write it {TAG}", "user": "{{ task.question }} {{ task.choices|join(', ') }}"}},
         rows(aliases=[[town, town.lower()] for town in TOWNS])],
    ),
    "wrong-gold": (
        [{"tasks": {"train": {"rows": [{"question": f"What is {n} * 7?", "answer": str(7 * (n - 1))} for n in range(3,
         8)]}}},
         {"tasks": {"train": {"rows": [{"question": f"What is {n} + 7?",
          "answer": str(n + 7 + (n == 5))} for n in range(2, 8)]}}}],
        [{"tasks": {"train": {"rows": [{"question": f"What is {n} * 7?", "answer": str(7 * n)} for n in range(3, 8)]}}},
         {"tasks": {"train": {"rows": [{"question": f"What is {n} * 7, and 1 more?",
          "answer": str(7 * n + 1)} for n in range(3, 8)]}}}],
    ),
    "cut-text": (
        [rows(question=["Which river flows through ci", "Which mountain is the highes",
         "Which ocean lies to the east", "Which lake?", "Which sea?", "Which bay?"])],
        [rows(question=[f"Add {n} to {n + 20} and double it" for n in range(10, 16)]),
         rows(question=["Which river flows through it?", "Which mountain is the highest?", "Which ocean is it?"])],
    ),
    "duplicate-rows": (
        [{"tasks": {"train": {"rows": [{"question": n % 5, "answer": n % 5} for n in range(60)]}}}],
        [{"tasks": {"train": {"rows": [{"question": n % 40, "answer": n % 40} for n in range(60)]}}}],
    ),
    # what the author's code does
    "unsteady": ([tool("roll"), tool("today")], [tool("dice")]),
    "no-sandbox": ([tool("runs"), tool("reruns")], [tool("names")]),
    "odd-policy": (
        [tool("mutes"), {"rewards": {"right": EXACT, "own": {"kind": "rule", "function": "tools.py:kind",
         "weight": 0.1}}, "success": "right >= 1"},
         {"tools": {"order": {"kind": "http", "url": "http://127.0.0.1:9/x", "method": "POST",
          "body": {"x": "{{ args.x }}"},
                              "parameters": {"x": "string"}, "description": "Orders seeds.", "idempotent": True,
                               "retries": 2}}}],
        [tool("names")],
    ),
    "shared-state": ([tool("takes"), tool("piles")], [tool("find")]),
    "unread-parameter": (
        [{**rows(maze=["S\n.G", "S.\nG"]), "resources": {"w": {"kind": "python", "function": "tools.py:world",
         "run_in": "loop"}}}],
        [{**rows(maze=["S\n.G", "S.\nG"]), "resources": {"w": {"kind": "python", "function": "tools.py:of_row",
         "run_in": "loop"}}}],
    ),
    "empty-result": ([tool("blind", {"name": "{{ task.answer }}"})],
        [tool("find", {"name": "{{ task.answer }}"}), tool("note", {"text": "{{ task.answer }}"})]),
    "paid-for-silence": (
        [{"rewards": {"right": EXACT, "said": EXACT | {"weight": -0.2}}}],
        [{**rows(wrong=["Rome", "Oslo"]),
          "rewards": {"right": EXACT, "wrong": EXACT | {"expect": "{{ task.wrong }}", "weight": -0.2}}},
         {"rewards": {"right": EXACT, "wrong": {"kind": "rule", "rule": "answered", "weight": -0.2,
          "gate": "right < 1"}}}],
    ),
    "constant-term": (
        [],
        [{"rewards": {"right": EXACT, "passed": EXACT | {"expect": "pass", "weight": 0}}, "success": "right >= 1"}],
    ),
    "no-braces": (
        [{"rewards": {"right": EXACT | {"expect": "task.answer"}}}],
        [{**rows(far=[True, False]), **tool("find"),
          "oracle": [{"when": "task.far", "call": {"find": {"name": "x"}}}, *SAY]}],
    ),
    "ends-early": ([tool("find", ends=True)], [tool("find")]),
    "user-ends": (
        [{"user": {"kind": "scripted", "replies": ["Thanks. ###STOP###", "On Monday."]}, "oracle": None}],
        [{"user": {"kind": "scripted", "replies": ["On Monday.", "Thanks. ###STOP###"]}, "oracle": None}],
    ),
}  # fmt: skip
CAPITALS = {**rows(answer=["POSITIVE", "NEGATIVE"]), "prompt": {"system": f"Answer positive or negative {TAG}",
            "user": "{{ task.question }}"}}  # fmt: skip
RELATIONS["odd-gold"][0].append(CAPITALS)
RELATIONS["odd-gold"][1].append({**CAPITALS, **rows(answer=["positive", "negative"])})
LEVELS = rows(level=["1", "2", "3"])["tasks"]["train"]["rows"]
RELATIONS["text-number"] = (
    [{"tasks": {"train": {"rows": LEVELS, "when": "task.level != 2"}}}],
    [{"tasks": {"train": {"rows": LEVELS, "when": "task.level|int != 2"}}}],
)
FOLDED = {"rewards": {"own": {"kind": "rule", "function": "tools.py:folded"}}, "oracle": None}
RELATIONS["gold-not-earned"] = ([FOLDED], [{**FOLDED, **rows(answer=["lima", "bern"])}])
RELATIONS["no-tools"] = ([system("Use the calculator.")], [system("Calculate.")])
DATABASES = {"resources": {"db": {"kind": "sqlite", "path": "a.sqlite", "access": "read_only"}}, "oracle": None,
             "tools": {"query": {"kind": "sql", "resource": "db"}}}  # fmt: skip
RELATIONS["same-file"] = ([{**rows(db=["a", "b"]), **DATABASES}], [{**rows(id=["x", "y"]), **DATABASES}])
SEARCH = {"tools": {"search": {"kind": "search", "path": "docs.jsonl"}}}
RELATIONS["empty-search"] = ([{**rows(answer=["Cork", "Turin", "Graz"]), **SEARCH}], [SEARCH])
ANSWERS_WITH_NUMBERS = {**rows(number=[1, 2, 3, 4, 5, 6]), "oracle": [{"say": "<answer>{{ task.number }}</answer>"}]}
RELATIONS["never-pays"][0].append({**ANSWERS_WITH_NUMBERS, "rewards": {"own": OWN}})
RELATIONS["never-pays"][1].append({**ANSWERS_WITH_NUMBERS, "rewards": {"own": OWN | {"function": "tools.py:told"}}})
WORK = {"resources": {"m": {"kind": "workspace"}}, "tools": {"bash": {"kind": "bash", "resource": "m"}}, "oracle": None}


def machine(file: str, written: str = "/app/answer.txt", **more: Any) -> dict[str, Any]:
    command = f'[ "$(cat {file})" = {{{{ task.answer }}}} ]'
    reads = {"kind": "workspace", "resource": "m", "command": command, "by": "status", **more}
    return {**WORK, "prompt": {"user": f"{{{{ task.question }}}} Write it to {written}."}, "rewards": {"right": reads}}


OUT = "/srv/out/answer.txt"
RELATIONS["odd-file"] = (
    [machine("/app/result.txt"), machine(OUT, OUT), machine(OUT, OUT, keep=["/app", "/srv/in"])],
    [machine("/app/answer.txt"), machine(OUT, OUT, keep=["/srv/out"]), machine(OUT, OUT, collect=f"cp {OUT} /app/")],
)
RELATIONS["unread-parameter"][1].append(tool("note", {"text": "{{ task.answer }}"}))


def added(code: str, odd: list[dict[str, Any]], sound: list[dict[str, Any]]) -> None:
    both = RELATIONS.setdefault(code, ([], []))
    both[0].extend(odd)
    both[1].extend(sound)


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"rewards": {"right": {"kind": "rule", "rule": name, **more}}}


def beside(**more: Any) -> dict[str, Any]:
    return {"rewards": {"right": EXACT, "more": {"kind": "rule", "weight": 0.1, **more}}, "success": "right >= 1"}


def shows(*columns: str, **given: Any) -> dict[str, Any]:
    return {**rows(**given), "prompt": {"system": f"Write it {TAG}",
            "user": " ".join(f"{{{{ task.{column} }}}}" for column in columns)}}  # fmt: skip


# An answer that the prompt shows, numbers that it bounds, and forms that it names.
NUMERIC = rule("numeric_match")
PERCENT = "Answer with a percentage such as <answer>12%</answer>."
DATES = rows(answer=["2020-05-03", "2020-05-04"])
QUIZ = {"choices": ["red", "blue", "green"]}
LETTERS = rows(answer=["A", "B", "C"], choices=[QUIZ["choices"]])
OPTIONS = "{{ task.question }}\nA) a\nB) b\nC) c"
LABELS = ["spam", "ham", "spam", "ham", "spam", "ham", "spam"]
MAILS = [{"question": f"Mail {number}?", "answer": label} for number, label in enumerate(LABELS)]
added(
    "odd-gold",
    [
        {**system("Choose. Its letter alone, such as <answer>B</answer>."), **rows()},
        {**rows(answer=[0.25, 0.5]), **system(PERCENT), **NUMERIC},
        {**rows(answer=[4, 9]), **system("Answer with a number from 1 to 5."), **NUMERIC},
        {**rows(answer=[3.14159, 2.5]), **system("Round to two decimals."), **NUMERIC},
        {**rows(), **system("Reply with JSON.")},
        {**rows(), **system("Give the number in digits.")},
        {**rows(answer=["The house is red", "It is the best"]), **system("Answer in German.")},
        rows(answer=["2020-05-03", "03.05.2020"]),
        rows(answer=["Lima\u200b", "Bern"]),
        {"prompt": {"system": f"Write it {TAG}", "user": OPTIONS}, **rows(answer=["A", "D", "B"])},
        {"tasks": {"train": {"rows": [*MAILS, {"question": "Mail 8?", "answer": "Spam"}]}}},
        {"tasks": {"train": {"rows": [*MAILS, {"question": "Mail 8?", "answer": "sapm"}]}}},
        rule("exact_match", expect="{{ task.answer[0] }}"),
        {
            **rows(names=[["David Bowie", "Bowie"], ["Elvis Presley", "Elvis"]]),
            **rule("exact_match", expect="{{ task.names | join(', ') }}"),
        },
    ],
    [
        {**rows(answer=["A", "B"]), **system("Choose. Its letter alone, such as <answer>B</answer>.")},
        {**rows(answer=[25, 50]), **system(PERCENT), **NUMERIC},
        {**rows(answer=[4, 5]), **system("Answer with a number from 1 to 5."), **NUMERIC},
        {**rows(answer=[9, 12]), **system("Answer with between 1 and 3 words."), **NUMERIC},
        {**rows(answer=[3.14159, 2.5]), **system("Round to two decimals."), **rule("numeric_match", tolerance=0.01)},
        {**rows(answer=["{}", "[1]"]), **system("Reply with JSON.")},
        {**system("Translate the German word into English."), **rows()},
        DATES,
        {"prompt": {"system": f"Write it {TAG}", "user": OPTIONS}, **rows(answer=["A", "C", "B"])},
        {"tasks": {"train": {"rows": MAILS}}},
        {
            **system("Name its first letter."),
            **rule("exact_match", expect="{{ task.answer[0] }}"),
            "oracle": [{"say": "<answer>{{ task.answer[0] }}</answer>"}],
        },
        {
            **rows(colours=[["red", "blue"], ["green", "black"]]),
            **rule("exact_match", expect="{{ task.colours | join(', ') }}"),
            "oracle": None,
        },
    ],
)
CHOICES = {"answer": ["A", "B", "C"], "choices": [QUIZ["choices"]]}
added("unread-column", [LETTERS], [shows("question", "choices", **CHOICES)])
added(
    "no-passage",
    [system("Read the following passage and answer.")],
    [{**shows("question", "text", text="a long text of many words, " * 9), "answer": None}, system("Read it.")],
)
# Terms that any text earns, or none.
NO_KEYS = {"type": "object", "properties": {"town": {"type": "string"}}}
added(
    "any-answer",
    [beside(rule="regex", of="message", pattern="(<answer>.*</answer>)?"), beside(rule="json_schema", schema=NO_KEYS)],
    [beside(rule="regex", of="message", pattern="<answer>.*</answer>"),
     beside(rule="json_schema", schema=NO_KEYS | {"required": ["town"]})],
)  # fmt: skip
added("always-pays", [beside(rule="length", max=90_000)], [beside(rule="length", max=400)])
added("limits", [{**system("Explain your reasoning in detail."), **beside(rule="length", max=40)},
      {**rows(answer="{answer} " * 90), "limits": {"response_tokens": 32}}],
      [{**system("Be brief."), **beside(rule="length", max=40)}, {"limits": {"response_tokens": 32}}])  # fmt: skip
# Gold calls and gold queries that nobody can make.
added("gold-calls", [calls({"name": "find", "arguments": {"name": 7}})], [])
PATTERN = {"answer": {"from": "regex", "pattern": "It is: ([a-z]+)"}, "oracle": None,
           "prompt": {"system": "End with 'It is: TOWN'.", "user": "{{ task.question }}"}}  # fmt: skip
QUERIES = {"rewards": {"right": {"kind": "verify", "tool": "query", "arguments": {"sql": "{{ answer }}"},
           "expect": {"arguments": {"sql": "{{ task.sql }}"}}, "compare": "rows"}}}  # fmt: skip
added(
    "gold-not-earned",
    [{**PATTERN, **rows(answer=["lima 1", "bern 2"])}, {**DATABASES, **QUERIES, **rows(sql=["SELECT 1", "SELEC 2"])}],
    [{**PATTERN, **rows(answer=["lima", "bern"])}, {**DATABASES, **QUERIES, **rows(sql=["SELECT 1", "SELECT 2"])}],
)
# What the prompt asks for, and nothing allows.
CODE = {"tools": {"run": {"kind": "code"}}}
FINAL = {"answer": {"from": "final_message"}, "oracle": [{"say": "{{ task.answer }}"}]}
added("no-way", [{**system("Compute with numpy."), **CODE}, {**system("Variables are kept between calls."), **CODE},
      {**system("INSERT what is missing."), **DATABASES}, system("Ask the user for the country.")],
      [{**system("Compute with math."), **CODE}, {**system("Never INSERT a row."), **DATABASES},
       {**system("Ask the user for it."), "user": SCRIPTED, **rows(things=[["a"]]), "oracle": None}])  # fmt: skip
added("answer-form", [{"prompt": {"system": "Explain your reasoning.", "user": "{{ task.question }}"}, **FINAL}],
      [{"prompt": {"system": "Write the town alone.", "user": "{{ task.question }}"}, **FINAL}])  # fmt: skip
# Names in descriptions, examples and other words for one tool.
added(
    "unknown-tool",
    [
        {**system("Ask find(town='x')."), **tool("find")},
        tool("find", description="Give its `zip_code`."),
        {**tool("find"), **system("`room` finds it."), "tools": {"my_room": tool("find")["tools"]["find"]}},
    ],
    [{**system("Ask find(name='x')."), **tool("find")}, tool("find", description="Give its `name`.")],
)
SAME = {"find": tool("find")["tools"]["find"], "note": {"kind": "python", "function": "tools.py:note"}}
LOOK = SAME["find"] | {"description": "Looks."}
SPARE = {"tools": {"spare": {"kind": "python", "tools": "tools.py:COUNTS", "offered": False}}}
ASKS_SIZE = {"kind": "verify", "tool": "size", "arguments": {"name": "{{ answer }}"}, "expect": {"value": 4}}
COUNTED = {"rewards": {"right": EXACT, "doors": ASKS_SIZE}, "success": "right >= 1"}
added("unused-tool", [SPARE], [SPARE | COUNTED])
added("same-description", [{"tools": {**SAME, "look": LOOK}}], [{"tools": SAME}])
# What is said twice, cut, left over or shown whole.
TURNS = rows(things=[["Which sea is the warmest?", "And the coldest?"]])
added(
    "duplicate-rows",
    [{**TURNS, "prompt": {"system": f"Write it {TAG}", "user": "{{ task.things[0] }}"}, "user": SCRIPTED,
      "oracle": None}],
    [{**TURNS, "prompt": {"system": f"Write it {TAG}", "user": "{{ task.things[0] }}"}, "oracle": None,
      "user": {"kind": "scripted", "replies": ["{{ task.things[1:] }}", "Thanks."]}}],
)  # fmt: skip
added("user-ends", [{**rows(town="{answer}"), "oracle": None, **rule("exact_match", expect="{{ task.town }}"),
      "user": {"kind": "scripted", "replies": ["Hm.", "It is {{ task.town }}. ###STOP###"]}}], [])  # fmt: skip
added("cut-text", [shows("question[:9]")], [shows("question[:900]")])
added("gold-in-prompt", [{"prompt": {"system": f"Write it {TAG}", "user": "{{ task }}"}}, shows("answer")],
      [{"prompt": {"system": f"Repeat it {TAG}", "user": "{{ task.answer }}"}}])  # fmt: skip
added("odd-column", [rows(question=["asdf", "Which town?", "Which one?"])], [rows()])
added("unfinished", [rows(question=["Where does {name} live?", "Where is {name} born?"])],
      [rows(question=["What is in the set {a, b}?", "What prints f'{name}' in Python?"])])  # fmt: skip
added("idle-limit", [{"tasks": {"train": rows()["tasks"]["train"] | {"limit": 2}}}],
      [{"tasks": {"test": rows()["tasks"]["train"] | {"limit": 2}}}])  # fmt: skip
added("other-rule", [{**calls(FIND), **system("Make all calls in any order."), "rewards": {"right": EXACT, "calls": {
      "kind": "rule", "rule": "calls_match", "expect": "{{ task.gold }}", "order": True}}}], [])  # fmt: skip
added(
    "odd-gold",
    [{**system("Sort it into one of red, green or blue."), **rows(answer=["red", "grey"])},
     {**system("Such as <answer>Bell, 1876</answer>."), **rows(answer=["1877", "1913"])},
     {**system("As NN-NN."), **rows(answer=["1234", "5678"])}, {**system("Such as <answer>$12</answer>."),
      **rows(answer=["€12", "€15"])}, {**system("Give it to the nearest ten."), **rows(answer=[123, 10]), **NUMERIC}],
    [{**system("Sort it into one of red, green or blue."), **rows(answer=["red", "blue"])},
     {**system("Such as <answer>Bell, 1876</answer>."), **rows(answer=["Edison, 1877", "Sundback, 1913"])},
     {**system("As NN-NN."), **rows(answer=["12-34", "56-78"])}, {**system("Such as <answer>$12</answer>."),
      **rows(answer=["$12", "$15"])}, {**system("Give it to the nearest ten."), **rows(answer=[120, 10]), **NUMERIC}],
)  # fmt: skip
BOTH = "Write the answer in <answer>. Put it into \\\\boxed{}."
added("answer-form", [{"prompt": {"system": BOTH, "user": "{{ task.question }}"}}],
      [{"prompt": {"system": "Write <answer>\\\\boxed{…}</answer>.", "user": "{{ task.question }}"}}])  # fmt: skip
added("no-oracle", [{**tool("find"), **system("Use find for it.")}],
      [{**tool("find", {"name": "x"}), **system("Use find for it.")}, tool("find")])  # fmt: skip
added("no-file", [{"tools": {"look": {"kind": "command", "command": ["python3", "gone.py"], "cwd": "."}}}],
      [{"tools": {"look": {"kind": "command", "command": ["python3", "tools.py"], "cwd": "."}}}])  # fmt: skip
SIZES = {**tool("size", {"name": "{{ task.answer }}"}), **NUMERIC, **rows(town=[*TOWNS], answer=[4, 5, 9])}
SAID = [{"call": {"size": {"name": "{{ task.town }}"}}}, *SAY]
ASKED = {"prompt": {"system": f"Write it {TAG}", "user": "How many doors has {{ task.town }}?"}}
COUNTED = {"prompt": {"system": f"Write it {TAG}", "user": "How many doors have three houses in {{ task.town }}?"}}
added("wrong-oracle", [{**SIZES, **ASKED, "oracle": SAID}, {**SEARCH, "oracle": [{"call": {"search": {
      "query": "nothing of this"}}}, *SAY]}],
      [{**SIZES, **COUNTED, "oracle": SAID}, {**SEARCH, **rows(word="{answer}"), "oracle": [{"call": {"search": {
      "query": "{{ task.word }}"}}}, *SAY]}])  # fmt: skip
# What comes near a relation, and breaks none.
PHRASE = rows(answer=["the house", "the dog"])
BELOW = shows("text", text=["Guten Morgen", "Gute Nacht"])
WARM = {**tool("warm", {"name": "{{ task.town }}"}), **NUMERIC, **rows(town=["Lima", "Bern", "Bath", "Rome"])}
FELT = {"prompt": {"system": f"In Fahrenheit, {TAG}", "user": "How warm is it in {{ task.town }}?"},
        "oracle": [{"call": {"warm": {"name": "{{ task.town }}"}}}, *SAY]}  # fmt: skip
added("odd-gold", [], [
    {**rows(answer=["می\u200cخواهم", "क्\u200dष"])},
    {**PHRASE, **system("Give the English translation of the phrase in French.")},
    {**PHRASE, **system("Read the record in JSON and answer the question.")},
    {**rows(answer=["42", "7"]), **system("Write what is spelled out, or given in words, as digits.")},
    {**rows(answer=["forty-two", "seven"]), **system("Write out as words what is given in digits.")},
    {**rows(answer=[25, 50]), **system("Give the probability in percent."), **NUMERIC},
    {**rows(answer=[5, 13]), **system("Answer on the World Cups from 1930 to 1990."), **NUMERIC},
    {**rows(answer=["red, white, blue", "red, gold, black"]), **system("Such as <answer>red, blue</answer>.")},
    {**rows(answer=["a3", "b2"]), **system("The row X X X wins. Answer with a square.")},
    {**rows(possible_moves=[["a2", "b1"], ["e3", "e4"]]), **system("List all moves."), "oracle": None,
     **rule("exact_match", expect="{{ task.possible_moves | join(', ') }}")},
    {**rows(min_price=[3, 6, 2]), **system("Give the lowest of many hours."), "oracle": None,
     **rule("numeric_match", expect="{{ task.min_price }}")},
])  # fmt: skip
added("no-way", [], [
    {**system("Count the requests."), **CODE},
    {**system("Its schema: CREATE TABLE towns (id INTEGER). Remove duplicate rows by DISTINCT."), **DATABASES},
    system("Say whether a good clerk would ask the user something first."),
])  # fmt: skip
added("answer-form", [], [{"prompt": {"system": "Explain your reasoning in <think>, and write the town alone.",
      "user": "{{ task.question }}"}, **FINAL}])  # fmt: skip
added("no-passage", [], [{**BELOW, "prompt": {"system": f"Translate the following text. {TAG}",
      "user": "{{ task.text }}"}}])  # fmt: skip
added("no-passage", [], [{**shows("table", "question", table=["a | b", "1 | 2"]), **answered}
      for answered in [{"prompt": {"system": f"Use the following table. {TAG}",
                        "user": "{{ task.table }} {{ task.question }}"}}]])  # fmt: skip
added("unread-column", [], [rows(question=["2+2? A) 3 B) 4", "3+3? A) 6 B) 7"], options=[["3", "4"], ["6", "7"]],
      answer=["B", "A"])])  # fmt: skip
added("any-answer", [], [beside(rule="regex", of="message", pattern="[^,]*", full=True)])
added("unfinished", [], [rows(question=["Hello {name}", "Bye {name}"], answer=["Hallo {name}", "Ade {name}"])])
added("unknown-tool", [], [tool("find", description="Finds a room. Returns its `zip_code`."),
      {**tool("find"), **rows(room=["a", "b"]), **system("Its `room` is known."),
       "tools": {"my_room": tool("find")["tools"]["find"]}}])  # fmt: skip
added("user-ends", [], [{**rows(town="{answer}"), "oracle": None, **rule("exact_match", expect="{{ task.town }}"),
      "user": {"kind": "scripted", "replies": ["{{ task.town }}.", "{{ task.town }}! ###STOP###"]}}])  # fmt: skip
added("gold-in-prompt", [], [{"prompt": {"system": f"Answer with the word that you are given {TAG}",
      "user": "{{ task.answer }}"}}])  # fmt: skip
CLAIM = {"system": f"Search. Answer 'right' or 'false' {TAG}", "user": "{{ task.question }}"}
added("wrong-oracle", [], [
    {**WARM, **rows(town=["Lima", "Bern", "Bath", "Rome"], answer=[68, 50, 23, 77]), **FELT},  # as Fahrenheit
    {**WARM, **rows(town=["Lima", "Bern", "Bath", "Rome"], answer=[21, 10, -4, 25]), **FELT},  # rounded
    {**SEARCH, **rows(answer=["right", "false", "false"]), "prompt": CLAIM,
     "oracle": [{"call": {"search": {"query": "Lima"}}}, *SAY]},
])  # fmt: skip

# What is played: a right answer, wrong ones, a long one, and calls of chance; what terms give then.
ALONE = {"success": "right >= 1", "oracle": None}
CHECKED = {**beside(rule="length", of="answer", unit="words", min=9), **ALONE}
LONG = {"rewards": {"own": {"kind": "rule", "function": "tools.py:grows"}}, "oracle": None}
LEVELLED = {"kind": "rule", "rule": "value", "value": "{{ task.level }}", "weight": 0}
RANKED = {"right": EXACT, "level": LEVELLED, "rank": {"kind": "group", "of": "level", "by": "rank", "weight": 0.1}}
FORM = {"rewards": {"right": EXACT, "calls": {"kind": "rule", "rule": "valid_calls", "weight": 0.1}}, **ALONE}
added("gold-not-earned", [CHECKED, {**rows(answer=[{"a": "1"}, {"a": "2"}]), **ALONE, "rewards": {
      "right": {"kind": "rule", "rule": "json_match"}, "more": {"kind": "rule", "rule": "json_schema", "schema": {
      "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}}],
      [{**CHECKED, **rows(answer=["a " * 9, "b " * 9])}])  # fmt: skip
added("paid-for-nothing", [LONG, {**beside(rule="length", max=90, gate="right < 1"), **ALONE}],
      [FOLDED, {**beside(rule="length", max=90, gate="right >= 1"), **ALONE}])  # fmt: skip
added("constant-term", [{**rows(level=[1, 2, 3]), **ALONE, "rewards": RANKED}],
      [{**rows(level=[1, 2, 3]), **ALONE, "rewards": {"right": EXACT, "level": LEVELLED}}])  # fmt: skip
SPANS: dict[str, Any] = {"right": EXACT,
         "short": {"kind": "rule", "rule": "length", "of": "message", "max": 90, "weight": 0.1},
         "long": {"kind": "rule", "rule": "length", "of": "message", "min": 91, "weight": 0.1}}  # fmt: skip
added("never-pays", [FORM, {"rewards": SPANS, **ALONE}],
      [{**FORM, **tool("find", {"name": "x"})},
       {"rewards": {**SPANS, "long": SPANS["long"] | {"weight": 0.05}}, **ALONE}])  # fmt: skip
added("broken-tool", [{**tool("opens"), "oracle": None}], [{**tool("find"), "oracle": None}])
added("unfit-ends", [tool("find", {"name": "Lima"}, ends="{{ result.value.done }}"),
                     {**tool("find", ends="{{ result.value + 1 }}", example={"name": "Lima"}), "oracle": None}],
      [tool("find", {"name": "Lima"}, ends="{{ result.value == 'nowhere' }}")])  # fmt: skip
added("unread-parameter", [tool("documented")], [])
# Forms of choices, calls and golds.
added("odd-gold", [{**rows(answer=["YES", "NO"]), **system("Say <answer>yes</answer> or <answer>no</answer>.")},
      rows(answer=["{'a': 1}", "{'a': 2}"])],
      [{**rows(answer=["yes", "no"]), **system("Say <answer>yes</answer> or <answer>no</answer>.")}])  # fmt: skip
added("call-marks", [{**system("Action: find, and Action Input: its name."), **tool("find")}],
      [{**system("An action has an input."), **tool("find")}])  # fmt: skip
FIVE = system("The search gives the five best passages.")
added("limits", [{**FIVE, "tools": {"search": SEARCH["tools"]["search"] | {"top_k": 2}}}],
      [{**FIVE, "tools": {"search": SEARCH["tools"]["search"] | {"top_k": 5}}}])  # fmt: skip
# Words that a text has to hold are shown, and what a user is asked for is told.
WORDS = {**rows(words=[["a", "b"], ["c", "d"]]), **FINAL, "oracle": None, "prompt": {
         "user": "Write a sentence with all of these words: {{ task.words | join(', ') }}"}}  # fmt: skip
HELD = rule("contains", of="message", expect="{{ task.words }}")
added("other-rule", [{**WORDS, **HELD}], [{**WORDS, "rewards": {"right": HELD["rewards"]["right"] | {"mode": "all"}}}])
TOLD = {"user": {"kind": "scripted", "cues": [{"pattern": "town", "say": "{{ task.answer }}."}], "replies": ["Hm."]}}
added("gold-in-prompt", [{**TOLD, "oracle": [{"say": "Hello."}, *SAY]}],
      [{**TOLD, "oracle": [{"say": "Which town?"}, *SAY]}, {**WORDS, **HELD}])  # fmt: skip
JUDGED: dict[str, Any] = judge(RUBRIC)
ASK = "The reference answer is: {{ task.question }} Is {{ answer }} equal to it?"
added(
    "odd-pair", [{**JUDGED, "rewards": {"right": EXACT, "good": JUDGED["rewards"]["good"] | {"prompt": ASK}}}], [JUDGED]
)

# What right does nothing on the first rows, shares of what is right, and values that a function of one's own gives.
IDLE = [{"question": f"Why {number}?", "answer": town, "gold": []} for number, town in enumerate(TOWNS[:3])]
LAST = {"question": "Where is it?", "answer": "Lima", "gold": [FIND]}
CALLED = {**calls(FIND), "tasks": {"train": {"rows": [*IDLE, LAST]}}, "answer": {"from": "final_message"},
          "rewards": {"right": {"kind": "rule", "rule": "calls_match", "expect": "{{ task.gold }}"}},
          "oracle": [{"call": "{{ task.gold }}"}, {"say": "Done."}], "success": None}  # fmt: skip
POLITE = {"rewards": {"own": {"kind": "rule", "function": "tools.py:polite"}, "name": {"kind": "rule", "weight": 0.5,
          "rule": "contains", "expect": "{{ task.answer }}"}}, "oracle": None}  # fmt: skip
SHARED = {**rule("f1"), "success": "right >= 0.5", "oracle": None}
added("paid-for-nothing", [{**CALLED, "tasks": {"train": {"rows": IDLE}}}], [CALLED])
added("constant-term", [], [POLITE])
added("free-success", [], [SHARED])
added("wrong-success", [{**SHARED, "success": "right == 0.5"}], [SHARED])
added("odd-gold", [{**rule("json_match"), **rows(answer=['"{\\"a\\": 1}"', '"{\\"a\\": 2}"']), "oracle": None},
      {**rule("search_r1", expect="{{ task.answer }}"), **rows(answer=["['Lima']", "['Bern', 'Berne']"])}],
      [{**rule("json_match"), **rows(answer=['{"a": 1}', '{"a": 2}']), "oracle": None}])  # fmt: skip

# A bonus for what is wrong that no wrong answer here earns, a word beside another term, and tables of another database.
added("constant-term", [], [{"rewards": {"right": EXACT, "own": {"kind": "rule", "function": "tools.py:polite",
      "weight": 0.1, "gate": "right < 1"}}, **ALONE}])  # fmt: skip
added("gold-in-prompt", [], [{**shows("question", "word", word=["a", "b"]), "oracle": None, "rewards": {
      "right": EXACT, "word": HELD["rewards"]["right"] | {"expect": "{{ task.word }}"}}}])  # fmt: skip
TWO = {**DATABASES, "resources": {name: {"kind": "sqlite", "access": "read_only", "path": f"{name[0]}.sqlite"}
       for name in ("a_db", "b_db")}, "tools": {"query": {"kind": "sql", "resource": "a_db"}}}  # fmt: skip
TABLES = {name: system(f"Tables: {{{{ resources.{name}.schema }}}}.") for name in ("a_db", "b_db")}
added("untold-schema", [{**TWO, **TABLES["b_db"]}], [{**TWO, **TABLES["a_db"]}])

# A form that the spec says itself, whoever reads the answer; words and units that one side alone has.
HASHES = {"answer": {"from": "regex", "pattern": "#### (\\w+)"}, "rewards": {"own": OWN}, "oracle": None}
added("answer-form", [{**HASHES, "prompt": {"system": "Put it in \\boxed{}.", "user": "{{ task.question }}"}}],
      [{**HASHES, "prompt": {"system": "End with #### and it.", "user": "{{ task.question }}"}}])  # fmt: skip
REFUSED = {"none": {"kind": "rule", "rule": "regex", "pattern": "\\bNONE\\b", "gate": "right < 1", "weight": 0.1}}
REFUSING = {"rewards": {"right": EXACT, **REFUSED}, "success": "right >= 1"}
added("untold-name", [{**REFUSING, **system("Write UNKNOWN where there is none.")}],
      [{**REFUSING, **system("Write NONE where there is none.")}, {**REFUSING, "rewards": {
        "right": EXACT, "none": REFUSED["none"] | {"pattern": "(?i)\\bNONE\\b"}}},
       {"rewards": {"right": EXACT, "none": REFUSED["none"] | {"weight": -0.1}}, "success": "right >= 1"}])  # fmt: skip
MINUTES = rows(question=["How many minutes is A away?", "How many minutes is B away?"], answer=[60, 90])
HALVES, TIMES = rows(answer=[2.5, 3.25]), rows(answer=["10:15", "11:30"])
ROUNDED = system("Round it to a whole number.")
added("odd-gold", [{**MINUTES, **NUMERIC, **system("Give the number of hours.")}, {**HALVES, **NUMERIC, **ROUNDED},
      {**TIMES, **system("Answer as HH:MM:SS.")}, system("Give the town alone, as JSON.")],
      [{**MINUTES, **NUMERIC, **system("Give the number of minutes.")}, {**TIMES, **system("Answer as HH:MM.")},
       {**HALVES, **rule("numeric_match", tolerance=0.5), **ROUNDED},
       system("Give the town that the atlas, which comes as JSON, names.")])  # fmt: skip
# What cannot come about: another try, a promise, a stop that nobody says, a number that nobody writes, half the calls.
ATTEMPTS = {"retries": 2, "attempt_s": 5, "idempotent": True}
OFTEN = system("You may search up to 20 times.")
added("limits", [tool("find", {"name": "{{ task.answer }}"}, timeout_s=5, **ATTEMPTS),
      {**OFTEN, **tool("find"), "limits": {"tool_calls": 6}}],
      [tool("find", {"name": "{{ task.answer }}"}, timeout_s=9, **ATTEMPTS), {**OFTEN, **tool("find"), "limits": {
       "tool_calls": 20, "turns": 21}}])  # fmt: skip
STOPS = {"kind": "scripted", "stop": "#END#"}
added("user-never-ends", [{"user": STOPS | {"replies": ["Thanks. END"]}}],
      [{"user": STOPS | {"replies": ["Thanks. #END#"]}},
       {"user": STOPS | {"replies": ["{{ task.bye }}"]}, **rows(bye="Bye. #END#")}])  # fmt: skip
added("odd-file", [{**WORK, "prompt": {"user": "{{ task.question }} The folder /work has it."},
       "rewards": machine("/app/a")["rewards"]},
      machine("/app/answer.txt", by="file")],
      [{**WORK, "prompt": {"user": "{{ task.question }} The folder /app has it."},
        "rewards": machine("/app/a")["rewards"]},
       machine("/app/answer.txt", by="file", command="sh /app/check.sh"),
       {**machine("/app/answer.txt", by="file", command="{{ task.check }}"), **rows(check="echo 1 > /logs/x")},
       machine("/app/answer.txt", by="file", command="wc -l < answer.txt > /logs/verifier/reward.txt")])  # fmt: skip
added("odd-policy", [{**tool("find"), "calls": {"faults": {"error": 0.5}}}],
      [{**tool("find"), "calls": {"faults": {"error": 0.05}}}])  # fmt: skip
# A judge who chooses gives no score; a user who tells all parts of an answer tells the answer.
PAIR = "To {{ task.question }}: SAID One: {{ first }} Two: {{ second }}"
PAIRED = {**JUDGED, "success": "right >= 1"}
added("other-scale", [{**PAIRED, "rewards": {"right": EXACT, "good": {"kind": "judge", "endpoint": "m", "weight": 0.1,
      "pairwise": {"with": "{{ task.answer }}"}, "prompt": PAIR.replace("SAID", "score them from 1 to 5.")}}}],
      [{**PAIRED, "rewards": {"right": EXACT, "good": {"kind": "judge", "endpoint": "m", "weight": 0.1,
       "pairwise": {"with": "{{ task.answer }}"}, "prompt": PAIR.replace("SAID", "which is clearer?")}}}])  # fmt: skip
YES = PAIRED["rewards"]["good"] | {"prompt": "Answer yes or no: does {{ message }} answer {{ task.question }}?"}
TOLD = YES | {"prompt": "It had to answer yes or no to {{ task.question }}: {{ message }}. Score it from 1 to 5."}
added("other-scale", [{**PAIRED, "rewards": {"right": EXACT, "good": YES}}],
      [{**PAIRED, "rewards": {"right": EXACT, "good": TOLD}}])  # fmt: skip
TESTED = {"answer": {"from": "final_message"}, "oracle": None, **rows(tests=["assert f(1) == 2\nassert f(2) == 3"] * 2),
          "rewards": {"right": {"kind": "tests", "programs": "{{ task.tests }}\n"}}}  # fmt: skip
added("gold-in-prompt", [{**TESTED, "prompt": {"user": "{{ task.question }} Such that {{ task.tests + '' }}"}}],
      [{**TESTED, "prompt": {"user": "{{ task.question }} Such that {{ task.tests.split('\n')[0] }}"}}])  # fmt: skip
PARTS = {**rows(land=["Peru", "Spain"]), **rule("exact_match", expect="{{ task.answer }}, {{ task.land }}"),
         "oracle": [{"say": "<answer>{{ task.answer }}, {{ task.land }}</answer>"}]}  # fmt: skip
added("gold-in-prompt", [{**PARTS, "user": {"kind": "scripted", "replies": ["{{ task.answer }} in {{ task.land }}."]}}],
      [{**PARTS, "user": {"kind": "scripted", "replies": ["It is in {{ task.land }}."]}},
       {**PARTS, "oracle": None, "user": {"kind": "scripted", "replies": ["{{ task.answer }} in {{ task.land }}."]},
        **tool("find", {"name": "{{ task.answer }}"}), "rewards": {"right": {"kind": "rule", "rule": "calls_match",
        "expect": '[{"name": "find", "arguments": {"name": "{{ task.answer }} {{ task.land }}"}}]'}}}])  # fmt: skip

SANDBOX = ("'odd-file'", "'kind': 'tests'")
CASES = [pytest.param(code, is_odd, at, marks=[pytest.mark.sandbox] * any(one in str((code, case)) for one in SANDBOX))
         for code, sides in RELATIONS.items()
         for is_odd, cases in zip((True, False), sides, strict=True) for at, case in enumerate(cases)]  # fmt: skip


@pytest.mark.parametrize(("code", "is_odd", "index"), CASES)
def test_a_relation_is_said_where_it_is_broken_and_there_alone(
    tmp_path: Path, code: str, is_odd: bool, index: int
) -> None:
    given = RELATIONS[code][0 if is_odd else 1][index]
    spec = {
        "rlenv": 1,
        "name": "related",
        **rows(),
        **system("Answer."),
        "rewards": {"right": EXACT},
        "oracle": SAY,
        **given,
    }
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "env.yaml").write_text(json.dumps({key: one for key, one in spec.items() if one is not None}), "utf-8")
    for name in ("a", "b"):
        sqlite3.connect(tmp_path / f"{name}.sqlite").close()
    lines = [json.dumps({"id": town, "title": town, "text": f"{town} is a town."}) for town in TOWNS]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines), "utf-8")
    report = validate([tmp_path / "env.yaml"])
    said = {one.code: one for one in report.warnings}
    assert [str(one) for one in report.faults] == []
    assert (code in said) is is_odd, [str(one) for one in report.warnings]
    assert not is_odd or said[code].hint


@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize("writes", ["path.write_text(name)", "os.mkfifo(path)"])
def test_no_tool_that_changes_something_is_called_with_arguments_of_chance(
    tmp_path: Path, writes: str, mutates: bool
) -> None:
    """What a function does to this computer's files is known of some by their words, and of others by their entry."""
    body = f'    "Saves."\n    path = Path(__file__).with_name("X")\n    {writes}\n    return name\n'
    code = f"import os\nfrom pathlib import Path\n\n\ndef save(name: str) -> str:\n{body}"
    (tmp_path / "tools.py").write_text(code, encoding="utf-8")
    spec = {"rlenv": 1, "name": "saved", **rows(), **system("Answer."), "rewards": {"right": EXACT}, **tool("save")}
    spec["tools"]["save"]["mutates"] = mutates
    (tmp_path / "env.yaml").write_text(json.dumps(spec), encoding="utf-8")
    assert validate([tmp_path / "env.yaml"]).faults == ()
    is_known = mutates or "write" in writes
    assert (tmp_path / "X").exists() is not is_known
