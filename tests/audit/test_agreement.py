"""Calibration of a judge, and its disagreement with the verifiers of a run."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.audit.agreement import alpha, calibration, disagreement, distance, fit_isotonic, fit_line, spearman
from rlenv.cli.main import main as command
from rlenv.runs.figures.rewards import kappa
from rlenv.trajectory import TermResult, Trajectory
from tests.support.runs import kept, played

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "agreement_reference.json").read_text())
CASES = REFERENCE["cases"]
numbers = st.integers(-100, 100).map(float)


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['scale']}")
def test_figures_are_those_of_the_reference(case: dict[str, Any]) -> None:
    pairs = list(zip(case["labels"], case["scores"], strict=True))
    assert alpha(pairs) == near(case["alpha"])
    assert kappa(list(zip(*case["whole"], strict=True))) == near(case["kappa_of_whole"])
    assert spearman(pairs) == near(case["spearman"])
    found = fit_line(pairs)
    assert found is not None
    assert list(found) == [near(one) for one in case["line"]]
    assert [list(step) for step in fit_isotonic(pairs)] == [[near(x), near(y)] for x, y in case["isotonic"]]


def test_the_alpha_of_a_panel_with_gaps_is_that_of_its_paper() -> None:
    units = list(zip(*REFERENCE["panel"]["judges"], strict=True))
    found = alpha(units)
    assert found == near(REFERENCE["panel"]["alpha"])
    assert found == pytest.approx(0.849, abs=5e-4)


def test_an_alpha_of_nothing_is_none() -> None:
    assert alpha([]) is None
    assert alpha([(1.0, None), (None, 2.0)]) is None
    assert alpha([(1.0, 1.0), (1.0, 1.0)]) is None


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=20))
def test_kappa_of_scores_as_they_are_is_lins_concordance(pairs: list[tuple[float, float]]) -> None:
    left, right = zip(*pairs, strict=True)
    n = len(pairs)
    mean_left, mean_right = sum(left) / n, sum(right) / n
    both = sum((a - mean_left) * (b - mean_right) for a, b in pairs) / n
    spread = sum((a - mean_left) ** 2 for a in left) / n + sum((b - mean_right) ** 2 for b in right) / n
    below = spread + (mean_left - mean_right) ** 2
    found = kappa(pairs)
    assert found is None if not below else found == pytest.approx(2 * both / below, abs=1e-9)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.floats(0.01, 100), st.floats(-50, 50))
def test_figures_do_not_depend_on_the_scale(pairs: list[tuple[float, float]], factor: float, shift: float) -> None:
    moved = [(factor * a + shift, factor * b + shift) for a, b in pairs]
    for figure in (alpha, kappa):
        before, after = figure(pairs), figure(moved)
        assert (before is None) == (after is None)
        assert before is None or after == pytest.approx(before, abs=1e-6)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_isotonic_steps_rise_and_keep_the_mean(pairs: list[tuple[float, float]]) -> None:
    steps = dict(fit_isotonic(pairs))
    rising = [steps[score] for score in sorted(steps)]
    assert all(a <= b + 1e-9 for a, b in pairwise(rising))
    assert sum(steps[score] for _, score in pairs) == pytest.approx(sum(label for label, _ in pairs), abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 100.0), (1.0, 5.0), (-1.0, 1.0)])
def test_bins_span_the_scale_and_an_honest_judge_has_no_error(low: float, high: float) -> None:
    width = high - low
    scores = [low + width * share for share in (0.0, 0.1, 0.45, 0.9, 1.0)]
    found = calibration([(score, score) for score in scores], scale=(low, high))
    assert [one.count for one in found.bins] == [2, 0, 1, 0, 2]
    assert found.bins[0].low == low
    assert found.bins[-1].high == pytest.approx(high)
    assert found.error == pytest.approx(0.0)
    assert found.bins[1].score is None
    higher = calibration([(max(low, score - width / 5), score) for score in scores], scale=(low, high))
    assert higher.error == pytest.approx((0.05 * 2 + 0.2 + 0.2 * 2) / 5)


def test_what_cannot_be_said_is_none() -> None:
    found = calibration([], scale=(1.0, 5.0))
    assert (found.error, found.line, found.steps) == (None, None, ())
    assert calibration([(1.0, 3.0), (2.0, 3.0)], scale=(1.0, 5.0)).line is None
    assert distance([]) is None


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
