"""Writes the tasks of this folder, byte for byte the same on every machine.

python examples/words/generate.py            write examples/words/data
python examples/words/generate.py --check    write nothing; exit 1 and name the files that differ

`train`, `warmup` and `seen` have the wordings of `TRAINED`, `dev` those of `DEVELOPED_ON` alone and `test` those of
`HELD_OUT`. No question stands in two files. Each wording has its turn: 100 tasks are 15 wordings, 6 or 7 times each. In
`train` neighbours are of different kinds, so that 16 tasks in their order ask for every operation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wordings import DEVELOPED_ON, HELD_OUT, PEOPLE, THINGS, TRAINED, Wording

DATA = Path(__file__).resolve().parent / "data"


class Split(NamedTuple):
    """How many tasks of which wordings, and where their numbers come from."""

    tasks: int
    wordings: Sequence[Wording]
    seed: int
    stride: int = 1
    """The next wording is so many further on, in their order of kinds; coprime to their number: all have a turn."""


SPLITS: Mapping[str, Split] = {
    "dev": Split(100, DEVELOPED_ON, 1),
    "seen": Split(80, TRAINED, 2),
    "warmup": Split(40, TRAINED, 3),
    "train": Split(2000, TRAINED, 4, stride=7),
    "test": Split(100, HELD_OUT, 5),
}


def task_of(rng: random.Random, wording: Wording) -> dict[str, str | int]:
    """A question with fresh people, things and numbers, the expression that answers it, and its value."""
    named, other = rng.sample(PEOPLE, 2)
    a, c = rng.randint(12, 98), rng.randint(12, 98)
    # Factors stay small, so that products have four digits at most.
    b = rng.randint(11, 39) if set("*/") & set(wording.expression) else rng.randint(12, 98)
    numbers = {"a": a, "b": b, "c": c, "s": b + rng.randint(11, 99), "p": rng.randint(12, 98) * b}
    question = wording.question.format(n=named, o=other, t=rng.choice(THINGS), **numbers)
    # A quotient has no remainder here, so that `/` and `//` agree.
    answer = eval(wording.expression.replace("/", "//").format(**numbers), {"__builtins__": {}})
    return {"question": question, "expression": wording.expression.format(**numbers), "answer": answer}


def files() -> dict[str, bytes]:
    """The content of each file by its name."""
    asked: set[str] = set()
    contents = {}
    for name, split in SPLITS.items():
        rng = random.Random(split.seed)
        rows: list[dict[str, str | int]] = []
        while len(rows) < split.tasks:
            task = task_of(rng, split.wordings[len(rows) * split.stride % len(split.wordings)])
            if task["question"] not in asked:
                asked.add(str(task["question"]))
                rows.append(task)
        contents[f"{name}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return contents


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description="Write the tasks of the word problems.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    wanted = files()
    found = {path.name: path.read_bytes() for path in DATA.glob("*")}
    changed = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    for name in changed:
        if not check and name in wanted:
            DATA.mkdir(exist_ok=True)
            (DATA / name).write_bytes(wanted[name])
        elif not check:
            (DATA / name).unlink()
        sys.stdout.write(f"{'differs' if check else 'written'}: examples/words/data/{name}\n")
    sys.stdout.write(f"{len(wanted)} files, {sum(map(len, wanted.values())) / 1e6:.2f} MB, {len(changed)} changed\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
