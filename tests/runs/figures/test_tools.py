"""What is said of tools.

The sums of a run's rows are those of its episodes, sealed or not, over all of them or over some.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from rlenv.endpoints.account import merged
from rlenv.runs import files
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.tools import asked, asked_in, tools
from rlenv.runs.folder import KeptRun, RunInfo, open_run
from rlenv.runs.lines import LinesReader
from rlenv.runs.pack import pack
from rlenv.runs.schema import USAGE, Facts, is_row, row_of
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import ModelUsage, Trajectory
from tests.support.kept import episode
from tests.support.runs import row, snapshot

ROWS = snapshot(
    row(0, step=1, calls=[("search", "ok", 0.1), ("search", "timeout", 5.0), ("sql", "ok", 0.2)]),
    row(1, step=2, calls=[("search", "ok", 0.3), ("search", "bad_arguments", 0.0)]),
    row(2, step=2),
)


def test_tools_are_told_by_how_often_they_were_called() -> None:
    search, sql = tools(ROWS, np.arange(3))
    assert (search["tool"], search["calls"], search["errors"]) == ("search", 4, 2)
    assert search["outcomes"] == {"ok": 2, "bad_arguments": 1, "timeout": 1}
    assert (sql["tool"], sql["calls"], sql["errors"]) == ("sql", 1, 0)


def test_seconds_are_of_calls_that_reached_the_tool() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert [round(search[f"p{share}"], 3) for share in (50, 90, 99)] == [0.3, 5.0, 5.0]
    never = snapshot(row(0, calls=[("typo", "unknown_tool", 0.0)]))
    assert tools(never, np.arange(1))[0]["p50"] is None


def test_calls_to_look_at_are_named() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert (search["slowest"][0]["id"], search["slowest"][0]["index"]) == ("e-0", 1)
    assert [one["id"] for one in search["failing"]] == ["e-1", "e-0"]


def test_each_step_has_its_calls() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert [(one["step"], one["calls"], one["errors"]) for one in search["by_step"]] == [(1, 2, 1), (2, 2, 1)]


def test_only_the_rows_that_were_asked_for_count() -> None:
    (search,) = tools(ROWS, np.array([1, 2]))
    assert search["calls"] == 2
    assert tools(ROWS, np.array([], dtype=np.int64)) == []


POLICY = ModelUsage("policy", "m", 3, 1, 1, 0, 500, 100, 50, 20, seconds=0.5)
JUDGE = ModelUsage("judge good", "j", 1, cached=2, prompt_tokens=7, completion_tokens=1, seconds=0.25)
RECORDED = ModelUsage("judge good", "j", 1, prompt_tokens=9, completion_tokens=2, is_recorded=True)
EPISODES: list[tuple[ModelUsage, ...]] = [(), (POLICY, JUDGE), (RECORDED, JUDGE, POLICY), (POLICY,)]


def episodes() -> list[Trajectory]:
    return [episode(number, usage=usage) for number, usage in enumerate(EPISODES)]


def expected(*numbers: int) -> tuple[ModelUsage, ...]:
    return merged(one for number in numbers for one in EPISODES[number])


def test_a_row_holds_every_field_of_what_was_asked() -> None:
    assert list(USAGE) == [one.name for one in fields(ModelUsage)]


def test_sums_of_rows_are_those_of_the_episodes(tmp_path: Path) -> None:
    with KeptRun(tmp_path / "run", RunInfo("eval")) as run:
        for one in episodes():
            run.append(one, Facts())
        live = open_run(run.path)
        assert asked(Snapshot(live)) == asked_in(live.rows()) == expected(0, 1, 2, 3)
    sealed = open_run(run.path)
    rows = Snapshot(sealed)
    assert asked(rows) == asked_in(sealed.rows()) == expected(0, 1, 2, 3)
    assert asked(rows, np.array([1])) == expected(1)
    assert asked(rows, np.array([0])) == asked(rows, np.array([], dtype=np.int64)) == ()


def test_a_file_of_trajectories_has_them_too(tmp_path: Path) -> None:
    files.write(tmp_path / "some.jsonl", episodes())
    assert asked(Snapshot(LinesReader(tmp_path / "some.jsonl"))) == expected(0, 1, 2, 3)


def test_parts_of_an_older_version_say_nothing(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with KeptRun(tmp_path / "run", RunInfo("eval")) as run:
        for one in episodes():
            run.append(one, Facts())
    (part,) = (run.path / "episodes").glob("*.parquet")
    pq.write_table(pq.read_table(part).drop_columns(["usage"]), part)
    reader = open_run(run.path)
    assert asked(Snapshot(reader)) == asked_in(reader.rows()) == ()


@pytest.mark.parametrize("broken", [{"role": 3}, {"requests": "x"}, {"seconds": 1e999}, 7])
def test_a_journal_that_holds_something_else_holds_no_row(broken: object) -> None:
    row = row_of(episode(), Facts(), id="a-1", attempt=0, lock="")
    told = {**row, "at": [0, 0, 0], "lies": []}
    assert is_row(told)
    entry = broken if isinstance(broken, int) else {**dict.fromkeys(USAGE), **broken}  # type: ignore[dict-item]
    assert not is_row({**told, "usage": [entry]})


def test_packing_parts_of_both_versions_keeps_what_is_known(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for one in episodes()[1:]:
        writer = RunWriter(tmp_path)
        writer.append(one, Facts())
        writer.close()
    older = min((tmp_path / "episodes").glob("*.parquet"), key=lambda part: pq.read_table(part)["task"][0].as_py())
    pq.write_table(pq.read_table(older).drop_columns(["usage"]), older)
    assert pack(tmp_path).merged == 3
    reader = open_run(tmp_path)
    assert len(reader.table) == 3
    assert set(asked(Snapshot(reader))) == set(expected(2, 3))
