"""What the README and the docs show works as it stands there."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "letters"]) == 0
    return tmp_path / "letters"


def test_the_first_spec_of_the_readme_validates_and_its_oracle_earns_the_maximum(letters: Path) -> None:
    (spec,) = blocks(ROOT / "README.md", "yaml")
    (letters / "letters.yaml").write_text(spec)
    assert main(["validate", "letters/letters.yaml"]) == 0
    assert main(["eval", "letters/letters.yaml", "--policy", "oracle", "--min-success", "1"]) == 0


def test_the_commands_of_the_readme_run(letters: Path) -> None:
    _, commands = blocks(ROOT / "README.md", "sh")
    ran = 0
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "rlenv"
        if words[1] == "init":
            continue
        if words[1] == "train":  # its own tests run it; here only that its arguments are taken
            words += ["--dry-run", "-o", str(letters / "run")]
        assert main(words[1:]) == 0
        ran += 1
    assert ran == 4


def test_the_python_of_the_readme_runs(letters: Path) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["terminated"] is True
    names["env"].close()  # type: ignore[attr-defined]


def test_the_readme_names_the_two_commands_first() -> None:
    first, _ = blocks(ROOT / "README.md", "sh")
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]


@pytest.mark.parametrize("page", ["security-testing.md", "extend/testing.md"])
def test_the_tests_that_the_docs_show_pass(page: str, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mcp")
    caplog.set_level("CRITICAL")  # a hostile tool is logged as it fails
    ran = 0
    for code in blocks(ROOT / "docs" / page, "python"):
        names: dict[str, Any] = {}
        exec(compile(code, page, "exec"), names)
        for name, value in names.items():
            if name.startswith("test_"):
                value()
                ran += 1
    assert ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_in_the_docs_can_be_read(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)
    for text in blocks(page, "yaml"):
        yaml.safe_load(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_the_docs_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
