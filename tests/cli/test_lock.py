"""`rlenv runs lock` over runs, lock files and specs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs.locks.files import UNREADABLE
from rlenv.runs.locks.lock import Lock, locks_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the oracle, one with another limit."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["eval", "arithmetic", "-n", "1", "-o", str(folder / "a"), "--json"]) == 0
    changed = ["--set", "limits.turns=5", "--seed", "2"]
    assert main(["eval", "arithmetic", "-n", "1", "-o", str(folder / "b"), "--json", *changed]) == 0
    return folder


def test_a_difference_is_named_by_section_and_sets_the_exit_code(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "lock", "diff", str(runs / "a"), str(runs / "b")]) == 1
    said = capsys.readouterr().out
    assert "limits.turns" in said
    assert "4 differences" in said
    assert main(["runs", "lock", "diff", str(runs / "a"), str(runs / "b"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"section": "play", "key": "seed", "a": 0, "b": 2} in found["differences"]
    assert main(["runs", "lock", "diff", str(runs / "a"), str(runs / "a")]) == 0
    assert f"no difference: {found['a']}" in capsys.readouterr().out


def test_a_spec_as_it_is_now_is_compared_by_what_a_spec_says(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "lock", "diff", str(runs / "b"), "arithmetic", "--set", "limits.turns=5"]) == 0
    assert main(["runs", "lock", "diff", "arithmetic", str(runs / "b")]) == 1
    assert "limits.turns" in capsys.readouterr().out


def test_a_lock_is_shown_from_a_run_a_file_or_a_spec(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hash12,) = locks_of(runs / "a")
    for name in (runs / "a", runs / "a" / "locks" / f"{hash12}.json"):
        assert main(["runs", "lock", "show", str(name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["hash"] == hash12
    assert main(["runs", "lock", "show", str(runs / "a")]) == 0
    assert f"{hash12}  " in capsys.readouterr().out
    assert main(["runs", "lock", "show", "arithmetic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["id"] == "rlenv/arithmetic-v0"


def test_what_cannot_be_shown_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["show", str(tmp_path)], "holds no run"),
        (["diff", str(runs / "a")], "found 1 names; expected 2"),
        (["show", str(runs / "a"), "--set", "limits.turns=1"], "--set is for a spec"),
        (["show", str(tmp_path / "x.json")], "there is no lock"),
        (["show", "nothing"], "no spec at 'nothing'"),
    ):
        assert main(["runs", "lock", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_run_that_goes_on_with_something_else_says_so_and_keeps_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["eval", "arithmetic", "-o", str(tmp_path / "run"), "--json"]
    assert main([*run, "-n", "1"]) == 0
    assert main([*run, "-n", "2", "--resume"]) == 0
    assert "goes on" not in capsys.readouterr().err
    assert main([*run, "-n", "3", "--resume", "--set", "limits.turns=5"]) == 0
    assert "rlenv runs lock diff" in capsys.readouterr().err
    assert len(locks_of(tmp_path / "run")) == 2


def test_a_rescored_run_has_the_lock_of_its_rewards(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--spec", "arithmetic", "--set", "rewards.format.weight=0.5", "-o", str(tmp_path / "c"), "--json"]
    assert main(["rescore", str(runs / "a"), *words]) == 0
    (lock,) = locks_of(tmp_path / "c").values()
    assert lock.policy == {"kind": "recorded"}
    assert lock.rewards["format"]["weight"] == 0.5


def test_what_cannot_be_read_is_said_of_a_lock_and_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Lock(resources={"db": {"files": {"a.sqlite": UNREADABLE}}}).write(tmp_path))
    assert main(["runs", "lock", "diff", path, path]) == 1
    assert "0 differences, and 1 of which nobody knows" in capsys.readouterr().out
