"""Keeping episodes: what was acknowledged is there, however the writer ends."""

from __future__ import annotations

import ast
import gc
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs.folder import open_run
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import KeepPolicy, RunWriter
from rlenv.trajectory import Failure, RewardBreakdown, Trajectory
from tests.support import kept
from tests.support.kept import TOKENS, episode, keep

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
    import sys
    from pathlib import Path
    from rlenv.runs.schema import Facts
    from rlenv.runs.writer import RunWriter
    from kept import TOKENS, episode

    writer = RunWriter(Path(sys.argv[1]), seal_episodes=7)
    for number in range(100_000):
        id = writer.append(episode(number), Facts(tokens=(TOKENS,)))
        sys.stdout.write(f"{id} {number}\\n")
        sys.stdout.flush()
"""


def started(run: Path, code: str, **keys: object) -> subprocess.Popen[bytes]:
    # By its own name: a package called tests that is installed would come before a folder of that name.
    path = os.pathsep.join([str(Path(kept.__file__).parent), *sys.path])
    command = [sys.executable, "-c", textwrap.dedent(code), str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, **keys)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(4))
def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path, kill: int) -> None:
    drawn = random.Random(kill)
    writers = [started(tmp_path, WRITER) for _ in range(2)]
    acknowledged: dict[str, int] = {}
    for writer in writers:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(drawn.randrange(1, 60))]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        for line in lines:
            if line.endswith(b"\n") or len(line.split()) == 2:
                told, number = line.split()
                acknowledged[told.decode()] = int(number)
    assert len(acknowledged) >= 2
    reader = RunReader(tmp_path)
    there = reader.table["id"].to_pylist()
    assert len(there) == len(set(there))
    assert acknowledged.keys() <= set(there)
    for id in drawn.sample(sorted(acknowledged), min(10, len(acknowledged))):
        assert reader.body(id).trajectory() == episode(acknowledged[id])


FULL = """
    import resource, signal, sys
    from pathlib import Path
    from rlenv.runs.schema import Facts
    from rlenv.runs.writer import RunWriter
    from kept import TOKENS, episode

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = RunWriter(Path(sys.argv[1]))
    kept = [writer.append(episode(number), Facts(tokens=(TOKENS,))) for number in range(3)]
    most = max(file.stat().st_size for file in Path(sys.argv[1]).rglob("*") if file.is_file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (most + 100, resource.RLIM_INFINITY))
    for number in (3, 4):
        try:
            writer.append(episode(number), Facts(tokens=(TOKENS,)))
        except OSError as error:
            print("refused", error.errno)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    kept.append(writer.append(episode(5), Facts(tokens=(TOKENS,))))
    writer.close()
    print(*kept)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_refuses_an_episode_and_takes_the_next(tmp_path: Path) -> None:
    """A file may not grow beyond a bound here: as on a full disk, a part of what is written is taken first."""
    writer = started(tmp_path, FULL)
    out, _ = writer.communicate()
    *refused, ids = out.decode().splitlines()
    assert [line.split()[0] for line in refused] == ["refused", "refused"]
    reader = RunReader(tmp_path)
    assert reader.table["id"].to_pylist() == ids.split()
    assert [reader.body(id).trajectory().task_index for id in ids.split()] == [0, 1, 2, 5]


