"""Packing: what nobody writes any more, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlenv.errors import UsageError
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.journal import Claim, path_of
from rlenv.runs.pack import is_alive, pack, seal_abandoned
from rlenv.runs.parts import seal
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import KeepPolicy, RunWriter, host_name, kernel_name
from tests.support.kept import TOKENS, episode, keep


def dead() -> int:
    """The id of a process that is gone."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def orphaned(run: Path, segment: str, *, owner: str) -> str:
    """Gives a segment's journal another owner."""
    rest = segment.rsplit("-", 2)
    name = f"{owner}-{rest[1]}-{rest[2]}"
    for path in (run / "journal").glob(f"{segment}.*"):
        path.write_bytes(path.read_bytes().replace(segment.encode(), name.encode()))
        path.rename(path.with_name(path.name.replace(segment, name)))
    return name


def test_small_parts_become_one_and_every_episode_is_still_there(tmp_path: Path) -> None:
    ids = [*keep(tmp_path, 19, seal_episodes=5), *keep(tmp_path, 4, first=19)]
    before = RunReader(tmp_path)
    parts = len(list((tmp_path / "episodes").iterdir()))
    done = pack(tmp_path)
    assert (done.sealed, done.merged, done.left) == (0, parts, ())
    assert len(list((tmp_path / "episodes").iterdir())) == len(list((tmp_path / "bodies").iterdir())) == 1
    reader = RunReader(tmp_path)
    assert sorted(reader.table["id"].to_pylist()) == sorted(ids)
    for number, id in enumerate(ids):
        assert reader.body(id).trajectory() == episode(number)
        assert list(reader.body(id).tokens[0].ids) == TOKENS.ids
    before.refresh()
    assert sorted(before.table["id"].to_pylist()) == sorted(ids)
    assert before.body(ids[7]).trajectory() == episode(7)
    assert pack(tmp_path).merged == 0


def as_large_as_many(part: Path, size: int) -> None:
    """Puts a hole of so many bytes between what a part holds and what it says at its end of where that lies."""
    held = part.read_bytes()
    end = len(held) - 8 - int.from_bytes(held[-8:-4], "little")
    with part.open("wb") as file:
        file.write(held[:end])
        file.seek(size, os.SEEK_CUR)
        file.write(held[end:])


def test_parts_are_merged_up_to_a_size_each_time_anew(tmp_path: Path) -> None:
    ids = [id for number in range(5) for id in keep(tmp_path, 1, first=number)]
    for part in (tmp_path / "bodies").iterdir():
        as_large_as_many(part, 50_000_000)
    assert pack(tmp_path).merged == 4
    assert sorted(path.name[:2] == "P-" for path in (tmp_path / "episodes").iterdir()) == [False, True, True]
    reader = RunReader(tmp_path)
    assert [reader.body(id).trajectory() for id in ids] == [episode(number) for number in range(5)]


def test_bodies_that_were_not_kept_do_not_shift_the_others(tmp_path: Path) -> None:
    facts = Facts(mode="train", group="g")
    for first in (0, 10):
        writer = RunWriter(tmp_path, keep=KeepPolicy(keep_gb=0.0, share=0.3))
        for number in range(first, first + 10):
            writer.append(episode(number), facts)
        writer.close()
    pack(tmp_path)
    reader = RunReader(tmp_path)
    rows = reader.table.to_pylist()
    kept = [row for row in rows if row["has_body"]]
    assert 2 <= len(kept) < 20
    for row in kept:
        assert reader.body(row["id"]).trajectory() == episode(row["task"])


