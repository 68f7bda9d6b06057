"""Which runs a viewer shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.lines import LinesReader
from rlenv.web.shelf import Shelf
from tests.support.runs import kept, played


def test_runs_are_found_below_the_roots(tmp_path: Path) -> None:
    kept(tmp_path / "a" / "one", [played()])
    kept(tmp_path / "a" / "deep" / "two", [played()])
    files.write(tmp_path / "old" / "trajectories.jsonl", [played()])
    (tmp_path / ".hidden").mkdir()
    kept(tmp_path / ".hidden" / "three", [played()])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert sorted(Shelf([tmp_path]).found()) == ["a~deep~two", "a~one", "old"]


def test_a_root_may_be_a_run_or_a_file(tmp_path: Path) -> None:
    kept(tmp_path / "one", [played()])
    files.write(tmp_path / "two" / "trajectories.jsonl", [played()])
    files.write(tmp_path / "three.jsonl", [played()])
    roots = [tmp_path / "one", tmp_path / "two", tmp_path / "three.jsonl"]
    assert Shelf(roots).found() == ["one", "two", "three.jsonl"]


def test_runs_of_one_name_have_keys_of_their_own(tmp_path: Path) -> None:
    for place in ("a", "b"):
        kept(tmp_path / place / "run", [played()])
    shelf = Shelf([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert [shelf.path(key) for key in shelf.found()] == [tmp_path / "a" / "run", tmp_path / "b" / "run"]


def test_a_key_stands_in_addresses_as_it_is(tmp_path: Path) -> None:
    kept(tmp_path / "a b" / "ü%2F", [played()])
    shelf = Shelf([tmp_path])
    (key,) = shelf.found()
    assert shelf.line(key)["key"] == "a%20b~%C3%BC%252F"
    assert shelf.line(key)["name"] == "a b/ü%2F"


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    kept(tmp_path / "good", [played()])
    files.write(tmp_path / "bad" / "trajectories.jsonl", [played()])
    (tmp_path / "bad" / "trajectories.jsonl").write_text("{}\n{}\n")
    shelf = Shelf([tmp_path])
    lines = {key: shelf.line(key) for key in shelf.found()}
    assert "is no" in lines["bad"]["error"] or "not a recorded trajectory" in lines["bad"]["error"]
    assert lines["good"]["episodes"] == 1


def test_the_line_of_a_run_is_new_once_there_is_more(tmp_path: Path) -> None:
    kept(tmp_path / "run", [played()])
    shelf = Shelf([tmp_path])
    (key,) = shelf.found()
    assert shelf.line(key)["episodes"] == 1
    kept(tmp_path / "run", [played(seed=1)])
    shelf.open(key).episodes.refresh()
    assert shelf.line(key)["episodes"] == 2


def test_the_line_of_a_large_file_grows_as_it_is_read(tmp_path: Path) -> None:
    files.write(tmp_path / "t.jsonl", [played(seed=seed) for seed in range(3)])
    shelf = Shelf([tmp_path / "t.jsonl"])
    reader = shelf.open("t.jsonl").episodes = LinesReader(tmp_path / "t.jsonl", look=1)
    assert shelf.line("t.jsonl")["episodes"] < 3
    while not reader.is_at_end:
        reader.refresh()
    assert shelf.line("t.jsonl")["episodes"] == 3


def test_a_key_that_was_not_given_out_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        Shelf([tmp_path]).open("../etc")
