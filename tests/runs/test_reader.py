"""A run as others see it, while it is written, sealed and packed."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from rlenv.errors import UsageError
from rlenv.runs.folder import Attempt, RunInfo, open_run, write_info
from rlenv.runs.pack import pack
from rlenv.runs.parts import seal
from rlenv.runs.reader import RunReader
from rlenv.runs.recorded import episodes_with_facts
from rlenv.runs.schema import NEVER_NULL, ROW, Facts, Mode, ending_of, late_of, term_of
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import RewardBreakdown, TermResult
from tests.support.kept import episode, keep


def test_a_refresh_reads_what_is_new_and_only_that(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, seal_episodes=3)
    reader = RunReader(tmp_path)
    assert len(reader.table) == 0
    assert not reader.refresh()
    for number in range(10):
        writer.append(episode(number), Facts())
        assert reader.refresh()
        assert reader.table["task"].to_pylist() == list(range(number + 1))
        assert not reader.refresh() or len(reader.table) == number + 1  # sealed in the meantime: the same rows
    writer.close()
    reader.refresh()
    assert sorted(reader.table["task"].to_pylist()) == list(range(10))
    assert not reader.refresh()


@pytest.mark.slow
def test_counts_never_go_back_while_segments_are_sealed_and_packed(tmp_path: Path) -> None:
    """Three writers seal every other episode, one packs what is sealed, and a reader looks all the time."""
    done, seen = threading.Event(), []
    (tmp_path / "journal").mkdir()

    def write() -> None:
        keep(tmp_path, 60, seal_episodes=2)

    def look() -> None:
        reader = RunReader(tmp_path)
        while not done.is_set():
            reader.refresh()
            ids = reader.table["id"].to_pylist()
            assert len(ids) == len(set(ids))
            if ids:
                assert reader.body(ids[-1]).trajectory().environment == "toy-v0"
            seen.append(len(ids))
        reader.refresh()
        seen.append(len(reader.table))

    failed: list[BaseException] = []

    def looked() -> None:
        try:
            look()
        except BaseException as error:
            failed.append(error)

    looking = threading.Thread(target=looked)
    looking.start()
    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        pack(tmp_path)
    for writer in writers:
        writer.join()
    done.set()
    looking.join()
    assert not failed
    assert seen == sorted(seen)
    assert seen[-1] == 180


def test_an_attempt_that_was_gone_on_from_does_not_count(tmp_path: Path) -> None:
    for attempt, steps in ((0, (1, 2, 3)), (1, (3, 4))):
        writer = RunWriter(tmp_path, attempt=attempt)
        for step in steps:
            writer.append(episode(step), Facts(step=step))
        writer.close()
    write_info(tmp_path, RunInfo("train", attempts=(Attempt(0), Attempt(1, from_step=2))))
    reader = open_run(tmp_path)
    rows = sorted(zip(reader.table["step"].to_pylist(), reader.table["attempt"].to_pylist(), strict=True))
    assert rows == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert sum(reader.is_counted(row) for row in reader.rows()) == 4


def test_what_an_episode_has_ended_as_may_be_known_later(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    id = writer.append(episode(0), Facts())
    again = episode(0).rescored(RewardBreakdown(0.25, episode(0).reward.terms, (0.0, 0.25)), success=False)
    writer.append_late(id, ending_of(again))
    for _ in ("open", "sealed"):
        reader = RunReader(tmp_path)
        assert reader.body(id).trajectory() == again
        assert reader.table["reward"].to_pylist() == [0.25]
        assert reader.table["success"].to_pylist() == [False]
        writer.close()


def test_a_reward_that_became_invalid_later_is_none(tmp_path: Path) -> None:
    (id,) = keep(tmp_path, 1)
    writer = RunWriter(tmp_path)
    failed = episode().rescored(RewardBreakdown(None, {}), None)
    writer.append_late(id, ending_of(failed))
    writer.append_late(id, {"fate": "masked"})
    reader = RunReader(tmp_path)
    (row,) = reader.table.to_pylist()
    assert (row["reward"], row["success"], row["reason"], row["fate"]) == (None, None, "reward", "masked")
    assert (row["failure"], reader.body(id).trajectory()) == ("reward", failed)
    assert row["failure_message"]
    writer.close()


def test_a_validation_that_an_attempt_makes_again_counts_once(tmp_path: Path) -> None:
    modes: tuple[Mode, ...] = ("greedy", "train")
    for mode in modes:
        keep(tmp_path, 2, attempt=1, facts=Facts(step=3, mode=mode))
    reader = RunReader(tmp_path, from_steps={1: 0, 2: 3})
    assert len(reader.table) == 4
    again = keep(tmp_path, 1, attempt=2, facts=Facts(step=3, mode="greedy"))
    reader.refresh()
    found = reader.table.to_pylist()
    assert [row["id"] for row in found if row["mode"] == "greedy"] == again
    assert len(found) == 3
    assert sorted(row["id"] for row in reader.rows() if reader.is_counted(row)) == sorted(row["id"] for row in found)


@pytest.mark.parametrize("closed", [(), (0,), (1,), (0, 1)])
def test_a_sample_that_an_attempt_plays_again_counts_once_wherever_its_rows_lie(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    writers = [RunWriter(tmp_path, attempt=attempt) for attempt in (0, 1)]
    for attempt, tasks in ((0, (0, 1)), (1, (1, 2))):
        for task in tasks:
            writers[attempt].append(episode(task), Facts(mode="sampled"))
        if attempt in closed:
            writers[attempt].close()
    reader = RunReader(tmp_path)
    found = sorted(zip(reader.table["task"].to_pylist(), reader.table["attempt"].to_pylist(), strict=True))
    assert found == [(0, 0), (1, 1), (2, 1)]
    assert sum(reader.is_counted(row) for row in reader.rows()) == 3
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("id", ["nothing", "nothing-0", "{segment}-9", "", "../../x-0"])
def test_an_id_that_is_no_episodes_is_told(tmp_path: Path, id: str) -> None:
    (real,) = keep(tmp_path, 1)
    with pytest.raises(UsageError, match="is no episode of"):
        RunReader(tmp_path).body(id.format(segment=real.rpartition("-")[0]))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run at"):
        RunReader(tmp_path / "nowhere")


def test_a_journal_that_was_cut_off_in_a_line_is_read_up_to_it(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for number in range(3):
        writer.append(episode(number), Facts())
    (rows,) = (tmp_path / "journal").glob("*.rows.jsonl")
    rows.write_bytes(rows.read_bytes()[:-30])
    assert RunReader(tmp_path).table["task"].to_pylist() == [0, 1]


def test_a_row_of_a_journal_that_lacks_a_column_says_null_there_as_one_of_a_part_does(tmp_path: Path) -> None:
    RunWriter(tmp_path).append(episode(0), Facts(group="g"))
    (rows,) = (tmp_path / "journal").glob("*.rows.jsonl")
    held = orjson.loads(rows.read_bytes())
    rows.write_bytes(orjson.dumps({key: held[key] for key in (*NEVER_NULL, "at", "lies")}) + b"\n")
    [row] = RunReader(tmp_path).rows()
    assert all(row[key] is None for key in ROW.keys() - NEVER_NULL)
    [(facts, _)] = episodes_with_facts(tmp_path)
    assert facts == Facts(step=held["step"], sample=held["sample"], mode=held["mode"], group="")


def _two_writers(run: Path, names: tuple[str, str]) -> tuple[str, list[Path]]:
    """An episode of which two writers speak, the second one later; their journals have these names."""
    (id,) = keep(run, 1)
    journals = []
    for said, (name, fate) in enumerate(zip(names, ("masked", "trained"), strict=True), 1):
        path = run / "journal" / f"{name}.late.jsonl"
        path.write_bytes(
            orjson.dumps(late_of(id, {"said": said, "fate": fate, "terms": [term_of(_TERMS[fate])]})) + b"\n"
        )
        journals.append(path)
    return id, journals


_TERMS = {name: TermResult.valid(name, value=1.0, weight=1.0) for name in ("masked", "trained")}


@pytest.mark.parametrize("names", [("a-1-a-00000", "b-1-b-00000"), ("b-1-b-00000", "a-1-a-00000")])
@pytest.mark.parametrize("sealed", [(), (0,), (1,), (0, 1)])
def test_of_two_writers_the_one_who_spoke_last_counts(
    tmp_path: Path, names: tuple[str, str], sealed: tuple[int, ...]
) -> None:
    id, _ = _two_writers(tmp_path, names)
    before = RunReader(tmp_path)
    for number in sealed:
        seal(tmp_path, names[number])
    before.refresh()
    pack(tmp_path, force=True)
    for reader in (before, RunReader(tmp_path)):
        assert reader.table["fate"].to_pylist() == ["trained"]
        assert reader.nested("terms", [id])["name"].to_pylist() == ["trained"]


def test_late_facts_that_say_no_time_stand_before_those_that_do(tmp_path: Path) -> None:
    """Parts of an older version have no such column."""
    _, (first, last) = _two_writers(tmp_path, ("a-1-a-00000", "b-1-b-00000"))
    said = [orjson.loads(path.read_bytes()) for path in (first, last)]
    del said[1]["said"]
    last.write_bytes(orjson.dumps(said[1]) + b"\n")
    assert RunReader(tmp_path).table["fate"].to_pylist() == ["masked"]
    seal(tmp_path, "b-1-b-00000")
    [part] = (tmp_path / "late").iterdir()
    pq.write_table(pq.read_table(part).drop_columns(["said"]), part)
    assert RunReader(tmp_path).table["fate"].to_pylist() == ["masked"]


def test_what_was_said_later_is_still_said_when_the_rows_are_packed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, seal_episodes=2)
    for number in range(4):
        writer.append_late(writer.append(episode(number), Facts()), {"fate": "trained"})
    writer.close()
    pack(tmp_path)
    assert RunReader(tmp_path).table["fate"].to_pylist() == ["trained"] * 4


def test_a_run_that_is_packed_after_it_was_looked_at_answers_as_before(tmp_path: Path) -> None:
    """A viewer holds one state of the rows while another process packs the run."""
    ids = [*keep(tmp_path, 2), *keep(tmp_path, 3, first=2, facts=Facts(tokens=()), seal_episodes=2)]
    reader, order = RunReader(tmp_path), RunReader(tmp_path).table["id"].to_pylist()
    pack(tmp_path)
    assert reader.table["id"].to_pylist() == order
    assert sorted(row["id"] for row in reader.rows()) == sorted(ids)
    assert reader.entries("calls")["row"].to_pylist() == list(range(5))
    assert reader.nested("terms", [ids[1]])["id"].to_pylist() == [ids[1]]
    assert {id for id, _ in reader.records()} == set(ids)
    assert [id for id, _ in reader.records([ids[3]])] == [ids[3]]
    assert [reader.body(id).trajectory().task_index for id in ids] == [0, 1, 2, 3, 4]
    assert [row["task"] for row in reader.rows()].count(3) == 1
    assert reader.table["id"].to_pylist() == order


def test_a_journal_that_was_sealed_and_packed_after_it_was_looked_at_still_has_its_bodies(tmp_path: Path) -> None:
    writers = [RunWriter(tmp_path) for _ in range(2)]
    ids = [writer.append(episode(number), Facts()) for number, writer in enumerate(writers)]
    reader = RunReader(tmp_path)
    for writer in writers:
        writer.close()
    pack(tmp_path)
    assert [reader.body(id).trajectory().task_index for id in ids] == [0, 1]
    assert [id for id, _ in reader.records()] == sorted(ids)
