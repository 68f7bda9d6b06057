"""Columns of rows: each is described once, with its type and what it says of an episode."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.messages import Message
from rlenv.runs import files, schema
from rlenv.runs.columns import row_schema, rows_table
from rlenv.runs.folder import open_run
from rlenv.runs.recorded import LinesReader
from rlenv.runs.schema import LATE, NESTED, ROW, Facts, add_column, row_of
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import ModelUsage
from tests.support.kept import episode, keep

PLUG_IN = """
import json, sys
from rlenv.runs.schema import add_column

add_column("long_turns", "int32", lambda trajectory, facts: sum(len(turn.action) > 20 for turn in trajectory.turns))

from rlenv.cli.main import main
from rlenv.runs.figures.query import parse
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.folder import open_run

old, new = sys.argv[1:]
assert main(["eval", "arithmetic", "-n", "2", "-o", new, "--json"]) == 0
found = [open_run(run).table["long_turns"].to_pylist() for run in (old, new)]
hits = len(parse("long_turns>=1").places(Snapshot(open_run(new))))
try:
    parse("long_turn>=1")
except Exception as error:
    print(json.dumps([*found, hits, str(error)]))
"""


def test_a_row_says_something_in_each_of_its_columns_in_their_order() -> None:
    assert list(row_of(episode(), Facts(), id="a-0", attempt=0, lock="")) == [*ROW, *NESTED]


@pytest.mark.parametrize("number", [2**70, -(2**70)])
def test_a_record_with_any_numbers_makes_a_row(number: int) -> None:
    pytest.importorskip("pyarrow")
    known = episode()
    turn = replace(known.turns[0], index=number, calls_malformed=number)
    asked = ModelUsage("judge", "judge", prompt_tokens=number, completion_tokens=number)
    odd = replace(known, task_index=number, seed=number, turns=(turn,), usage=(asked,))
    row = row_of(odd, Facts(step=number, sample=number), id="a-0", attempt=0, lock="")
    assert len(rows_table([row], row_schema())) == 1


@pytest.mark.slow
def test_a_column_of_a_plug_in_is_kept_searched_and_null_in_old_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert main(["eval", "arithmetic", "-n", "2", "-o", old, "--json"]) == 0
    ran = subprocess.run([sys.executable, "-c", PLUG_IN, old, new], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    before, now, hits, told = json.loads(ran.stdout.splitlines()[-1])
    assert before == [None, None]
    assert all(count >= 1 for count in now)
    assert hits == 2
    assert "did you mean 'long_turns'" in told
    assert "long_turns" not in open_run(new).table.column_names  # who has not the plug-in reads the run all the same


@pytest.fixture
def added() -> Iterator[None]:
    """Columns that are added are gone after the test."""
    held, folds = dict(ROW), dict(schema._FOLDS)
    yield
    for now, before in ((ROW, held), (schema._FOLDS, folds)):
        for name in now.keys() - before.keys():
            del now[name]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int32", 2**40),
        ("float32", object()),
        ("float32", float("nan")),
        ("string", "\ud800"),
        ("bool", 1),
        ("int64", "1"),
    ],
)
@pytest.mark.usefixtures("added")
def test_a_value_that_does_not_fit_its_column_is_null_and_told_once(
    kind: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    add_column("own", kind, lambda trajectory, facts: value)
    rows = [row_of(episode(), Facts(), id="a-0", attempt=0, lock="") for _ in range(2)]
    assert [row["own"] for row in rows] == [None, None]
    assert len(caplog.records) == 1
    assert f"is no value of {kind}" in caplog.text


@pytest.mark.usefixtures("added")
def test_a_column_that_raises_ends_nothing_and_one_that_is_added_late_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow")
    keep(tmp_path / "old", 1)  # which has asked for the schema
    add_column("raises", "int32", lambda trajectory, facts: 1 // 0)
    add_column("large", "float64", lambda trajectory, facts: 2**70)
    keep(tmp_path / "new", 2)
    table = open_run(tmp_path / "new").table
    assert (table["raises"].to_pylist(), table["large"].to_pylist()) == ([None] * 2, [2.0**70] * 2)
    assert caplog.text.count("ZeroDivisionError") == 1


@pytest.mark.usefixtures("added")
def test_a_column_that_is_added_once_a_run_is_open_is_read_as_one_that_was_there_before(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    add_column("early", "int32", lambda trajectory, facts: 7)
    keep(tmp_path / "run", 1)
    del ROW["early"], schema._FOLDS["early"]
    files.write(tmp_path / "run.jsonl", [episode()])
    lines, reader = LinesReader(tmp_path / "run.jsonl"), open_run(tmp_path / "run")
    assert "early" not in reader.table.column_names
    add_column("early", "int32", lambda trajectory, facts: 7)
    writer = RunWriter(tmp_path / "run")
    writer.append(episode(1), Facts())
    lines.refresh()
    reader.refresh()
    assert (reader.table["early"].to_pylist(), lines.table["early"].to_pylist()) == ([7, 7], [7])
    assert list(row_of(episode(), Facts(), id="a-0", attempt=0, lock="")) == [*ROW, *NESTED]
    writer.close()


@pytest.mark.parametrize("name", ["at", "lies", "blobs", "index", "row"])
def test_a_column_does_not_take_the_name_of_what_stands_beside_them(name: str) -> None:
    with pytest.raises(UsageError, match="is a column already"):
        add_column(name, "int32", lambda trajectory, facts: 0)


@pytest.mark.parametrize("name", ["reward", "terms", "fate", "no name"])
def test_a_column_that_is_there_or_has_no_name_is_refused(name: str) -> None:
    assert name in {*ROW, *NESTED, *LATE, "no name"}
    with pytest.raises(UsageError, match="is a column already, or no name of one"):
        add_column(name, "int32", lambda trajectory, facts: 0)
    with pytest.raises(UsageError, match="the column 'fine' is of 'number'; string, bool, int16 to int64"):
        add_column("fine", "number", lambda trajectory, facts: 0)


def test_equal_prompts_and_only_these_are_asked_alike() -> None:
    def asked(*messages: Message) -> object:
        one = replace(episode(), messages=messages)
        return row_of(one, Facts(), id="a-0", attempt=0, lock="")["asked"]

    prompts = [
        (),
        (Message("user", "ab"),),
        (Message("user", "a"), Message("user", "b")),
        (Message("user", "a"), Message("user", "")),
        (Message("system", "a"), Message("user", "b")),
        (Message("user", "a1:b"),),
        (Message("user", "\ud800"),),
    ]
    found = [asked(*one) for one in prompts]
    assert len(set(found)) == len(prompts)
    assert [asked(*one) for one in prompts] == found
