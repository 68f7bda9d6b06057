"""Checks of data find what is planted in rows, and nothing in sound rows that look alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.data import check_data
from rlenv.audit.golds import canonical_json
from rlenv.audit.report import Hole
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import OraclePolicy
from tests.support.planted import WORDS, Row, capital, claims, plant, rows_of

Found = tuple[Sequence[Hole], Sequence[str]]
MATCH = "{kind: rule, rule: exact_match}"


def found_in(folder: Path, splits: Mapping[str, Sequence[Row]], **written: str) -> Found:
    """What is found in an environment with these rows."""
    path = plant(folder, splits, **written)

    async def main() -> Found:
        async with rlenv.load(path) as environment:
            jobs = [Job(split, index, 0) for split, rows in splits.items() for index in range(len(rows))]
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            return check_data(environment, await rollout(environment, oracle, jobs))

    return asyncio.run(main())


def holes(found: Found) -> list[str]:
    return [finding.hole for finding in found[0]]


# rows


def test_sound_rows_have_no_finding(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"train": rows_of(20, capital), "test": rows_of(45, capital)[20:]}) == ((), ())


def test_rows_that_offer_other_tools_are_other_tasks(tmp_path: Path) -> None:
    rows = [row | {"tools": [f"t{number}"]} for number, row in enumerate([rows_of(1, capital)[0]] * 12)]
    twelve = " ".join(f"t{one}: {{kind: calculator, offered: '{{{{ task.tools }}}}'}}," for one in range(12))
    found = found_in(tmp_path, {"train": rows}, more=f"tools: {{{twelve}}}")
    assert not {"duplicate_rows", "few_questions"} & set(holes(found))


def test_rows_with_keys_of_several_kinds_are_compared(tmp_path: Path) -> None:
    assert canonical_json({"a": {1: 2, "b": None}}) == canonical_json({"a": {1: 2, "b": None}})
    assert canonical_json({"b": 1, "a": 2}) == canonical_json({"a": 2, "b": 1})


def test_rows_that_occur_twice_are_named(tmp_path: Path) -> None:
    rows = rows_of(20, capital)
    rows[7] = rows[2] | {"question": rows[2]["question"].upper().replace(" ", "  ")}
    (finding,) = found_in(tmp_path, {"test": rows})[0]
    assert finding.hole == "duplicate_rows"
    assert "test/7 is test/2" in finding.message


def test_one_repeat_in_hundreds_of_rows_is_a_note(tmp_path: Path) -> None:
    rows = rows_of(150, lambda index: {"question": f"Say {index}{WORDS[index % 40]}", "answer": f"{index * 31 % 997}x"})
    findings, notes = found_in(tmp_path, {"test": [*rows, rows[3]]})
    assert findings == ()
    assert "test/150 is test/3" in notes[0]


def test_train_rows_in_test_are_named(tmp_path: Path) -> None:
    rows = rows_of(30, capital)
    (finding,) = found_in(tmp_path, {"train": rows[:20], "test": [*rows[20:], rows[4]]})[0]
    assert finding.hole == "split_overlap"
    assert "test/10 is train/4" in finding.message


def test_a_warm_up_on_training_rows_is_a_note(tmp_path: Path) -> None:
    rows = rows_of(30, capital)
    findings, notes = found_in(tmp_path, {"train": rows, "warmup": rows[:5]})
    assert findings == ()
    assert "stand in 'train' too" in notes[0]


def test_golds_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    rows = rows_of(20, capital)
    rows[9] = rows[3] | {"answer": "elsewhere"}
    (finding,) = found_in(tmp_path, {"train": rows})[0]
    assert finding.hole == "contradictory_golds"
    assert "train/3 and train/9" in finding.message


DATABASE = """
tools: {read: {kind: python, function: "tools.py:read", inject: [task], run_in: loop}}
"""
READ = 'def read(task: dict) -> str:\n    """Reads the sheet."""\n    return " ".join(map(str, task["sheet"]))\n'


def test_one_prompt_over_different_data_is_no_contradiction(tmp_path: Path) -> None:
    def row(index: int) -> Row:
        return {"question": "How many sheets are there?", "sheet": [index, 3 * index], "answer": str(index % 7)}

    findings, notes = found_in(tmp_path, {"train": rows_of(20, row)}, more=DATABASE, tools=READ, call="{read: {}}")
    assert findings == ()
    assert "other data" in notes[0]


def test_one_prompt_over_two_databases_is_no_contradiction_and_a_column_that_nobody_reads_is_no_data(
    tmp_path: Path,
) -> None:
    more = 'resources: {files: {kind: tempdir, path: "{{ task.sheet }}"}}'
    for index in range(10):
        (tmp_path / f"s{index}").mkdir()
    rows = rows_of(
        10, lambda index: {"question": "How many?", "sheet": f"s{index}", "id": index, "answer": f"g{index}"}
    )
    assert holes(found_in(tmp_path, {"train": rows}, more=more)) == []
    assert holes(found_in(tmp_path, {"train": rows})) == ["contradictory_golds"]


def test_accepted_answers_in_common_are_no_contradiction(tmp_path: Path) -> None:
    rows = [*rows_of(20, capital)]
    rows[9] = rows[3] | {"answer": [rows[3]["answer"], "elsewhere"]}
    found = found_in(
        tmp_path, {"train": rows}, say="<answer>{{ task.answer if task.answer is string else task.answer[0] }}</answer>"
    )
    assert "contradictory_golds" not in holes(found)


# golds


@pytest.mark.parametrize(
    ("gold", "rule"),
    [
        ("", MATCH),
        ("  ", MATCH),
        ("the", "{kind: rule, rule: exact_match, normalise: qa}"),
        ("!?", "{kind: rule, rule: f1}"),
        ("A", "{kind: rule, rule: search_r1, expect: '{{ task.answer }}'}"),
    ],
)
def test_a_gold_that_nothing_is_left_of_is_named(tmp_path: Path, gold: str, rule: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["answer"] = gold
    (finding,) = found_in(tmp_path, {"train": rows}, rule=rule)[0]
    assert (finding.hole, finding.term) == ("empty_gold", "correct")
    assert "train/5" in finding.message


@pytest.mark.parametrize("gold", ["the", "A", "!?"])
def test_a_short_gold_is_sound_where_the_term_keeps_it(tmp_path: Path, gold: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["answer"] = gold
    assert found_in(tmp_path, {"train": rows})[0] == ()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("golds", "rule"),
    [
        (["twelve", "3", "4"], "{kind: rule, rule: numeric_match}"),
        (["1.234,5", "3", "4"], "{kind: rule, rule: numeric_match}"),
        (
            ["SELEC a FRM b WHERE (", "SELECT 2", "SELECT 3"],
            "{kind: rule, rule: sql_match, expect: '{{ task.answer }}'}",
        ),
        (['{"a": 1', '{"a": 2}', '{"a": 3}'], "{kind: rule, rule: json_match}"),
        (["\\frac{1}{", "\\frac{1}{2}", "x^2"], "{kind: rule, rule: math_equal}"),
    ],
)
def test_a_gold_that_its_rule_cannot_read_is_named(tmp_path: Path, golds: list[str], rule: str) -> None:
    rows = [{"question": f"Q {WORDS[index]}", "answer": gold} for index, gold in enumerate(golds)]
    (finding,) = found_in(tmp_path, {"train": rows}, rule=rule)[0]
    assert finding.hole == "unreadable_gold"
    assert "train/0" in finding.message
    assert "train/1" not in finding.message


@pytest.mark.parametrize("golds", [["1,234", "$5", "45%", "-3"], ["1e3", "0.5", ".5", "7"]])
def test_numbers_in_their_usual_forms_are_read(tmp_path: Path, golds: list[str]) -> None:
    rows = [{"question": f"Q {WORDS[index]}", "answer": gold} for index, gold in enumerate(golds)]
    assert found_in(tmp_path, {"train": rows}, rule="{kind: rule, rule: numeric_match}")[0] == ()


@pytest.mark.parametrize(("one", "other"), [("-5", "5"), ("C++", "C"), ("1.5", "15")])
def test_golds_that_a_normaliser_makes_one_are_named(tmp_path: Path, one: str, other: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["answer"], rows[6]["answer"] = one, other
    rule = "{kind: rule, rule: exact_match, normalise: qa}"
    assert holes(found_in(tmp_path, {"train": rows}, rule=rule)) == ["merged_golds"]


@pytest.mark.parametrize(
    ("one", "other"), [("U.S.", "US"), ("The Beatles", "beatles"), ("O'Neil", "ONeil"), ("5%", "5")]
)
def test_spellings_that_a_normaliser_is_for_are_sound(tmp_path: Path, one: str, other: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["answer"], rows[6]["answer"] = one, other
    rule = "{kind: rule, rule: exact_match, normalise: qa}"
    assert holes(found_in(tmp_path, {"train": rows}, rule=rule)) == []


def test_a_gold_that_most_rows_share_is_named(tmp_path: Path) -> None:
    assert holes(found_in(tmp_path, {"train": claims(40, lambda index: "yes" if index % 5 == 0 else "no")})) == [
        "constant_gold"
    ]
    assert holes(found_in(tmp_path, {"train": claims(12, lambda _: "no")})) == ["constant_gold"]


def test_balanced_answers_and_a_gold_that_is_merely_frequent_are_sound(tmp_path: Path) -> None:
    assert holes(found_in(tmp_path, {"train": claims(40, lambda index: "yes" if index % 2 else "no")})) == []
    assert holes(found_in(tmp_path, {"train": claims(40, lambda index: "yes" if index * 7 % 13 < 7 else "no")})) == []
    assert holes(found_in(tmp_path, {"train": claims(40, lambda index: "0" if index % 3 == 0 else f"{index}")})) == []


CHOICE = "{{ task.question }}\n{% for one in task.options %}{{ one }}\n{% endfor %}"


def choice(index: int, place: int) -> Row:
    options = [f"{WORDS[(5 * index + at) % 48]}" for at in range(4)]
    return {"question": f"Which of these is number {index}?", "options": options, "answer": options[place]}


def test_a_gold_that_is_no_option_is_named(tmp_path: Path) -> None:
    rows = rows_of(20, lambda index: choice(index, index * 3 % 4))
    rows[4]["answer"] = "another"
    (finding,) = found_in(tmp_path, {"train": rows}, prompt=CHOICE)[0]
    assert finding.hole == "gold_not_in_options"
    assert "train/4" in finding.message


def test_a_gold_that_is_always_the_first_option_is_named(tmp_path: Path) -> None:
    assert holes(found_in(tmp_path, {"train": rows_of(20, lambda index: choice(index, 0))}, prompt=CHOICE)) == [
        "option_position"
    ]
    rows = rows_of(20, lambda index: choice(index, 1) | {"answer": "B"})
    assert holes(found_in(tmp_path, {"train": rows}, prompt=CHOICE)) == ["option_position"]


def test_golds_at_changing_places_are_sound(tmp_path: Path) -> None:
    rows = rows_of(24, lambda index: choice(index, index * 3 % 4))
    assert holes(found_in(tmp_path, {"train": rows}, prompt=CHOICE)) == []
    letters = rows_of(24, lambda index: choice(index, 0) | {"answer": "ABCD"[index * 3 % 4]})
    assert holes(found_in(tmp_path, {"train": letters}, prompt=CHOICE)) == []


# texts


@pytest.mark.parametrize("text", ["CafÃ© noir", "it â€™ s", "a\x00b", "b\ufffd"])
def test_broken_texts_are_named(tmp_path: Path, text: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["question"] += text
    (finding,) = found_in(tmp_path, {"train": rows})[0]
    assert finding.hole == "broken_text"
    assert "train/5" in finding.message


@pytest.mark.parametrize("text", ["São Paulo é", "SÃO PAULO", "“q” – ’n", "naïve ÅÄÖ", "東京 тест", "a\tb\nc"])
def test_texts_of_other_languages_are_sound(tmp_path: Path, text: str) -> None:
    rows = rows_of(20, capital)
    rows[5]["question"] += text
    assert found_in(tmp_path, {"train": rows})[0] == ()


def test_a_missing_value_that_the_prompt_shows_is_named(tmp_path: Path) -> None:
    rows = [row | {"unit": "km"} for row in rows_of(20, capital)]
    rows[3]["unit"] = None
    prompt = "{{ task.question }} In {{ task.unit }}."
    (finding,) = found_in(tmp_path, {"train": rows}, prompt=prompt)[0]
    assert finding.hole == "missing_values"
    assert "train/3" in finding.message
    guarded = "{{ task.question }}{% if task.unit %} In {{ task.unit }}.{% endif %}"
    assert found_in(tmp_path, {"train": rows}, prompt=guarded)[0] == ()
