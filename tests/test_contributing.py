"""What CONTRIBUTING.md names is there, and what it has to name is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHANGES = [line.strip("| ").split(" | ") for line in SECTIONS["Where a change goes"].splitlines() if line[:2] == "| "][
    1:
]


def paths(text: str) -> list[str]:
    """What stands in backticks and looks like a path of the repository; NAME and FILE are the reader's own."""
    named = re.findall(r"`([\w.-]+/[\w./-]*|[A-Z]+\.md|pyproject\.toml)`", text)
    return [path for path in named if not re.search("NAME|FILE", path)]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0]


def test_each_change_has_its_place_and_its_test() -> None:
    assert len({change for change, _, _ in CHANGES}) == len(CHANGES) > 15
    for change, made, tested in CHANGES:
        assert paths(made) or made == "the module that finds it", change
        assert paths(tested), change
        assert all(path.startswith("tests/") for path in paths(tested)), change


def test_every_path_of_the_page_is_there() -> None:
    assert len(paths(PAGE)) > 50
    kept = {path: (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file() for path in paths(PAGE)}
    assert [path for path, is_there in kept.items() if not is_there] == []


def test_what_is_new_takes_five_steps() -> None:
    for name in ("tool", "reward rule", "dialect", "preset"):
        heading = f"A new kind of {name}" if name == "tool" else f"A new {name}"
        assert re.findall(r"^(\d)\. ", SECTIONS[heading], re.MULTILINE) == list("12345"), heading


def test_the_commands_of_make_are_targets_and_every_target_is_named() -> None:
    """`demo` and `real` are for users; the README and the measurements have them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = PAGE + (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    words = re.findall(r"(?:`|^)make ((?:[a-z-]+(?: |\b))+)", pages, re.MULTILINE)
    named = {target for line in words for target in line.split()}
    assert sorted(named - targets) == []
    assert sorted(targets - named) == ["demo", "real"]


def test_no_floor_of_coverage_is_promised_that_is_not_held() -> None:
    """Either the configuration has one and the page names its figure, or the page says that there is none."""
    floor = PROJECT["tool"]["coverage"]["report"].get("fail_under")
    said = "no `fail_under`" if floor is None else f"{floor:g} %"
    assert said in (ROOT / "RELEASING.md").read_text(encoding="utf-8")


def test_every_dependency_has_a_reason() -> None:
    page = (ROOT / "docs" / "extend" / "dependencies.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:2] == "| "]
    project = PROJECT["project"]
    core = {row[0] for row in rows if len(row) == 2 and row[1]}
    assert [one for one in map(name_of, project["dependencies"]) if one not in core] == []
    extras = project["optional-dependencies"]
    written = {
        (extra, name_of(name))
        for extra, names, why in ([row[0].strip("`"), *row[1:]] for row in rows if len(row) == 3)
        for name in re.split(", | and ", names)
        if why and extra in extras
    }
    brought = {(extra, name_of(one)) for extra, listed in extras.items() for one in listed}
    assert written == brought
    assert [one for one in map(name_of, PROJECT["build-system"]["requires"]) if one not in page] == []
