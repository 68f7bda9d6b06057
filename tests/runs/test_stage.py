"""What commands say of their tapes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.events import Reel
from rlenv.runs.recorded import recorded
from rlenv.runs.stage import Stage


def test_an_episode_that_is_played_is_recorded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main(["play", "arithmetic", "--policy", "oracle", "--task", "2", "-o", out, "--record"]) == 0
    assert main(["replay", out, "--all-tools"]) == 0
    assert "1 of 1 episodes came out the same" in capsys.readouterr().out
    reel = Reel.of(out)
    assert [one.place for id in reel.ids for one in reel.events(id)] == ["turn 0 call 0"]
    assert main(["play", "arithmetic", "--policy", "oracle", "-o", out]) == 2
    assert "holds a run already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval", "arithmetic", "--record"], "--record needs a folder to keep the run in; add -o DIR"),
        (["eval", "arithmetic", "--tape", "FILE"], "has no tape; record one with: rlenv eval SPEC --record -o DIR"),
        (["replay", "FILE", "--all-tools"], "--all-tools is for a recorded run"),
        (["replay", "FILE", "--live", "calculate"], "--live is for a recorded run"),
        (["replay", "RUN", "--live", "calculate", "--no-tape"], "with --no-tape everything is asked again"),
        (["eval", "arithmetic", "--tape", "RUN", "-o", "LINK", "--overwrite"], "--overwrite would delete"),
        (["replay", "RUN", "--live", "calculat"], "there is no tool 'calculat'; did you mean 'calculate'?"),
    ],
)
def test_options_that_do_not_fit_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    run, file = str(tmp_path / "run"), str(tmp_path / "episodes.jsonl")
    if {"RUN", "FILE"} & set(argv):
        assert main(["eval", "arithmetic", "-n", "1", "-o", run, "--json"]) == 0
        files.write(file, recorded(run))
    link = tmp_path / "link"
    link.symlink_to(run)
    assert main([{"RUN": run, "FILE": file, "LINK": str(link)}.get(word, word) for word in argv]) == 2
    assert message in capsys.readouterr().err
    assert Path(run).is_dir() == ("RUN" in argv or "FILE" in argv)


@pytest.mark.slow
def test_what_could_not_be_written_is_told_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    small = (
        "import resource, sys; from rlenv.cli.main import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536)); sys.exit(main(sys.argv[1:]))"
    )
    argv = ["eval", "arithmetic", "--policy", "oracle", "-n", "20", "-k", "10", "--record", "-o", str(tmp_path / "run")]
    ran = subprocess.run(
        [sys.executable, "-B", "-c", small, *argv, "--json"], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 1, ran.stderr
    assert re.search(r"run: \d+ writes failed, and what they held of the run is not kept\n", ran.stderr)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, ""),
        ({"out": "run"}, ""),
        ({"out": "run", "overwrite": True}, ""),
        ({"out": "run", "resume": True}, ""),
        ({"out": "run", "record": True}, ""),
        ({"out": "run", "overwrite": True, "resume": True}, "--resume goes on with the run that --overwrite"),
        ({"overwrite": True}, "--overwrite is about the run in the folder of -o"),
        ({"resume": True}, "--resume is about the run in the folder of -o"),
        ({"record": True}, "--record needs a folder"),
        ({"max_cost": 1.0}, "--max-cost needs to know"),
    ],
)
def test_an_option_about_a_kept_run_needs_its_folder(tmp_path: Path, options: dict[str, Any], refused: str) -> None:
    given = {**options, **({"out": tmp_path / options["out"]} if "out" in options else {})}
    if refused:
        with pytest.raises(UsageError, match=f"^{re.escape(refused)}"):
            Stage(kind="eval", **given)
    else:
        Stage(kind="eval", **given)


def test_servers_are_asked_for_their_tools_on_the_tape_that_records(tmp_path: Path) -> None:
    """A spec's own module is imported where its servers are asked, and sees the tape of that moment."""
    stages = {"plain": Stage(kind="eval"), "kept": Stage(kind="eval", out=tmp_path / "run")}
    for (name, stage), tape in zip(stages.items(), ("None", "Recorder"), strict=True):
        (folder := tmp_path / name).mkdir()
        (folder / "seen.py").write_text(SEEN, encoding="utf-8")
        (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
        stage.load(folder / "spec.yaml")
        assert (folder / "tape").read_text() == tape


SPEC = """
rlenv: 1
name: seen
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "{{ task.question }}"}
rewards: {right: {kind: rule, function: "seen.py:right"}}
"""
SEEN = """
from pathlib import Path

from rlenv.concurrency.lanes import here

lane = here()
Path(__file__).with_name("tape").write_text("None" if lane is None else type(lane.tape).__name__)


def right(context):
    return 1.0
"""
