"""Ends of commands that are told in one line: a reader that goes away, Ctrl-C, what is not there."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs.folder import open_run, read_info


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keeps"),
    [
        (["eval", "arithmetic", "-n", "2", "-o", "RUN"], True),
        (["play", "arithmetic", "--policy", "oracle", "-o", "RUN"], True),
        (["eval", "arithmetic", "-n", "2", "--json"], False),
        (["editor", "schema"], False),
    ],
)
def test_a_closed_pipe_is_no_failure_of_a_spec(tmp_path: Path, command: list[str], keeps: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "rlenv", *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        said = run.stderr.read().decode()
        assert run.wait() == 141
    assert [line for line in said.splitlines() if not line.endswith("…")] == []
    if keeps:
        info = read_info(tmp_path / "RUN")
        assert info is not None
        assert info.state in ("ended", "stopped")
        assert len(list(open_run(tmp_path / "RUN").rows())) == (2 if command[0] == "eval" else 0)


def test_an_error_is_told_within_bounds_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "no-run" + "x" * 200_000]) == 2
    assert 0 < len(capsys.readouterr().err) < 11_000


class Interrupting(MetaPathFinder):
    """Ctrl-C while a module is imported."""

    def find_spec(self, fullname: str, *_rest: object) -> None:
        if fullname == "rlenv.cli.compare":
            raise KeyboardInterrupt


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "rlenv.cli.compare", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main(["compare", "--plan", "arithmetic"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("command", ["eval", "tools", "lock", "train", "sft"])
def test_every_error_begins_with_the_program(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"lock": ["show"], "train": ["--model", "tiny"], "sft": ["--model", "tiny"]}.get(command, [])
    with suppress(SystemExit):  # what the trainer ends the program with is its exit code
        assert main([command, *words, "nowhere-at-all"]) == 2
    assert capsys.readouterr().err.startswith("rlenv")


def test_a_command_that_is_not_there_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for name, near in (("evall", "eval"), ("show", "runs show")):
        assert main([name]) == 2
        assert f"did you mean '{near}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["eval", "arithmetic", "--polcy", "oracle"], "--policy"),
        (["eval", "arithmetic", "--concurency=3"], "--concurrency"),
        (["preflight", "arithmetic", "--model", "x", "--prest", "cpu"], "--preset"),
        (["train", "arithmetic", "--prest", "cpu"], "--preset"),
        (["--verison"], "--version"),
        (["eval", "arithmetic", "--n", "3"], "-n"),
        (["eval", "arithmetic", "--num-examples=3"], "-n"),
        (["audit", "arithmetic", "--policy", "oracle"], ""),
    ],
)
def test_an_option_that_is_not_there_names_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "train":
        pytest.importorskip("psutil", reason="the verl extra is not installed")
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.endswith(f"; did you mean '{near}'?\n") if near else "did you mean" not in told
