"""Environments of one rule over rows, written for an audit to look at, and rows to plant faults in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["WORDS", "Row", "capital", "claims", "plant", "product", "rows_of"]

Row = dict[str, Any]
TOWNS = ("Lima", "Bern", "Oslo", "Rome", "Kyiv", "Bath")
WORDS = (
    "amber birch cedar delta ember frost grove heron ivory jolly karst lemon mango north ochre pearl quartz raven "
    "slate thorn umber vapor wheat xenon yeast zebra acorn blaze cloud drift eagle flint globe hazel inlet jewel knoll "
    "lilac maple nylon olive plume quill ridge spoke torch urban vinyl"
).split()


def plant(
    folder: Path,
    splits: Mapping[str, Sequence[Row]],
    *,
    rule: str = "{kind: rule, rule: exact_match}",
    prompt: str = "{{ task.question }}",
    system: str = "",
    more: str = "",
    tools: str = "",
    say: str = "<answer>{{ task.answer }}</answer>",
    call: str = "",
) -> Path:
    """The spec of an environment with these rows; `tools` is the text of a python file, `more` of other entries."""
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if tools:
        (folder / "tools.py").write_text(tools)
    lines = ["rlenv: 1", "name: planted", "tasks:"]
    lines += [f"  {split}: {{path: {split}.jsonl}}" for split in splits]
    lines += ["prompt:", f"  user: {json.dumps(prompt)}", *([f"  system: {json.dumps(system)}"] if system else [])]
    lines += [more, "rewards:", f"  correct: {rule}", "oracle:"]
    lines += [*([f"  - call: {call}"] if call else []), f"  - say: {json.dumps(say)}"]
    path = folder / "env.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows(**columns: Any) -> dict[str, Any]:
    """Rows of a town each, with a value of each column, which may be a list of one for each row."""
    made = [{"question": f"Which town is number {n}?", "answer": town} for n, town in enumerate(TOWNS)]
    for name, given in columns.items():
        for index, row in enumerate(made):
            row[name] = given[index % len(given)] if isinstance(given, list) else given.format(**row)
    return {"tasks": {"train": {"rows": made}}}


def rows_of(count: int, make: Callable[[int], Row]) -> list[Row]:
    return [make(index) for index in range(count)]


def capital(index: int) -> Row:
    return {"question": f"Which town is the seat of {WORDS[index]}land?", "answer": f"{WORDS[-1 - index]}ville"}


def product(index: int, shown: str = "{question}") -> Row:
    one, other = 11 + 7 * index % 83, 12 + 5 * index % 61
    row = {"question": f"What is {one} times {other}?", "answer": str(one * other)}
    return row | {"question": shown.format(**row)}


def claims(count: int, answers: Callable[[int], str]) -> list[Row]:
    return rows_of(count, lambda index: {"question": f"Does {WORDS[index]} float?", "answer": answers(index)})
