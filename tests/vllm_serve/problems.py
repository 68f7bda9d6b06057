"""Word problems of one or two operations, the same ones for equal seeds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

__all__ = ["write_problems"]

_NAMES = ("Amara", "Bruno", "Carmen", "Dmitri", "Esme", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Leila", "Nadia")
_THINGS = ("apples", "pens", "books", "stamps", "candles", "eggs", "shells", "marbles", "bricks", "coins")
_WORDINGS = (
    ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", "{a}+{b}"),
    ("{name} had {more} {things} and gave away {b}. How many {things} are left?", "{more}-{b}"),
    ("There are {a} boxes with {b} {things} in each box. How many {things} are there in all?", "{a}*{b}"),
    ("{name} buys {a} {things} for ${b} each and a bag for ${c}. How many dollars does {name} pay?", "{a}*{b}+{c}"),
    ("{name} saves ${a} a week for {b} weeks and then spends ${c}. How many dollars are left?", "{a}*{b}-{c}"),
    ("A shelf holds {a} {things}. {name} fills {b} shelves. How many {things} are on the shelves?", "{a}*{b}"),
)


def _problems(seed: int) -> Iterator[dict[str, object]]:
    drawn = random.Random(seed)
    while True:
        wording, expression = drawn.choice(_WORDINGS)
        a, b, c = drawn.randint(12, 98), drawn.randint(11, 39), drawn.randint(11, 49)
        values: dict[str, object] = {"a": a, "b": b, "c": c, "more": a + b}
        values |= {"name": drawn.choice(_NAMES), "things": drawn.choice(_THINGS)}
        results = {"{a}+{b}": a + b, "{more}-{b}": a, "{a}*{b}": a * b, "{a}*{b}+{c}": a * b + c}
        answer = results.get(expression, a * b - c)
        yield {"question": wording.format(**values), "expression": expression.format(**values), "answer": answer}


def write_problems(file: Path, count: int, *, seed: int) -> Path:
    """Writes `count` problems, no question twice, and returns `file`."""
    found: dict[object, dict[str, object]] = {}
    for row in _problems(seed):
        if len(found) == count:
            break
        found[row["question"]] = row
    file.write_text("".join(json.dumps(row) + "\n" for row in found.values()), encoding="utf-8")
    return file
