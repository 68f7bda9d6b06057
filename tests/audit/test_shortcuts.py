"""Tests that a prompt shows, and rows whose form says the answer."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.data import DataFindings, read_rows
from rlenv.audit.run import audit
from rlenv.audit.shortcuts import check_tests
from tests.support.planted import WORDS, Row, plant, rows_of

pytestmark = pytest.mark.sandbox
HEAD = "rlenv: 1\nname: coded\ntasks: {train: {rows: ROWS}}\nprompt: {user: PROMPT}\nanswer: {from: final_message}\n"
SAY = '\noracle:\n  - say: "```python\\n{{ task.code }}\\n```"\n'


def found_in(folder: Path, rows: list[dict[str, Any]], prompt: str, term: str) -> tuple[list[str], list[str]]:
    """The names of the findings, and the notes."""
    text = HEAD.replace("ROWS", json.dumps(rows)).replace("PROMPT", json.dumps(prompt))
    (folder / "env.yaml").write_text(f"{text}rewards: {{passes: {term}}}{SAY}")
    environment = rlenv.load(folder / "env.yaml")
    found = DataFindings([], [])
    check_tests(environment, read_rows(environment, {"train": []}, found.notes), found)
    return [one.hole for one in found.findings], found.notes


def row(number: int, **more: Any) -> dict[str, Any]:
    """A row about the least and the largest of numbers."""
    lists = [[number + one * 7 % 5, number * 3 - one, -one] for one in range(4)]
    tests = [{"args": [one], "expected": max(one) - min(one)} for one in lists]
    return {"n": number, "code": "def spread(xs):\n    return max(xs) - min(xs)", "tests": tests, **more}


ROWS = [row(number) for number in range(11, 19)]
CALLS = '{kind: tests, entry: spread, calls: "{{ task.tests }}"}'
"""Each test a call."""


@pytest.mark.parametrize(
    "shown",
    [
        "spread({{ t.args[0] | tojson }}) -> {{ t.expected }}",
        ">>> spread({{ t.args[0] }})\n{{ t.expected }}",
        "Input: xs = {{ t.args[0] }}\nOutput: {{ t.expected }}",
        "For {{ t.args[0] | tojson }} it returns {{ t.expected }}.",
        "assert spread({{ t.args[0] }})=={{ t.expected }}",
    ],
)
def test_a_prompt_that_shows_every_test_is_found(tmp_path: Path, shown: str) -> None:
    prompt = f"Write spread(xs).\n{{% for t in task.tests %}}{shown}\n{{% endfor %}}"
    holes, _ = found_in(tmp_path, ROWS, prompt, CALLS)
    assert holes == ["tests_in_prompt"]


@pytest.mark.parametrize(
    "prompt",
    [
        "Write spread(xs), such as spread({{ task.tests[0].args[0] }}) == {{ task.tests[0].expected }}.",
        "Write spread(xs).{% for t in task.tests[:2] %} spread({{ t.args[0] }}) == {{ t.expected }}{% endfor %}",
        "Write spread(xs). It is tried on{% for t in task.tests %} {{ t.args[0] }}{% endfor %}.",
        "Write spread(xs).{% for t in task.tests %} spread({{ t.args[0] }}) == {{ t.expected + 10 }}{% endfor %}",
        "Write spread(xs).{% for t in task.tests %} spread({{ t.args[0] }}) == {{ t.expected }}7{% endfor %}",
    ],
)
def test_examples_that_are_some_of_the_tests_or_others_are_sound(tmp_path: Path, prompt: str) -> None:
    assert found_in(tmp_path, ROWS, prompt, CALLS) == ([], [])


PROGRAM = "def check(candidate):\n    assert candidate({a}) == {b}\n    assert candidate({c}) == {d}\n    assert {e}\n"


def programs(*, hidden: bool) -> list[dict[str, Any]]:
    """Rows as HumanEval has them: examples in a docstring, and a program of assertions."""
    rows = []
    for number in range(3, 11):
        doc = f"def twice(x):\n    \"\"\"\n    >>> twice({number})\n    {2 * number}\n    >>> twice('a')\n    'aa'\n"
        doc += '    >>> twice(True)\n    2\n    """\n'
        third = f"candidate({number * 11}) == {number * 22}" if hidden else "candidate(True) == 2"
        test = PROGRAM.format(a=number, b=2 * number, c='"a"', d="'aa'", e=third)
        rows.append({"prompt": doc, "test": test, "code": "def twice(x):\n    return x * 2"})
    return rows


