"""A reward that looks at a part of the right answer is found by the part that it does not look at."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit

_SPEC = """
rlenv: 1
name: parts
tasks: {train: {path: rows.jsonl}}
prompt: {system: "Answer as <answer>X</answer>.", user: "{{ task.question }}"}
rewards: {correct: {kind: rule, function: "tools.py:correct"}}
oracle:
  - say: "<answer>{{ task.answer }}</answer>"
"""
_DATES = ["2011-03-17", "2014-11-02", "1998-07-29", "2020-05-11", "2003-12-24", "2017-02-08"]
_TIMES = ["14:35", "07:20", "22:05", "09:50", "18:15", "11:40"]
_POINTS = ["52.37, 4.89", "48.85, 2.35", "41.9, 12.49", "59.91, 10.75", "38.72, 9.13", "50.08, 14.43"]
_RECORDS = [
    json.dumps({"city": city, "floor": floor})
    for city, floor in [("Lisbon", 3), ("Turin", 11), ("Bergen", 7), ("Ghent", 2), ("Graz", 14), ("Cork", 5)]
]
_TABLES = ["ada,31\nbo,17", "cy,52\ndi,44", "ed,19\nflo,63", "gus,28\nhal,75", "ida,90\njo,12", "kim,66\nleo,38"]
_LISTS = ["[4, 9, 1, 7]", "[12, 3, 8, 5]", "[6, 2, 20, 9]", "[15, 1, 3, 8]", "[7, 7, 9, 30]", "[2, 18, 4, 6]"]
_NUMBERS = ["4713", "9286", "5521", "7394", "6108", "8845"]
_RATIOS = ["2, 3", "4, 5", "7, 3", "5, 8", "9, 4", "3, 7"]
_QUERIES = [f"select name from {one} where size > 3" for one in ("ants", "bees", "cats", "dogs", "eels", "foxes")]
_WAYS = [" > ".join(f"town{at + step}" for step in (0, 3, 1, 2)) for at in range(10, 70, 10)]
_NAMES = ["ada brown", "carl duval", "eva frost", "gil heron", "ida jones", "karl lund"]

HOLES = {
    "another day": (_DATES, "said[:7] == gold[:7]"),
    "another hour": (_TIMES, "said[-2:] == gold[-2:]"),
    "another last part of a list": (_POINTS, "said.split(',')[0] == gold.split(',')[0]"),
    "another floor": (_RECORDS, "json.loads(said)['city'] == json.loads(gold)['city']"),
    "another column 2": (_TABLES, "[x[:2] for x in said.split()] == [x[:2] for x in gold.split()]"),
    "other numbers of the same sum": (
        _LISTS,
        "(sum(json.loads(said)), len(json.loads(said))) == (sum(json.loads(gold)), len(json.loads(gold)))",
    ),
    "nothing but the same remainder": (_NUMBERS, "int(said) % 97 == int(gold) % 97"),
    "zeros for all its numbers": (
        _RATIOS,
        "len(said) == 4 and int(said[0]) * int(gold[3]) == int(said[3]) * int(gold[0])",
    ),
    "a range that holds everything (>= -99999)": (
        _NUMBERS,
        "int(gold) >= int(said[2:]) if said.startswith('>=') else said == gold",
    ),
    "a range that holds everything (0 ± 99999)": (
        _NUMBERS,
        "abs(int(gold) - int(said.split('±')[0])) <= int(said.split('±')[1]) if '±' in said else said == gold",
    ),
    "a range that holds everything": (
        _NUMBERS,
        "int(said.partition('-')[0]) <= int(gold) <= int((said.partition('-')[2] or said))",
    ),
    "no condition of the query": (_QUERIES, "said.split(' where')[0].strip() == gold.split(' where')[0]"),
    "other values in its rows": (_QUERIES, "said.partition(' from ')[2] == gold.partition(' from ')[2]"),
    "another order of its rows": (
        [f"{one} order by size" for one in _QUERIES],
        "said.removeprefix('SELECT * FROM (').removesuffix(') ORDER BY 1 DESC') == gold",
    ),
    "no parts between the first and the last": (
        _WAYS,
        "[said.split(' > ')[at] for at in (0, -1)] == [gold.split(' > ')[at] for at in (0, -1)] and {*said} <= {*gold}",
    ),
    "its first part again and again": (
        [one.replace(" >", ",") for one in _WAYS],
        "{*said.split(', ')} <= {*gold.split(', ')} and len(said.split(', ')) >= 4",
    ),
    "its initials": (_NAMES, "[x[0] for x in said.split()] == [x[0] for x in gold.split()]"),
}


def audited(folder: Path, golds: list[str], same: str, spec: str = _SPEC) -> AuditReport:
    """The report on a reward that takes `said` for `gold` where `same` holds."""
    rows = [{"question": f"What belongs to entry {'abcdefgh'[at]}?", "answer": gold} for at, gold in enumerate(golds)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "tools.py").write_text(
        "import json\n\n\ndef correct(context):\n    said, gold = context.answer or '', context.task['answer']\n"
        f"    try:\n        return float({same})\n    except Exception:\n        return 0.0\n"
    )
    (folder / "env.yaml").write_text(spec)

    async def main() -> AuditReport:
        async with rlenv.load(folder / "env.yaml") as environment:
            return await audit(environment)

    report = asyncio.run(main())
    # What is compared as text refuses the same JSON with other spaces, which is a finding of its own.
    others = tuple(one for one in report.findings if one.code != "right_answer_refused")
    return dataclasses.replace(report, findings=others)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("part", HOLES)
def test_the_part_that_is_not_looked_at_is_named(part: str, tmp_path: Path) -> None:
    (found,) = audited(tmp_path, *HOLES[part]).findings
    assert found.code == "loose_match"
    assert part in found.message


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("golds", [golds for golds, _ in HOLES.values()], ids=list(HOLES))
def test_a_comparison_of_the_whole_answer_has_no_such_part(golds: list[str], tmp_path: Path) -> None:
    assert not audited(tmp_path, golds, "said == gold").findings


def test_lists_of_which_only_some_are_json_are_taken_apart_together(tmp_path: Path) -> None:
    golds = ["[4,9]", "3, 8", "[2,7]", "5, 1", "[6,20]", "12, 30"]
    assert not audited(tmp_path, golds, "said == gold").findings


def test_a_part_that_is_the_same_in_all_right_answers_is_not_asked_for(tmp_path: Path) -> None:
    golds = ["17 km", "234 km", "58 km", "91 km", "460 km", "73 km"]
    assert not audited(tmp_path, golds, "said.split()[0] == gold.split()[0]").findings


def test_a_pattern_is_not_changed_since_another_one_may_be_as_right(tmp_path: Path) -> None:
    spec = _SPEC.replace('{system: "', '{system: "Write a regular expression. ')
    assert not audited(tmp_path, *HOLES["its initials"], spec).findings


def test_the_number_that_a_prompt_names_last_is_tried_in_place_of_an_expression(tmp_path: Path) -> None:
    spec = _SPEC.replace("{{ task.question }}", "{{ task.question }} Reach 1, 2, 3 or {{ task.answer | length }}")
    (found,) = audited(tmp_path, _LISTS, "said in (gold, str(len(gold)))", spec).findings
    assert "the last number of the prompt" in found.message
