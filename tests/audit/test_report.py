"""The guide names every hole that an audit can name, and no other."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "audit.md").read_text()
MODULES = [ast.parse(path.read_text()) for path in sorted((ROOT / "rlenv" / "audit").glob("*.py"))]
TABLES = [tomllib.loads(path.read_text()) for path in (ROOT / "rlenv" / "audit").glob("*.toml")]
HELD_LISTS = [held if isinstance(held, list) else [held] for table in TABLES for held in table.values()]
HELD = {entry["hole"] for held in HELD_LISTS for entry in held if isinstance(entry, dict) and "hole" in entry}
GIVES = ("hole_of", "add_hole", "add_share")
"""Calls whose first argument is a hole."""


def texts(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def given() -> Iterator[str]:
    """The holes that stand written where one is given."""
    for call in (node for module in MODULES for node in ast.walk(module) if isinstance(node, ast.Call)):
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        for keyword in call.keywords:
            if keyword.arg == "hole":
                yield from texts(keyword.value)
        if name in GIVES and call.args:
            yield from texts(call.args[0])


def test_every_hole_is_in_the_guide() -> None:
    found = {*given(), *HELD}
    assert {"paid_for_ending", "judge_obeys", "empty_gold", "unfinished"} <= found
    assert found - set(re.findall(r"`(\w+)`", GUIDE)) == set()


def test_every_hole_of_the_guide_is_one_that_an_audit_knows() -> None:
    rows = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z]\w+)`", row)}
    assert len(listed) > 30
    assert listed - {text for module in MODULES for text in texts(module)} - HELD == set()
