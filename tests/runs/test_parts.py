"""Parts as others may hand them on: another order or type of columns is read, a broken one is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.runs.pack import pack
from rlenv.runs.reader import RunReader
from tests.support.kept import keep


def changed(run: Path, change: Callable[[pa.Table], pa.Table], kind: str = "episodes") -> Path:
    """The part of a run with another table in it."""
    [path] = (run / kind).glob("*.parquet")
    pq.write_table(change(pq.ParquetFile(path).read()), path)
    return path


def _as(name: str, column: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, column)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.select(table.column_names[::-1]),
        lambda table: table.append_column("more", pa.array([1, 2])),
        lambda table: table.drop_columns(["answer", "terms"]),
        lambda table: _as("split", table["split"].dictionary_encode())(table),
        lambda table: _as("split", table["split"].cast(pa.large_string()))(table),
        _as("reward", pa.array([1, 1], pa.int64())),
    ],
)
def test_columns_are_read_by_their_names(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    ids = keep(tmp_path, 2)
    changed(tmp_path, change)
    keep(tmp_path, 1, first=2)
    reader = RunReader(tmp_path)
    assert set(ids) < set(reader.table["id"].to_pylist())
    assert set(reader.table["split"].to_pylist()) == {"train"}
    assert len(list(reader.rows())) == 3
    assert len(reader.entries("calls")) == 3
    pack(tmp_path)
    assert len(RunReader(tmp_path).table) == 3


def _calls_of(order: Callable[[list[str]], list[str]]) -> Callable[[pa.Table], pa.Table]:
    """A change that leaves some fields of calls, in some order."""

    def change(table: pa.Table) -> pa.Table:
        lists = table["calls"].combine_chunks()
        names = order([one.name for one in lists.type.value_type])
        inside = pa.StructArray.from_arrays([lists.values.field(name) for name in names], names)
        return _as("calls", pa.ListArray.from_arrays(lists.offsets, inside))(table)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _calls_of(lambda names: names[::-1]),
        _calls_of(lambda names: [name for name in names if name != "waited"]),
        _calls_of(lambda names: ["outcome", "tool"]),
        lambda table: table.append_column("more", pa.array([1, 2])),
    ],
)
def test_fields_of_entries_are_read_by_their_names(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    keep(tmp_path, 2)
    changed(tmp_path, change)
    keep(tmp_path, 1, first=2)
    reader = RunReader(tmp_path)
    for fields in (("tool",), ("tool", "waited"), ("waited",)):
        found = reader.entries("calls", fields)
        assert found.column_names == ["row", *fields]
        assert found["row"].to_pylist() == [0, 1, 2]
        for name in fields:
            whole = reader.entries("calls")[name].to_pylist()
            assert found[name].to_pylist() == whole
    assert set(reader.entries("calls", ("tool",))["tool"].to_pylist()) == {"search"}


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["id"]),
        _as("step", pa.array([None, None], pa.int32())),
        _as("task", pa.array([2**40, 2**40])),
        _as("reward", pa.array(["x", "y"])),
        lambda table: table.replace_schema_metadata({b"rlenv.segments": b"garbage"}),
        lambda table: table.replace_schema_metadata({b"rlenv.segments": b'[[5, "a", null]]'}),
    ],
)
def test_a_part_that_holds_no_rows_is_named(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    keep(tmp_path, 2)
    path = changed(tmp_path, change)
    with pytest.raises(UsageError, match=path.name):
        RunReader(tmp_path)


@pytest.mark.parametrize("column", ["terms", "calls", "usage"])
@pytest.mark.parametrize("values", [pa.array([1, 2]), pa.array(["x", "y"]), pa.array([[1], [2]])])
def test_a_part_with_no_lists_of_entries_is_named(tmp_path: Path, column: str, values: pa.Array) -> None:
    keep(tmp_path, 2)
    path = changed(tmp_path, _as(column, values))
    with pytest.raises(UsageError, match=path.name):
        list(RunReader(tmp_path).rows())


@pytest.mark.parametrize("record", [pa.array([None], pa.binary()), pa.array([5]), pa.array([0.5]), pa.array(["{}"])])
def test_a_body_without_a_record_is_named(tmp_path: Path, record: pa.Array) -> None:
    [id] = keep(tmp_path, 1)
    path = changed(tmp_path, _as("record", record), "bodies")
    for read in (lambda: RunReader(tmp_path).body(id), lambda: list(RunReader(tmp_path).records())):
        with pytest.raises(UsageError, match=path.name):
            read()


@pytest.mark.parametrize("events", [pa.array([5]), pa.array([[1]]), pa.array([0.5])])
def test_a_body_whose_events_are_none_is_named(tmp_path: Path, events: pa.Array) -> None:
    [id] = keep(tmp_path, 1)
    path = changed(tmp_path, _as("events", events), "bodies")
    with pytest.raises(UsageError, match=path.name):
        RunReader(tmp_path).body(id)


@pytest.mark.parametrize("events", [pa.array(["{}"]), pa.array([None]), pa.array([b"{}"], pa.large_binary())])
def test_events_of_a_body_are_read_in_any_column_that_holds_bytes(tmp_path: Path, events: pa.Array) -> None:
    [id] = keep(tmp_path, 1)
    changed(tmp_path, _as("events", events), "bodies")
    assert RunReader(tmp_path).body(id).record


def test_a_success_without_a_reward_is_no_measured_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "run", 1)
    changed(tmp_path / "run", _as("reward", pa.array([None], pa.float64())))
    assert main(["runs", "tasks", str(tmp_path / "run"), str(tmp_path / "tasks.jsonl")]) == 2
    assert "no valid episode" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["episodes", "bodies"])
@pytest.mark.parametrize("cut", [0, 20, 200])
def test_a_part_that_was_cut_is_named(tmp_path: Path, kind: str, cut: int) -> None:
    [id] = keep(tmp_path, 1)
    [path] = (tmp_path / kind).glob("*.parquet")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=path.name):
        RunReader(tmp_path).body(id)


def test_bodies_that_are_gone_are_told(tmp_path: Path) -> None:
    [id] = keep(tmp_path, 1)
    [path] = (tmp_path / "bodies").glob("*.parquet")
    path.unlink()
    with pytest.raises(UsageError, match="is not there"):
        RunReader(tmp_path).body(id)


def test_packing_removes_nothing_outside_of_the_run(tmp_path: Path) -> None:
    """The segments that a packed part names are removed; its names are whoever's handed it on."""
    outside = tmp_path / "kept.parquet"
    outside.write_bytes(b"mine")
    keep(tmp_path / "run", 1)
    path = changed(
        tmp_path / "run", lambda table: table.replace_schema_metadata({b"rlenv.segments": b'[["../../kept", 0, 0]]'})
    )
    path.rename(path.with_name("P-0.parquet"))
    with pytest.raises(UsageError, match="is no segment"):
        pack(tmp_path / "run")
    assert outside.read_bytes() == b"mine"


