"""Two facts of a spec that cannot both be meant are said, and what stands near to them is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from tests.support.planted import rows

EXACT = {"kind": "rule", "rule": "exact_match"}
NUMBER = {"kind": "rule", "rule": "numeric_match"}
PLACE = "In /work is a log; write the number of its lines to /work/found."
GERMAN = ["Der Hund ist alt.", "Wo ist die Katze?", "Das ist nicht gut."]
ENGLISH = ["The dog is old.", "Where is the cat?", "That is not good."]


def asks(text: str, user: str = "{{ task.question }}", **rest: Any) -> dict[str, Any]:
    return {"prompt": {"system": f"{text} Answer between <answer> and </answer>.", "user": user}, **rest}


def pays(**rewards: Any) -> dict[str, Any]:
    return {"rewards": {"right": EXACT, **rewards}, "success": "right >= 1"}


def costs(name: str, rule: str = "length", **rest: Any) -> dict[str, Any]:
    of = {"of": "message"} if rule == "length" else {}
    return pays(**{name: {"kind": "rule", "rule": rule, "weight": 0.2, **of, **rest}})


def ranked(name: str, value: str = "{{ said.split() | length }}", weight: float = 0.1) -> dict[str, Any]:
    size = {"kind": "rule", "rule": "value", "value": value, "weight": 0}
    return pays(size=size, **{name: {"kind": "group", "of": "size", "weight": weight, "gate": "right >= 1"}})


def near(tolerance: float, *golds: float, key: str = "tolerance") -> dict[str, Any]:
    return {**rows(answer=list(golds)), "rewards": {"right": NUMBER | {key: tolerance}}}


def machine(command: str | None, prompt: str = PLACE, cwd: str = "/work", **rest: Any) -> dict[str, Any]:
    right = {
        "kind": "workspace",
        "resource": "box",
        **({"command": command, "by": "status"} if command else {}),
        **rest,
    }
    box = {
        "resources": {"box": {"kind": "workspace", "cwd": cwd}},
        "tools": {"sh": {"kind": "bash", "resource": "box"}},
    }
    asked = {"user": f"{prompt} {{{{ task.question }}}}"}
    return {"prompt": asked, "rewards": {"right": right}, "answer": {"from": "final_message"}, **box}


def searched(*golds: str) -> dict[str, Any]:
    given = rows(answer=list(golds)) if golds else rows()
    return {**given, "tools": {"search": {"kind": "search", "path": "towns.jsonl", "top_k": 1}}}


def queried(
    question: str, gold: str, order: str = "auto", system: str = "The table is town(name, size).", other: str = ""
) -> Any:
    right = {"kind": "verify", "tool": "db", "arguments": {"sql": "{{ answer }}"}}
    right |= {"compare": {"by": "rows", "order": order}, "expect": {"arguments": {"sql": "{{ task.sql }}"}}}
    other = other or "SELECT name FROM town ORDER BY size LIMIT 2"
    every = [
        {"question": question, "sql": gold},
        {"question": "Which towns are the top 2, sorted by size?", "sql": other},
    ]
    tools = {"db": {"kind": "sql", "resource": "it"}}
    return {"tasks": {"train": {"rows": every}}, **asks(system), "rewards": {"right": right}, "tools": tools,
            "resources": {"it": {"kind": "sqlite", "init": "towns.sql"}}}  # fmt: skip


def cased(expected: list[Any], args: list[Any], text: str = "Write `total(numbers)`.") -> dict[str, Any]:
    cases = [{"args": args, "expected": one} for one in expected]
    return {"tasks": {"train": {"rows": [{"question": f"{text} {n}", "cases": cases} for n in "AB"]}},
            "prompt": {"user": "{{ task.question }}"}, "answer": {"from": "final_message"},
            "rewards": {"right": {"kind": "tests", "entry": "total", "calls": "{{ task.cases }}"}}}  # fmt: skip


def split(*train: tuple[int, int], test: tuple[int, int]) -> dict[str, Any]:
    named = {"train": train, "test": (test,)}
    return {"tasks": {name: {"rows": [{"a": a, "b": b} for a, b in held]} for name, held in named.items()},
            **asks("Multiply.", "{{ task.a }} * {{ task.b }}"), "rewards": {"right": NUMBER | {
                "expect": "{{ task.a * task.b }}"}}}  # fmt: skip


EACH = ["a1", "a2", "a3", "a4", "a5", "a6"]
PLACES = rows(lat=[59.9, 46.9, 51.5], lon=[10.7, 7.4, 0.1])
OTHER = PLACES | {"rewards": {"right": EXACT | {"expect": "{{ task.lon }}, {{ task.lat }}"}}}
ODD: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "the gold is the row's name": (
        "nothing reads the column 'hint'",
        {**rows(id=EACH, hint="{answer}!"), "rewards": {"right": EXACT | {"expect": "{{ task.id }}"}}},
        {**rows(id=EACH), "rewards": {"right": EXACT | {"expect": "{{ task.id }}"}}, **asks("Write the id.")},
    ),
    "what is cut holds the answer": (
        "before the right answer",
        {**rows(text="{answer}" .rjust(9, "-") + " is where the road from the lake ends: {answer}"),
         **asks("Where does it end?", "{{ task.question }} {{ task.text[:3] }}")},
        {**rows(text="{answer} is where it ends."), **asks("Where?", "{{ task.question }} {{ task.text[:9] }}")},
    ),
    "a number between": ("is near enough", near(2, 1, 2, 3, 4, 5), near(1, 1, 2, 3, 4, 5)),
    "a share between": (
        "is near enough",
        near(0.4, 10, 12, 14, key="relative_tolerance"),
        near(0.4, 10, 40, 160, key="relative_tolerance"),
    ),
    "a label in another": (
        "stands in the gold value",
        {**rows(answer=["male", "female"]), "rewards": {"right": EXACT | {"rule": "contains"}}},
        {**rows(answer=["man", "girl"]), "rewards": {"right": EXACT | {"rule": "contains"}}},
    ),
    "columns in another order": (
        "in another order",
        {**OTHER, **asks("Write latitude and longitude.")},
        {**OTHER, **asks("Write longitude, latitude.")},
    ),
    "more words than asked for": (
        "gold values have up to",
        {**rows(answer=ENGLISH), **asks("Answer in at most two words.")},
        {**rows(answer=ENGLISH), **asks("Think of at most two words first.")},
    ),
    "another language": (
        "the gold values are English",
        {**rows(answer=ENGLISH), **asks("Translate the text into German.")},
        {**rows(answer=GERMAN), **asks("Translate the text in English into German.")},
    ),
    "a language of what is read": (
        "the gold values are", {**rows(answer=ENGLISH), **asks("Answer in German.")},
        {**rows(answer=ENGLISH), **asks("Summarise the text in German.")},
    ),
    "the answer in brackets": (
        "in brackets",
        {**rows(asked="Which town is it? ({answer})"), **asks("Say it.", "{{ task.asked }}")},
        {**rows(asked="Which town is it? ({answer})"), **asks("Repeat what is in brackets.", "{{ task.asked }}")},
    ),
    "an answer that no document has": (
        "no document has a word", searched("Lima", "Bern", "Oslo", "Quito", "Rome", "Bath"), searched()
    ),
    "a day that there is not": (
        "no such day or degree", rows(on=["2023-02-28", "2024-02-29", "2023-02-31", "2023-03-01"]),
        rows(on=["2023-02-28", "2024-02-29", "2024-01-31", "2023-03-01"]),
    ),
    "degrees that there are not": ("no such day or degree", rows(lat=[10.5, 151.2]), rows(lon=[10.5, 151.2])),
    "an id twice": ("the same 'id'", rows(id=[1, 2, 2, 4, 5, 6]), rows(id=[1, 1, 1, 2, 2, 2])),
    "the longest is the briefest": ("more words earn more", ranked("brief"), ranked("brief", weight=-0.1)),
    "short texts that pay more": (
        "more words earn more",
        {**ranked("rank"), **asks("Keep it brief.")},
        {**ranked("rank"), **asks("Tell it at length.")},
    ),
    "a cost that is paid": ("has the name of a cost", costs("too_long", min=400), costs("not_too_long", max=400)),
    "a cost without a bound": (
        "write clip", costs("size", "value", value="{{ answer | length }}", weight=-0.1),
        costs("size", "value", value="{{ answer | length }}", weight=-0.1, clip=[0, 50]),
    ),
    "another engine": (
        "the queries run in SQLite",
        queried("Where?", "SELECT name FROM town", system="Write PostgreSQL. town(name, size)"),
        queried("Where?", "SELECT name FROM town", system="Write SQLite, no PostgreSQL. town(name, size)"),
    ),
    "another table": (
        "there is no such table", queried("Where?", "SELECT name FROM town", system="The table is city(name, size)."),
        queried("Where?", "SELECT name FROM town", system="Return a table city(name, size). town(name, size)"),
    ),
    "another limit": (
        "its gold query says LIMIT 5",
        queried("Which are the top 3 towns?", "SELECT name FROM town ORDER BY size LIMIT 5"),
        queried("In the last 3 days, which towns grew?", "SELECT name FROM town ORDER BY size LIMIT 5"),
    ),
    "an order that no gold has": (
        "none has ORDER BY",
        queried("Which towns?", "SELECT name FROM town", "always", other="SELECT size FROM town"),
        queried("Which towns?", "SELECT name FROM town", "always"),
    ),
    "words that are counted as characters": (
        "counts characters",
        {**asks("Answer in at most 50 words."), **costs("brief", "length", max=50, weight=0.1)},
        {**asks("Answer in at most 50 words."), **costs("brief", "length", max=50, unit="words", weight=0.1)},
    ),
    "an order that does not count": (
        "rows count in any order",
        queried("Give the towns in alphabetical order.", "SELECT name FROM town ORDER BY name", "never"),
        queried("Give the towns in alphabetical order.", "SELECT name FROM town ORDER BY name"),
    ),
    "an index from 0": (
        "and it shows", {**rows(answer=["0", "2", "1"]), **asks("Write the number of the right option.",
                                                              "{{ task.question }}\n1. a\n2. b\n3. c")},
        {**rows(answer=["0", "2", "1"]), **asks("How many are right?", "{{ task.question }}\n1. a\n2. b\n3. c")},
    ),
    "a condition on a role": (
        "the condition compares", {**rows(lang=["fr", "de"]), **asks(
            "{% if task.lang == 'french' %}From French.{% endif %}")},
        {**rows(lang=["fr", "de"]), **asks("{% if task.lang == 'fr' %}From French.{% endif %}")},
    ),
    "numbers in two splits": (
        "rows of split 'train' too", split((1, 2), (3, 4), test=(3, 4)), split((1, 2), (3, 4), test=(4, 3))
    ),
    "a file that code cannot read": (
        "code reaches no file",
        {**asks("The data are in /data/sales.csv."), "tools": {"run": {"kind": "code"}}},
        {**asks("Write a function that could read sales.csv."), "tools": {"run": {"kind": "code"}}},
    ),
}  # fmt: skip
IN_SANDBOX: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "another folder": ("the tests read /app/found", machine("grep 7 found", cwd="/app"), machine("grep 7 found")),
    "another file": (
        "the tests read /work/seen.txt",
        machine("grep 7 seen.txt", "Write the number to /work/found.txt."),
        machine("grep 7 found.txt", "Write the number to /work/found.txt."),
    ),
    "a program of the tests": (
        "the tests read", machine("cat seen.txt", "Write it to /work/found.txt."),
        machine("python3 grade.py seen.txt", "Write it to /work/found.txt."),
    ),
    "what is not kept": (
        "leaves it out", machine("grep 7 found", keep=["/work/out"]), machine("grep 7 found", keep=["/work"])
    ),
    "a folder without its script": ("there is no test.sh", machine(None, tests="none"), machine(None, tests="good")),
    "tests that write no number": ("writes no reward.txt", machine(None, tests="mute"), machine(None, tests="good")),
    "texts of lists": ("a list is another value", cased(["[1, 2]", "[3]"], [1]), cased([[1, 2], [3]], [1])),
    "texts that are to be lists": (
        "a list is another value", cased(["[1, 2]", "[3]"], [1]),
        cased(["[1, 2]", "[3]"], [1], "Write `total(numbers)`, which gives a string."),
    ),
    "arguments that are no list": ("takes 1", cased([6, 3], [1, 2, 3]), cased([6, 3], [[1, 2, 3]])),
}  # fmt: skip


def said(folder: Path, given: Mapping[str, Any]) -> str:
    (folder / "own.py").write_text("def look(order: str) -> str:\n    return order\n")
    (folder / "towns.sql").write_text("CREATE TABLE town(name TEXT, size INT); INSERT INTO town VALUES ('Bern', 7);")
    (folder / "towns.jsonl").write_text("".join(
        json.dumps({"id": n, "title": town, "url": f"http://a/{n}", "text": f"{town} is a town by the sea."}) + "\n"
        for n, town in enumerate(("Lima", "Bern", "Oslo", "Rome", "Kyiv", "Bath"))))  # fmt: skip
    for name, text in (("good", "echo 1 > /logs/verifier/reward.txt"), ("mute", "grep 7 found"), ("none", "")):
        (folder / name).mkdir()
        (folder / name / ("test.sh" if text else "notes.txt")).write_text(text)
    whole = {"rlenv": 1, "name": "it", **rows(), **asks("Say it."), **pays(), **given}
    whole |= {} if "right" in str(given.get("success", "right")) else {"success": "right >= 1"}
    (folder / "it.yaml").write_text(json.dumps(whole))
    report = validate([folder / "it.yaml"])
    assert report.faults == (), [str(one) for one in report.faults]
    return "\n".join(map(str, report.warnings))


@pytest.mark.parametrize(
    "name", [*ODD, *(pytest.param(name, marks=pytest.mark.sandbox) for name in IN_SANDBOX)]
)  # fmt: skip
def test_what_denies_another_fact_is_said_and_what_fits_is_not(tmp_path: Path, name: str) -> None:
    words, odd, sound = {**ODD, **IN_SANDBOX}[name]
    (tmp_path / "odd").mkdir()
    (tmp_path / "sound").mkdir()
    found, other = said(tmp_path / "odd", odd), said(tmp_path / "sound", sound)
    assert (words in found, words in other, "check-failed" in f"{found}{other}") == (True, False, False), (found, other)


def test_sound_specs_of_unusual_form_are_no_odd_ones(tmp_path: Path) -> None:
    row = {**rows(task=["one", "two", "three"]), **asks("Do it.", "{{ task.task }}")}
    judged = {"endpoints": {"critic": {"base_url": "http://127.0.0.1:1/v1", "model": "it"}}, "rewards": {"right": {
        "kind": "judge", "endpoint": "critic", "prompt": "{{ task.question }} {{ first }} {{ second }}",
        "pairwise": {"with": "group"}}}}  # fmt: skip
    tools = {name: {"kind": "python", "function": "own.py:look", "offered": f"{{{{ task.player == '{role}' }}}}"}
             for name, role in (("say", "teller"), ("guess", "hearer"))}  # fmt: skip
    players = {"tools": tools, "user": {"kind": "players", "roles": {"teller": {}, "hearer": {}}}}
    for index, (given, words) in enumerate((
        (row, "whole row"), (judged, "the same text"),
        ({**players, **asks("You play. The hearer may call guess once.")}, "is not offered"),
    )):  # fmt: skip
        (folder := tmp_path / str(index)).mkdir()
        assert words not in said(folder, given)


def test_a_role_that_there_is_not_is_said(tmp_path: Path) -> None:
    for index, (role, is_said) in enumerate((("buyer", False), ("byer", True), ("vendor", True))):
        (folder := tmp_path / str(index)).mkdir()
        user = {"kind": "players", "roles": {"buyer": {"aim": "low"}, "seller": {"aim": "high"}}}
        prompt = asks(f"{{% if task.player == '{role}' %}}You buy.{{% endif %}} {{{{ task.aim }}}}")
        assert ("the condition compares" in said(folder, {**prompt, "user": user})) is is_said
