"""Functions and modules that a reader can hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_OF_A_FUNCTION = 60
MOST_OF_A_MODULE = 450
MOST_FILES = 411
MOST_LINES = 99_463
"""Of all files together, blank lines left out. What comes makes room for itself; more needs a capability as reason.

The last: a model that reads specs (`--reader`), relations between the facts of a spec in what validate warns of, and
the sandbox of templates (a file of its own), which bounds all work over what a policy wrote, asking again one after
the other where what others ask fells a server, tests that see what is not kept of a machine as it was at first,
judges, users and model tools asked again by that rule too,
what points, letters, units, digits and roundings say in math_equal, exact numbers there,
logs whose framework says that a file or run is broken, and the summaries of logs."""


def _sources() -> list[tuple[str, str]]:
    folders = (ROOT / "rlenv", ROOT / "trainers")
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.slow
def test_no_function_is_longer_than_sixty_lines() -> None:
    long = {
        f"{path}: {node.name}"
        for path, text in _sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_OF_A_FUNCTION
    }
    assert long == set(), "longer than 60 lines: give each job a function of its own"


def test_no_module_is_longer_than_450_lines() -> None:
    long = {path for path, text in _sources() if len(text.splitlines()) > MOST_OF_A_MODULE}
    assert long == set(), "longer than 450 lines: give each concept a module of its own"


def test_the_whole_has_no_more_files_and_lines_than_it_had() -> None:
    sources = _sources()
    lines = sum(bool(line.strip()) for _, text in sources for line in text.splitlines())
    assert (len(sources) <= MOST_FILES, lines <= MOST_LINES) == (True, True), f"{len(sources)} files, {lines} lines"
