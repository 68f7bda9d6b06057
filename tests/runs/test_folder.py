"""What `run.json` says of a run, whoever wrote it, and what of a run counts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.runs.folder import Attempt, KeptRun, Kind, RunInfo, open_run, read_info, write_info
from rlenv.runs.recorded import recorded
from rlenv.runs.schema import Facts
from tests.support.kept import episode, keep


@pytest.mark.parametrize("kind", ["eval", "rescore"])
def test_a_run_that_went_on_counts_what_it_had(tmp_path: Path, kind: Kind) -> None:
    """Only training throws steps away, where it goes on from a checkpoint before them."""
    info = RunInfo(kind)
    for attempt in range(3):
        with KeptRun(tmp_path, info, resume=attempt > 0) as run:
            run.append(episode(attempt), Facts(mode="sampled"))
    assert sorted(open_run(tmp_path).table["task"].to_pylist()) == [0, 1, 2]
    assert [one.task_index for one in recorded(tmp_path)] == [0, 1, 2]


def test_a_run_is_either_gone_on_with_or_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, 2, attempt=0, facts=Facts())
    write_info(tmp_path, RunInfo("eval", attempts=(Attempt(0),)))
    with pytest.raises(UsageError, match="either gone on with or replaced"):
        KeptRun(tmp_path, RunInfo("eval"), resume=True, overwrite=True)
    command = ["eval", "nowhere.yaml", "-o", str(tmp_path), "--resume", "--overwrite"]
    assert main(command) == 2
    assert "--resume goes on with the run that --overwrite would replace" in capsys.readouterr().err
    assert len(recorded(tmp_path)) == 2


def test_what_training_threw_away_does_not_count(tmp_path: Path) -> None:
    keep(tmp_path, 2, attempt=0, facts=Facts(step=5, mode="train"))
    write_info(tmp_path, RunInfo("train", attempts=(Attempt(0), Attempt(1, from_step=4))))
    assert len(open_run(tmp_path).table) == 0


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b'{"kind": "\xff"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"facts": ' * 50_000 + b"1" + b"}" * 50_000,
        b'{"ended": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_run_json_that_is_none_says_nothing(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "run.json").write_bytes(written)
    assert read_info(tmp_path) is None


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ({}, ""),
        ({"model": "/runs/a/model"}, "/runs/a/model"),
        ({"model": "/runs/a/model", "command": ["rlenv", "train", "a", "--model", "org/m", "-o", "r"]}, "org/m"),
        ({"policy": "openai", "command": ["rlenv", "eval", "a", "--model=served"]}, "served"),
        ({"policy": "hf:org/m"}, "org/m"),
        ({"policy": "openai", "command": ["rlenv", "eval", "a", "--model"]}, ""),
    ],
)
def test_the_model_of_a_run_is_the_one_that_its_command_names(
    tmp_path: Path, written: dict[str, object], model: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(written))
    info = read_info(tmp_path)
    assert info is not None
    assert info.model == model


@pytest.mark.parametrize(
    "written",
    [
        '{"kind": 5, "state": [], "environment": {"a": 1}, "policy": null, "spec": true, "command": 5, "facts": 5}',
        '{"attempts": 5, "facts": ["ab", "cd"], "command": [1, {}, null], "ended": NaN}',
        '{"attempts": "abc", "ended": "yesterday"}',
        '{"attempts": {"a": 1}, "ended": 1e300}',
        '{"attempts": [5, null, "a"], "ended": -1e18}',
    ],
)
def test_of_values_of_another_type_nothing_is_taken(tmp_path: Path, written: str) -> None:
    (tmp_path / "run.json").write_text(written)
    assert read_info(tmp_path) == RunInfo("train")


@pytest.mark.parametrize("value", ["NaN", "1e999", "-1", "9" * 30, '"a"', "null", "[1]", "true"])
@pytest.mark.parametrize("name", ["number", "from_step", "started", "pid"])
def test_an_attempt_has_numbers_or_nothing(tmp_path: Path, name: str, value: str) -> None:
    keep(tmp_path, 2)
    host = os.uname().nodename
    (tmp_path / "run.json").write_text(f'{{"attempts": [{{}}, {{"host": "{host}", "{name}": {value}}}]}}')
    info = read_info(tmp_path)
    assert info is not None
    assert info.attempts[1] == Attempt(1, host=host)
    assert len(open_run(tmp_path).table) == 2


def test_text_of_a_run_json_can_be_written_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        r'{"environment": "\ud800", "command": ["\udfff"], "attempts": [{"lock": "\ud800"}]}'
    )
    info = read_info(tmp_path)
    assert info is not None
    assert (info.environment, info.command, info.attempts[0].lock) == ("\ufffd", ("\ufffd",), "\ufffd")


def test_a_run_json_that_is_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    assert read_info(tmp_path) is None
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").symlink_to("/dev/zero")
    assert read_info(tmp_path) is None


@pytest.mark.slow
def test_what_could_not_be_kept_is_said_once_and_in_the_summary_and_the_exit_code(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: both refuse a write.

    With -B: Python 3.11 keeps bytecode that such a limit has cut, and whoever imports the module next fails.
    """
    words = f"ulimit -f 16; exec {sys.executable} -B -m rlenv eval arithmetic -n 60 --concurrency 1 -o RUN"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    lost = json.loads((tmp_path / "RUN" / "summary.json").read_text())["not_kept"]
    assert lost > 0
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("writes failed") == 1
    assert f"RUN: {lost} writes failed" in done.stderr


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("attempts", "state"),
    [
        ((), "running"),
        ((Attempt(0, host=HERE, pid=0),), "running"),  # nobody knows its process
        ((Attempt(0, host=HERE, pid=os.getpid()),), "running"),
        ((Attempt(0, host=HERE, pid=1),), "running"),
        ((Attempt(0, host=HERE, pid=2**31 - 1),), "lost"),
        ((Attempt(0, host="elsewhere", pid=2**31 - 1),), "running"),
        ((Attempt(0, host=HERE, pid=2**31 - 1), Attempt(1, host=HERE, pid=os.getpid())), "running"),
        ((Attempt(0, host=HERE, pid=os.getpid()), Attempt(1, host=HERE, pid=2**31 - 1)), "lost"),
    ],
)
def test_a_run_is_lost_once_the_process_of_its_last_attempt_is_gone_from_here(
    tmp_path: Path, attempts: tuple[Attempt, ...], state: str
) -> None:
    write_info(tmp_path, RunInfo("eval", attempts=attempts, state="running"))
    assert [one.state for one in [read_info(tmp_path)] if one] == [state]
    write_info(tmp_path, RunInfo("eval", attempts=attempts, state="ended"))
    assert [one.state for one in [read_info(tmp_path)] if one] == ["ended"]


