"""What a disk or another hand may leave in a journal: what is no entry is left out, and nothing else with it.

One attempt at a time writes a run, and only one that plays the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from rlenv._base.bounded import plain
from rlenv.cli.main import main
from rlenv.concurrency.lanes import Event
from rlenv.errors import UsageError
from rlenv.messages import Image
from rlenv.runs.events import Reel, dump_events, parse_events
from rlenv.runs.figures.query import parse
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.files import Body, dump
from rlenv.runs.folder import KeptRun, RunInfo, clear_run, open_run, read_info
from rlenv.runs.journal import (
    LONG_BYTES,
    Blobs,
    Claim,
    Journal,
    Lines,
    blob_of,
    body_of,
    clear_blobs,
    entries_of,
    path_of,
    put_back,
    read_body,
    whole_lines,
)
from rlenv.runs.pack import pack
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts, ending_of
from rlenv.runs.writer import KeepPolicy, RunWriter, host_name
from rlenv.trajectory import RewardBreakdown, TermResult, Trajectory
from tests.support.kept import TOKENS, episode
from tests.support.runs import kept, played

_BROKEN: dict[str, Any] = {
    "id": None,
    "has_body": None,
    "step": "a",
    "task": 2**31,
    "seed": 2**63,
    "reward": float("inf"),
    "split": "\ud800",
    "success": "yes",
    "attempt": 10**6,
    "terms": [5],
    "calls": [{"index": 2**15}],
    "at": [-5, 10, 20],
    "lies": [[1, 2]],
}


def left_behind(run: Path) -> tuple[Path, list[str]]:
    """The rows' journal of a writer that is gone, with three episodes, and their ids."""
    writer = RunWriter(run)
    ids = [writer.append(episode(number), Facts(tokens=(TOKENS,))) for number in range(3)]
    gone = 2**22  # beyond the largest number that Linux gives a process
    for path in sorted((run / "journal").iterdir()):
        held = path.read_bytes().replace(f"-{os.getpid()}-".encode(), f"-{gone}-".encode())
        path.with_name(path.name.replace(f"-{os.getpid()}-", f"-{gone}-")).write_bytes(held)
        path.unlink()
    [rows] = (run / "journal").glob("*.rows.jsonl")
    return rows, [id.replace(f"-{os.getpid()}-", f"-{gone}-") for id in ids]


def _spoiled(line: bytes, name: str) -> bytes:
    return json.dumps({**json.loads(line), name: _BROKEN[name]}).encode() + b"\n"


@pytest.mark.parametrize("middle", [b"\xff\xfe\n", b"\0" * 500 + b"\n", b"5\n", b"{}\n", b"[" * 100_000 + b"\n", b"\n"])
def test_garbage_between_the_rows_of_a_journal_hides_none_of_them(tmp_path: Path, middle: bytes) -> None:
    rows, ids = left_behind(tmp_path)
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join((lines[0], middle, *lines[1:])))
    reader = RunReader(tmp_path)
    assert reader.table["id"].to_pylist() == ids
    assert [reader.body(id).trajectory().task_index for id in ids] == [0, 1, 2]


@pytest.mark.parametrize("name", _BROKEN)
def test_a_row_with_a_value_that_its_column_cannot_hold_is_no_row(tmp_path: Path, name: str) -> None:
    rows, ids = left_behind(tmp_path)
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join((_spoiled(lines[0], name), *lines[1:])))
    reader = RunReader(tmp_path)
    assert reader.table["id"].to_pylist() == ids[1:]
    assert [reader.body(id).trajectory().task_index for id in ids[1:]] == [1, 2]


@pytest.mark.parametrize("number", [2**24 + 1, 2**53 + 1, 2**80])
def test_a_whole_number_in_a_column_of_floats_is_a_float(tmp_path: Path, number: int) -> None:
    rows, ids = left_behind(tmp_path)
    lines = [json.loads(line) for line in rows.read_bytes().splitlines()]
    term = {"name": "x", "status": "valid", "value": number, "weight": 1, "seconds": number, "error": ""}
    rows.write_bytes(b"".join(json.dumps({**one, "terms": [term], "reward": number}).encode() + b"\n" for one in lines))
    for _ in range(2):
        table = RunReader(tmp_path).table
        assert (table["id"].to_pylist(), table["reward"].to_pylist()) == (ids, [float(number)] * 3)
        pack(tmp_path)