def test_what_is_no_file_is_no_part(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    os.mkfifo(tmp_path / "episodes" / "a.parquet")
    os.mkfifo(tmp_path / "episodes" / "P-a.parquet")
    (tmp_path / "episodes" / "P-b.parquet").mkdir()
    (tmp_path / "episodes" / "c.parquet").symlink_to("/dev/zero")
    assert len(RunReader(tmp_path).table) == 1
    assert pack(tmp_path).merged == 0


def test_bodies_that_are_no_file_are_told(tmp_path: Path) -> None:
    [id] = keep(tmp_path, 1)
    [bodies] = (tmp_path / "bodies").iterdir()
    bodies.unlink()
    os.mkfifo(bodies)  # which would be waited for
    for read in (
        lambda: RunReader(tmp_path).body(id),
        lambda: list(RunReader(tmp_path).records()),
        lambda: pack(tmp_path),
    ):
        with pytest.raises(UsageError, match="no regular file"):
            read()


def test_a_broken_run_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "whole", 1)
    keep(tmp_path / "broken", 1)
    changed(tmp_path / "broken", lambda table: table.drop_columns(["id"]))
    assert main(["runs", "list", "--json", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "whole" in told.out
    assert "broken" in told.err


@pytest.mark.parametrize("number", ["9" * 5_000, "\u0661", "\u00b2", "-1"])
def test_numbers_that_no_episode_has_are_told(tmp_path: Path, number: str) -> None:
    [id] = keep(tmp_path, 1)
    with pytest.raises(UsageError, match="no episode"):
        RunReader(tmp_path).body(f"{id.rpartition('-')[0]}-{number}")


def test_bodies_that_cannot_be_merged_are_named_and_all_stays(tmp_path: Path) -> None:
    [first] = keep(tmp_path, 1)
    path = changed(tmp_path, lambda table: table.drop_columns(["tokens"]), "bodies")
    keep(tmp_path, 1, first=1)
    with pytest.raises(UsageError, match="cannot be read as a part"):
        pack(tmp_path)
    assert path.exists()
    assert len(RunReader(tmp_path).table) == 2
    assert first in RunReader(tmp_path).table["id"].to_pylist()
