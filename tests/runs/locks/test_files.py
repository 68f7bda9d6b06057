"""Digests of files and rows, and what a lock keeps of a value.

A command line is kept without its secrets.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.cli.main import main
from rlenv.errors import SpecError
from rlenv.runs.folder import Kind, RunInfo, read_info, write_info
from rlenv.runs.locks.files import (
    UNREADABLE,
    Code,
    digest_of,
    file_sha256,
    files_digest,
    kept_command,
    kept_settings,
    machine_facts,
    package_versions,
    rows_sha256,
    to_lock,
    tree_sha256,
)
from rlenv.tasks.rows import Tasks


def digest(rows: list[Any], *, said: list[str] | None = None, order: list[int] | None = None) -> str:
    tasks = Tasks(rows.__getitem__, order if order is not None else range(len(rows)), source="rows")
    say: Callable[[str], None] | None = said.append if said is not None else None
    return rows_sha256(tasks, on_row=lambda row: None, name="train", say=say)


@pytest.mark.parametrize(
    ("row", "same"),
    [
        ({"a": 1, "b": [1, {"d": 2, "c": 3}]}, {"b": [1, {"c": 3, "d": 2}], "a": 1}),
        ({"a": 10**30}, {"a": 10**30}),
        ({"a": "\ud800"}, {"a": "\ud800"}),
        ({"a": {"y", "x"}}, {"a": {"x", "y"}}),
        ({"a": b"bytes", "when": date(2026, 1, 2)}, {"when": date(2026, 1, 2), "a": b"bytes"}),
        ({"a": object()}, {"a": object()}),
    ],
)
def test_equal_rows_have_an_equal_digest_whatever_they_hold(row: dict[str, Any], same: dict[str, Any]) -> None:
    assert digest([row]) == digest([same])
    assert digest([row]) != digest([{**row, "more": 1}])


def test_the_order_of_rows_counts_and_a_row_that_cannot_be_read_does_too() -> None:
    rows = [{"a": 1}, {"a": 2}]
    assert digest(rows) != digest(rows, order=[1, 0])

    def broken(index: int) -> Mapping[str, Any]:
        if index == 1:
            raise SpecError([])
        return rows[index]

    tasks = Tasks(broken, range(2), source="rows")
    seen: list[Mapping[str, Any]] = []
    found = rows_sha256(tasks, on_row=seen.append, name="train", say=None)
    assert seen == [{"a": 1}]
    assert found != digest(rows[:1])


def test_many_rows_are_told_before_they_are_read() -> None:
    said: list[str] = []
    digest([{}], said=said, order=[0] * 100_001)
    assert said == ["hashing the 100,001 rows of train …"]


@pytest.mark.slow
def test_a_large_file_is_told_and_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "large.bin").touch()
    with (tmp_path / "large.bin").open("r+b") as file:
        file.truncate(200_000_001)  # sparse: it takes no disk
    said: list[str] = []
    assert len(file_sha256(tmp_path / "large.bin", say=said.append)) == 64
    assert said == ["hashing large.bin (0.2 GB) …"]
    assert file_sha256(tmp_path / "none") == UNREADABLE


def test_a_folder_counts_by_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "x.txt").write_text("1")
    before = tree_sha256(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert tree_sha256(tmp_path / "b") == before
    (tmp_path / "b" / "deep" / "x.txt").rename(tmp_path / "b" / "deep" / "y.txt")
    assert tree_sha256(tmp_path / "b") != before
    assert tree_sha256(tmp_path / "b", suffixes=(".py",)) == digest_of([])


def test_a_folder_counts_with_what_its_links_lead_to_and_is_unreadable_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "beside")
    (tmp_path / "a" / "circle").symlink_to(tmp_path / "a")
    before = tree_sha256(tmp_path / "a")
    (tmp_path / "beside" / "x.txt").write_text("1")
    assert tree_sha256(tmp_path / "a") not in (before, UNREADABLE)
    assert tree_sha256(tmp_path / "none") == UNREADABLE
    assert files_digest({"a": "1", "b": UNREADABLE}) == UNREADABLE


def test_what_is_kept_holds_no_nulls_and_shows_nothing_under_a_key_of_secrets() -> None:
    value: dict[str, Any] = {
        "a": None,
        "b": {"c": {}},
        "headers": {"X-Key": "plain", "Y": "${env:NAME}", "n": 7},
        "endpoints.judge.api_key": "plain",
        "address": "http://me:pw@host:1/x?key=1#f",
        "text": "the key is hf_abcdefghijklmnopqrstuvwxyz",
        "set": {3, 1, 2},
        "inf": float("inf"),
    }
    assert to_lock(value, hides=True) == {
        "headers": {"X-Key": "(not shown)", "Y": "${env:NAME}", "n": "(not shown)"},
        "endpoints.judge.api_key": "(not shown)",
        "address": "http://host:1/x",
        "text": "the key is (not shown)",
        "set": [1, 2, 3],
        "inf": "inf",
    }


def test_a_name_of_the_spec_that_sounds_like_a_secret_hides_nothing() -> None:
    assert to_lock({"token": {"weight": 1.0, "env": "x"}}) == {"token": {"weight": 1.0, "env": "x"}}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:se@cret@host:8000/v1", "http://host:8000/v1"),
        ("http://host/v1#key=secret", "http://host/v1"),
        ("http://host?a=1#key=secret and more", "http://host and more"),
        ("http://host/a@b", "http://host/a@b"),
    ],
)
def test_of_addresses_no_secret_is_kept(address: str, shown: str) -> None:
    assert to_lock({"base_url": address}) == {"base_url": shown}


def test_beside_a_variable_no_secret_is_kept() -> None:
    held = {"headers": {"Authorization": "Bearer sk-1 ${env:KEY}"}, "api_key": "a${env:KEY}b${env:MORE}"}
    assert to_lock(held, hides=True) == {
        "headers": {"Authorization": "${env:KEY}"},
        "api_key": "${env:KEY} ${env:MORE}",
    }


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_sha256(tmp_path / "pipe") == file_sha256(Path("/dev/zero")) == UNREADABLE


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--policy", "--policy"),
        ("--temperature=0.5", "--temperature=0.5"),
        ("limits.turns=4", "limits.turns=4"),
        ("stop=null", "stop=null"),
        ("tasks.test.path=rows.jsonl", "tasks.test.path=rows.jsonl"),
        ('stop=["a", "b"]', 'stop=["a", "b"]'),
        ("http://user:SECRET@host/v1?key=SECRET", "http://host/v1"),
        ("--base-url=http://user:SECRET@host/v1?key=SECRET", "--base-url=http://host/v1"),
        ("endpoints.w.base_url=http://u:SECRET@h/v1?key=SECRET", "endpoints.w.base_url=http://h/v1"),
        ("endpoints.w.api_key=SECRET", "endpoints.w.api_key=(not shown)"),
        ("--set=endpoints.w.api_key=SECRET", "--set=endpoints.w.api_key=(not shown)"),
        ("endpoints.w.api_key=${env:KEY}", "endpoints.w.api_key=${env:KEY}"),
        ("endpoints.w.headers.X-Auth=SECRET", "endpoints.w.headers.X-Auth=(not shown)"),
        ('metadata={"api_key": "SECRET", "a": 1}', 'metadata={"api_key":"(not shown)","a":1}'),
        ("endpoints.w={api_key: SECRET, model: m}", 'endpoints.w={"api_key":"(not shown)","model":"m"}'),
        ("+actor.env.HF_TOKEN=SECRET", "+actor.env.HF_TOKEN=(not shown)"),
    ],
)
def test_a_word_of_a_command_line_shows_no_secret(word: str, shown: str) -> None:
    assert kept_command([word]) == (shown,)


def test_what_cannot_be_set_again_is_not_kept_as_a_setting() -> None:
    assert kept_settings({"endpoints.w.api_key": "S", "limits.turns": "4"}) == {"limits.turns": "4"}


def test_no_face_of_a_run_shows_a_secret_of_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["eval", "arithmetic", "-n", "1", "-o", str(run), "--json", "--policy", "openai", "--model", "m"]
    words += ["--base-url", "http://u:S3CRET@127.0.0.1:9/v1?key=S3CRET", "--extra", 'metadata={"api_key": "S3CRET"}']
    words += ["--retries", "0", "--api-key-env", "NONE_SUCH"]
    monkeypatch.setattr("sys.argv", ["rlenv", *words])
    main(words)
    main(["runs", "report", str(run), "-o", str(tmp_path / "r.html")])
    out = capsys.readouterr()
    for text in (out.out, out.err, *(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())):
        assert "S3CRET" not in text


@pytest.mark.parametrize("kind", ["eval", "train", "sft"])
def test_whoever_writes_a_run_json_its_command_shows_no_secret(tmp_path: Path, kind: Kind) -> None:
    write_info(tmp_path, RunInfo(kind, command=("rlenv", kind, "--set", "endpoints.w.api_key=S3CRET")))
    info = read_info(tmp_path)
    assert info is not None
    assert info.command == ("rlenv", kind, "--set", "endpoints.w.api_key=(not shown)")


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
    assert (own / "rlenv" / "runs" / "locks" / "files.py").is_file()


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
    before = package_versions()
    assert {"pydantic", "pydantic-core", "aiohttp"} <= before.keys()
    assert "ruff" not in before
    for folder, version in ((tmp_path / "one", "1.0"), (tmp_path / "two", "2.0")):
        distribution(folder, "plug", version, "Below_It[some]>=1 ; python_version > '3'", "unasked ; extra == 'more'")
        distribution(folder, "below_it", "3", "deep.est ; extra == 'some'", 'never ; extra == "other"', "plug")
        distribution(folder, "deep_est", "4")
        distribution(folder, "unasked", "5")
        distribution(folder, "never", "6")
    monkeypatch.syspath_prepend(tmp_path / "one")
    assert package_versions() == before
    assert package_versions(["plug"]) == {**before, "plug": "1.0", "below-it": "3", "deep-est": "4"}
    monkeypatch.syspath_prepend(tmp_path / "two")
    assert package_versions(["plug"])["plug"] == "2.0"


def test_another_version_of_a_package_is_another_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = package_versions()
    distribution(tmp_path, "jinja2", "99.0")
    monkeypatch.syspath_prepend(tmp_path)
    after = package_versions()
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "jinja2",
        "markupsafe",
    }
    assert after["jinja2"] == "99.0"


def test_the_platform_is_no_host() -> None:
    python, system = machine_facts()
    assert python.split()[1].count(".") == 2
    assert len(system.split()) == 2