@pytest.mark.parametrize("hidden", [True, False])
def test_a_program_counts_where_all_that_it_asserts_is_shown(tmp_path: Path, hidden: bool) -> None:
    term = '{kind: tests, names: [twice], programs: "{{ task.test }}\\ncheck(twice)"}'
    holes, _ = found_in(tmp_path, programs(hidden=hidden), "Complete this.\n{{ task.prompt }}", term)
    assert holes == ([] if hidden else ["tests_in_prompt"])


@pytest.mark.parametrize("count", [1, 3])
def test_inputs_and_outputs_of_a_program_count_too(tmp_path: Path, count: int) -> None:
    rows = [
        {
            "code": "print(1)",
            "io": {"inputs": [f"{n} {i}\n" for i in (2, 5, 9)], "outputs": [f"{n * i}" for i in (2, 5, 9)]},
        }
        for n in range(21, 27)
    ]
    shown = "\nInput\n{{ task.io.inputs[i] }}Output\n{{ task.io.outputs[i] }}"
    prompt = f"Multiply.{{% for i in range(COUNT) %}}{shown}{{% endfor %}}"
    term = '{kind: tests, stdin: "{{ task.io }}"}'
    holes, _ = found_in(tmp_path, rows, prompt.replace("COUNT", str(count)), term)
    assert holes == (["tests_in_prompt"] if count == 3 else [])


def test_one_row_of_many_is_a_note(tmp_path: Path) -> None:
    rows = [row(number, shown=number == 40) for number in range(11, 61)]
    shown = "{% for t in task.tests %}\nspread({{ t.args[0] }}) == {{ t.expected }}{% endfor %}"
    prompt = f"spread{{% if task.shown %}}{shown}{{% endif %}}"
    holes, notes = found_in(tmp_path, rows, prompt, CALLS)
    assert holes == []
    assert any("1 of 50 rows" in note for note in notes)


def options(index: int, *, longer: bool) -> Row:
    rng = random.Random(index)
    texts = [f"{one} {other}" for one, other in zip(rng.sample(WORDS, 4), rng.sample(WORDS, 4), strict=True)]
    right = rng.randrange(4)
    texts[right] += " and its wide northern valley" if longer else ""
    listed = " ".join(f"{letter}) {text}" for letter, text in zip("ABCD", texts, strict=True))
    return {"question": f"What does note {index} speak of? {listed}", "answer": "ABCD"[right]}


def claim(index: int, *, marked: bool) -> Row:
    rng = random.Random(f"claim {index}")
    is_so = rng.random() < 0.5
    mark = "!?" if marked and is_so else "?"
    asked = f"Does {rng.choice(WORDS)} {rng.randrange(1000)} float{mark}"
    return {"question": asked, "answer": "yes" if is_so else "no"}


def in_turns(index: int, *, denied: bool) -> Row:
    said = "was never" if denied and index % 2 else "was"
    asked = f"The {WORDS[index % 40]} {said} kept in hall {random.Random(index).randrange(1000)}."
    return {"question": asked, "answer": "false" if index % 2 else "true"}


def instructed(index: int) -> Row:
    row = options(index, longer=True)
    return row | {"question": f"{row['question']}\nAnswer with a letter."}


def counted(index: int) -> Row:
    word = random.Random(index).choice(WORDS) * (1 + index % 2)
    return {"question": f"How many letters has {word}: more than six?", "answer": "yes" if len(word) > 6 else "no"}


def named(index: int, *, first: bool) -> Row:
    """Two towns in a sentence; on every tenth row one of two words, which is read as none."""
    one, other = f"{WORDS[index % 40].title()}", f"{WORDS[(index * 7 + 3) % 40].title()}x"
    asked = f"Which town is older, {one} or {'New ' if index % 10 == 9 else ''}{other}?"
    return {"question": asked, "answer": one if first or random.Random(index).random() < 0.5 else other}


