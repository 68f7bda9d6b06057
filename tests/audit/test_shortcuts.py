"""Answers that the form of a question or of an option gives away, learnt on some rows and held on the others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.run import audit
from tests.support.planted import WORDS, Row, plant, rows_of


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


def numbered(index: int) -> Row:
    number = 7 * index + 3
    return {
        "question": f"Task {number}: which flag has {WORDS[index % 40]}?",
        "answer": "red blue green".split()[number % 3],
    }


def instructed(index: int) -> Row:
    row = options(index, longer=True)
    return row | {"question": f"{row['question']}\nAnswer with a letter."}


def counted(index: int) -> Row:
    word = random.Random(index).choice(WORDS) * (1 + index % 2)
    return {"question": f"How many letters has {word}: more than six?", "answer": "yes" if len(word) > 6 else "no"}


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda index: options(index, longer=True), True),
        (lambda index: options(index, longer=False), False),
        (lambda index: claim(index, marked=True), True),
        (lambda index: claim(index, marked=False), False),
        (lambda index: in_turns(index, denied=True), True),
        (lambda index: in_turns(index, denied=False), False),
        (numbered, True),
        (instructed, True),
        (counted, False),
    ],
    ids=[
        "the longest option",
        "options alike",
        "a mark",
        "no mark",
        "never",
        "in turns",
        "a number",
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
