"""Figures of any finite rewards."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

from rlenv._base.figures import figure
from rlenv.cli.main import main
from rlenv.runs.figures.report import report
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.schema import Facts
from rlenv.runs.summary import clustered, mean, mean_interval, summarise, wilson
from tests.support.runs import played

LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize("large", [1e30, 1e160, 1e300, LARGEST])
def test_no_finite_reward_breaks_a_summary_a_report_or_a_table(tmp_path: Path, large: float) -> None:
    episodes = [played(task=task, reward=value) for task, value in enumerate((large, large, -large, large, 0.5))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarise(episodes, seconds=1.0)
        with KeptRun(tmp_path / "run", RunInfo("eval")) as run:
            for one in episodes:
                run.append(one, Facts())
        html = report([tmp_path / "run"], title="large")
    assert summary.reward_mean == pytest.approx(large / 5 * 2)
    assert len(figure(summary.reward_mean)) < 12
    assert "0" * 20 not in html


def test_a_mean_and_its_interval_are_the_same_in_any_unit() -> None:
    groups = [[1.0, 2.0], [4.0], [3.0, 7.0]]
    low, high = mean_interval(groups) or (0.0, 0.0)
    large = mean_interval([[number * 1e200 for number in group] for group in groups])
    assert large == pytest.approx((low * 1e200, high * 1e200))
    assert mean_interval([[LARGEST], [-LARGEST]]) is None
    assert mean([LARGEST] * 3) == LARGEST
    assert mean([None, 2.0]) == 2.0
    assert mean([None]) is None


@pytest.mark.parametrize("trials", [1, 3, 5, 10, 31, 400])
def test_no_success_has_the_bound_0_and_nothing_but_success_1(trials: int) -> None:
    assert wilson(0, trials)[0] == 0.0
    assert wilson(trials, trials)[1] == 1.0
    assert figure(math.inf) == "–"


def test_all_faces_give_a_run_the_same_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["eval", "arithmetic", "--policy", "random", "-n", "3", "-k", "4", "-o", run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["runs", "show", run, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["success_interval"] == told["success_interval"] == [*clustered([[False] * 4] * 3)]
