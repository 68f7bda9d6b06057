"""What CONTRIBUTING.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
CHANGES = [line.strip("| ").split(" | ") for line in SECTIONS["Where a change goes"].splitlines() if line[:2] == "| "][
    1:
]


def paths(text: str) -> list[str]:
    """What stands in backticks and looks like a path of the repository; NAME and FILE are the reader's own."""
    named = re.findall(r"`([\w.-]+/[\w./-]*|[A-Z]+\.md|pyproject\.toml)`", text)
    return [path for path in named if not re.search("NAME|FILE", path)]


def test_twenty_changes_have_their_place_and_their_test() -> None:
    assert len(CHANGES) == 20
    assert len({change for change, _, _ in CHANGES}) == 20


@pytest.mark.parametrize(("change", "made", "tested"), CHANGES, ids=[row[0] for row in CHANGES])
def test_the_places_of_a_change_are_there(change: str, made: str, tested: str) -> None:
    assert paths(made) or made == "the module that finds it", change
    assert paths(tested), change
    assert all(path.startswith("tests/") for path in paths(tested))
    for path in paths(made) + paths(tested):
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path


def test_every_path_of_the_page_is_there() -> None:
    assert len(paths(PAGE)) > 50
    assert [path for path in paths(PAGE) if not (ROOT / path).exists()] == []


def test_what_is_new_takes_five_steps() -> None:
    for name in ("tool", "reward rule", "dialect", "preset"):
        heading = f"A new kind of {name}" if name == "tool" else f"A new {name}"
        assert re.findall(r"^(\d)\. ", SECTIONS[heading], re.MULTILINE) == list("12345"), heading


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "RELEASING.md"])
def test_the_commands_of_make_are_targets(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^)make ((?:[a-z-]+ ?)+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    targets = {target for words in named for target in words.split()}
    assert {"check", "coverage"} & targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
