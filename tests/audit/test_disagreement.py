"""A judge beside a verifier over recorded episodes: how often they differ, and where."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rlenv.audit.disagreement import disagreement
from rlenv.cli.main import main as command
from rlenv.trajectory import TermResult, Trajectory
from tests.support.runs import kept, played

SPEC = """
rlenv: 1
name: judged
endpoints: {writer: {base_url: "http://127.0.0.1:9/v1", model: m}}
tasks: {train: {rows: [{question: "why?"}]}}
prompt: {user: "{{ task.question }}"}
tools: {check: {kind: python, function: "t.py:check"}}
rewards:
  clarity: {kind: judge, endpoint: writer, scale: [0, 10], prompt: "How clear? {{ message }}"}
  holds: {kind: verify, tool: check, arguments: {x: "1"}, expect: success}
"""


def episode(task: int, raw: float | None, verified: float | None) -> Trajectory:
    whole = played(task=task, seed=task)
    judge = (
        TermResult.invalid("clarity", error="down", weight=1.0)
        if raw is None
        else TermResult.valid("clarity", value=raw / 10, weight=1.0, details={"raw": raw, "scale": [0, 10]})
    )
    other = (
        TermResult.skipped("holds", why="its gate is shut", weight=1.0)
        if verified is None
        else TermResult.valid("holds", value=verified, weight=1.0)
    )
    return dataclasses.replace(
        whole, reward=dataclasses.replace(whole.reward, terms={"clarity": judge, "holds": other})
    )


EPISODES = [
    episode(0, 9.0, 1.0),
    episode(1, 2.0, 0.0),
    episode(2, 5.0, 0.0),
    episode(3, 10.0, 0.5),
    episode(4, 4.9, 1.0),
    episode(5, None, 1.0),
    episode(6, 9.0, None),
]


def test_both_ways_of_differing_are_counted_and_listed_the_surest_first() -> None:
    (found,) = disagreement(EPISODES, judge="clarity", against=["holds"])
    assert (found.episodes, found.unmeasured) == (5, 2)
    assert (found.failed, found.high, found.passed, found.low) == (3, 2, 2, 1)
    assert [(one.task_index, one.value) for one in found.high_but_failed] == [(3, 1.0), (2, 0.5)]
    assert [one.task_index for one in found.low_but_passed] == [4]
    assert found.low_but_passed[0].value == pytest.approx(0.49)
    # Two of five agree; by chance 0.4 · 0.6 + 0.6 · 0.4 would.
    assert found.kappa.value == pytest.approx((0.4 - 0.48) / (1 - 0.48))


def test_the_middle_of_the_scale_is_taken_before_range_and_clip() -> None:
    low = episode(0, 2.0, 1.0)
    terms = {**low.reward.terms, "clarity": dataclasses.replace(low.reward.terms["clarity"], value=1.0)}
    clipped = dataclasses.replace(low, reward=dataclasses.replace(low.reward, terms=terms))
    (found,) = disagreement([clipped], judge="clarity", against=["holds"])
    assert found.low == 1


def test_the_interval_is_over_tasks_of_which_the_episodes_are_not_independent() -> None:
    once = [episode(0, 9.0, 1.0), episode(1, 9.0, 0.0), episode(2, 2.0, 0.0), episode(3, 2.0, 1.0)]
    (one,) = disagreement(once, judge="clarity", against=["holds"])
    (many,) = disagreement(once * 25, judge="clarity", against=["holds"])
    assert many.episodes == 100
    assert (many.kappa.low, many.kappa.high) == (one.kappa.low, one.kappa.high)


def test_nothing_in_common_is_no_figure() -> None:
    (found,) = disagreement([episode(0, None, 1.0)], judge="clarity", against=["holds"])
    assert (found.episodes, found.unmeasured, found.kappa.value) == (0, 1, None)


def test_the_command_reads_a_run_and_finds_the_verifiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "env.yaml").write_text(SPEC)
    (tmp_path / "t.py").write_text("def check(x: str) -> bool:\n    return True\n")
    kept(tmp_path / "run", EPISODES)
    asked = ["audit", str(tmp_path / "env.yaml"), "--judge", "--run", str(tmp_path / "run")]
    assert command([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["disagreements"]
    assert (found["against"], found["high"], found["low"]) == ("holds", 2, 1)
    assert command(asked) == 0
    shown = capsys.readouterr().out
    assert "high where 'holds' fails: 2 of 3" in shown
    assert "train/3 seed 3" in shown
    assert command([*asked, "--against", "nosuch"]) == 2
    assert "no term is called 'nosuch'" in capsys.readouterr().err
    assert command([*asked, "--anchors", "a.jsonl"]) == 2
    assert command(["audit", str(tmp_path / "env.yaml"), "--run", str(tmp_path / "run")]) == 2
