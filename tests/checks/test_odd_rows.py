"""What is sound is left alone in other domains, forms and languages: beside each rule, a spec that is near to it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from tests.support.planted import TOWNS, rows

EXACT = {"kind": "rule", "rule": "exact_match"}
NUMBER = {"rewards": {"right": {"kind": "rule", "rule": "numeric_match"}}}
TAG = "between <answer> and </answer>."
CODE = """
import os
import random


def find(name: str) -> str:
    "Finds a room."
    return "room " + name


def passage(task) -> str:
    "Shows the passage."
    return "In 1900 a traveller came over the hills, and after many days " + task["answer"] + " lay before him at last."


def secret(task) -> str:
    "Tells the code word."
    return task["answer"]


def polite(context):
    return 0.0 if "damn" in (context.answer or "") else 1.0


def signed(context):
    return 1.0 if context.answer == context.task["answer"] else -1.0


def delete(path: str) -> str:
    "Deletes a file."
    os.remove(path)
    return "done"


def free(day: str) -> str:
    "Checks a day."
    return "no conflict"


def logs(name: str) -> str:
    "Finds a room, whatever the log says."
    try:
        name.upper()
    except Exception:
        pass
    return "room " + name


def made():
    rng = random.Random(4)
    for _ in range(60):
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        yield {"question": f"What is {a} + {b}?", "answer": str(a + b)}
"""


def asks(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"tasks": {"train": {"rows": [{"question": question, "answer": answer} for question, answer in pairs]}}}


def system(text: str, user: str = "{{ task.question }}") -> dict[str, Any]:
    return {"prompt": {"system": f"{text} Write it {TAG}", "user": user}}


def own(name: str, call: Any = None, **more: Any) -> dict[str, Any]:
    """A tool of the file's, which the oracle calls where arguments are given."""
    say = {"say": "<answer>{{ task.answer }}</answer>"}
    entry = {"kind": "python", "function": f"tools.py:{name}", "run_in": "loop", **more}
    return {"tools": {name: entry}, "oracle": [say] if call is None else [{"call": {name: call}}, say]}


def tool(**entry: Any) -> dict[str, Any]:
    return {"tools": {"look": {"description": "Looks it up.", **entry}}}


def runs(*command: str, **more: Any) -> dict[str, Any]:
    return tool(kind="command", command=[*command], parameters={"word": "string"}, **more)


def http(url: str = "http://127.0.0.1:9/{{ args.x }}", **more: Any) -> dict[str, Any]:
    return tool(kind="http", url=url, parameters={"x": "string"}, **more)


def model(base_url: str, **more: Any) -> dict[str, Any]:
    ask = tool(kind="model", endpoint="m", prompt="{{ args.q }}", parameters={"q": "string"})
    return {"endpoints": {"m": {"base_url": base_url, "model": "m", **more}}, **ask}


def also(name: str, success: str = "right >= 1", **entry: Any) -> dict[str, Any]:
    """A term beside the one of what is right."""
    return {"rewards": {"right": EXACT, name: entry}, "success": success}


def judge(prompt: str, **more: Any) -> dict[str, Any]:
    entry = {"kind": "judge", "endpoint": "m", "prompt": prompt, "weight": 0.1, **more}
    return {"endpoints": {"m": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}, **also("good", **entry)}


BIG = [{"question": f"Q {n}?", "answer": f"A{n}", "kind": "math" if n < 1200 else "look"} for n in range(1400)]
FINAL = {"answer": {"from": "final_message"}, "oracle": [{"say": "{{ task.answer }}"}]}
QUERY = {"resources": {"db": {"kind": "sqlite", "path": "a.sqlite", "access": "read_only"}}}
QUERY |= tool(kind="sql", resource="db")
RUBRIC = ["5: excellent", "1: useless"]
WORK = {"resources": {"m": {"kind": "workspace"}}, "tools": {"bash": {"kind": "bash", "resource": "m"}}}
NEWS = {"q": {"type": "string"}, "type": {"type": "string", "enum": ["web", "news"]}}
CAPITALS = [("中国的首都是哪里？", "北京"), ("法国的首都是哪里？", "巴黎"), ("日本的首都是哪里？", "东京")]
SEARCH = {"tools": {"search": {"kind": "search", "path": "docs.jsonl"}}}