def test_a_journal_that_cannot_be_sealed_whole_stays(tmp_path: Path) -> None:
    rows, ids = left_behind(tmp_path)
    with rows.open("ab") as file:
        file.write(b"garbage\n")
    done = pack(tmp_path)
    assert (done.sealed, len(done.left)) == (0, 1)
    assert RunReader(tmp_path).table["id"].to_pylist() == ids


@pytest.mark.parametrize("bodies", [b"", b"\xff" * 10_000, b"[" * 10_000])
def test_bodies_that_are_none_are_told_and_not_packed(tmp_path: Path, bodies: bytes) -> None:
    _, ids = left_behind(tmp_path)
    [path] = (tmp_path / "journal").glob("*.bodies")
    path.write_bytes(bodies)
    with pytest.raises(UsageError, match=ids[0]):
        RunReader(tmp_path).body(ids[0]).as_json()
    assert pack(tmp_path).sealed == 0


def test_late_facts_that_are_none_are_left_out(tmp_path: Path) -> None:
    rows, ids = left_behind(tmp_path)
    late = rows.with_name(rows.name.replace(".rows.", ".late."))
    said = {"id": ids[1], "fate": "trained"}
    late.write_bytes(b'garbage\nnull\n{}\n{"id": "x", "fate": 5}\n' + json.dumps(said).encode() + b"\n")
    assert RunReader(tmp_path).table["fate"].to_pylist() == [None, "trained", None]


def test_what_is_no_file_is_no_journal(tmp_path: Path) -> None:
    """A pipe would be waited for, and a device read, without end."""
    _, ids = left_behind(tmp_path)
    os.mkfifo(tmp_path / "journal" / "host-1-a-00000.rows.jsonl")
    (tmp_path / "journal" / "host-2-a-00000.rows.jsonl").symlink_to("/dev/zero")
    (tmp_path / "journal" / "host-3-a-00000.rows.jsonl").symlink_to(tmp_path / "nowhere")
    assert RunReader(tmp_path).table["id"].to_pylist() == ids


def test_a_journals_bodies_that_are_no_file_are_told(tmp_path: Path) -> None:
    rows, ids = left_behind(tmp_path)
    bodies = rows.with_name(rows.name.replace(".rows.jsonl", ".bodies"))
    bodies.unlink()
    os.mkfifo(bodies)
    with pytest.raises(UsageError, match="no regular file"):
        RunReader(tmp_path).body(ids[0])
    assert pack(tmp_path).sealed == 0


def test_a_row_of_an_unnamed_environment_is_read(tmp_path: Path) -> None:
    rows, ids = left_behind(tmp_path)
    first, *rest = rows.read_bytes().splitlines(keepends=True)
    entry = json.loads(first)
    del entry["environment"]
    rows.write_bytes(b"".join([json.dumps(entry).encode() + b"\n", *rest]))
    reader = RunReader(tmp_path)
    assert [row["id"] for row in reader.rows() if reader.is_counted(row)] == ids


def test_what_a_disk_does_not_take_is_no_fault_of_the_journal(tmp_path: Path) -> None:
    left_behind(tmp_path)
    (tmp_path / "bodies").rmdir()
    (tmp_path / "bodies").write_bytes(b"")  # no folder can be made there
    with pytest.raises(OSError, match="bodies"):
        pack(tmp_path)


@pytest.mark.parametrize("name", ["x.rows.jsonl", ".rows.jsonl", "x.bodies", f"a-{'9' * 30}-b-0.rows.jsonl"])
def test_journals_of_other_names_are_left_alone(tmp_path: Path, name: str) -> None:
    left_behind(tmp_path)
    (tmp_path / "journal" / name).write_bytes(b"")
    assert pack(tmp_path).sealed == 1
    assert (tmp_path / "journal" / name).exists()


