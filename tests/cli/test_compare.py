"""`rlenv compare` and `rlenv compare --plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.runs import files
from rlenv.runs.figures.report import report
from rlenv.trajectory import Trajectory
from tests.support.runs import kept, played


def _run(folder: Path, ends: Sequence[Sequence[bool | None]], *, seed: int = 0) -> list[Trajectory]:
    """A run with the successes of each task's samples; None is invalid."""
    episodes = [
        played(task=task, seed=seed + at, success=end, reward=None if end is None else 0.8 * end)
        for task, samples in enumerate(ends)
        for at, end in enumerate(samples)
    ]
    kept(folder, episodes)
    return episodes


def _told(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: int = 0) -> Any:
    assert main(["compare", *map(str, argv), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_change_is_told_with_its_interval_its_chance_and_the_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path / "a", [[False]] * 9 + [[True]] * 11 + [[None]])
    _run(tmp_path / "b", [[True]] * 8 + [[False]] * 2 + [[True]] * 11)
    told = _told(capsys, tmp_path / "a", tmp_path / "b")
    success = told["success"]
    assert (told["pairs"], told["paired_by"], told["unpaired"]) == (21, "seed", {"a": 0, "b": 0})
    assert (success["fixed"], success["broken"], success["pairs"], success["invalid"]) == (8, 1, 20, 1)
    assert success["change"] == pytest.approx(7 / 20)
    assert success["p"] == pytest.approx(20 / 512)  # 2 · (1 + 9) / 2⁹
    assert 0 < success["low"] < 7 / 20 < success["high"]
    assert told["reward"]["change"] == pytest.approx(0.8 * 7 / 20)
    assert told["terms"]["correct"]["p"] == pytest.approx(20 / 512)
    assert told["lock"]["known"] is False
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--text"]) == 0
    shown = capsys.readouterr().out
    assert "8 fixed, 1 broken, 11 the same" in shown
    lacking = {line.split()[0]: line.rpartition("; ")[2] for line in shown.splitlines() if "left out" in line}
    assert lacking["success"].startswith("1 invalid left out"), lacking
    assert lacking["correct"].startswith("1 without a value left out"), "a term that was skipped is not invalid"
    assert "broken train/9" in shown


def test_the_exit_code_says_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path / "a", [[True]] * 20)
    _run(tmp_path / "b", [[False]] * 6 + [[True]] * 14)
    _run(tmp_path / "c", [[False]] * 2 + [[True]] * 18)
    assert "worse" in _told(capsys, tmp_path / "a", tmp_path / "b", code=1)["problem"]
    assert _told(capsys, tmp_path / "a", tmp_path / "c")["problem"] == ""  # two of twenty may be chance
    _told(capsys, tmp_path / "a", tmp_path / "c", "--min-change", "-0.05", code=1)
    _told(capsys, tmp_path / "a", tmp_path / "c", "--min-change", "-0.2")
    _told(capsys, tmp_path / "b", tmp_path / "a", "--min-change", "0.1")
    _run(tmp_path / "none", [[None]] * 20)
    assert "nothing is known" in _told(capsys, tmp_path / "a", tmp_path / "none", code=1)["problem"]


def test_runs_of_other_seeds_are_paired_within_their_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path / "a", [[False, True]] * 10)
    _run(tmp_path / "b", [[True, True, True]] * 10, seed=1_000_000)
    told = _told(capsys, tmp_path / "a", tmp_path / "b")
    assert (told["paired_by"], told["pairs"], told["unpaired"]) == ("sample", 20, {"a": 0, "b": 10})
    assert told["success"]["change"] == 0.5
    assert told["success"]["p"] == pytest.approx(2 / 2**10)  # of ten tasks, each fixed once
    assert "(same split, task and sample)" in report([tmp_path / "a", tmp_path / "b"], title="")


def test_files_and_locks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = _run(tmp_path / "a", [[True]] * 3)
    files.write(tmp_path / "a.jsonl", episodes)
    told = _told(capsys, tmp_path / "a", tmp_path / "a.jsonl")
    assert (told["success"]["change"], told["pairs"]) == (0.0, 3)
    for name, policy in (("x", "random"), ("y", "oracle")):
        assert main(["eval", "arithmetic", "--policy", policy, "-n", "3", "-o", str(tmp_path / name)]) == 0
    capsys.readouterr()
    told = _told(capsys, tmp_path / "x", tmp_path / "y")
    assert [(one["section"], one["key"]) for one in told["lock"]["differences"]] == [("policy", "kind")]
    assert _told(capsys, tmp_path / "x", tmp_path / "x")["lock"] == {"known": True, "without": [], "differences": []}