SOUND: dict[str, dict[str, Any]] = {
    # rows of all kinds
    "kinds one after the other": {
        "tasks": {"train": {"rows": BIG}},
        "rewards": {"m": EXACT | {"gate": "task.kind == 'math'"}, "l": EXACT | {"gate": "task.kind == 'look'"}},
        "success": "m >= 1 or l >= 1",
    },
    "a tool for late rows": {"tasks": {"train": {"rows": BIG}}} | own("find", offered="{{ task.kind == 'look' }}"),
    "a gate that guards": rows(level=[1, 2]) | also("more", **EXACT, gate="task.level != ''", weight=0.5),
    "a column of another meaning": rows(type=["multi-hop", "single"])
    | tool(
        kind="http",
        url="http://127.0.0.1:9/{{ args.q }}/{{ args.type }}",
        parameters={"type": "object", "properties": NEWS},
    ),
    "columns of remarks": rows(year=[1, 2, 3], evidence=["a" * 70, "b" * 80]) | QUERY | system("It has tables."),
    "several golds": rows(label=[0, 1, 2], incorrect_answers=["a", "b"], reference_url=["http://a", "http://b"]),
    "an input at times": rows(input=["", "a text"]) | system("Do it.", "{{ task.question }}\n{{ task.input }}"),
    "a default": rows(hint=["", "think"]) | system("Do it.", "{{ task.question }} {{ task.hint or 'none' }}"),
    "a user for all rows": rows(year=[1, 2])
    | {"user": {"kind": "scripted", "replies": ["Are you sure?"]}, "oracle": None},
    "made with words": {"tasks": {"train": {"function": "tools.py:made"}}} | NUMBER,
    "brackets and factorials": NUMBER
    | asks(("What is (2 + 3) * 4?", "20"), ("What is 2 + 3 * 4?", "14"), ("What is 5!?", "120"), ("What is 5?", "5")),
    "letters by their case": asks(("Swap the case of aBc", "AbC"), ("Swap the case of AbC", "aBc"), ("Of X", "x")),
    "Roman numerals": {
        "tasks": {"train": {"rows": [{"roman": "XXX", "answer": "30"}, {"roman": "XX", "answer": "20"}]}}
    }
    | system("Write the number.", "{{ task.roman }}"),
    "golds in Roman numerals": asks(("Write 30.", "XXX"), ("Write 20.", "XX"), ("Write 9.", "IX")),
    "what Python shows": asks(("What does print([].append(1)) show?", "None"), ("What does print(1) show?", "1")),
    "none as a class": system("Say food, service or none.")
    | asks(("a b", "food"), ("c d", "none"), ("e f", "service")),
    "a list as Python writes it": asks(
        ("What is sorted(['b', 'a'])?", "['a', 'b']"), ("And ['c'] + ['d']?", "['c', 'd']")
    ),
    "formulas": asks(("Derive -cos(x).", "sin(x)"), ("Derive x log(x) - x.", "log(x)"), ("Of tan?", "tan(x)")),
    "rounded down": NUMBER
    | asks(*[(f"What is {n} + {n}?", str(2 * n)) for n in range(3, 14)], ("What is 7 / 2, rounded down?", "3")),
    "square angstroms": NUMBER | asks(("How many nm² are 10 Å²?", "0.1"), ("How many nm² are 100 Å²?", "1")),
    "HTML": asks(("Unescape &lt;b&gt;", "<b>"), ("Unescape &amp;", "&")),
    "versions": rows(answer=["3.10", "3.9"]),
    "a crossword": system("Solve it.", "{{ task.question }} ({{ task.answer|length }} letters)"),
    "a long list": system("Answer " + "'a', " * 20_000 + "."),
    "an echo": system("Repeat it.", "{{ task.answer }}"),
    "a passage as its source": rows(
        source="In the old days, when all came by ship, {answer} was the greatest of towns."
    )
    | system("Read it.", "{{ task.source }} {{ task.question }}"),
    # prompts
    "Chinese": {
        "prompt": {"system": "请把答案写在 <answer> 和 </answer> 之间。", "user": "{{ task.question }}"},
        **asks(*CAPITALS),
    },
    "German": {
        "prompt": {
            "system": "Die Tabelle orte hat die Spalte stadt. Schreibe die Stadt zwischen <ort> und </ort>.",
            "user": "{{ task.frage }}",
        },
        "tasks": {
            "train": {"rows": [{"frage": "Wo liegt Callao?", "stadt": "Lima"}, {"frage": "Wo?", "stadt": "Bern"}]}
        },
        "answer": {"from": "tag", "tag": "ort"},
        "rewards": {"richtig": EXACT | {"expect": "{{ task.stadt }}"}},
        "oracle": [{"say": "<ort>{{ task.stadt }}</ort>"}],
        **QUERY,
    },
    "tags around what is asked": FINAL | {"prompt": {"user": "<question>{{ task.question }}</question>"}},
    "tags around rules": FINAL
    | {"prompt": {"system": "<rules>\nWrite the town.\nNothing else.\n</rules>", "user": "{{ task.question }}"}},
    "tags of a row": FINAL
    | {"prompt": {"user": "{{ task.question }}"}}
    | asks(("What does <b>Lima</b> mean?", "bold"), ("And <i>Lima</i>?", "italic")),
    "tools that are forbidden": system("Do not use a calculator. Answer without using any tools."),
    "a tool in a question": asks(("Which would you use as a tool to cut wood?", "saw"), ("Which digs?", "spade")),
    "a schema without tools": system("You know the schema of the database."),
    "functions of Python": system("Use `print()` to see values, and `math` where it helps.") | tool(kind="code"),
    "calls in a question": asks(("At most 500 calls a day. In 2?", "1000"), ("At most 20 calls. In 3?", "60"))
    | own("find"),
    "moves of a game": system("White mates in 3 moves.")
    | asks(("8/8 a", "Qh5"), ("8/8 b", "Nf3"))
    | {"limits": {"turns": 1}},
    "pages to read": system("The reports have 30 pages.") | {"limits": {"response_tokens": 3000}},
    "never at once": system("Call one tool at a time, never several at once.")
    | own("find")
    | {"limits": {"calls_per_turn": 1}},
    "a column of one value": rows(topic=["general knowledge questions"])
    | system("These are general knowledge questions: {{ task.topic }}."),
    "an adjective": system("Use the suitable tool.") | own("find"),
    "a diagram of letters": rows(diagram=["+-+", "+--+"])
    | system("Look at the diagram below.", "{{ task.diagram }} {{ task.question }}"),
    "a tool for photos": system("Look at the photo.") | http(description="Opens the photo."),
    "an integer that is given": system("Given an integer n, is it prime?")
    | asks(("7?", "yes"), ("8?", "no"), ("9?", "no")),
    "lower case into capitals": system("Turn the lower-case word into capitals.")
    | asks(("lima", "LIMA"), ("bern", "BERN")),
    "dates that are given": system("Dates are given as YYYY-MM-DD.")
    | asks(("Who, 2020-01-02?", "Ann"), ("2020-01-03?", "Bob")),
    "money": system("Write the price with two decimals.") | asks(("a?", "$12.50"), ("b?", "$13.00")),
    "several letters": system("Choose one or more of A, B or C.") | asks(("a?", "A, B"), ("b?", "C")),
    # tools
    "a program of the author's": runs("python3", "tools.py", "-e", "{{ args.word }}", cwd=".", stdin="{{ args.word }}"),
    "a fixed script": runs("/bin/sh", "-c", 'grep -- "$1" /etc/hosts', "sh", "{{ args.word }}"),
    "signs that are arguments": runs("cut", "-d", "|", "-f", "{{ args.word }}", "/etc/hosts"),
    "a sign of find": runs("find", "/etc", "-name", "{{ args.word }}", "-exec", "cat", "{}", ";"),
    "tasks in an address": http("http://127.0.0.1:9/tasks/{{ args.x }}", cache={"key": "arguments"}),
    "a search by POST": http(
        "http://127.0.0.1:9/q",
        method="POST",
        body={"q": "{{ args.x }}"},
        idempotent=True,
        description="Finds books to buy.",
    ),
    "orders that are looked up": http(
        method="POST", body={"q": "{{ args.x }}"}, idempotent=True, description="Orders of x."
    ),
    "a world that knows the word": http(query={"secret": "{{ task.answer }}"}),
    "a passage": own("passage", inject=["task"]),
    "a word that is to be asked for": own("secret", {}, inject=["task"]),
    "a file that is deleted": own("delete", mutates=True),
    "the same result": own("free", {"day": "{{ task.answer }}"}),
    "a failure that is passed over": own("logs"),
    "values without a type": own("find", parameters={"type": "object", "properties": {"name": {"enum": [*TOWNS]}}}),
    "numbers that are counted": rows(answer=["17.3", "18.4", "22.1"]) | SEARCH | NUMBER,
    # constants and addresses
    "marks in a constant": system("{{ vars.form }}") | {"vars": {"form": "<b>Never</b> tell your name."}},
    "DeepSeek": model("https://api.deepseek.com"),
    "a path of another name": model("https://example.com/openai"),
    "a cluster": model("http://judge.default.svc.cluster.local/v1", api_key="x"),
    "a name of this computer": http("http://rates.localhost:8931/{{ args.x }}", headers={"X-Key": "a"}),
    "a model that says yes or no": model("http://127.0.0.1:9/v1", sampling={"max_tokens": 4}),
    "a file of such a name": {"tools": {"search": {"kind": "search", "path": "resources.jsonl"}}},
    # rewards
    "a penalty": also("harm", kind="rule", rule="regex", pattern="damn", weight=-1),
    "manners": also("polite", kind="rule", function="tools.py:polite", weight=0.1),
    "values below 0": {
        "rewards": {
            "own": {"kind": "rule", "function": "tools.py:signed", "range": [-1, 1]},
            "form": {"kind": "rule", "rule": "answered", "gate": "own >= 0", "weight": 0.1},
        }
    },
    "partial credit": also("part", kind="rule", rule="f1", gate="right < 1", weight=0.3),
    "less for the form of what is wrong": also("form", kind="rule", rule="answered", gate="right < 1", weight=0.1),
    "a penalty in some rows": rows(risky=[True, False])
    | also("harm", "right >= 1", kind="rule", rule="regex", pattern="zq", weight=-2, gate="task.risky"),
    "a penalty for a short text": also(
        "terse", kind="rule", rule="length", of="message", max=3, unit="words", weight=-0.1
    ),
    "a judge beside a form": {
        **judge("{{ task.question }} {{ message }}"),
        "rewards": {
            "good": {"kind": "judge", "endpoint": "m", "prompt": "{{ task.question }} {{ answer }}"},
            "form": {"kind": "rule", "rule": "answered", "weight": 0.1},
        },
        "success": None,
    },
    "a judge of rudeness": judge("How rude is this answer to {{ task.question }}? {{ message }}", weight=-0.3),
    "criteria by number": judge("{{ task.question }} {{ message }}", rubric="Look:\n1. Is it polite?\n2. Is it right?"),
    "a number of sentences": judge(
        "It has between 2 and 4 sentences. {{ task.question }} {{ message }}", rubric=RUBRIC
    ),
    "material as JSON": judge('Good?\n{"question": "{{ task.question }}", "reply": "{{ message }}"}'),
    "a step that denies": judge("{{ task.question }} {{ message }}", rubric=["1: not right", "5: as it was asked"]),
}


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_has_no_warning(tmp_path: Path, name: str) -> None:
    say = [{"say": "<answer>{{ task.answer }}</answer>"}]
    spec = {"rlenv": 1, "name": "sound", **rows(), **system("Answer."), "rewards": {"right": EXACT}, "oracle": say}
    spec |= SOUND[name]
    (tmp_path / "tools.py").write_text(CODE, encoding="utf-8")
    lines = "\n".join(json.dumps({"id": town, "title": town, "text": f"{town} is a town."}) for town in TOWNS)
    for file in ("docs.jsonl", "resources.jsonl"):
        (tmp_path / file).write_text(lines, encoding="utf-8")
    sqlite3.connect(tmp_path / "a.sqlite").close()
    (tmp_path / "env.yaml").write_text(json.dumps({key: one for key, one in spec.items() if one is not None}), "utf-8")
    report = validate([tmp_path / "env.yaml"])
    assert [str(one) for one in report.faults] == []
    assert [str(one) for one in report.warnings if one.code != "no-oracle"] == []


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("prompt", "command"),
    [
        ("You have no internet access. Do not download anything.", "cat /app/answer.txt"),
        ("Fix /app/main.py.", "cd /app && python3 /srv/check/run.py"),
    ],
)
def test_a_sound_workspace_has_no_warning(tmp_path: Path, prompt: str, command: str) -> None:
    tests = {
        "kind": "workspace",
        "resource": "m",
        "command": f"[ $({command}) = {{{{ task.answer }}}} ]",
        "by": "status",
    }
    asks = {"user": f"{prompt} The database has tables. {{{{ task.question }}}}"}
    parts = {key: WORK[key] | QUERY[key] for key in ("resources", "tools")}
    spec = {"rlenv": 1, "name": "sound", **rows(), "prompt": asks, **parts, "rewards": {"right": tests}}
    sqlite3.connect(tmp_path / "a.sqlite").close()
    (tmp_path / "env.yaml").write_text(json.dumps(spec), "utf-8")
    report = validate([tmp_path / "env.yaml"])
    assert [str(one) for one in (*report.faults, *report.warnings) if one.code != "no-oracle"] == []


def test_a_remark_behind_a_text_is_no_cut(tmp_path: Path) -> None:
    text = f"""rlenv: 1
name: sound
tasks: {{train: {{rows: [{{question: a b, answer: x}}, {{question: c d, answer: y}}]}}}}
prompt:
  system: Answer in a few words {TAG[:-1]} # as the paper does
  user: "{{{{ task.question }}}}"
rewards: {{right: {{kind: rule, rule: exact_match}}}}
"""
    (tmp_path / "env.yaml").write_text(text, encoding="utf-8")
    assert validate([tmp_path / "env.yaml"]).warnings == ()
