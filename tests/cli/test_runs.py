"""`rlenv runs`: what was kept, and what is done with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs import files
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.locks.files import UNREADABLE
from rlenv.runs.locks.lock import Lock, locks_of
from rlenv.runs.recorded import recorded
from rlenv.runs.schema import Facts
from tests.support.kept import episode


def kept(path: Path, *rewards: float) -> Path:
    with KeptRun(path, RunInfo("eval", environment="toy-v0", policy="oracle")) as run:
        for number, reward in enumerate(rewards):
            run.append(episode(number, reward=reward), Facts())
    return path


def test_runs_are_found_below_a_folder_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "a", 1.0, 0.0)
    kept(tmp_path / "deep" / "er" / "b", 1.0)
    (tmp_path / "nothing").mkdir()
    assert main(["runs", "list", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(Path(one["path"]).name, one["episodes"], one["success"]) for one in found] == [
        ("b", 1, 1.0),
        ("a", 2, 0.5),
    ]
    assert found[0]["state"] == "ended"
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert "oracle" in capsys.readouterr().out
    assert main(["runs", "list", str(tmp_path / "nothing")]) == 1
    assert main(["runs", "show", str(tmp_path / "a")]) == 0
    assert "toy-v0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("by", "order"),
    [("newest", "cab"), ("run", "abc"), ("success", "acb"), ("episodes", "bac"), ("environment", "abc")],
)
def test_runs_stand_as_asked_for(
    by: str, order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, rewards in (("b", (0.0, 0.0, 0.0)), ("a", (1.0, 1.0)), ("c", (0.5,))):
        kept(tmp_path / name, *rewards)
    assert main(["runs", "list", str(tmp_path), "--sort", by]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "".join(line.split()[1][-1] for line in lines if "toy-v0" in line) == order


@pytest.mark.parametrize("width", ["", "40", "60", "80", "200"])
def test_no_list_of_runs_cuts_what_tells_them_apart(
    width: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.chdir(tmp_path)
    runs = [kept(Path("runs") / ("a-run-of-many-words-" + letter), 1.0) for letter in "ab"]
    assert main(["runs", "list"]) == 0
    out = capsys.readouterr().out
    assert all(out.count(str(run)) == 1 for run in runs)
    assert "1.000" in out
    if width in ("", "200"):  # a pipe gets whole lines
        assert [line for line in out.splitlines() if str(runs[0]) in line and "oracle" in line and "train" in line]
    assert main(["runs", "show", str(runs[0])]) == 0
    assert str(runs[0]) in capsys.readouterr().out


def test_a_run_is_shown_with_its_model_and_with_what_its_figure_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    run = RunInfo("train", environment="toy-v0", policy="hf", model="org/small-1b")
    with KeptRun(tmp_path / "run", run) as out:
        for number, facts in enumerate((Facts(step=1, mode="train"), Facts(step=2, mode="greedy"))):
            out.append(episode(number, reward=1.0), facts)
    for command in (["list"], ["show"]):
        assert main(["runs", *command, str(tmp_path / "run")]) == 0
        told = capsys.readouterr().out
        assert "org/small-1b" in told
        assert "held-out, greedy, step 2" in told


def test_an_export_is_the_episodes_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = kept(tmp_path / "run", 1.0, 0.0, 1.0), tmp_path / "out.jsonl"
    assert main(["runs", "export", str(run), "-o", str(out)]) == 0
    assert "3 episodes" in capsys.readouterr().out
    assert list(files.read(out)) == recorded(run)
    assert main(["runs", "export", str(run), "-o", str(out)]) == 2
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert main(["runs", "export", str(run), "-o", str(tmp_path / "link")]) == 2
    assert not (tmp_path / "nowhere").exists()
    assert "exists already" in capsys.readouterr().err


def test_packing_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept(tmp_path / "run", 1.0)
    assert main(["runs", "pack", str(run)]) == 0
    assert capsys.readouterr().out == "0 journals sealed, 0 parts merged\n"


def test_a_run_is_removed_only_when_that_is_said_twice_and_nothing_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = kept(tmp_path / "run", 1.0)
    (run / "notes.txt").write_text("mine")
    assert main(["runs", "rm", str(run)]) == 0
    assert "nothing is removed without --yes" in capsys.readouterr().out
    assert len(recorded(run)) == 1
    assert main(["runs", "rm", str(run), "--yes"]) == 0
    assert [path.name for path in run.iterdir()] == ["notes.txt"]
    outside = tmp_path / "outside"
    outside.mkdir()
    linked = kept(tmp_path / "linked", 1.0)
    (linked / "bodies").rename(outside / "bodies")
    (linked / "bodies").symlink_to(outside / "bodies")
    (linked / "blobs").symlink_to(outside)
    (linked / "tape").write_text("a file")
    assert main(["runs", "rm", str(linked), "--yes"]) == 0
    assert not linked.exists()
    assert len(list((outside / "bodies").iterdir())) == 1
    (tmp_path / "link").symlink_to(kept(tmp_path / "named", 1.0))
    assert main(["runs", "rm", str(tmp_path / "link"), "--yes"]) == 0
    whole = kept(tmp_path / "whole", 1.0)
    capsys.readouterr()
    assert main(["runs", "rm", str(whole), "--yes"]) == 0
    assert not whole.exists()
    assert capsys.readouterr().out == f"removed the run in {whole}, 0.0 MB\n"


def test_a_run_that_cannot_be_removed_is_not_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept(tmp_path / "run", 1.0)
    (run / "summary.json").mkdir()  # a folder where a file is to go
    assert main(["runs", "rm", str(run), "--yes"]) == 2
    said = capsys.readouterr()
    assert "summary.json cannot be removed" in said.err
    assert said.out == ""


def test_a_run_that_runs_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with KeptRun(tmp_path / "run", RunInfo("eval")) as run:
        run.append(episode(0), Facts())
        assert main(["runs", "rm", str(tmp_path / "run"), "--yes"]) == 2
        assert "is still running" in capsys.readouterr().err
    assert len(recorded(tmp_path / "run")) == 1


@pytest.mark.parametrize("action", [["show"], ["pack"], ["export", "-o", "x"], ["rm"]])
def test_a_folder_without_a_run_is_told(tmp_path: Path, action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", *action, str(tmp_path)]) == 2
    assert "there is no run at" in capsys.readouterr().err


def test_a_run_that_went_on_is_listed_with_all_that_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "run", 1.0, 0.0)
    with KeptRun(tmp_path / "run", RunInfo("eval"), resume=True, from_step=0) as run:
        run.append(episode(2), Facts(mode="sampled"))
    assert main(["runs", "list", str(tmp_path), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert (told["attempts"], told["episodes"]) == (2, 3)


@pytest.mark.parametrize(
    "command",
    [
        ["runs", "report", "RUN", "-o", "RUN/run.json", "--overwrite"],
        ["runs", "report", "RUN", "-o", "./x/../RUN/summary.json", "--overwrite"],
        ["runs", "report", "RUN", "-o", "RUN/locks/new.html"],
        ["runs", "export", "RUN", "-o", "RUN/journal/x.jsonl"],
        ["runs", "export", "RUN", "-o", "link/x.jsonl"],
        ["eval", "arithmetic", "-n", "1", "-o", "RUN/episodes/other"],
        ["audit", "arithmetic", "-o", "RUN/bodies/a.json"],
        ["collect", "arithmetic", "--model", "m", "-o", "RUN/late/data"],
    ],
)
def test_no_command_writes_among_a_runs_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with KeptRun(tmp_path / "RUN", RunInfo("eval")) as run:
        run.append(episode(0), Facts())
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("RUN/journal")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert main(command) == 2
    assert "is among the run's own files" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert main(["runs", "report", "RUN", "-o", "RUN/report.html"]) == 0


def test_a_run_that_is_named_twice_is_removed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    with KeptRun(run, RunInfo("eval")) as kept:
        kept.append(episode(0), Facts())
    assert main(["runs", "rm", str(run), f"{tmp_path}/./run", "--yes"]) == 0
    assert capsys.readouterr().out.count("removed the run") == 1
    assert not run.exists()


# `rlenv runs lock` over runs, lock files and specs


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
