"""Puzzles that are made at random, with their answers, in reasoning-gym's form."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from generators.rows import jsonl

__all__ = ["files"]

WORDS = (
    "amber basin cedar delta ember fable grove haven island jungle kettle lantern meadow needle orchard pepper quiver "
    "ribbon saddle temple umbrella velvet willow yellow zephyr"
).split()
NAMES = ("Ada", "Boris", "Clara", "Dario", "Elin", "Felix", "Gita", "Hugo", "Irma", "Jamal", "Kira", "Luca")
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")

Puzzle = tuple[str, str, dict[str, Any]]
"""A question, its answer, and what the check needs."""


def _chain_sum(rng: random.Random, difficulty: int) -> Puzzle:
    text = str(rng.randint(100, 999))
    for _ in range(2 + difficulty):
        text += f" {rng.choice('+-')} {rng.randint(10, 999)}"
    return f"What is {text}?", str(eval(text)), {}


def _letter_counting(rng: random.Random, difficulty: int) -> Puzzle:
    text = " ".join(rng.choices(WORDS, k=5 + 5 * difficulty))
    letter = rng.choice(sorted(set(text) - {" "}))
    return f'How many times does the letter "{letter}" stand in "{text}"?', str(text.count(letter)), {}


def _number_sorting(rng: random.Random, difficulty: int) -> Puzzle:
    numbers = rng.sample(range(-999, 1000), 4 + 2 * difficulty)
    asked, answer = (", ".join(map(str, one)) for one in (numbers, sorted(numbers)))
    return f"Sort these numbers from the least to the greatest, with commas between them: {asked}", answer, {}


def _ordering(rng: random.Random, difficulty: int) -> Puzzle:
    people = rng.sample(NAMES, 4 + difficulty)
    said = [f"{one} is taller than {other}." for one, other in pairwise(people)]
    at = rng.randrange(len(people))
    question = f"{' '.join(rng.sample(said, len(said)))} From the tallest to the shortest, who is the {PLACES[at]}?"
    return question, people[at], {}


def _countdown(rng: random.Random, difficulty: int) -> Puzzle:
    numbers = rng.sample(range(2, 50), 3 + difficulty)
    answer = str(numbers[0])
    for number in numbers[1:]:
        sign = rng.choice("+-*" if abs(eval(answer)) < 100 else "+-")
        answer = f"({answer}) {sign} {number}" if sign == "*" and len(answer) > 2 else f"{answer} {sign} {number}"
    target = eval(answer)
    question = f"Make {target} of the numbers {', '.join(map(str, sorted(numbers)))}: use each once, with + - * / and "
    return question + "parentheses. Answer with the expression.", answer, {"numbers": sorted(numbers), "target": target}


MADE: dict[str, Callable[[random.Random, int], Puzzle]] = {
    "chain_sum": _chain_sum,
    "countdown": _countdown,
    "letter_counting": _letter_counting,
    "number_sorting": _number_sorting,
    "ordering": _ordering,
}


def files() -> dict[str, bytes]:
    """train.jsonl (400 puzzles) and test.jsonl (100), the kinds in turn, of three difficulties; none stands twice."""
    rng = random.Random(20261124)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < 500:
        name = list(MADE)[len(rows) % len(MADE)]
        difficulty = len(rows) // len(MADE) % 3
        question, answer, needed = MADE[name](rng, difficulty)
        metadata = {"source_dataset": name, "difficulty": difficulty, **needed}
        rows[question] = {"dataset": name, "question": question, "answer": answer, "metadata": metadata}
    made = list(rows.values())
    return {"train.jsonl": jsonl(made[:400]), "test.jsonl": jsonl(made[400:])}