@pytest.mark.slow
def test_more_calls_than_their_column_counts_are_sealed(tmp_path: Path) -> None:
    long = episode()
    turn = long.turns[0]
    long = replace(long, turns=(replace(turn, results=turn.results * 33_000), *long.turns[1:]))
    writer = RunWriter(tmp_path)
    id = writer.append(long, Facts())
    writer.close()
    reader = RunReader(tmp_path)
    assert not list((tmp_path / "journal").iterdir())
    assert len(reader.nested("calls", [id])) == 33_000


@pytest.mark.parametrize("details", [{"attempts": None}, {"attempts": "many"}, {"attempts": 10**40}, {"attempts": -1}])
def test_whatever_a_tool_says_of_itself_is_kept(tmp_path: Path, details: dict[str, Any]) -> None:
    told = episode()
    turn = told.turns[0]
    results = (replace(turn.results[0], details=details),)
    writer = RunWriter(tmp_path)
    id = writer.append(replace(told, turns=(replace(turn, results=results), *told.turns[1:])), Facts())
    writer.close()
    assert len(RunReader(tmp_path).nested("calls", [id])) == 1


def test_names_that_utf_8_cannot_hold_are_kept(tmp_path: Path) -> None:
    odd = "\ud800 alone"
    terms = {odd: TermResult.valid(odd, value=1.0, weight=1.0)}
    told = episode(environment=odd, split=odd, reason=odd, reward=1.0)
    told = replace(told, reward=RewardBreakdown(1.0, terms, (0, 1)), seed=10**30)
    writer = RunWriter(tmp_path)
    id = writer.append(told, Facts(group=odd))
    writer.append_late(id, ending_of(told))
    writer.close()
    reader = RunReader(tmp_path)
    [row] = reader.table.to_pylist()
    assert {row[name] for name in ("environment", "split", "reason", "group")} == {"\ufffd alone"}
    assert Snapshot(reader).numbers("seed").tolist() == [2.0**63]
    assert parse("seed>0 split:*alone").places(Snapshot(reader)).tolist() == [0]
    assert Snapshot(reader).place("\udcff-0") is None


_HOLDS = """
import sys
from rlenv.runs.files import Body
from rlenv.runs.folder import KeptRun, RunInfo
KeptRun(sys.argv[1], RunInfo("eval"))
print("begun", flush=True)
sys.stdin.read()
"""


def test_nobody_goes_on_with_a_run_that_is_written_and_anybody_once_its_process_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        for resume, overwrite in ((True, False), (False, True), (False, False)):
            with pytest.raises(UsageError, match="is still running"):
                KeptRun(tmp_path, RunInfo("eval"), resume=resume, overwrite=overwrite)
        other.send_signal(signal.SIGKILL)
    with KeptRun(tmp_path, RunInfo("eval"), resume=True) as run:
        assert [one.number for one in run.info.attempts] == [0, 1]


def test_of_several_that_begin_at_once_one_does(tmp_path: Path) -> None:
    with KeptRun(tmp_path, RunInfo("eval")) as run:
        run.append(episode(0), Facts())
    begun, refused, all_there = [], [], threading.Barrier(8)

    def go_on() -> None:
        all_there.wait()
        try:
            begun.append(KeptRun(tmp_path, RunInfo("eval"), resume=True))
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(begun), len(refused)) == (1, 7)
    begun[0].close()
    info = read_info(tmp_path)
    assert info is not None
    assert len(info.attempts) == 2


def test_a_run_that_was_refused_is_free_again(tmp_path: Path) -> None:
    with KeptRun(tmp_path, RunInfo("rescore")):
        pass
    for _ in range(2):
        with pytest.raises(UsageError, match="holds a run of kind rescore") as refused:
            KeptRun(tmp_path, RunInfo("eval"), resume=True)
        assert refused.value.hint == "name another folder, or add --overwrite"


