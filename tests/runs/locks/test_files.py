"""Digests of files and rows, and what a lock keeps of a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import SpecError
from rlenv.runs.locks.files import UNREADABLE, digest_of, file_sha256, kept, rows_sha256, together, tree_sha256
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
    assert together({"a": "1", "b": UNREADABLE}) == UNREADABLE


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
    assert kept(value, hides=True) == {
        "headers": {"X-Key": "(not shown)", "Y": "${env:NAME}", "n": "(not shown)"},
        "endpoints.judge.api_key": "(not shown)",
        "address": "http://host:1/x",
        "text": "the key is (not shown)",
        "set": [1, 2, 3],
        "inf": "inf",
    }


def test_a_name_of_the_spec_that_sounds_like_a_secret_hides_nothing() -> None:
    assert kept({"token": {"weight": 1.0, "env": "x"}}) == {"token": {"weight": 1.0, "env": "x"}}


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
    assert kept({"base_url": address}) == {"base_url": shown}


def test_beside_a_variable_no_secret_is_kept() -> None:
    held = {"headers": {"Authorization": "Bearer sk-1 ${env:KEY}"}, "api_key": "a${env:KEY}b${env:MORE}"}
    assert kept(held, hides=True) == {"headers": {"Authorization": "${env:KEY}"}, "api_key": "${env:KEY} ${env:MORE}"}


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_sha256(tmp_path / "pipe") == file_sha256(Path("/dev/zero")) == UNREADABLE
