"""However `rlenv train` and `rlenv sft` end, run.json says how."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from rlenv.runs.folder import STOP, RunInfo, read_info
from rlenv_train.launch import terminated_as_interrupted
from rlenv_train.progress import driving
from rlenv_verl.run import Run
from rlenv_verl.run.train import main
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")

NEW = RunInfo("train", command=("rlenv", "train", "arithmetic"), spec="arithmetic", policy="tiny")
ENDS = [(KeyboardInterrupt(), "stopped"), (RuntimeError("a bug"), "failed"), (None, "failed")]


def state(folder: Path) -> str:
    info = read_info(folder)
    assert info is not None
    assert info.ended > 0 or info.state == "running"
    return info.state


@pytest.fixture
def prepared(tmp_path: Path) -> Run:
    assert main(["arithmetic", "--dry-run", "-o", str(tmp_path / "run")]) == 0
    return Run.load(tmp_path / "run")


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("given", [["--model", "/nowhere/model"], ["trainer.nothing=3"]])
def test_a_dry_run_that_is_refused_leaves_nothing_of_its_own(tmp_path: Path, given: list[str], is_new: bool) -> None:
    folder = tmp_path / "run"
    if not is_new:
        folder.mkdir()
    assert main(["arithmetic", "--dry-run", "-o", str(folder), *given]) == 2
    assert folder.exists() is not is_new


def ending(error: BaseException | None) -> AbstractContextManager[object]:
    return nullcontext() if error is None else pytest.raises(type(error))


def end(error: BaseException | None) -> None:
    if error is not None:
        raise error


@pytest.mark.slow
@pytest.mark.parametrize(("error", "expected"), ENDS)
def test_an_attempt_that_nobody_has_ended_is_ended(prepared: Run, error: BaseException | None, expected: str) -> None:
    with ending(error), driving(prepared.folder):
        prepared.begin_attempt(0)
        assert state(prepared.folder) == "running"
        end(error)
    assert state(prepared.folder) == expected
    assert len(Run.load(prepared.folder).attempts) == 1


@pytest.mark.parametrize(("error", "expected"), ENDS)
def test_a_run_that_was_never_prepared_says_how_it_ended(
    tmp_path: Path, error: BaseException | None, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ending(error), driving(tmp_path, NEW):
        end(error)
    info = read_info(tmp_path)
    assert info is not None
    assert (info.state, info.command, info.policy) == (expected, NEW.command, "tiny")
    assert main(["--resume", str(tmp_path)]) == 2
    assert "before it was prepared" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_was_refused_as_it_was_stays_so(prepared: Run) -> None:
    before = (prepared.folder / "run.json").read_bytes()
    with driving(prepared.folder):
        pass
    assert (prepared.folder / "run.json").read_bytes() == before


@pytest.mark.slow
def test_what_a_run_says_of_its_own_end_stays(prepared: Run) -> None:
    with driving(prepared.folder):
        path = prepared.begin_attempt(0).folder / "run.json"
        path.write_text(path.read_text().replace('"running"', '"ended"'))
    assert Run.load(prepared.folder).state == "ended"


@pytest.mark.slow
def test_a_wish_to_stop_from_before_is_forgotten_and_a_later_one_is_not(prepared: Run) -> None:
    prepared.stop.touch()
    with driving(prepared.folder):
        assert not prepared.stop.exists()
        prepared.stop.touch()
        prepared.begin_attempt(0)
        assert prepared.stop.exists()


def test_a_sigterm_ends_a_block_as_an_interrupt(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted(), driving(tmp_path, NEW):
        os.kill(os.getpid(), signal.SIGTERM)
    assert state(tmp_path) == "stopped"


@pytest.mark.slow
def test_a_run_that_the_preflight_refuses_has_failed(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(tiny_folder, model, ignore=shutil.ignore_patterns("*.safetensors"))
    assert main(["arithmetic", "--model", str(model), "-o", str(out)]) == 1
    assert "nothing was started" in capsys.readouterr().out
    assert state(out) == "failed"
    assert len(Run.load(out).attempts) == 1
    assert main(["--resume", str(out)]) == 1
    assert state(out) == "failed"


def test_a_time_limit_that_ends_the_warm_start_stops_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["arithmetic", "--time-limit", "0.001", "-o", str(out)]) == 1
    assert state(out) == "stopped"


@pytest.mark.slow
def test_a_wish_to_stop_ends_the_warm_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, codes, said = tmp_path / "run", list[int](), list[str]()
    run = threading.Thread(target=lambda: codes.append(main(["arithmetic", "-o", str(out)])))
    run.start()

    def is_making() -> bool:
        said.append(capsys.readouterr().out)
        return "warm start: making" in "".join(said)

    wait_until(is_making, what="the warm start")
    (out / STOP).touch()
    run.join()
    assert codes == [130]
    assert state(out) == "stopped"
    assert not (out / "verl.log").exists()
    assert json.loads((out / "run.json").read_text())["kind"] == "train"
