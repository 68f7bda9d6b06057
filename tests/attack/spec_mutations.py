"""Specs made hostile: nodes of working specs deleted, doubled, renamed and replaced, by a seed."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlenv.language.document import read_source

__all__ = ["HOSTILE", "as_text", "base_specs", "hostile_folder", "mutations"]

_DEEP: Any = "x"
for _ in range(60):
    _DEEP = [_DEEP]

HOSTILE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**400,
    -(10**30),
    2**63,
    1e308,
    -1e-300,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    " ",
    "\n",
    "x" * 300,
    "x" * 5_000,
    "../" * 200,
    "\x1b]0;x\x07\u202e",
    "\u0000",
    "é" * 200,
    "💥",
    "/dev/zero",
    "/dev/null/x",
    "/dev/stdin",
    "/proc/self/mem",
    "/",
    ".",
    "..",
    "hostile/pipe.jsonl",
    "hostile/pipe.yaml",
    "hostile/folder",
    "hostile/binary.jsonl",
    "hostile/binary.csv",
    "hostile/binary.parquet",
    "hostile/binary.png",
    "hostile/circle",
    "hostile/empty.jsonl",
    "hostile/nul.yaml",
    "hostile/raises.py:f",
    "hostile/exits.py:f",
    "hostile/binary.py:f",
    "hostile/functions.py:none",
    "hostile/functions.py:three",
    "hostile/functions.py:Kind",
    "hostile/functions.py:generator",
    "hostile/functions.py:coroutine",
    "hostile/functions.py:signed",
    "hostile/functions.py:__getattr__",
    "json:loads",
    "builtins:print",
    "builtins:exit",
    "os:getcwd",
    "nowhere:f",
    ":f",
    "x:",
    "a" * 300 + ".py:f",
    "{{",
    "{{ }}",
    "{% for",
    "{{ task }}",
    "{{ task.nothing }}",
    "{{ task.question.x.y }}",
    "{{ vars }}",
    "{{ 1 / 0 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ " + "(" * 3_000 + "1" + ")" * 3_000 + " }}",
    "{{ [" * 500 + "]}}" * 500,
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in range(99999) %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ " + "9" * 5_000 + " }}",
    "{{ task.question | nothing }}",
    "{% include '/etc/passwd' %}",
    "{% import 'x' as y %}",
    "${env:",
    "${env:NOT_SET}",
    "${env:}",
    "(a+)+$",
    "(" * 200,
    "(?P<a>x)(?P<a>y)",
    "[",
    "\\",
    "correct >= 1",
    "correct" + " and correct" * 2_000,
    "not " * 3_000 + "correct >= 1",
    "1 >= 2",
    "http://[",
    "http://127.0.0.1:1/",
    "ftp://x",
    "http://x:99999999/",
    [],
    [[]],
    [None],
    [1, 0],
    [float("nan"), float("nan")],
    ["x"] * 2_000,
    {},
    {"": ""},
    {"x": None},
    {"a.b": {"c.d": 1}},
    {"kind": "x"},
    {"kind": None},
    {"kind": "rule"},
    {"kind": "python", "function": "hostile/functions.py:three"},
    {"file": "/dev/zero"},
    {"\x1b[2J": "\x1b[2J"},
    {str(number): number for number in range(2_000)},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"$ref": "file:///etc/passwd"},
    _DEEP,
]
"""Values that no author writes, and some that one may."""


def hostile_folder(folder: Path) -> None:
    """Makes `hostile/` with files that are none of what they are called."""
    place = folder / "hostile"
    if place.exists():
        return
    (place / "folder").mkdir(parents=True)
    for suffix in ("jsonl", "csv", "parquet", "png", "py"):
        (place / f"binary.{suffix}").write_bytes(random.Random(7).randbytes(5_000))
    (place / "empty.jsonl").write_bytes(b"")
    (place / "nul.yaml").write_bytes(b"rlenv: 1\n\0")
    (place / "raises.py").write_text("raise RuntimeError('at import')\n")
    (place / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (place / "functions.py").write_text(
        "def none(): return None\n"
        "def three(a, b, c): raise SystemExit(3)\n"
        "class Kind: pass\n"
        "def generator():\n    while True: yield {}\n"
        "async def coroutine(context): return 1\n"
        "def signed(*, task: 'no such type', seed): return 1\n"
        "def __getattr__(name): raise RecursionError(name)\n"
    )
    (place / "circle").symlink_to("circle")
    if hasattr(os, "mkfifo"):
        os.mkfifo(place / "pipe.jsonl")
        os.mkfifo(place / "pipe.yaml")


def base_specs(root: Path) -> list[Path]:
    """The specs that ship: to be made hostile."""
    return sorted([*(root / "specs").glob("*.yaml"), *(root / "examples").glob("*/*.yaml")])


def mutations(root: Path, *, seed: int, count: int, specs: list[Path] | None = None) -> Iterator[tuple[Path, str]]:
    """Specs by number: the one that it was made from, and its text. JSON with YAML's words for infinity."""
    sources = [(path, dict(read_source(path).data)) for path in specs or base_specs(root)]
    draw = random.Random(seed)
    for _ in range(count):
        path, data = draw.choice(sources)
        data = _absolute(copy.deepcopy(data), path.parent)
        for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
            _mutate(data, draw)
        yield path, as_text(data)


def _absolute(data: Any, folder: Path) -> Any:
    """The data with the paths of files that are there made absolute, so that it can be written anywhere."""
    if isinstance(data, dict):
        return {key: _absolute(value, folder) for key, value in data.items() if key != "extends"}
    if isinstance(data, list):
        return [_absolute(value, folder) for value in data]
    if isinstance(data, str) and 0 < len(data) < 200 and "\n" not in data and "{" not in data:
        name = data.rpartition(":")[0] if ".py:" in data else data
        if name.strip("./") and (folder / name).exists():
            return str(folder / data)
    return data


def _places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from _places(value, (*at, key))


def _mutate(data: dict[str, Any], draw: random.Random) -> None:
    places = list(_places(data))
    if not places:
        return
    at = draw.choice(places)
    owner: Any = data
    for key in at[:-1]:
        owner = owner[key]
    match draw.randrange(10):
        case 0 | 1:
            del owner[at[-1]]
        case 2 if isinstance(owner, dict):
            owner[draw.choice(["x", "", "kind", f"{at[-1]}x", "\x07", "a.b"])] = owner.pop(at[-1])
        case 3:
            other: Any = data
            for key in draw.choice(places):
                other = other[key]
            owner[at[-1]] = copy.deepcopy(other)
        case 4 if isinstance(owner, list):
            owner.append(copy.deepcopy(owner[at[-1]]))
        case 5 if isinstance(owner, dict):
            owner[draw.choice(["x", "kind", "path", "expect", "gate", "pattern"])] = copy.deepcopy(draw.choice(HOSTILE))
        case _:
            owner[at[-1]] = copy.deepcopy(draw.choice(HOSTILE))


def as_text(value: Any) -> str:
    """YAML in flow style. What JSON escapes, YAML reads."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_text, value)) + "]"
    if isinstance(value, float) and value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    return json.dumps(value)
