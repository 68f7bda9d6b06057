"""What a lock says of rlenv's own code and of the packages beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import rlenv
from rlenv.runs.locks.machine import Code, machine, packages


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *named, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "rlenv").mkdir(parents=True)
    (root / "rlenv" / "a.py").write_text("A = 1\n")
    (root / "README.md").write_text("words\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


def test_a_clean_checkout_is_its_commit_whatever_lies_beside_the_code(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Code(checkout).section()
    assert before["commit"] == git(checkout, "rev-parse", "HEAD")
    assert "changes" not in before
    (checkout / "README.md").write_text("other words\n")
    (checkout / "notes.txt").write_text("new\n")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    assert Code(checkout).section() == before


def test_a_lock_says_the_code_of_the_package_that_makes_it() -> None:
    own = Path(rlenv.__file__).resolve().parents[1]
    assert Code().section() == Code(own).section()
    assert (own / "rlenv" / "runs" / "locks" / "machine.py").is_file()


def test_code_that_differs_from_the_commit_counts_by_its_content(checkout: Path) -> None:
    def changed(text: str, name: str = "a.py") -> object:
        (checkout / "rlenv" / name).write_text(text)
        return Code(checkout).section().get("changes")

    first = changed("A = 2\n")
    assert first
    assert changed("A = 3\n") not in (first, None)
    assert changed("A = 2\n") == first
    assert changed("A = 1\n") is None
    assert changed("B = 1\n", "with space é.py") is not None
    (checkout / "rlenv" / "with space é.py").unlink()
    (checkout / "rlenv" / "a.py").unlink()
    assert Code(checkout).section()["changes"] != first


def test_another_commit_counts(checkout: Path) -> None:
    before = Code(checkout).section()
    git(checkout, "commit", "-q", "--allow-empty", "-m", "two")
    assert Code(checkout).section()["commit"] != before["commit"]


def test_an_installed_package_counts_by_its_files_and_not_by_a_repository_around_it(checkout: Path) -> None:
    installed = checkout / "site-packages"
    (installed / "rlenv").mkdir(parents=True)
    (installed / "rlenv" / "a.py").write_text("A = 1\n")
    before = Code(installed).section()
    assert "commit" not in before
    (installed / "rlenv" / "a.py").write_text("A = 2\n")
    assert Code(installed).section()["code"] != before["code"]


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{needs}\nVersion: 9\nprose\n"
    (info / "METADATA").write_text(text)


def test_packages_are_those_that_rlenv_stands_on_in_the_versions_that_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = packages()
    assert {"pydantic", "pydantic-core", "aiohttp"} <= before.keys()
    assert "ruff" not in before
    for folder, version in ((tmp_path / "one", "1.0"), (tmp_path / "two", "2.0")):
        distribution(folder, "plug", version, "Below_It[some]>=1 ; python_version > '3'", "unasked ; extra == 'more'")
        distribution(folder, "below_it", "3", "deep.est ; extra == 'some'", 'never ; extra == "other"', "plug")
        distribution(folder, "deep_est", "4")
        distribution(folder, "unasked", "5")
        distribution(folder, "never", "6")
    monkeypatch.syspath_prepend(tmp_path / "one")
    assert packages() == before
    assert packages(["plug"]) == {**before, "plug": "1.0", "below-it": "3", "deep-est": "4"}
    monkeypatch.syspath_prepend(tmp_path / "two")
    assert packages(["plug"])["plug"] == "2.0"


def test_another_version_of_a_package_is_another_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packages()
    distribution(tmp_path, "jinja2", "99.0")
    monkeypatch.syspath_prepend(tmp_path)
    after = packages()
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "jinja2",
        "markupsafe",
    }
    assert after["jinja2"] == "99.0"


def test_the_platform_is_no_host() -> None:
    python, system = machine()
    assert python.split()[1].count(".") == 2
    assert len(system.split()) == 2