@pytest.mark.parametrize(
    ("before", "asks", "refused"),
    [
        (None, {}, ""),
        (None, {"overwrite": True}, ""),
        (None, {"resume": True}, "holds no run that could go on"),
        (RunInfo("eval", state="ended"), {}, "holds a run already"),
        (RunInfo("eval", state="ended"), {"overwrite": True}, ""),
        (RunInfo("eval", state="ended"), {"resume": True}, ""),
        (RunInfo("eval", state="lost"), {"resume": True}, ""),
        (RunInfo("train", state="ended"), {"resume": True}, "holds a run of kind train"),
        (RunInfo("train", state="ended"), {"overwrite": True}, ""),
        (RunInfo("eval", state="running"), {"overwrite": True}, "is still running"),
    ],
)
def test_a_folder_takes_a_run_that_fits_what_it_holds(
    tmp_path: Path, before: RunInfo | None, asks: dict[str, Any], refused: str
) -> None:
    if before is not None:
        keep(tmp_path, 1, attempt=0, facts=Facts())
        write_info(tmp_path, before)
    if refused:
        with pytest.raises(UsageError, match=refused):
            KeptRun(tmp_path, RunInfo("eval"), **asks)
        assert len(recorded(tmp_path) if before is not None else []) == (before is not None), "nothing is lost"
        return
    with KeptRun(tmp_path, RunInfo("eval"), **asks) as run:
        assert len(run.info.attempts) == 1
        assert [one.kind for one in [read_info(tmp_path)] if one] == ["eval"]


def test_what_another_command_wrote_is_neither_replaced_nor_gone_on_with(tmp_path: Path) -> None:
    write_info(tmp_path, RunInfo("train", state="ended"))
    for asks in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError, match="holds what another command wrote"):
            KeptRun(tmp_path, RunInfo("eval"), **asks)  # type: ignore[arg-type]