def test_an_episode_stands_in_its_row_and_its_body(tmp_path: Path) -> None:
    facts = Facts(step=3, sample=2, mode="train", group="g", started=12.0, tokens=(TOKENS, TOKENS))
    writer = RunWriter(tmp_path, attempt=1, lock="abc")
    id = writer.append(episode(7), facts)
    for _ in ("open", "sealed"):
        reader = RunReader(tmp_path)
        (row,) = reader.table.to_pylist()
        told = {name: row[name] for name in ("id", "attempt", "lock", "step", "sample", "mode", "group", "started")}
        assert told == {
            "id": id,
            "attempt": 1,
            "lock": "abc",
            "step": 3,
            "sample": 2,
            "mode": "train",
            "group": "g",
            "started": 12.0,
        }
        assert (row["tokens"], row["trained_tokens"], row["turns"], row["calls_n"]) == (14, 6, 2, 1)
        assert (row["reward"], row["success"], row["title"], row["answer"]) == (1.0, True, "question 7", "7")
        (call,) = reader.nested("calls").to_pylist()
        assert (call["tool"], call["started"], call["waited"], call["seconds"]) == ("search", 0.25, 0.125, 0.5)
        (term,) = reader.nested("terms").to_pylist()
        assert (term["name"], term["status"], term["value"]) == ("correct", "valid", 1.0)
        body = reader.body(id)
        assert body.trajectory() == episode(7)
        for tokens in body.tokens:
            assert list(tokens.prompt_ids) == TOKENS.prompt_ids
            assert list(tokens.ids) == TOKENS.ids
            assert list(tokens.mask) == TOKENS.mask
            assert list(tokens.logprobs) == TOKENS.logprobs
            assert list(tokens.turns) == TOKENS.turns
        assert len(body.tokens) == 2
        writer.close()
    assert not list((tmp_path / "journal").iterdir())


def test_text_that_utf8_cannot_hold_survives_in_the_record(tmp_path: Path) -> None:
    odd = episode(0, text="a\ud800b")
    writer = RunWriter(tmp_path)
    id = writer.append(odd, Facts())
    writer.close()
    assert RunReader(tmp_path).body(id).trajectory() == odd


def test_a_segment_is_sealed_at_its_limit_and_a_new_one_begun(tmp_path: Path) -> None:
    ids = keep(tmp_path, 20, seal_episodes=8)
    assert len(list((tmp_path / "episodes").iterdir())) == 3
    reader = RunReader(tmp_path)
    assert reader.table["id"].to_pylist() == ids
    assert [reader.body(id).trajectory().task_index for id in ids] == list(range(20))


def test_a_process_holds_nothing_of_the_bodies_that_it_has_sealed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    def views() -> int:
        gc.collect()
        return sum(type(one) is memoryview for one in gc.get_objects())

    before, writer = views(), RunWriter(tmp_path, seal_episodes=2)
    for number in range(10):
        writer.append(episode(number), Facts(tokens=(TOKENS,)))
    writer.close()
    assert (len(list((tmp_path / "bodies").iterdir())), views()) == (5, before)


def test_beyond_its_budget_a_run_keeps_the_bodies_that_people_look_for(tmp_path: Path) -> None:
    failed = Trajectory.failed(
        failure=Failure("endpoint", "gone"),
        reward=RewardBreakdown.invalid({}, turns=2),
        **{name: getattr(episode(0), name) for name in Trajectory.__dataclass_fields__ if name in _RECORD},
    )
    policy = KeepPolicy(keep_gb=0.0, share=0.0)
    writer = RunWriter(tmp_path, keep=policy)
    train = Facts(step=1, mode="train", group="g")
    rewards = (0.5, 0.25, 0.5, 0.375, 1.0)
    ids = [writer.append(episode(number, reward=reward), train) for number, reward in enumerate(rewards)]
    ids.append(writer.append(failed, train))
    ids.append(writer.append(episode(9), Facts(mode="greedy")))
    writer.close()
    table = RunReader(tmp_path).table
    has_body = dict(zip(table["id"].to_pylist(), table["has_body"].to_pylist(), strict=True))
    # Of the group: the first, the lower one, none of those between, the higher one.
    assert [has_body[id] for id in ids] == [True, True, False, False, True, True, True]
    assert len(table) == 7


_RECORD = ("environment", "split", "task_index", "seed", "task", "messages", "turns", "answer", "seconds")


