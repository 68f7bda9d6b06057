"""What is said of tools.

The sums of a run's rows are those of its episodes, sealed or not, over all of them or over some.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from rlenv.endpoints.account import merge_usage
from rlenv.runs import files
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.tools import (
    MOST,
    asked,
    asked_in,
    group_of,
    members,
    outcomes,
    over_steps,
    shown_of,
    spread,
    tool_figures,
)
from rlenv.runs.folder import KeptRun, RunInfo, open_run
from rlenv.runs.pack import pack
from rlenv.runs.recorded import LinesReader
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
    search, sql = tool_figures(ROWS, np.arange(3))
    assert (search["tool"], search["calls"], search["errors"]) == ("search", 4, 2)
    assert search["outcomes"] == {"ok": 2, "bad_arguments": 1, "timeout": 1}
    assert (sql["tool"], sql["calls"], sql["errors"]) == ("sql", 1, 0)


def test_seconds_are_of_calls_that_reached_the_tool() -> None:
    search, _ = tool_figures(ROWS, np.arange(3))
    assert [round(search[f"p{share}"], 3) for share in (50, 90, 99)] == [0.3, 5.0, 5.0]
    never = snapshot(row(0, calls=[("typo", "unknown_tool", 0.0)]))
    assert tool_figures(never, np.arange(1))[0]["p50"] is None


def test_calls_to_look_at_are_named() -> None:
    search, _ = tool_figures(ROWS, np.arange(3))
    assert (search["slowest"][0]["id"], search["slowest"][0]["index"]) == ("e-0", 1)
    assert [one["id"] for one in search["failing"]] == ["e-1", "e-0"]


def test_each_step_has_its_calls() -> None:
    search, _ = tool_figures(ROWS, np.arange(3))
    assert [(one["step"], one["calls"], one["errors"]) for one in search["by_step"]] == [(1, 2, 1), (2, 2, 1)]


def test_only_the_rows_that_were_asked_for_count() -> None:
    (search,) = tool_figures(ROWS, np.array([1, 2]))
    assert search["calls"] == 2
    assert tool_figures(ROWS, np.array([], dtype=np.int64)) == []


POLICY = ModelUsage("policy", "m", 3, 1, 1, 0, 500, 100, 50, 20, seconds=0.5)
JUDGE = ModelUsage("judge good", "j", 1, cached=2, prompt_tokens=7, completion_tokens=1, seconds=0.25)
RECORDED = ModelUsage("judge good", "j", 1, prompt_tokens=9, completion_tokens=2, is_recorded=True)
EPISODES: list[tuple[ModelUsage, ...]] = [(), (POLICY, JUDGE), (RECORDED, JUDGE, POLICY), (POLICY,)]


def episodes() -> list[Trajectory]:
    return [episode(number, usage=usage) for number, usage in enumerate(EPISODES)]


def expected(*numbers: int) -> tuple[ModelUsage, ...]:
    return merge_usage(one for number in numbers for one in EPISODES[number])


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


# The samples of one task side by side

GROUPS_ROWS = snapshot(
    row(0, step=1, task=4, group="g", sample=0, reward=0.1),
    row(1, step=1, task=4, group="g", sample=1, reward=0.9),
    row(2, step=1, task=4, group="g", sample=2, reward=None),
    row(3, step=2, task=4, group="g", sample=0, reward=1.0),
    row(4, step=1, task=5, sample=1, reward=0.5),
    row(5, step=1, task=5, sample=0, reward=0.5),
)


def test_members_stand_by_reward_and_the_invalid_last() -> None:
    assert members(GROUPS_ROWS, 1, "g").tolist() == [1, 0, 2]
    assert members(GROUPS_ROWS, 3, "g").tolist() == []


def test_episodes_without_a_group_are_one_by_their_task() -> None:
    assert group_of({"group": "", "split": "train", "task": 5, "id": "e-4"}) == "train/5"
    assert members(GROUPS_ROWS, 1, "train/5").tolist() == [5, 4]
    assert group_of({"group": "", "split": "train", "task": -1, "id": "e-4"}) == "e-4"
    assert members(GROUPS_ROWS, 1, "e-4").tolist() == [4]


def test_the_task_is_followed_over_the_steps() -> None:
    found = over_steps(GROUPS_ROWS, members(GROUPS_ROWS, 1, "g"))
    assert found == [{"step": 1, "mean": 0.5, "n": 2}, {"step": 2, "mean": 1.0, "n": 1}]


def test_the_spread_leaves_out_what_is_invalid() -> None:
    assert spread(np.array([0.0, 1.0, np.nan])) == (0.5, 0.5)
    assert spread(np.array([np.nan])) == (None, None)


def test_of_a_large_group_all_count_and_both_ends_are_shown() -> None:
    count = 3 * MOST
    rows = snapshot(*(row(number, group="g", sample=number, reward=float(number)) for number in range(count)))
    places = members(rows, 0, "g")
    assert len(places) == count
    shown = shown_of(places).tolist()
    assert (len(shown), shown[0], shown[-1]) == (MOST, count - 1, 0)
    assert shown_of(places[:MOST]).tolist() == places[:MOST].tolist()


def test_tasks_without_a_number_are_not_one_task() -> None:
    rows = snapshot(*(row(number, task=-1, step=number, reward=float(number)) for number in range(3)))
    assert over_steps(rows, members(rows, 1, "e-1")) == [{"step": 1, "mean": 1.0, "n": 1}]
    assert members(rows, 1, "train/-1").tolist() == []


def test_tasks_stand_by_how_few_of_their_samples_won() -> None:
    rows = [
        row(number, task=task, sample=sample, success=success, reward=None if success is None else float(success))
        for number, (task, sample, success) in enumerate(
            [(0, 0, True), (0, 1, True), (1, 0, True), (1, 1, False), (2, 0, False), (2, 1, None), (3, 0, None)]
        )
    ]
    found = outcomes(snapshot(*rows), np.arange(len(rows)))
    told = [(one["task"], one["won"], one["valid"], one["n"], one["reward"]) for one in found["tasks"]]
    assert told == [(3, 0, 0, 1, None), (2, 0, 1, 2, 0.0), (1, 1, 2, 2, 0.5), (0, 2, 2, 2, 1.0)]
    assert found["tasks"][2]["group"] == "train/1"
    assert [(one["won"], one["valid"], one["n"]) for one in found["spread"]] == [
        (0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 2, 1),
    ]  # fmt: skip
    assert (found["pass_at"][2], found["pass_hat"][2], found["more"]) == (1.0, 0.5, 0)
    assert found["pass_of"] == {1: 3, 2: 2}


def test_without_samples_no_task_came_out_and_played_once_there_is_no_pass_at_k() -> None:
    assert outcomes(GROUPS_ROWS, np.arange(0))["tasks"] == []
    assert outcomes(snapshot(row(0), row(1)), np.arange(2))["pass_at"] == {}
