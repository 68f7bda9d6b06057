"""Checks of data find what is planted in rows, and nothing in sound rows that look alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.checked import check_data
from rlenv.audit.report import Finding
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.oracle import OraclePolicy

Row = dict[str, Any]
Found = tuple[Sequence[Finding], Sequence[str]]
MATCH = "{kind: rule, rule: exact_match}"
WORDS = (
    "amber birch cedar delta ember frost grove heron ivory jolly karst lemon mango north ochre pearl quartz raven "
    "slate thorn umber vapor wheat xenon yeast zebra acorn blaze cloud drift eagle flint globe hazel inlet jewel knoll "
    "lilac maple nylon olive plume quill ridge spoke torch urban vinyl"
).split()


def found_in(
    folder: Path,
    splits: Mapping[str, Sequence[Row]],
    *,
    rule: str = MATCH,
    prompt: str = "{{ task.question }}",
    system: str = "",
    more: str = "",
    tools: str = "",
    say: str = "<answer>{{ task.answer }}</answer>",
    call: str = "",
) -> Found:
    """What is found in an environment with these rows; `tools` is the text of a python file."""
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if tools:
        (folder / "tools.py").write_text(tools)
    lines = ["rlenv: 1", "name: planted", "tasks:"]
    lines += [f"  {split}: {{path: {split}.jsonl}}" for split in splits]
    lines += ["prompt:", f"  user: {json.dumps(prompt)}", *([f"  system: {json.dumps(system)}"] if system else [])]
    lines += [more, "rewards:", f"  correct: {rule}", "oracle:"]
    lines += [*([f"  - call: {call}"] if call else []), f"  - say: {json.dumps(say)}"]
    (folder / "env.yaml").write_text("\n".join(lines) + "\n")

    async def main() -> Found:
        async with rlenv.load(folder / "env.yaml") as environment:
            jobs = [Job(split, index, 0) for split, rows in splits.items() for index in range(len(rows))]
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            return await check_data(environment, await rollout(environment, oracle, jobs))

    return asyncio.run(main())


def holes(found: Found) -> list[str]:
    return [finding.hole for finding in found[0]]


def rows_of(count: int, make: Callable[[int], Row]) -> list[Row]:
    return [make(index) for index in range(count)]


def capital(index: int) -> Row:
    return {"question": f"Which town is the seat of {WORDS[index]}land?", "answer": f"{WORDS[-1 - index]}ville"}


def product(index: int, shown: str = "{question}") -> Row:
    one, other = 11 + 7 * index % 83, 12 + 5 * index % 61
    row = {"question": f"What is {one} times {other}?", "answer": str(one * other)}
    return row | {"question": shown.format(**row)}


# rows


def test_sound_rows_have_no_finding(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"train": rows_of(20, capital), "test": rows_of(45, capital)[20:]}) == ((), ())


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
    more = 'resources: {files: {kind: tempdir, copy_from: "{{ task.sheet }}"}}'
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


def claims(count: int, answers: Callable[[int], str]) -> list[Row]:
    return rows_of(count, lambda index: {"question": f"Does {WORDS[index]} float?", "answer": answers(index)})


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


def test_a_column_of_several_kinds_is_a_note(tmp_path: Path) -> None:
    rows = [row | {"year": 1990 if index % 2 else "1990"} for index, row in enumerate(rows_of(20, capital))]
    findings, notes = found_in(tmp_path, {"train": rows})
    assert findings == ()
    assert "column 'year' of split 'train' is not of one kind" in notes[0]


# golds that stand where nobody has to read the question


@pytest.mark.parametrize(
    "shown",
    [
        "{question} (ref: {answer})",
        "Task {answer}: {question}",
        "[{answer}] {question}",
        "{question}\n\nid: q-{answer}-x",
        "{question}\nchecksum 00{answer}",
        "{question}\nbatch {answer}00",
    ],
)
def test_a_number_that_the_prompt_gives_away_is_named(tmp_path: Path, shown: str) -> None:
    (finding,) = found_in(tmp_path, {"train": rows_of(30, lambda index: product(index, shown))})[0]
    assert finding.hole == "gold_in_prompt"
    assert "(by chance " in finding.message


@pytest.mark.parametrize("where", ["prompt", "system"])
def test_a_short_gold_that_an_identifier_shows_is_named(tmp_path: Path, where: str) -> None:
    rows = rows_of(40, lambda index: claims(48, lambda at: "ABCD"[at * at % 7 % 4])[index] | {"id": f"q{index:03}"})
    shown = "Sheet {{ task.id }}{{ task.answer }}\n"
    options: Any = {"prompt": f"{shown}{{{{ task.question }}}}"} if where == "prompt" else {"system": shown}
    assert holes(found_in(tmp_path, {"train": rows}, **options)) == ["gold_in_prompt"]


@pytest.mark.parametrize(
    "shown",
    [
        "{{ 1 if task.answer == 'yes' else 0 }}",
        "{{ task.answer[:1] }}",
        "{{ task.answer[::-1] }}",
        "{{ task.answer | upper }}",
    ],
)
def test_a_flag_that_says_yes_or_no_is_named(tmp_path: Path, shown: str) -> None:
    rows = claims(48, lambda index: "yes" if index * 7 % 13 < 6 else "no")
    found = found_in(tmp_path, {"train": rows}, prompt="{{ task.question }}\nflag=" + shown)
    assert holes(found) == ["gold_in_prompt"]


def test_a_leak_in_one_split_alone_is_named_with_that_split(tmp_path: Path) -> None:
    leaky = rows_of(20, lambda index: product(index, "{question} (ref: {answer})"))
    (finding,) = found_in(tmp_path, {"train": rows_of(60, product)[20:], "warmup": leaky})[0]
    assert finding.hole == "gold_in_prompt"
    assert "in 'warmup'" in finding.message
    assert "in 'train'" not in finding.message


STORY = "{name} buys {n} lamps for {price} coins each and gives {m} away. {ask}"


def story(index: int) -> Row:
    row: Row = {"name": WORDS[index], "n": 3 + index * 5 % 17, "price": 2 + index * 7 % 11, "m": 1 + index * 3 % 5}
    kind = ("n", "price", "m")[index * 2 % 3]
    ask = {"n": "How many lamps are bought?", "price": "What does one cost?", "m": "How many are given away?"}[kind]
    return row | {"question": STORY.format(ask=ask, **row), "answer": str(row[kind])}


def one_story(index: int) -> Row:
    row = story(index)
    question = f"The bridge at {row['name']} was built in {1700 + 13 * index}. When was the bridge built?"
    return {"question": question, "answer": str(1700 + 13 * index)}


def passage(index: int) -> Row:
    text = f"Passage: {WORDS[index]} is {index * 7 % 90 + 5} years old and lives in {WORDS[-index]}ton."
    return {"question": f"{text} Question: how old is she?", "answer": str(index * 7 % 90 + 5)}


def reversed_word(index: int) -> Row:
    return {"question": f"Write the word {WORDS[index]} backwards.", "answer": WORDS[index][::-1]}


def digit_sum(index: int) -> Row:
    one, other = index * 3 % 5, index * 7 % 4
    return {"question": f"{index}. What is {one} plus {other}?", "answer": str(one + other)}


def larger(index: int) -> Row:
    one, other = index * 37 % 91, index * 53 % 89
    return {"question": f"Which is larger, {one} or {other}?", "answer": str(max(one, other))}


@pytest.mark.parametrize("make", [story, one_story, passage, reversed_word, digit_sum, larger, product])
def test_golds_that_stand_in_the_prompt_by_nature_or_by_chance_are_sound(
    tmp_path: Path, make: Callable[[int], Row]
) -> None:
    found = found_in(tmp_path, {"train": rows_of(40, make)})
    assert [one for one in found[0] if one.hole not in ("duplicate_rows", "constant_gold")] == []


LOOK = "tools: {look: {kind: python, function: 'tools.py:look', inject: [task], run_in: loop}}"
RESULT = 'def look(about: str, task: dict) -> str:\n    """Looks something up."""\n    return f"{expression}"\n'


def looked(folder: Path, expression: str, *, head: str = RESULT, call: str = "", rows: Sequence[Row] = ()) -> list[str]:
    some = rows or rows_of(40, product)
    text = head.replace("{expression}", expression)
    # A folder of its own for each: a python file is imported once.
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    return holes(found_in(folder, {"train": some}, more=LOOK, tools=text, call=call))


def test_a_tool_that_gives_the_gold_to_whatever_is_asked_is_named(tmp_path: Path) -> None:
    assert looked(tmp_path, "sheet-{task['answer']}.txt, other.txt") == ["gold_in_result"]


def test_an_error_that_gives_the_gold_is_named(tmp_path: Path) -> None:
    head = (
        "from rlenv.errors import ToolFailed\n\n\n"
        'def look(about: str, task: dict) -> str:\n    """Looks up."""\n    raise ToolFailed(f"{expression}")\n'
    )
    assert looked(tmp_path, "expected {task['answer']}, found {about}", head=head) == ["gold_in_error"]
    assert looked(tmp_path, "{task['question'][:7]}: found {about}", head=head) == []


def test_a_call_without_arguments_that_the_oracle_makes_on_every_row_is_the_task(tmp_path: Path) -> None:
    head = 'def look(task: dict) -> str:\n    """Looks at the scales."""\n    return f"{expression}"\n'
    assert looked(tmp_path, "The scales show {task['answer']}", head=head, call="{look: {}}") == []
    assert looked(tmp_path, "The scales show {task['answer']}", head=head) == ["gold_in_result"]


def test_small_numbers_in_what_tools_say_are_chance(tmp_path: Path) -> None:
    rows = rows_of(40, lambda index: {"question": f"How often {WORDS[index]}?", "answer": str(index * index % 5)})
    assert looked(tmp_path, "{len(task['question'])} of 3, {len(task['question']) % 5} left", rows=rows) == []


def test_several_values_among_which_the_question_chooses_are_sound(tmp_path: Path) -> None:
    rows = [
        story(index) | {"question": f"{story(index)['question'].rpartition('. ')[2]} {index}"} for index in range(40)
    ]
    assert looked(tmp_path, "lamps: {task['n']}, price: {task['price']}, given: {task['m']}", rows=rows) == []


def test_a_description_that_says_the_golds_is_named(tmp_path: Path) -> None:
    said = "; ".join(f"{WORDS[index]}land: {capital(index)['answer']}" for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up. {said}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == ["gold_in_tool"]


def test_a_description_that_lists_what_there_is_says_nothing_of_a_row(tmp_path: Path) -> None:
    towns = sorted(capital(index)["answer"] for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up {", ".join(towns)}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == []
    lands = ", ".join(f"{WORDS[index]}land" for index in range(20))
    head = f'def look(about: str, task: dict) -> str:\n    """Looks up one of {lands}."""\n    return "nothing"\n'
    assert looked(tmp_path, "", head=head, rows=rows_of(20, capital)) == []