def test_a_journal_of_a_writer_that_is_gone_is_sealed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    writers = [RunWriter(tmp_path) for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.append(episode(number), Facts())
    segments = sorted(path.name.split(".")[0] for path in (tmp_path / "journal").glob("*.rows.jsonl"))
    gone = orphaned(tmp_path, segments[0], owner=f"{host_name()}-{dead()}")
    far = orphaned(tmp_path, segments[1], owner="elsewhere-1")
    done = pack(tmp_path)
    assert done.sealed == 1
    assert set(done.left) == {far, segments[2]}
    assert not is_alive(gone)
    assert pack(tmp_path, force=True).left == (segments[2],)
    assert sorted(RunReader(tmp_path).table["task"].to_pylist()) == [0, 1, 2]


def newer(run: Path, segment: str, number: int, **more: object) -> str:
    """Gives an open segment to a writer that is gone and knew more of its episode than this version does."""
    for path, said in (
        (path_of(run, segment, "rows"), {"own": number}),
        (path_of(run, segment, "late"), {"since": 0.5}),
    ):
        row = json.loads(path.read_bytes()) | said | more
        for term in row.get("terms") or ():
            term["shares"] = [number, 0.25]
        path.write_bytes(json.dumps(row).encode() + b"\n")
    return orphaned(run, segment, owner=f"{host_name()}-{dead()}")


def test_no_fact_is_lost_by_who_has_no_column_for_it(tmp_path: Path) -> None:
    """Neither where a journal is sealed nor where parts become one, nor of its lists, late facts and bodies."""
    for number in range(2):
        writer = RunWriter(tmp_path)
        id = writer.append(episode(number), Facts())
        writer.append_late(id, {"fate": "trained"})
        newer(tmp_path, id.rpartition("-")[0], number)
    keep(tmp_path, 1, first=2)
    seal_abandoned(tmp_path)
    for path in (tmp_path / "bodies").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.append_column("sound", [[path.name.encode()] * len(table)]), path)
    sounds = {path.name.encode() for path in (tmp_path / "bodies").iterdir()}
    for merged in (0, 3):
        rows = sorted(RunReader(tmp_path).rows(), key=lambda row: row["task"])
        assert [row.get("own") for row in rows] == [0, 1, None]
        assert [row["terms"][0].get("shares") for row in rows] == [[0, 0.25], [1, 0.25], None]
        assert pack(tmp_path).merged == 3 - merged
    (bodies,) = (tmp_path / "bodies").iterdir()
    assert {*pq.read_table(bodies)["sound"].to_pylist()} == sounds
    assert [pq.read_table(path)["since"].to_pylist() for path in (tmp_path / "late").iterdir()] == [[0.5], [0.5]]
    assert RunReader(tmp_path).table["fate"].to_pylist().count("trained") == 2
    assert [RunReader(tmp_path).body(row["id"]).trajectory() for row in rows] == [
        episode(number) for number in range(3)
    ]


def test_what_a_part_cannot_hold_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[object] = ["text", 1, {}]
    for number, own in enumerate(kinds):
        writer = RunWriter(tmp_path)
        id = writer.append(episode(number), Facts())
        writer.append_late(id, {"fate": "trained"})
        newer(tmp_path, id.rpartition("-")[0], number, own=own)
    done = pack(tmp_path)
    assert (done.sealed, done.merged, len(done.left)) == (2, 0, 1)
    assert caplog.text.count("do not go together") == 1
    rows = sorted(RunReader(tmp_path).rows(), key=lambda row: row["task"])
    assert [row["own"] for row in rows] == kinds


@pytest.mark.skipif(not kernel_name(), reason="only Linux tells containers apart")
@pytest.mark.parametrize("what", ["boot", "namespace"])
def test_a_process_number_of_another_container_or_start_of_the_machine_is_not_looked_for(
    tmp_path: Path, what: str
) -> None:
    writer = RunWriter(tmp_path)
    writer.append(episode(0), Facts())
    (segment,) = (path.name.split(".")[0] for path in (tmp_path / "journal").glob("*.rows.jsonl"))
    boot, namespace = kernel_name()[:6], kernel_name()[6:]
    kernel = f"{'0' * 6}{namespace}" if what == "boot" else f"{boot}{'0' * 6}"
    other = orphaned(tmp_path, segment, owner=f"{host_name()}{kernel}-{dead()}")
    assert is_alive(other)
    assert pack(tmp_path).left == (other,)
    for path in (tmp_path / "journal").iterdir():
        os.utime(path, (0, 0))
    assert pack(tmp_path).left == (() if what == "boot" else (other,)), "written before this start of the machine"
    writer.close()


