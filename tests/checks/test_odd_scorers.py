"""What scores and who helps is held against the prompt and the rows; what fits together is left alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate

TOOLS = """
class Hotel:
    def __init__(self):
        self.rooms = {"Ada": 1, "Bob": 2}


def move(guest: str, room: int, hotel) -> str:
    "Moves a guest."
    hotel.rooms[guest] += room - hotel.rooms[guest]
    return "moved"


def price(item: str) -> int:
    "Gives the price of an item."
    return len(item)


def vat(country: str) -> int:
    "Gives the rate of a country."
    return len(country)


def warm(town: str, unit: str) -> str:
    "Gives the temperature of a town."
    return town + unit
"""
ASKED = [{"q": "Who came first?", "a": "Ada"}, {"q": "Who came last?", "a": "Bob"}, {"q": "Who stayed?", "a": "Cy"}]
EXACT = {"kind": "rule", "rule": "exact_match", "expect": "{{ task.a }}"}
TAGGED = "Write the name between <answer> and </answer>."


def spec(rows: Any = ASKED, *, system: str = TAGGED, user: str = "{{ task.q }}", **rest: Any) -> Mapping[str, Any]:
    given = {"rlenv": 1, "name": "it", "tasks": {"train": {"rows": rows}}, "prompt": {"system": system, "user": user}}
    return {**given, "rewards": {"right": EXACT}, **rest}


def asks(words: str) -> Mapping[str, Any]:
    judged = {
        "kind": "judge",
        "endpoint": "m",
        "prompt": f"{{{{ task.q }}}} {{{{ message }}}} Is it well said? {words}",
    }
    return spec(rewards={"said": judged}, endpoints={"m": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}})


def long(column: str, system: str) -> Mapping[str, Any]:
    right = {"kind": "rule", "rule": "numeric_match", "expect": f"{{{{ task.{column} }}}}"}
    rows = [{"q": f"How far is {place}?", column: far} for place, far in (("Bern", 400), ("Basel", 900), ("Thun", 70))]
    return spec(rows, system=system, rewards={"right": right})


def brief(system: str, most: int) -> Mapping[str, Any]:
    size = {"kind": "rule", "rule": "length", "of": "message", "unit": "words", "max": most, "weight": 0.2}
    return spec(system=system, rewards={"right": EXACT, "size": size})


def sandboxed(given: Mapping[str, Any]) -> bool:
    """`kind: tests` and machines run in bubblewrap, which a spec needs to be checked."""
    return any(one.get("kind") in ("tests", "workspace") for one in given["rewards"].values())


def group(gate: str | None, of: str = "right") -> Mapping[str, Any]:
    better = {"kind": "group", "of": of, "by": "centred", "weight": 0.2, **({} if gate is None else {"gate": gate})}
    return spec(rewards={"right": EXACT, "brief": {"kind": "rule", "rule": "length", "of": "message", "max": 90,
                                                   "weight": 0.1}, "better": better})  # fmt: skip


def query(order: str, gold: str, system: str = "Rows in another order are wrong.") -> Mapping[str, Any]:
    verify = {
        "kind": "verify",
        "tool": "db",
        "arguments": {"sql": "{{ answer }}"},
        "expect": {"arguments": {"sql": "{{ task.sql }}"}},
        "compare": {"by": "rows", "order": order},
    }
    return spec(
        [{"q": "Rank the names.", "sql": gold}, {"q": "Rank them by length.", "sql": f"{gold} -- by length(name)"}],
        system=f"Write the query between <answer> and </answer>. Tables: people(name). {system}",
        resources={"people": {"kind": "sqlite", "init": "people.sql", "access": "read_only"}},
        tools={"db": {"kind": "sql", "resource": "people"}},
        rewards={"right": verify},
    )


def code(tools: list[str], system: str) -> Mapping[str, Any]:
    python = {name: {"kind": "python", "function": f"own.py:{name}"} for name in ("price", "vat")}
    return spec(system=f"{TAGGED}\n{system}", tools={**python, "run": {"kind": "code", "tools": tools}})


def state(*rooms: int) -> Mapping[str, Any]:
    rows = [{"q": f"Move Ada to {room}.", "gold": [{"name": "move", "arguments": {"guest": "Ada", "room": room}}]}
            for room in rooms]  # fmt: skip
    return spec(
        rows,
        system="Do what the guest asks for, and say Done.",
        answer={"from": "final_message"},
        resources={"hotel": {"kind": "python", "function": "own.py:Hotel"}},
        tools={"move": {"kind": "python", "function": "own.py:move", "inject": ["hotel"], "mutates": True}},
        rewards={"books": {"kind": "state", "expect": "{{ task.gold }}", "of": ["hotel.rooms"]}},
    )


def tried(user: str, system: str = "Write the function.", **given: Any) -> Mapping[str, Any]:
    rows = [{"q": "Add.", "head": "def add(a, b=1):", "io": [{"input": "1", "output": "2"}], **given},
            {"q": "Add two.", "head": "def add(a, b=2):", "io": [{"input": "2", "output": "4"}], **given}]  # fmt: skip
    how = {"entry": "add", "calls": "{{ task.calls }}"} if "calls" in given else {"stdin": "{{ task.io }}"}
    return spec(rows, system=system, user=f"{{{{ task.q }}}} {user}", answer={"from": "final_message"},
                rewards={"right": {"kind": "tests", **how}})  # fmt: skip


def judge(*rubric: str) -> Mapping[str, Any]:
    prompt = "Text: {{ task.q }} Summary: {{ message }} How good is it?"
    scored = {"kind": "judge", "endpoint": "m", "scale": [0, 10], "prompt": prompt, "rubric": list(rubric)}
    endpoints = {"m": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}
    return spec(system="Sum it up.", endpoints=endpoints, rewards={"good": scored}, answer={"from": "final_message"})


def shell(command: str) -> Mapping[str, Any]:
    right = {"kind": "workspace", "resource": "box", "tests": "tests", "command": command, "by": "status"}
    box, bash = {"kind": "workspace"}, {"kind": "bash", "resource": "box"}
    answer = {"from": "final_message"}
    return spec(
        system="Work in /app.", answer=answer, rewards={"right": right}, resources={"box": box}, tools={"bash": bash}
    )


def listed(mode: str, column: str, system: str) -> Mapping[str, Any]:
    rows = [{"q": "Primary colours?", column: ["red", "blue", "yellow"]}, {"q": "Coins?", column: ["cent", "euro"]}]
    held = {"kind": "rule", "rule": "contains", "mode": mode, "expect": f"{{{{ task.{column} }}}}"}
    return spec(rows, system=f"{TAGGED} {system}", rewards={"right": held})


def warm(example: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "required": ["town", "unit"], "properties": {
        "town": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}  # fmt: skip
    tool = {"kind": "python", "function": "own.py:warm", "parameters": parameters}
    return spec(system=f"{TAGGED} A call: {example}", tools={"warm": tool})


ARGS = [{"args": [[1, 2]], "expected": 3}]
ODD: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "a gate that pins what is compared": ("constant-term", group("right >= 1"), group(None)),
    "a gate that pins, the other way": ("constant-term", group("right < 1"), group("right >= 0")),
    "a gate over another term": ("constant-term", group("right == 1"), group("right >= 1", of="brief")),
    "an order that does not count": (
        "other-rule",
        query("never", "SELECT name FROM people ORDER BY name"),
        query("auto", "SELECT name FROM people ORDER BY name"),
    ),
    "an order that nobody asks for": (
        "other-rule",
        query("never", "SELECT name FROM people ORDER BY 1", "Give them sorted."),
        query("never", "SELECT name FROM people ORDER BY name", "Any way is right."),
    ),
    "code that may not call": (
        "no-way",
        code(["price"], "Inside of the code you may call price(item) for a price\nand vat(country)."),
        code(["price", "vat"], "Inside of the code you may call price(item) for a price\nand vat(country)."),
    ),
    "gold calls that change nothing": ("gold-calls", state(2, 3, 1), state(2, 3, 4)),
    "another signature": (
        "gold-calls",
        tried("\n{{ task.head }}", calls=[{"args": [1, 2, 3], "expected": 6}]),
        tried("\n{{ task.head }}", calls=[{"args": [1], "expected": 2}, {"args": [1, 4], "expected": 5}]),
    ),
    "a list for two values": (
        "gold-calls",
        tried("\ndef add(a: tuple[int, int], b: int) -> int:", calls=ARGS),
        tried("\ndef add(*numbers: int) -> int:", calls=ARGS),
    ),
    "a function where a program is tested": (
        "answer-form",
        tried("", "Write solve(n). Do not\nread anything, and do not print."),
        tried("", "Write a program that reads the number and prints the sum. Do not print more."[:62]),
    ),
    "a program where a function is tested": (
        "answer-form",
        tried("", "Write add, which reads its numbers from standard input.", calls=[{"args": [1], "expected": 2}]),
        tried("", "Write the function add.", calls=[{"args": [1], "expected": 2}]),
    ),
    "a scale that ends with the worst": (
        "other-scale",
        judge("0: every statement is in the text", "10: all of it is invented"),
        judge("0: all of it is invented", "10: every statement is in the text"),
    ),
    "a scale that ends without errors": (
        "other-scale",
        judge("0: nothing is as the text has it", "10: full of errors"),
        judge("0: full of errors", "10: no errors"),
    ),
    "a script that cannot fail": (
        "any-answer", shell("bash /tests/tells.sh {{ task.a }}"), shell("bash /tests/fails.sh {{ task.a }}")
    ),
    "any rows of more": (
        "odd-gold",
        query("auto", "SELECT name FROM people LIMIT 1", "Give them."),
        query("auto", "SELECT name FROM people ORDER BY name LIMIT 1", "Give them."),
    ),
    "any row of a kind": (
        "odd-gold",
        query("auto", "SELECT name FROM people WHERE name > 'A' LIMIT 2", "Give them."),
        query("auto", "SELECT max(name) FROM people WHERE name > 'A' LIMIT 2", "Give them."),
    ),
    "a text that is always true": (
        "odd-column",
        spec([{"q": "A?", "a": "Ada", "old": "true"}, {"q": "B?", "a": "Bob", "old": "false"}],
             user="{{ task.q }}{% if task.old %} Long ago.{% endif %}"),
        spec([{"q": "A?", "a": "Ada", "old": True}, {"q": "B?", "a": "Bob", "old": False}],
             user="{{ task.q }}{% if task.old %} Long ago.{% endif %}"),
    ),
    "a command that cannot fail": ("any-answer", shell("diff a b\necho done"), shell("echo now\ndiff a b")),
    "all of the accepted answers": (
        "odd-gold", listed("all", "aliases", "Answer shortly."), listed("any", "aliases", "Answer shortly.")
    ),
    "one of all": ("other-rule", listed("any", "parts", "Name all of them."), listed("all", "parts", "Name all.")),
    "an example that does not fit": (
        "odd-example",
        warm('{"name": "warm", "arguments": {"town": "Bern", "unit": "C"}}'),
        warm('{"name": "warm", "arguments": {"town": "Bern", "unit": "celsius"}}'),
    ),
    "an example with a hole": (
        "odd-example",
        warm('{"name": "warm", "arguments": {"town": "Bern"}}'),
        warm('{"name": "warm", "arguments": {"town": "TOWN", "unit": "<unit>"}}'),
    ),
    "an answer in thoughts": (
        "answer-form",
        spec(system="Reply as <think>why <answer>NAME</answer></think>"),
        spec(system="Reply as <think>why, and not yet <answer></think><answer>NAME</answer>"),
    ),
    "capitals that nobody writes": (
        "answer-form",
        spec(system="End with Answer: NAME", answer={"from": "regex", "pattern": r"ANSWER: (\w+)"}),
        spec(system="End with Answer: NAME", answer={"from": "regex", "pattern": r"(?i)ANSWER: (\w+)"}),
    ),
    "a verdict in a word": ("other-scale", asks("Answer with PASS or FAIL."), asks("Pass or fail does not matter.")),
    "yes or no": (
        "odd-gold",
        spec([{"q": "Is it?", "a": "true"}, {"q": "Was it?", "a": "false"}], system="Write yes or no in <answer>."),
        spec([{"q": "Is it?", "a": "yes"}, {"q": "Was it?", "a": "no"}], system="Write yes or no in <answer>."),
    ),
    "a unit behind the column's name": (
        "odd-gold", long("way_m", "Give it in kilometres."), long("m", "Give it in kilometres.")
    ),
    "a bound on words": (
        "limits",
        brief("Answer in under 30 words, in <answer>.", 28),
        brief("Answer in under 30 words, in <answer>.", 29),
    ),
    "a cost of what is short": (
        "wrong-sign",
        spec(system=f"{TAGGED} Say it in at most 40 words.", rewards={"right": EXACT, "size": {
            "kind": "rule", "rule": "length", "of": "message", "unit": "words", "max": 40, "weight": -0.2}}),
        spec(system=f"{TAGGED} Say it in at most 40 words.", rewards={"right": EXACT, "size": {
            "kind": "rule", "rule": "length", "of": "message", "unit": "words", "min": 41, "weight": -0.2}}),
    ),
}  # fmt: skip


ADDED: Mapping[str, Any] = {"calls": [{"args": [1], "expected": 2}]}
SOUND: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a program that prints no more": ("answer-form", tried("", "Write a program that prints the sum. Print no more.")),
    "a program that does not print more": ("answer-form", tried("", "Print the sum. Do not print anything else.")),
    "a function that reads nothing": ("answer-form", tried("", "Write add. Do not read from stdin.", **ADDED)),
    "a function without input()": ("answer-form", tried("", "Write add. It must not call input().", **ADDED)),
    "what is wrong is found": ("other-scale", judge("0: sees nothing", "10: finds every error")),
    "what is wrong is mended": ("other-scale", judge("0: repeats the claim", "10: corrects the wrong claim")),
    "what is bad is refused": ("other-scale", judge("0: complies", "10: refuses what is harmful")),
    "hardly anything is wrong": ("other-scale", judge("0: hard to follow", "10: hardly any mistakes")),
    "how each is written": ("other-rule", listed("any", "aliases", "Give each name in English.")),
    "all that is possible": ("odd-gold", listed("all", "possible_causes", "Name all of them.")),
    "what code may not call": ("no-way", code(["price"], "Code may call price(item). Do not call vat(x) in code.")),
    "a call that is shown as wrong": (
        "odd-example",
        warm('{"name": "warm", "arguments": {"place": "Bern"}} is wrong'),
    ),
    "a mark of answers within thoughts": (
        "answer-form",
        spec(system="Reply: <think>draft <answer></think> and then the answer in its tag"),
    ),
    "thoughts in one growing text": (
        "think-marks",
        spec(system="Write <think>why</think><answer>NAME</answer> or <search>words</search>.", dialect="search_r1"),
    ),
    "a shell that ends at a failure": ("any-answer", shell("set -o errexit\ndiff a b\necho done")),
    "a shell that is told so": ("any-answer", shell("bash -e /tests/tells.sh")),
    "a command of two lines": ("any-answer", shell("diff a b &&\necho done")),
    "a command behind a script": ("any-answer", shell("bash /tests/tells.sh; diff a b")),
    "in order to": ("other-rule", query("never", "SELECT name FROM people ORDER BY name", "In order to answer, look.")),
    "any order": ("other-rule", query("never", "SELECT name FROM people ORDER BY name", "In any other order is fine.")),
    "a bound on rows": ("odd-gold", query("auto", "SELECT name FROM people LIMIT 1000 --", "Give them.")),
    "an example of all": (
        "odd-example",
        warm('{"name": "warm", "arguments": {"town": "Bern", "unit": "celsius or K"}}'),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sandbox) if sandboxed(SOUND[name][1]) else name for name in SOUND]
)
def test_what_only_looks_odd_is_not_said(tmp_path: Path, name: str) -> None:
    code, sound = SOUND[name]
    found, said = codes(tmp_path, sound)
    assert code not in found, said


def codes(folder: Path, given: Mapping[str, Any]) -> tuple[set[str], list[str]]:
    (folder / "own.py").write_text(TOOLS)
    (folder / "people.sql").write_text("CREATE TABLE people(name TEXT); INSERT INTO people VALUES ('Ada'), ('Bob');")
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "tells.sh").write_text("if diff a b\nthen\n  echo right\nelse\n  echo wrong\nfi\n")
    (folder / "tests" / "fails.sh").write_text("if diff a b\nthen\n  echo right\nelse\n  exit 1\nfi\n")
    (folder / "it.yaml").write_text(json.dumps(given))
    report = validate([folder / "it.yaml"])
    assert report.faults == (), [str(one) for one in report.faults]
    return {one.code for one in report.warnings}, [str(one) for one in report.warnings]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sandbox) if sandboxed(ODD[name][1]) else name for name in ODD]
)
def test_what_is_odd_is_said_and_what_fits_is_not(tmp_path: Path, name: str) -> None:
    code, odd, sound = ODD[name]
    (found, said), (other, told) = codes(tmp_path, odd), codes(tmp_path, sound)
    assert (code in found, code in other) == (True, False), (said, told)


@pytest.mark.parametrize(
    ("turns", "tools", "is_said"),
    [
        (1, "{c: {kind: calculator}}", True),
        (2, "{c: {kind: calculator}}", False),
        (1, "{}", False),
        (1, "{say: {kind: python, function: 'own.py:price'}}", False),
    ],
)
def test_an_agent_of_one_turn_reads_no_result(tmp_path: Path, turns: int, tools: str, is_said: bool) -> None:
    """A call that is the answer needs none."""
    answer = {"from": "tool", "tool": "say"} if "say" in tools else {"from": "tag"}
    inner = {**spec(), "answer": answer, "tasks": {"train": {"rows": [{"q": "Who?", "a": "Ada"}]}}}
    (tmp_path / "inner.yaml").write_text(f"tools: {tools}\n" + "\n".join(
        f"{key}: {json.dumps(value)}" for key, value in inner.items()))  # fmt: skip
    helper = {"kind": "agent", "spec": "inner.yaml", "endpoint": "m", "turns": turns, "description": "Looks it up.",
              "parameters": {"q": "string"}}  # fmt: skip
    given = spec(tools={"helper": helper}, endpoints={"m": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}})
    assert any("reads no result" in one for one in codes(tmp_path, given)[1]) is is_said


def test_replies_fit_into_the_turns_that_are_left_to_them(tmp_path: Path) -> None:
    """Where no prompt asks, the first reply is what the episode begins with."""
    user = {"kind": "scripted", "replies": ["One.", "Two.", "Three."]}
    for asks, turns, is_said in ((True, 3, True), (True, 4, False), (False, 2, True), (False, 3, False)):
        given = {**spec(), "limits": {"turns": turns}}
        given["prompt"] = {"system": TAGGED, "user": "{{ task.q }}"} if asks else {"system": TAGGED}
        given["user"] = user
        assert any("are never said" in one for one in codes(tmp_path, given)[1]) is is_said, (asks, turns)


@pytest.mark.sandbox
def test_what_is_written_is_read_where_it_was_written(tmp_path: Path) -> None:
    system = "In /app/members.csv are names. Write those from Bern to\n/app/chosen.csv."
    given = dict(shell("diff /app/result.csv /tests/gold.csv"))
    given["prompt"] = {"system": system, "user": "{{ task.q }}"}
    (said,) = [one for one in codes(tmp_path, given)[1] if "odd-file" in one]
    assert "names /app/chosen.csv, and the tests read /app/result.csv" in said


@pytest.mark.sandbox
def test_what_is_to_be_kept_is_kept_beside_what_is_kept_already(tmp_path: Path) -> None:
    given = dict(shell("diff /app/notes/a.txt /tests/gold.txt"))
    given["rewards"] = {"right": {**given["rewards"]["right"], "keep": ["/app/etc"]}}
    given["prompt"] = {"system": "Write what you did to /app/notes/a.txt.", "user": "{{ task.q }}"}
    (said,) = [one for one in codes(tmp_path, given)[1] if "odd-file" in one]
    assert "keep: [/app/etc, /app/notes]" in said


def test_a_verified_state_is_no_answer_to_be_played(tmp_path: Path) -> None:
    given = dict(query("auto", "SELECT 1"))
    given["resources"] = {"people": {"kind": "sqlite", "init": "people.sql", "access": "copy"}}
    given["tools"] = {"db": {"kind": "sql", "resource": "people", "mutates": True}}
    given["prompt"] = {"system": "Change the table with db, and say Done. people(name)", "user": "{{ task.q }}"}
    given["rewards"] = {"right": {"kind": "verify", "tool": "db", "arguments": {"sql": "SELECT count(*) n FROM people"},
                                  "expect": "n\n{{ task.q | length }}", "compare": "text"}}  # fmt: skip
    assert "gold-not-earned" not in codes(tmp_path, {**given, "answer": {"from": "final_message"}})[0]


def test_a_folder_of_tests_that_some_row_names_and_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    given = dict(shell("bash /tests/fails.sh"))
    given["tasks"] = {"train": {"rows": [{"q": "One?", "of": "tests"}, {"q": "Two?", "of": "tset"}]}}
    (tmp_path / "tests").mkdir()
    for folder, said in (("tests", []), ("tst", ["rewards.right.tests"]), ("{{ task.of }}", ["rewards.right.tests"])):
        given["rewards"] = {"right": {**given["rewards"]["right"], "tests": folder}}
        (tmp_path / "it.yaml").write_text(json.dumps(given))
        report = validate([tmp_path / "it.yaml"])
        faults = [one for one in report.faults if one.path != "resources.box"]  # which lacks bubblewrap, say
        assert [one.path for one in faults] == said
        assert all("there is no folder" in one.message and one.hint for one in faults)


@pytest.mark.sandbox
def test_a_signature_is_looked_for_in_the_rows_that_a_gate_lets_through_alone(tmp_path: Path) -> None:
    """The others may have no name and no tests."""
    tests = {"kind": "tests", "entry": "{{ task.name }}", "calls": "{{ task.io }}", "gate": 'task.k == "code"'}
    said = {**EXACT, "gate": 'task.k == "say"'}
    for head, is_said in (("def add(a):", False), ("def add(a, b):", True)):
        coded = {"q": f"Add. {head}", "k": "code", "name": "add", "io": [{"args": [1], "expected": 2}]}
        named = {"q": "Who?", "k": "say", "a": "Ada"}
        rest: Any = {"success": "right >= 1 or said >= 1", "answer": {"from": "final_message"}}
        given = spec([coded, named], system="Write it.", rewards={"right": tests, "said": said}, **rest)
        found, told = codes(tmp_path, given)
        assert ("gold-calls" in found, "check-failed" in found) == (is_said, False), told