def test_runs_without_a_task_in_common_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "a", [played(task=0)])
    kept(tmp_path / "b", [played(task=1, question="Which river?")])
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "share no task" in capsys.readouterr().err
    for wrong in (["--min-change", "3"], ["--power", "0"]):
        assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a"), *wrong]) == 2


def test_runs_of_two_environments_or_of_other_questions_are_compared_only_if_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path / "a", [[True]] * 3)
    own = [played(task=task, question=f"And of {task}?") for task in range(3)]
    kept(tmp_path / "asked", own)
    kept(tmp_path / "other", [replace(one, environment="rlenv/other-v0") for one in own])
    for name, said in (("asked", "all 3 pairs were asked something else"), ("other", "B of rlenv/other-v0")):
        assert main(["compare", str(tmp_path / "a"), str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
        assert _told(capsys, tmp_path / "a", tmp_path / name, "--anyway")["pairs"] == 3
        assert said in report([tmp_path / "a", tmp_path / name], title="")


def test_another_prompt_over_the_same_rows_is_compared_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, prompt in (("x", "{{ task.question }}"), ("y", "Think. {{ task.question }}")):
        argv = ["eval", "arithmetic", "--policy", "oracle", "-n", "4", "-o", str(tmp_path / name)]
        assert main([*argv, "--set", f"prompt.user={json.dumps(prompt)}"]) == 0
    capsys.readouterr()
    told = _told(capsys, tmp_path / "x", tmp_path / "y")
    assert (told["pairs"], told["asked_otherwise"], told["renumbered"], told["unlike"]) == (4, 4, 0, "")


def test_power_of_two_pilots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path / "a", [[True, False]] * 10 + [[True, True]] * 5 + [[False, False]] * 5)
    _run(tmp_path / "b", [[True, True]] * 6 + [[False, True]] * 4 + [[True, True]] * 5 + [[False, False]] * 5)
    tasks = _told(capsys, tmp_path / "a", tmp_path / "b", "--power", "0.1")["power"]["tasks"]
    assert [one["k"] for one in tasks] == [1, 4, 16]
    for one in tasks:
        assert one["paired"] < one["unpaired"]


def test_power_of_rates_and_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--plan", "0.1", "--rate", "0.6", "-k", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rise"] == [{"k": 1, "unpaired": 354, "paired": None}]
    assert told["tasks"] == told["fall"] == [{"k": 1, "unpaired": 385, "paired": None}]
    # A gate looks for a fall, which takes more where most succeed.
    assert main(["compare", "--plan", "0.1", "--rate", "0.9", "-k", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [told[way][0]["unpaired"] for way in ("rise", "fall", "tasks")] == [71, 197, 197]
    assert main(["compare", "--plan", "0.2", "--rate", "0.9", "-k", "1", "--text"]) == 0
    shown = capsys.readouterr().out
    assert "a fall to 0.700" in shown
    assert "rise" not in shown
    _run(tmp_path / "a", [[True, True], [False, False], [True, False]] * 5)
    assert main(["compare", "--plan", "0.1", "--run", str(tmp_path / "a"), "-k", "1", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rate"] == 0.5
    assert 0 < told["icc"] < 1
    assert told["tasks"][0]["unpaired"] > told["tasks"][1]["unpaired"]
    for wrong in (["2", "--rate", "0.5"], ["0.1", "--rate", "0.5", "-k", "4"], ["0.1", "--rate", "0.5", "--icc", "2"]):
        assert main(["compare", "--plan", *wrong]) == 2
    capsys.readouterr()
    assert main(["compare", "--plan", "0.9", "--rate", "0.5", "-k", "1"]) == 2
    assert "no rate lies 0.9 above or below 0.5" in capsys.readouterr().err
    assert main(["compare", "--plan", "0.1", "--rate", "0.5", "--icc", "0.3", "--text"]) == 0
    assert "k 16" in capsys.readouterr().out


def test_what_is_not_known_and_what_was_asked_otherwise_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path / "a", [[True]] * 10)
    _run(tmp_path / "b", [[None]] * 4 + [[True]] * 6)
    told = _told(capsys, tmp_path / "a", tmp_path / "b")
    assert (told["success"]["change"], told["success"]["bounds"]) == (0.0, [-0.4, 0.0])
    assert told["asked_otherwise"] == 0
    kept(
        tmp_path / "c",
        [played(task=task, question="And of Peru?" if task < 3 else "What is the capital?") for task in range(10)],
    )
    assert _told(capsys, tmp_path / "a", tmp_path / "c")["asked_otherwise"] == 3
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--text"]) == 0
    assert "with the 4 pairs of which a side is invalid, success changed by -0.400 to +0.000" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c"), "--text"]) == 0
    assert "3 of these were asked something else in B" in capsys.readouterr().out