_SPEC = """
rlenv: 1
name: {name}
tasks: {{test: {{rows: [{{q: a, answer: {answer}}}, {{q: b, answer: y}}]}}}}
prompt: {{user: "{{{{ task.q }}}}"}}
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
rewards:
  correct: {{kind: rule, rule: exact_match}}
  rel: {{kind: group, of: correct, by: rank, weight: {weight}}}
"""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "b"}, "episodes of rlenv/a-v0, not of rlenv/b-v0"),
        ({"answer": "z"}, "other rows (data.test.sha256"),
        ({"weight": 0.5}, "other rewards (rewards.rel"),
    ],
)
def test_a_run_goes_on_with_its_own_rows_and_rewards_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, object], said: str
) -> None:
    held = {"name": "a", "answer": "x", "weight": 0.1}
    spec, changed, run = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "run"
    spec.write_text(_SPEC.format(**held))
    changed.write_text(_SPEC.format(**{**held, **other}))
    assert main(["eval", str(spec), "-o", str(run), "-n", "1", "--json"]) == 0
    before = json.dumps(list(open_run(run).rows()))
    capsys.readouterr()
    assert main(["eval", str(changed), "-o", str(run), "--resume", "--json"]) == 2
    assert said in capsys.readouterr().err
    assert json.dumps(list(open_run(run).rows())) == before
    assert main(["eval", str(spec), "-o", str(run), "--resume", "--json", "--set", "limits.turns=7"]) == 0
    assert "rlenv runs lock diff" in capsys.readouterr().err


PICTURE = b"\x89PNG" + bytes(range(256)) * 8
LONG = 'é "\\ \n' * (LONG_BYTES // 4)


def episodes() -> list[Trajectory]:
    return [played(task=number, images=[Image.of(PICTURE)], result=LONG) for number in range(3)]


def sealed_and_open(run: Path, made: Sequence[Trajectory]) -> list[str]:
    """Two sealed segments and an open one, with an episode each."""
    writer = RunWriter(run, seal_episodes=1)
    return [writer.append(one, Facts()) for one in made]


def blobs(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.glob("blobs/*/*")}


def test_an_image_and_a_long_text_are_kept_once_and_read_as_they_were(tmp_path: Path) -> None:
    made = episodes()
    ids = sealed_and_open(tmp_path, made)
    held = blobs(tmp_path)
    assert set(held.values()) == {PICTURE, LONG.encode()}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in held.items())
    assert all(blob_of(tmp_path, name).is_file() for name in held)
    for _ in ("as written", "packed"):
        reader = RunReader(tmp_path)
        assert [reader.body(id).trajectory() for id in ids] == made
        assert dict(reader.records()) == {id: reader.body(id).record for id in ids}
        pack(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.glob("journal/*")) < 50_000


@pytest.mark.parametrize("own", [None, {"x": {"rlenv.text": "0" * 64}}])
def test_what_events_hold_is_kept_once_with_what_the_record_holds(tmp_path: Path, own: object) -> None:
    """Images and long texts of an answer stand in the episode's results too, and in answers of no kept episode."""
    answer = Event(
        name="draw", outcome="ok", response={"images": [plain(Image.of(PICTURE))], "text": LONG, "value": own}
    )
    made = played(images=[Image.of(PICTURE)], result=LONG)
    writer = RunWriter(tmp_path, keep=KeepPolicy(keep_gb=(len(PICTURE) + len(LONG.encode())) / 0.5e9))
    ids = [writer.append(made, Facts(events=dump_events([answer]))) for _ in range(2)]
    writer.append_late("", {"events": dump_events([answer]).decode()})
    for step in (lambda: None, writer.close, lambda: pack(tmp_path)):
        step()
        reel = Reel.of(tmp_path)
        assert [reel.events(id) for id in (*ids, "")] == [(answer,)] * 3
    if own is None:
        assert set(blobs(tmp_path).values()) == {PICTURE, LONG.encode()}
        assert sum(path.stat().st_size for kind in ("bodies", "late") for path in (tmp_path / kind).iterdir()) < 50_000


def test_messages_name_their_images(tmp_path: Path) -> None:
    shown = replace(played().messages[1], images=(Image.of(PICTURE),), content=LONG)
    kept(tmp_path, [replace(played(), messages=(shown,))])
    [part] = (tmp_path / "bodies").iterdir()
    [[message]] = pq.read_table(part)["messages"].to_pylist()
    assert message["images"] == [hashlib.sha256(PICTURE).hexdigest()]
    assert message["content"] == LONG


