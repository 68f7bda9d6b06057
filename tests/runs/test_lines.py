"""A file of JSON lines read as a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.lines import LinesReader
from tests.support.runs import played


def test_rows_are_lines_and_bodies_stay_in_the_file(tmp_path: Path) -> None:
    episodes = [played(task=1), played(task=1, seed=2), played(task=2, reward=None)]
    files.write(tmp_path / "t.jsonl", episodes)
    reader = LinesReader(tmp_path / "t.jsonl")
    assert reader.table["id"].to_pylist() == ["line-1", "line-2", "line-3"]
    assert reader.table["sample"].to_pylist() == [0, 1, 0]
    assert reader.table["group"].to_pylist() == ["train/1", "train/1", "train/2"]
    assert reader.body("line-2").trajectory() == episodes[1]
    assert [id for id, _ in reader.records(["line-3"])] == ["line-3"]
    assert reader.nested("calls", ["line-1"])["tool"].to_pylist() == ["search"]
    assert len(reader.nested("terms")) == 3


def test_lines_that_are_added_are_seen_once_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    files.write(path, [played()])
    reader = LinesReader(path)
    assert not reader.refresh()
    line = files.dump(played(task=7)) + b"\n"
    with path.open("ab") as file:
        file.write(line[:100])
    reader.refresh()
    assert len(reader.table) == 1
    with path.open("ab") as file:
        file.write(line[100:])
    assert reader.refresh()
    assert reader.table["task"].to_pylist() == [0, 7]
    assert reader.body("line-2").trajectory() == played(task=7)


def test_what_is_no_trajectory_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(files.dump(played()) + b"\n\n{}\n")
    with pytest.raises(UsageError, match=r"t\.jsonl:3: not a recorded trajectory"):
        LinesReader(tmp_path / "t.jsonl")
    with pytest.raises(UsageError, match="no recorded trajectories"):
        LinesReader(tmp_path / "nothing.jsonl")
    files.write(tmp_path / "u.jsonl", [played()])
    with pytest.raises(UsageError, match="no episode"):
        LinesReader(tmp_path / "u.jsonl").body("line-2")
