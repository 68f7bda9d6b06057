"""Figures of any finite rewards."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from rlenv._base.text import figure
from rlenv.cli.main import main
from rlenv.runs.figures import clustered, mean_interval, wilson
from rlenv.runs.figures.report import report
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.recorded import recorded
from rlenv.runs.schema import Facts
from rlenv.runs.summary import Latency, mean, summarise
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
    assert mean_interval([[LARGEST], [-LARGEST]]) is None  # Student's bounds are no finite numbers
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


def test_what_a_mean_leaves_out_is_counted_beside_it_with_what_it_might_have_changed() -> None:
    episodes = [played(task=task, seed=seed) for task in range(3) for seed in range(2)]
    episodes += [played(task=3, seed=seed, reward=None, success=None) for seed in range(2)]
    summary = summarise(episodes, seconds=1.0)
    assert (summary.episodes, summary.invalid, summary.success_valid, summary.reward_valid) == (8, 2, 6, 6)
    assert summary.success_rate == 1.0
    assert summary.success_bounds == (0.75, 1.0)
    assert summary.reward_bounds == (1.0, 1.0)
    episodes.append(played(task=4, reward=-1.0, success=False))
    assert summarise(episodes, seconds=1.0).reward_bounds == pytest.approx((3 / 9, 7 / 9))
    assert summarise(episodes[6:8], seconds=1.0).reward_bounds is None
    assert (summary.terms_valid, summary.terms_invalid) == ({"correct": 6}, {"correct": 2})
    assert summary.pass_at_k[2].left_out == summary.pass_hat_k[2].left_out == 1


def test_terms_and_groups_have_intervals() -> None:
    episodes = [
        replace(played(task=task, reward=task % 2 / 2, success=task % 2 == 0), task={"kind": "ab"[task // 10]})
        for task in range(20)
    ]
    summary = summarise(episodes, seconds=1.0, by="kind")
    assert summary.terms_interval["correct"] == summary.reward_interval
    assert summary.groups["a"].success_interval == pytest.approx(wilson(5, 10))
    low, high = summary.groups_success_interval or (0.0, 0.0)
    half = (wilson(5, 10)[1] - 0.5) / 2**0.5
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


@pytest.mark.parametrize(
    ("calls", "p50", "p90", "p99"),
    [(1, 1.0, 1.0, 1.0), (2, 1.0, 2.0, 2.0), (10, 5.0, 9.0, 10.0), (100, 50.0, 90.0, 99.0)],
)
def test_a_percentile_is_that_of_the_nearest_rank(calls: int, p50: float, p90: float, p99: float) -> None:
    episodes = [played(calls=[("search", "ok", float(number))]) for number in range(calls, 0, -1)]
    episodes.append(played(calls=[("search", "malformed", 0.0), ("search", "skipped", 0.0)]))  # of no call that was run
    assert summarise(episodes, seconds=1.0).latency == {"search": Latency(calls, p50, p90, p99)}


@pytest.mark.parametrize("with_folder", [False, True])
def test_an_evaluation_ends_once_its_interval_is_narrow_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], with_folder: bool
) -> None:
    command = ["eval", "arithmetic", "--policy", "random", "-k", "2", "--concurrency", "8", "--json"]
    out = ["-o", str(tmp_path / "run")] if with_folder else []
    assert main([*command, "--until-width", "0.1", *out]) == 0
    told = json.loads(capsys.readouterr().out)
    low, high = told["success_interval"]
    assert high - low <= 0.1
    # Wilson's interval of no success is 0.088 wide for 40 tasks, and 0.161 for 20.
    assert (told["tasks"], told["tasks_most"], told["episodes"]) == (40, 500, 80)
    if with_folder:
        assert main([*command, "--until-width", "0.07", *out, "--resume"]) == 0
        assert json.loads(capsys.readouterr().out)["tasks"] == 60
        # What was kept beyond the place where a run ends is no part of its figures.
        assert main([*command, "--until-width", "0.1", *out, "--resume"]) == 0
        assert json.loads(capsys.readouterr().out)["tasks"] == 40


def test_the_tasks_of_an_evaluation_that_may_end_early_are_drawn_by_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        run = str(tmp_path / name)
        options = ["--until-width", "0.2", "--seed", seed, "--concurrency", "1", "-o", run]
        assert main(["eval", "arithmetic", "--policy", "random", *options]) == 0
        orders.append({one.task_index for one in recorded(run)})
    capsys.readouterr()
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != set(range(20))


def test_a_width_is_between_0_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "arithmetic", "--until-width", "5"]) == 2
    assert "--until-width is between 0 and 1" in capsys.readouterr().err
