"""What hostile actions are made of: for each language that a call or an answer may hold, inputs of each kind.

The kinds name what an input is made to do to whoever runs it:

    hang    take more time than anybody gave it
    fill    take memory, or leave more behind than may be kept
    void    make the reward of its own episode invalid, so that a wrong answer costs nothing
    mask    end a worker, a connection or a resource that others share
    forge   look like something that somebody else wrote: a turn, a result, a verdict, a template, an option

The tables stand in `hostile_material.json`. They hold no secret of rlenv: they are the usual attacks on SQL engines,
interpreters, calculators, readers of mathematics and of text. An entry is a text, or an object:

    {"parts": ["(", ["1+", "n"]], "n": [9, 99]}     texts in a row; a pair repeats its text; n is drawn for each input
    {"make": "self_joins"}                          what the function of that name makes
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

__all__ = ["KINDS", "SUBJECTS", "Kind", "Subject", "material", "subject_of"]

Kind = Literal["hang", "fill", "void", "mask", "forge"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Subject = Literal["sql", "code", "expression", "math", "json", "text"]
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
_Entry = str | dict[str, Any]


def _nested_ctes(rng: random.Random) -> str:
    depth = rng.randint(18, 60)
    tables = [f"a{i} AS (SELECT x||x AS x FROM a{i - 1})" for i in range(1, depth)]
    return f"WITH a0 AS (SELECT 'x' AS x), {', '.join(tables)} SELECT x FROM a{depth - 1}"


def _self_joins(rng: random.Random) -> str:
    return "SELECT count(*) FROM " + ", ".join(f"sqlite_master m{i}" for i in range(rng.randint(4, 60)))


def _views_of_selects(rng: random.Random) -> str:
    text = "SELECT 1 AS a"
    for i in range(rng.randint(15, 40)):
        text = f"SELECT a{i}.a AS a FROM ({text}) a{i} JOIN ({text}) b{i} USING (a)" if len(text) < 20_000 else text
    return text


def _in_numbers(rng: random.Random) -> str:
    return f"SELECT 1 IN ({','.join(map(str, range(rng.choice((1_000, 50_000)))))})"


def _many_keys(rng: random.Random) -> str:
    return json.dumps({str(i): i for i in range(rng.choice((100, 50_000)))})


def _random_text(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(32, 0xD800)) for _ in range(rng.choice((100, 9_000))))


_MAKERS: Final[Mapping[str, Callable[[random.Random], str]]] = {
    "nested_ctes": _nested_ctes,
    "self_joins": _self_joins,
    "views_of_selects": _views_of_selects,
    "in_numbers": _in_numbers,
    "many_keys": _many_keys,
    "random_text": _random_text,
}


@cache
def _tables() -> Mapping[str, Mapping[str, Sequence[_Entry]]]:
    found = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    control = found.pop("control")
    forged = {
        "sql": ["SELECT '" + text.replace("'", "''") + "'" for text in control],
        "code": [*found["code"]["forge"], *(f"print({text!r})" for text in control), *map(repr, control)],
    }
    return {subject: {**table, "forge": forged.get(subject, control)} for subject, table in found.items()}


_WORDS: Final[Mapping[Subject, Sequence[str]]] = {
    "sql": ("sql", "select"),
    "code": ("code", "python", "program", "script"),
    "expression": ("expression", "formula", "arithmetic"),
    "json": ("json",),
}


def material(subject: Subject, kind: Kind, rng: random.Random) -> str:
    """One input in the language of `subject`, made for what `kind` names; equal for equal states of `rng`."""
    entry = rng.choice(_tables()[subject][kind])
    if isinstance(entry, str):
        return entry
    if "make" in entry:
        return _MAKERS[entry["make"]](rng)
    n = rng.choice(entry["n"]) if "n" in entry else 0
    parts = [part if isinstance(part, str) else part[0] * (n if part[1] == "n" else part[1]) for part in entry["parts"]]
    return "".join(parts).replace("{n}", str(n))


def subject_of(name: str, description: str = "") -> Subject:
    """The language that a parameter most likely holds, by its name and what is said about it."""
    for text in (name.lower(), description.lower()):
        for subject, words in _WORDS.items():
            if any(word in text for word in words):
                return subject
    return "text"