def ticket(index: int, *, step: int) -> Row:
    """A desk by the number of the row, which the prompt shows in steps of so many."""
    asked = f"Ticket {700 + step * index}: the {random.Random(index).choice(WORDS)} is gone."
    return {"question": asked, "answer": ("billing", "press", "sales", "legal", "crew")[index % 5]}


def item(index: int, *, turns: int) -> Row:
    """A question in words of form, whose answers take turns; or one about the number itself."""
    asked = f"Item {index + 1}: does the {random.Random(index).choice(WORDS)} have more doors than the first?"
    own = f"Does {index + 1} leave more than nothing when divided by two?"
    return {"question": asked if turns else own, "answer": ("yes", "no")[index % 2]}


def coded(index: int, *, told: bool) -> Row:
    """A desk, whose letters begin the number of the ticket or those of any other."""
    desks = ("billing", "press", "sales", "legal", "crew")
    desk, other = desks[index * 7 % 11 % 5], desks[index * 5 % 13 % 5]
    code = f"{(desk if told else other)[:3].upper()}-{index * 37 % 89}"
    asked = f"Ticket {code}: the {random.Random(index).choice(WORDS)} is gone."
    return {"question": asked, "answer": desk}


def gap(index: int, *, fixed: bool) -> Row:
    words = random.Random(index).sample(["sun", "snow", "cloud", "autumn", "thunder", "blizzard"], 4)
    marks = "_" * (5 if fixed else len(words[0]))
    listed = ", ".join(sorted(words))
    return {
        "question": f"After the {marks} it was calm.\nWords: {listed}",
        "answer": words[0],
        "options": sorted(words),
    }


def ranked(index: int, *, place: int | None, asked: str = "How many {}s came?") -> Row:
    """The answer is a number of the text by its size, or any of them."""
    rng = random.Random(index)
    numbers = rng.sample(range(100, 1_000), 4)
    words = rng.sample(WORDS, 4)
    at = rng.randrange(4) if place is None else numbers.index(sorted(numbers)[place])
    said = " ".join(f"{number} {word}s came." for number, word in zip(numbers, words, strict=True))
    return {"question": f"{said} {asked.format(words[at])}", "answer": str(numbers[at])}


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda index: ranked(index, place=-2), True),
        (lambda index: ranked(index, place=None), False),
        (lambda index: ranked(index, place=-1, asked="How many came at most of one kind?"), False),
        (lambda index: ticket(index, step=1), True),
        (lambda index: ticket(index, step=6), False),
        (lambda index: item(index, turns=2), True),
        (lambda index: item(index, turns=0), False),
        (lambda index: coded(index, told=True), True),
        (lambda index: coded(index, told=False), False),
        (lambda index: gap(index, fixed=False), True),
        (lambda index: gap(index, fixed=True), False),
        (lambda index: named(index, first=True), True),
        (lambda index: named(index, first=False), False),
        (lambda index: options(index, longer=True), True),
        (lambda index: options(index, longer=False), False),
        (lambda index: claim(index, marked=True), True),
        (lambda index: claim(index, marked=False), False),
        (lambda index: in_turns(index, denied=True), True),
        (lambda index: in_turns(index, denied=False), False),
        (instructed, True),
        (counted, False),
    ],
    ids=[
        "the second largest number",
        "numbers of any size",
        "a question about size",
        "a count of the rows",
        "a number that counts nothing",
        "a count beside words of form",
        "a count that is asked about",
        "letters of a number",
        "letters that say nothing",
        "a gap as long as its word",
        "a gap of one length",
        "the town that is named first",
        "towns in any order",
        "the longest option",
        "options alike",
        "a mark",
        "no mark",
        "never",
        "in turns",
        "how to answer",
        "a question about length",
    ],
)
def test_what_the_form_of_a_question_gives_away_is_a_shortcut(tmp_path: Path, make: object, found: bool) -> None:
    assert callable(make)
    path = plant(tmp_path, {"train": rows_of(60, make)})

    async def main() -> list[str]:
        async with rlenv.load(path) as environment:
            return [one.hole for one in (await audit(environment, tasks=12)).findings]

    assert ("shortcut" in asyncio.run(main())) == found