def test_a_share_of_the_others_is_drawn_by_their_ids() -> None:
    policy, facts = KeepPolicy(keep_gb=0.0, share=0.25), Facts(mode="train")
    drawn = [policy.keeps_body(episode(0), facts, id=f"w-{number}", written=1) for number in range(4000)]
    assert drawn == [policy.keeps_body(episode(0), facts, id=f"w-{number}", written=1) for number in range(4000)]
    assert 900 < sum(drawn) < 1100


@pytest.mark.slow
def test_without_pyarrow_the_journals_stay_and_are_read(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["pyarrow"] = None
        from pathlib import Path
        from rlenv.runs.recorded import recorded
        from kept import episode, keep
        keep(Path(sys.argv[1]), 5, seal_episodes=2)
        assert recorded(sys.argv[1]) == [episode(number) for number in range(5)]
        print("read")
    """
    done = started(tmp_path, code)
    out, _ = done.communicate()
    assert out == b"read\n"
    assert len(list((tmp_path / "journal").glob("*.rows.jsonl"))) == 3
    assert RunReader(tmp_path).table["task"].to_pylist() == list(range(5))


def test_rows_hold_what_was_said_later(tmp_path: Path) -> None:
    writer, other = RunWriter(tmp_path), RunWriter(tmp_path)
    ids = [writer.append(episode(number), Facts()) for number in range(3)]
    other.append_late(ids[0], {"fate": "trained", "advantage": 0.5})
    other.append_late(ids[1], {"fate": "masked", "why": "its reward is invalid"})
    other.append_late(ids[0], {"advantage": 0.75, "staleness": 1})
    for _ in ("open", "sealed"):
        table = RunReader(tmp_path).table
        assert table["fate"].to_pylist() == ["trained", "masked", None]
        assert table["advantage"].to_pylist() == [0.75, None, None]
        assert table["staleness"].to_pylist() == [1, None, None]
        assert table["reward"].to_pylist() == [1.0, 1.0, 1.0]
        writer.close()
        other.close()
    with pytest.raises(KeyError, match="no column for advantge"):
        RunWriter(tmp_path).append_late(ids[0], {"advantge": 1.0})


def test_a_journal_is_lines_of_json(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.append(episode(1), Facts())
    (rows,) = (tmp_path / "journal").glob("*.rows.jsonl")
    (row,) = [json.loads(line) for line in rows.read_text().splitlines()]
    assert row["task"] == 1
    (bodies,) = (tmp_path / "journal").glob("*.bodies")
    assert json.loads(bodies.read_bytes().split(b"\n")[0])["task_index"] == 1
    writer.close()


WRITERS = {
    "Journal": {"rlenv/runs/journal.py", "rlenv/runs/writer.py"},
    "write_part": {"rlenv/runs/parts.py", "rlenv/runs/pack.py"},
    "bodies_writer": {"rlenv/runs/parts.py", "rlenv/runs/pack.py"},
}
"""What puts facts of episodes on a disk, and who may: the writer, and who seals and packs what it has written."""


def test_nobody_else_writes_journals_or_parts() -> None:
    used: dict[str, set[str]] = {name: set() for name in WRITERS}
    for path in (*(ROOT / "rlenv").rglob("*.py"), *(ROOT / "trainers").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in used) else ():
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", None)))
            if name in used:
                used[name].add(path.relative_to(ROOT).as_posix())
    assert used == WRITERS


@pytest.mark.parametrize("record", [[], ["--record"]])
def test_a_run_has_one_set_of_files(tmp_path: Path, record: list[str]) -> None:
    pytest.importorskip("pyarrow")
    assert main(["eval", "arithmetic", "-n", "2", *record, "-o", str(tmp_path / "run"), "--json"]) == 0
    folder = {path.name for path in (tmp_path / "run").iterdir()}
    assert folder == {"journal", "episodes", "bodies", "late", "locks", "run.json", "summary.json"}
    reader = open_run(tmp_path / "run")
    assert [reader.body(row["id"]).events is None for row in reader.rows()] == [False, False]