@pytest.mark.parametrize("data", [None, b"", b"another", "a pipe", "/dev/zero"])
def test_a_blob_that_is_missing_or_another_is_told_and_nothing_else_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | str | None
) -> None:
    [id] = kept(tmp_path, [played(images=[Image.of(PICTURE)], result=LONG)])
    for path in tmp_path.glob("blobs/*/*"):
        path.unlink()
        if isinstance(data, bytes):
            path.write_bytes(data)
        elif data is not None:
            path.symlink_to(data) if data.startswith("/") else os.mkfifo(path)
    found = RunReader(tmp_path).body(id).trajectory()
    result = found.turns[0].results[0]
    assert result.images == (Image("image/png", ""),)
    assert result.text.endswith("is missing]")
    assert found.answer == "Paris"
    assert hashlib.sha256(PICTURE).hexdigest() in caplog.text


@pytest.mark.parametrize(
    "made",
    [
        played(images=[Image("image/png", "no base64"), Image("image/png", "YWI"), Image("image/png", "")]),
        played(result="\ud800" + LONG),
        played(details={"x": {"rlenv.base64": hashlib.sha256(PICTURE).hexdigest()}}, images=[Image.of(PICTURE)]),
        played(details={LONG: LONG, "base64": "aGk="}),
        played(result='{"mime":"image/png","base64":"aGk="}', images=[Image('a"\\', "aGk=")]),
    ],
)
def test_whatever_a_record_holds_comes_back_to_the_letter(tmp_path: Path, made: Trajectory) -> None:
    writer = RunWriter(tmp_path)
    id = writer.append(made, Facts())
    for _ in ("open", "sealed"):
        assert RunReader(tmp_path).body(id).trajectory() == made
        writer.close()


def test_names_that_no_body_lists_are_what_somebody_wrote(tmp_path: Path) -> None:
    name = Blobs(tmp_path, "w")._write_blob(PICTURE)
    record = b'{"x":{"rlenv.base64":"%s"}}' % name.encode()
    assert put_back(tmp_path, record, ()) == record
    assert put_back(tmp_path, record, ["0" * 64]) == record


def test_a_blob_is_there_before_the_row_that_names_it(tmp_path: Path) -> None:
    """A disk that refuses it refuses the episode."""
    (tmp_path / "blobs").write_bytes(b"of somebody else")
    writer = RunWriter(tmp_path)
    with pytest.raises(OSError, match="blobs"):
        writer.append(played(images=[Image.of(PICTURE)]), Facts())
    id = writer.append(played(), Facts())
    assert RunReader(tmp_path).table["id"].to_pylist() == [id]


def test_a_half_of_a_blob_is_written_again_and_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    name = hashlib.sha256(PICTURE).hexdigest()
    path = blob_of(tmp_path, name)
    path.parent.mkdir(parents=True)
    path.write_bytes(PICTURE[:10])
    left = [
        path.with_name(f"{name}.{owner}.tmp")
        for owner in (f"{host_name()}-{2**22}-a", f"{host_name()}-{os.getpid()}-a")
    ]
    for one in left:
        one.write_bytes(b"half")
    kept(tmp_path, [played(images=[Image.of(PICTURE)])])
    assert path.read_bytes() == PICTURE
    pack(tmp_path)
    assert [one.exists() for one in left] == [False, True]


def test_a_run_that_is_removed_takes_its_files_and_nothing_of_others(tmp_path: Path) -> None:
    kept(tmp_path, episodes())
    clear_run(tmp_path)
    assert list(tmp_path.iterdir()) == []
    kept(tmp_path, episodes())
    names = ["blobs/mine.png", "blobs/ab/notes", "episodes/mine.parquet", "journal/notes.jsonl", "locks/mine.json"]
    own = [tmp_path / name for name in names]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    clear_run(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(own)
    clear_blobs(tmp_path / "nowhere")


def test_blobs_count_as_what_was_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, keep=KeepPolicy(keep_gb=len(PICTURE) / 1e9, share=0.0))
    facts = Facts(mode="train")
    for images in ([Image.of(PICTURE)], []):
        writer.append(played(images=images), facts)
    assert RunReader(tmp_path).table["has_body"].to_pylist() == [True, False]
    other = Image.of(PICTURE[::-1])
    writer.append(played(images=[other]), facts)
    assert len(blobs(tmp_path)) == 1, "of an episode whose body is not kept no blob is"


