"""Rows, golds and prompts that contradict each other, or what the spec opens, are said, and nothing near to them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from tests.support.planted import rows

EXACT = {"kind": "rule", "rule": "exact_match"}
FOLDED = {"rewards": {"right": EXACT | {"normalise": "case"}}}
TAG = "between <answer> and </answer>."
LONG = (
    "The herons stand in the reeds of the lower lake until the ice goes, and nobody may come nearer than fifty feet. "
)
WORLD = {"kind": "gymnasium", "id": "FrozenLake-v1", "run_in": "loop"}
STEPS = {"move": {"kind": "gymnasium", "resource": "lake"}}
REACHED = {"reached": {"kind": "rule", "rule": "value", "value": "{{ resources.lake.total }}"}}


def system(text: str, user: str = "{{ task.question }}") -> dict[str, Any]:
    return {"prompt": {"system": f"{text} Write it {TAG}", "user": user}}


def asks(*pairs: tuple[str, str], **splits: list[tuple[str, str]]) -> dict[str, Any]:
    """Splits of questions and answers, each row with an id of its own; the first is `train`."""
    named = {"train": [*pairs], **splits}
    return {"tasks": {name: {"rows": [{"id": f"{name} {n}", "question": one[0], "answer": one[1]}
                                      for n, one in enumerate(held)]} for name, held in named.items()}}  # fmt: skip


def filtered(when: str, **columns: Any) -> dict[str, Any]:
    return {"tasks": {"train": rows(**columns)["tasks"]["train"] | {"when": when}}}


def search(*documents: Mapping[str, Any], **columns: str) -> dict[str, Any]:
    """A search over a corpus, which is written as `docs.jsonl`."""
    entry = {"kind": "search", "path": "docs.jsonl", **({"columns": columns} if columns else {})}
    return {"tools": {"search": entry}, "oracle": None, "documents": documents}


def database(text: str) -> dict[str, Any]:
    db = {"kind": "sqlite", "path": "shop.sqlite", "access": "read_only"}
    return {**system(text), "resources": {"db": db}, "tools": {"query": {"kind": "sql", "resource": "db"}},
            "oracle": None}  # fmt: skip


def lake(user: str, **arguments: Any) -> dict[str, Any]:
    held = rows(map=["SFFF", "SFHF", "SHFF"], mood=["calm", "brisk", "warm"])
    return {**held, "prompt": {"user": user}, "resources": {"lake": WORLD | {"arguments": arguments}}, "tools": STEPS,
            "rewards": REACHED, "oracle": None}  # fmt: skip


NOTES = [{"id": f"N-{n}", "title": f"Birds {n}", "text": LONG} for n in range(1, 7)]
BODIES = [{"id": f"N-{n}", "body": LONG, "heading": f"Birds {n}"} for n in range(1, 7)]
SPELT = [("What is the plural of Ox?", "oxen"), ("What is the plural of foot?", "feet")]
TEAMS = [("I was charged twice.", "billing"), ("It is broken.", "tech"), ("Hello.", "other"), ("My bill?", "billing")]
ROUTED = [(text, "technical" if team == "tech" else team) for text, team in TEAMS]
LENT = {"options": [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]]}
SHOWN = "{{ task.question }} {{ task.options | join(', ') }}"
SUMS = {"readings": [[1, 2], [1, 2, 3], [4, 5, 6, 7], [5, 6], [7, 8, 9], [1, 4]]}
MEANS = system("Give the mean.", "{{ task.n }} readings: {{ task.readings | join(', ') }} {{ task.question }}")
SOLVED = {"oracle": None, "answer": {"from": "final_message"}}

RELATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "shared-rows": (
        [asks(*SPELT, test=[("what is the plural of ox", "oxen"), ("What is the plural of goose?", "geese")])],
        [asks(*SPELT, test=[("What is the plural of box?", "boxes"), ("What is the plural of goose?", "geese")]),
         asks(("Swap the case of aBc", "AbC"), ("Of x", "X"), test=[("Swap the case of AbC", "aBc"), ("Of y", "Y")]),
         asks(("Rings of c1ccccc1?", "1"), ("Of CC?", "0"), test=[("Rings of C1CCCCC1?", "1"), ("Of CCC?", "0")]),
         asks(("What is 2 - 3?", "-1"), ("What is 1?", "1"), test=[("What is 2 * 3?", "6"), ("What is 4?", "4")])],
    ),
    "odd-column": (
        [{**rows(n=[2, 3, 4, 2, 4, 2], **SUMS), **MEANS},
         {**rows(n=[2, 3, 4, 3, 3, 4], **SUMS), **MEANS},
         {**rows(page=["N-1", "N-2", "N-3", "N-44"]), **search(*NOTES)},
         {**rows(support=[["N-1", "N-2"], ["N-9"], ["N-3"]]), **search(*NOTES)},
         {**rows(order_id=[1, 2, 3, 9]), **database("Look first.")},
         {**rows(), **search(*BODIES, title="body", text="heading")},
         {**rows(), **search(*[{"id": one["id"], "title": LONG, "text": "Birds"} for one in NOTES])},
         database("The tables are orders(id, total_eur, placed)."),
         database("There is the table orders, with the columns id, amount and placed_on."),
         database("The tables are invoices(id, amount, placed)."),
         database("Tables:\n- orders: id, amount, placed_on\n")],
        [{**rows(n=[2, 3, 4, 2, 3, 2], **SUMS), **MEANS},
         {**rows(level=[2, 3, 1, 2, 1, 4], **SUMS), **system("Give the mean.", "{{ task.readings | join(' ') }}")},
         {**rows(page=["N-1", "N-2", "N-3", "N-4"]), **search(*NOTES)},
         {**rows(page=["N-1", "none", None, "N-4"]), **search(*NOTES)},
         {**rows(page=["N-1", "N-2", "N-3", "N-9"], found=["yes", "yes", "yes", "not found"]), **search(*NOTES)},
         {**rows(kin=["Birds 1", "Birds 2", "Birds 3", "fish"]), **search(*NOTES)},
         {**rows(order_id=[1, 2, 3, 3]), **database("Look first.")},
         {**rows(), **search(*BODIES, title="heading", text="body")},
         {**rows(), **search(*[{"id": one["id"], "title": "How near may I come?", "text": "50"} for one in NOTES])},
         database("The tables are orders(id, amount, placed), with coalesce(id, amount, placed) where it helps."),
         database("There is the table orders, with the columns id, amount and placed."),
         database("Tables:\n- orders: id, amount, placed\nColumns: id, amount, placed\n"),
         database("The orders (of a year, and all paid) stand in a table.")],
    ),
    "no-such-value": (
        [filtered("task.state != 'Draft'", state=["draft", "final", "final"]),
         filtered("task.state in ['Final', 'kept']", state=["kept", "final", "kept"]),
         {**rows(state=["draft", "final"]), "success": "right >= 1", "rewards": {
          "right": EXACT, "more": EXACT | {"gate": "'DRAFT' != task.state", "weight": 0.5}}},
         {**rows(state=["draft", "final"]),
          **system("Answer.", "{{ task.question }}{% if task.state == 'Final' %} Be sure.{% endif %}")}],
        [filtered("task.state != 'draft'", state=["draft", "final", "final"]),
         filtered("task.state in ['final', 'kept']", state=["kept", "final", "kept"]),
         filtered("task.answer != 'N/A'"),
         {**rows(state=["draft", "final"]),
          **system("Answer.", "{{ task.question }}{% if task.state == 'urgent' %} Be quick.{% endif %}")}],
    ),
    "same-world": (
        [lake("Your lake: {{ task.map }}", is_slippery=False)],
        [lake("Your lake: {{ task.map }}", desc=["{{ task.map }}", "FFFG"]), lake("The weather is {{ task.mood }}.")],
    ),
    "odd-gold": (
        [{**asks(*TEAMS), **system("Answer with exactly one of: billing, technical, other"), **FOLDED},
         {**asks(*TEAMS), **system("The teams are billing, technical and other.")},
         {**asks(*TEAMS), **system("Choose a team:\n- billing: money\n- technical: faults\n- other\n\n")},
         {**asks(*TEAMS), **system("Teams: billing | technical | other")},
         {**rows(answer=["A", "E", "B"], **LENT), **system("Give the letter.", SHOWN)},
         {**rows(answer=["0", "3", "1"], **LENT), **system("Give the place, from 0.", SHOWN)},
         {**rows(answer=["A", "E", "B"]), **FOLDED,
          **system("Give the letter.", "{{ task.question }}\n(A) yes\n(B) no\n(C) both")},
         {**rows(answer=["12 kg", "7 kg"]), **system("Answer with the number alone, without a unit.")},
         {**rows(answer=["12 minutes", "7"]), "prompt": {"system": "Answer as <answer>NUMBER</answer>.",
          "user": "{{ task.question }}"}},
         {**rows(oven_fahrenheit=[212, 392]), **system("Give it in degrees Celsius."),
          "rewards": {"right": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.oven_fahrenheit }}"}}},
         {**rows(way_km=[5, 12]), **system("Give the way in metres."),
          "rewards": {"right": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.way_km }}"}}}],
        [{**asks(*ROUTED), **system("Answer with exactly one of: billing, technical, other"), **FOLDED},
         {**asks(*TEAMS), **system("Teams are such as billing, technical, other.")},
         {**asks(*TEAMS), **system("Teams include billing, technical and other.")},
         {**asks(*TEAMS), **system("Common teams are billing, technical and other.")},
         {**asks(("a?", "2"), ("b?", "5"), ("c?", "9")), **system("A die has the sides 1, 2, 3, 4, 5 and 6.")},
         {**asks(*TEAMS), **system("The teams are billing, technical and other. If it is a fault, say tech.")},
         {**asks(("The crew took the red boat.", "boat"), ("A car and a bike.", "bike"), ("A car?", "car")),
          **system("Name what it is about: car, bike, plane.")},
         {**asks(("What is it?", "billing, other"), ("And now?", "other"), ("Now?", "billing")),
          **system("Write all of them: billing, technical, other.")},
         {**rows(answer=["A", "C", "B"], **LENT), **system("Give the letter.", SHOWN)},
         {**rows(answer=["3", "1", "2"], **LENT), **system("Give the place, from 1.", SHOWN)},
         {**rows(answer=["7", "9", "8"], options=[["7", "8"], ["9", "7"], ["6", "8"]]), **system("Choose.", SHOWN)},
         {**rows(answer=["12 kg", "7 kg"]), **system("Answer with the number and its unit.")},
         {**rows(answer=["LH 12", "LH 7"]), **system("Answer with the flight number alone.")},
         {**rows(answer=["1/2", "3rd"]), **system("Answer with the number alone.")},
         {**rows(way_km=[5, 12]), **system("Give the way in kilometres."),
          "rewards": {"right": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.way_km }}"}}}],
    ),
    "literal-escape": (
        [system("Answer.", "Clue: {{ task.question }}\\nLetters: 5"), system("Answer shortly.\\n\\nBe sure."),
         system("Answer.", "{{ task.question }}\\nin one word"),
         {"user": {"kind": "scripted", "replies": ["Thanks.\\nNow the next."]}, "oracle": None}],
        [system("Answer.", "Clue: {{ task.question }}\nLetters: 5"), system("End each line with \\n and no more."),
         system("Write `a\\nB`, or \"c\\nD\"."), system("Look into C:\\new and C:\\Tables."),
         system("With $x:\\nabla f$ and $2\\times 3$ and $a.\\to b$."),
         system("Answer.", "{{ [task.question, 'Go.'] | join('\\n') }}"), rows(question="Add \\nB to {answer}")],
    ),
    "empty-search": (
        [{**rows(fact=["snow", "rain", "hail"], page="N-1"), **search(*NOTES), "rewards": {
          "right": EXACT | {"expect": "{{ task.fact }} [{{ task.page }}]"}}}],
        [{**rows(fact=["herons", "the reeds", "fifty"], page="N-1"), **search(*NOTES), "rewards": {
          "right": EXACT | {"expect": "{{ task.fact }} [{{ task.page }}]"}}}],
    ),
    "gold-in-prompt": (
        [{**rows(hint="{answer}"), **system("Name the town.", "{{ task.question }} {{ task.hint }}"), **SOLVED,
          "rewards": {"right": {"kind": "rule", "rule": "contains", "expect": "{{ task.hint }}"}}}],
        [{**rows(product=["Floff", "Knarz", "Brizza", "Olm", "Tark", "Wupp"], kind=["pillow"]), **SOLVED, "rewards": {
          "named": {"kind": "rule", "rule": "contains", "expect": "{{ task.product }}"},
          "short": {"kind": "rule", "rule": "length", "max": 12, "unit": "words", "weight": 0.5}},
          "success": "named >= 1 and short >= 1",
          "prompt": {"system": text, "user": "{{ task.product }}, a {{ task.kind }}"}}
         for text in ("Write a slogan that names the product.", "Write a slogan. It has to contain the product's name.",
                      "Write a slogan, and mention the product in it.")],
    ),
}  # fmt: skip
CASES = [pytest.param(code, is_odd, at) for code, sides in RELATIONS.items()
         for is_odd, cases in zip((True, False), sides, strict=True) for at in range(len(cases))]  # fmt: skip


@pytest.mark.parametrize(("code", "is_odd", "index"), CASES)
def test_a_relation_is_said_where_it_is_broken_and_there_alone(
    tmp_path: Path, code: str, is_odd: bool, index: int
) -> None:
    given = RELATIONS[code][0 if is_odd else 1][index]
    say = [{"say": "<answer>{{ task.answer }}</answer>"}]
    spec = {"rlenv": 1, "name": "related", **rows(), **system("Answer."), "rewards": {"right": EXACT}, "oracle": say}
    spec |= given
    lines = [json.dumps(one) for one in spec.pop("documents", ())]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with sqlite3.connect(tmp_path / "shop.sqlite") as opened:
        opened.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount REAL, placed TEXT)")
        opened.executemany("INSERT INTO orders VALUES (?, 1, '')", [(1,), (2,), (3,)])
    opened.close()
    (tmp_path / "env.yaml").write_text(json.dumps({key: one for key, one in spec.items() if one is not None}), "utf-8")
    report = validate([tmp_path / "env.yaml"])
    said = {one.code: one for one in report.warnings}
    assert [str(one) for one in report.faults] == []
    assert "check-failed" not in said
    assert (code in said) is is_odd, [str(one) for one in report.warnings]
    assert not is_odd or said[code].hint