def test_a_run_that_goes_on_seals_what_its_killed_writer_left(tmp_path: Path) -> None:
    """Whoever reads the parts with other programs finds every episode."""
    with KeptRun(tmp_path, RunInfo("eval")) as run:
        run.append(episode(0), Facts())
    killed = RunWriter(tmp_path)
    killed.append(episode(1), Facts())
    (segment,) = (path.name.split(".")[0] for path in (tmp_path / "journal").glob("*.rows.jsonl"))
    orphaned(tmp_path, segment, owner=f"{host_name()}-{dead()}")
    with KeptRun(tmp_path, RunInfo("eval"), resume=True) as run:
        run.append(episode(2), Facts())
    assert not list((tmp_path / "journal").glob("*.rows.jsonl"))
    rows = [row for path in (tmp_path / "episodes").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert sorted(row["task"] for row in rows) == [0, 1, 2]
    killed.close()


def test_what_was_left_is_not_sealed_by_two_at_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.append(episode(0), Facts())
    (segment,) = (path.name.split(".")[0] for path in (tmp_path / "journal").glob("*.rows.jsonl"))
    orphaned(tmp_path, segment, owner=f"{host_name()}-{dead()}")
    (tmp_path / "episodes").mkdir(exist_ok=True)
    packing = Claim(tmp_path / "episodes")
    seal_abandoned(tmp_path)
    assert not list((tmp_path / "episodes").iterdir())
    packing.release()
    seal_abandoned(tmp_path)
    assert RunReader(tmp_path).table["task"].to_pylist() == [0]
    assert not list((tmp_path / "journal").iterdir())
    writer.close()


@pytest.mark.parametrize("left", ["late", "rows", "bodies"])
def test_a_sealing_that_was_interrupted_is_done_again(tmp_path: Path, left: str) -> None:
    """Killed behind the renaming of the rows' part, with one journal still there."""
    writer = RunWriter(tmp_path)
    id = writer.append(episode(0), Facts())
    writer.append_late(id, {"fate": "trained"})
    segment = id.rpartition("-")[0]
    journal = path_of(tmp_path, segment, left)
    shutil.copy(journal, tmp_path / "copy")
    seal(tmp_path, segment)
    shutil.copy(tmp_path / "copy", journal)
    owner = f"{host_name()}-{dead()}"
    assert RunReader(tmp_path).table["fate"].to_pylist() == ["trained"]
    for kind in ("episodes", "bodies", "late"):
        (part,) = (tmp_path / kind).iterdir()
        part.rename(part.with_name(part.name.replace(f"{host_name()}{kernel_name()}-{os.getpid()}", owner)))
    journal.rename(journal.with_name(journal.name.replace(f"{host_name()}{kernel_name()}-{os.getpid()}", owner)))
    pack(tmp_path)
    assert not list((tmp_path / "journal").iterdir())
    assert len(RunReader(tmp_path).table) == 1


def test_packing_that_was_interrupted_leaves_nothing_twice(tmp_path: Path) -> None:
    """Killed behind the renaming of the packed part: those that it was made of are still there."""
    ids = keep(tmp_path, 6, seal_episodes=2)
    whole = tmp_path.with_name("whole")
    shutil.copytree(tmp_path, whole)
    pack(tmp_path)
    for kind in ("episodes", "bodies"):
        for part in (whole / kind).iterdir():
            shutil.copy(part, tmp_path / kind)
    assert RunReader(tmp_path).table["id"].to_pylist() == ids
    pack(tmp_path)
    assert len(list((tmp_path / "episodes").iterdir())) == 1
    assert RunReader(tmp_path).table["id"].to_pylist() == ids


def test_a_segment_whose_bodies_are_lost_is_left_alone_and_shifts_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, middle, last = (keep(tmp_path, 2, first=number) for number in (0, 2, 4))
    segment = middle[0].rpartition("-")[0]
    (tmp_path / "bodies" / f"{segment}.parquet").unlink()
    assert pack(tmp_path).merged == 2
    assert f"{segment} is not packed: 0 of its 2 bodies are there" in caplog.text
    reader = RunReader(tmp_path)
    for number, id in enumerate((*first, *last)):
        assert reader.body(id).trajectory() == episode(number if number < 2 else number + 2)
    assert len(reader.table) == 6


def test_two_do_not_pack_one_run_at_once(tmp_path: Path) -> None:
    ids = keep(tmp_path, 4, seal_episodes=2)
    other = Claim(tmp_path / "episodes")
    with pytest.raises(UsageError, match="is being packed already"):
        pack(tmp_path)
    other.release()
    assert pack(tmp_path).merged == 2
    assert RunReader(tmp_path).table["id"].to_pylist() == ids


def test_a_run_that_is_written_is_packed_but_for_what_is_written(tmp_path: Path) -> None:
    with KeptRun(tmp_path, RunInfo("eval")) as run:
        ids = {run.append(episode(4), Facts()), *keep(tmp_path, 4, seal_episodes=2)}
        done = pack(tmp_path)
        assert (done.merged, len(done.left)) == (2, 1)
        assert set(RunReader(tmp_path).table["id"].to_pylist()) == ids


def test_a_reader_from_before_finds_the_bodies_of_a_packed_run(tmp_path: Path) -> None:
    ids = keep(tmp_path, 4, seal_episodes=2)
    before = RunReader(tmp_path)
    pack(tmp_path)
    assert [before.body(id).trajectory() for id in ids] == [episode(number) for number in range(4)]


@pytest.mark.parametrize(
    ("owner", "lives"),
    [
        ("{here}-{own}", True),
        ("{here}-{dead}", False),
        ("{here}{kernel}-{dead}", False),
        ("{here}-1", True),  # of somebody else, who may not be told from here
        ("{here}-9999999999999999999999", True),
        ("{here}-x{dead}", True),
        ("elsewhere-{dead}", True),
        ("{here}other-{dead}", True),
    ],
)
def test_a_writer_lives_unless_its_process_is_known_to_be_gone(owner: str, lives: bool) -> None:
    names = {"here": host_name(), "kernel": kernel_name(), "own": os.getpid(), "dead": dead()}
    assert is_alive(f"{owner.format(**names)}-1-2") is lives


def test_a_name_that_no_writer_gives_is_left_alone() -> None:
    assert is_alive(f"{host_name()}-{dead()}-1")