def test_an_entry_that_a_full_disk_takes_a_part_of_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    (tmp_path / "journal").mkdir()
    journal = Journal(tmp_path, "s")
    journal.put("rows", b"first\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.put("rows", b"second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert journal.put("rows", b"third\n") == len(b"first\n")
    journal.close()
    assert path_of(tmp_path, "s", "rows").read_bytes() == b"first\nthird\n"


def test_an_entry_says_where_it_begins_and_the_size_is_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    asked: list[int] = []
    journal = Journal(tmp_path, "s", needs=lambda: asked.append(1))
    assert [journal.put("bodies", line) for line in (b"one\n", b"three\n", b"")] == [0, 4, 10]
    assert (journal.put("rows", b"row\n"), journal.size, journal.is_dirty) == (0, 14, True)
    journal.sync()
    assert (journal.is_dirty, asked) == (False, [1])
    journal.close()
    journal.close()
    assert path_of(tmp_path, "s", "bodies").read_bytes() == b"one\nthree\n"
    with pytest.raises(FileExistsError):
        Journal(tmp_path, "s").put("rows", b"another's\n")


def test_lines_are_read_once_each_as_soon_as_they_are_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows, ids = left_behind(tmp_path)
    whole = rows.read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    rows.write_bytes(first + second[:-1])
    lines = Lines(rows)
    assert [row["id"] for row in lines.read()] == ids[:1]
    assert lines.read() == []
    rows.write_bytes(first + second + b"rubbish\n\n" + third[:5])
    assert [row["id"] for row in lines.read()] == ids[1:2]
    rows.write_bytes(first + second + b"rubbish\n\n" + third + b"[]\n")
    assert [row["id"] for row in lines.read()] == ids[2:]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 lines of it are no entries and are left out"
    ]
    assert list(whole_lines(rows))[-1] == b"[]"
    with pytest.raises(UsageError, match=":3: this line is no entry"):
        entries_of(rows)


@pytest.mark.parametrize(("spare", "is_taken"), [(-2, False), (-1, True)])
def test_a_text_stands_beside_the_record_from_a_length_on(tmp_path: Path, spare: int, is_taken: bool) -> None:
    blobs = Blobs(tmp_path, "w")
    text = "x" * (LONG_BYTES + spare)  # with its quotes one more than fits, or as many
    (record,), names = blobs.take_out(json.dumps({"a": text}).encode())
    assert (len(names), blobs.written, len(blobs.fresh)) == ((1, len(text), 1) if is_taken else (0, 0, 0))
    assert json.loads(put_back(tmp_path, record, names)) == {"a": text}
    assert blobs.take_out(json.dumps({"a": text}).encode())[1] == names
    assert blobs.written == (len(text) if is_taken else 0), "once"
    blobs.sync()
    assert blobs.fresh == []


def test_a_key_and_a_text_that_spells_a_name_stay_in_the_record(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, "w")
    long = "x" * LONG_BYTES
    for held in ({long: 1}, {"a": long, "b": {"rlenv.text": "0" * 64}}):
        record = json.dumps(held, separators=(",", ":")).encode()
        assert blobs.take_out(record) == ([record], [])


@pytest.mark.parametrize("sign", ['"', "\\", '\\"', "\x00", "é", "\u2028", ": ", ",", '","'])
def test_whatever_a_long_text_is_made_of_it_alone_is_taken_out_and_comes_back(tmp_path: Path, sign: str) -> None:
    blobs = Blobs(tmp_path, "w")
    held = {
        sign: [{sign: sign}, "\\", list(range(100_000)), sign * LONG_BYTES, {sign * 3: sign * LONG_BYTES}, '"', sign]
    }
    record = orjson.dumps(held)
    (written,), names = blobs.take_out(record)
    assert (len(names), len(written) < 700_000) == (1, True)
    assert put_back(tmp_path, written, names) == record


def test_only_texts_are_put_back_where_images_are_not_wanted(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, "w")
    picture = plain(Image.of(PICTURE))
    written = json.dumps({"i": picture, "t": "x" * LONG_BYTES}, separators=(",", ":")).encode()
    (record,), names = blobs.take_out(written)
    assert len(names) == 2
    assert put_back(tmp_path, record, names) == written
    assert put_back(tmp_path, record, []) == record
    half = json.loads(put_back(tmp_path, record, names, texts_only=True))
    assert (half["t"], set(half["i"]["base64"])) == ("x" * LONG_BYTES, {"rlenv.base64"})


def test_a_folder_is_claimed_by_one_until_it_is_let_go(tmp_path: Path) -> None:
    first = Claim(tmp_path)
    assert first.is_sure
    with pytest.raises(BlockingIOError):
        Claim(tmp_path)
    first.release()
    first.release()
    second = Claim(tmp_path)
    with pytest.raises(BlockingIOError):
        Claim(tmp_path)
    second.release()
    with pytest.raises(FileNotFoundError):
        Claim(tmp_path / "gone")


@pytest.mark.parametrize("cut", [0, 1])
def test_a_body_is_read_where_its_journal_holds_all_of_it(tmp_path: Path, cut: int) -> None:
    record, events = b'{"a":1}', b"[1]"
    body, lies = body_of(record, (TOKENS, TOKENS), events)
    path = tmp_path / "bodies"
    path.write_bytes(b"before" + body[: len(body) - cut])
    row = {"id": "e", "at": [6, len(record), len(body)], "lies": lies}
    with path.open("rb") as file:
        if cut:
            with pytest.raises(UsageError, match="does not hold the body of 'e'"):
                read_body(file.fileno(), row)
            return
        held, tokens, told = read_body(file.fileno(), row)
        assert (bytes(held), told, len(tokens)) == (record, events, 2)
        for name in ("prompt_ids", "ids", "mask", "logprobs"):
            assert list(getattr(tokens[1], name)) == pytest.approx(list(getattr(TOKENS, name)))
        assert tokens[1].turns == TOKENS.turns
        with pytest.raises(UsageError):
            read_body(file.fileno(), {**row, "at": [6, len(record) + 1, len(body)], "lies": [*lies, [9, 9, 9, 9, []]]})


@pytest.mark.parametrize("number", [2**63, 2**64, -(10**30), [25 * 10**18 + 1], {"wei": 10**400}])
def test_what_is_kept_is_read_to_the_digit_with_or_without_what_became_known_later(number: Any) -> None:
    record = dump(replace(episode(0), task={"number": number}))
    for ending in ("", '{"reason": "answer"}'):
        assert Body("id", record, (), ending=ending).as_json()["task"]["number"] == number
    response = {"number": number}
    (event,) = parse_events(dump_events([Event(place="turn 0", kind="http", outcome="ok", response=response)]), "here")
    assert event.response == response


def test_clearing_takes_the_blobs_and_nothing_else(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, "w")
    blobs.take_out(json.dumps({"a": "x" * LONG_BYTES}).encode())
    (folder,) = (tmp_path / "blobs").iterdir()
    (name,) = (path.name for path in folder.iterdir())
    (folder / f"{name}.w.tmp").touch()
    (folder / "notes.txt").touch()
    clear_blobs(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    clear_blobs(tmp_path)
    assert not (tmp_path / "blobs").exists()
    (tmp_path / "elsewhere" / name[:2]).mkdir(parents=True)
    (tmp_path / "elsewhere" / name[:2] / name).touch()
    (tmp_path / "blobs").symlink_to(tmp_path / "elsewhere")
    clear_blobs(tmp_path)
    assert (tmp_path / "elsewhere" / name[:2] / name).exists()
    assert not (tmp_path / "blobs").is_symlink()
