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
from rlenv.runs.figures import clustered_interval, mean_interval, wilson
from rlenv.runs.figures.report import report
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.recorded import recorded
from rlenv.runs.schema import Facts
from rlenv.runs.summary import Latency, compare, is_same, mean, summarise, task_of
from rlenv.trajectory import TermResult, Trajectory
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
    assert shown["success_interval"] == told["success_interval"] == [*clustered_interval([[False] * 4] * 3)]


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


def with_terms(one: Trajectory, **terms: TermResult) -> Trajectory:
    return replace(one, reward=replace(one.reward, terms=terms))


def valid(value: float, weight: float = 1.0) -> TermResult:
    return TermResult.valid("t", value=value, weight=weight)


def test_bounds_are_what_the_invalid_episodes_might_have_been() -> None:
    episodes = [played(task=task, reward=value, success=won) for task, (value, won) in enumerate(
        [(1.0, True), (0.25, False), (None, None), (0.5, True)])]  # fmt: skip
    found = summarise(episodes, seconds=1.0)
    assert (found.episodes, found.invalid, found.reward_valid, found.success_valid) == (4, 1, 3, 3)
    assert found.success_bounds == (0.5, 0.75)
    assert found.reward_bounds == pytest.approx((2.0 / 4, 2.75 / 4))
    assert found.success_rate == pytest.approx(2 / 3)
    nothing = summarise([], seconds=1.0)
    assert (nothing.success_bounds, nothing.reward_bounds, nothing.success_interval) == (None, None, None)
    assert (nothing.turns_mean, nothing.calls_mean, nothing.pass_at_k) == (0.0, 0.0, {})
    unknown = summarise([played(reward=None)], seconds=1.0)
    assert (unknown.success_bounds, unknown.reward_bounds, unknown.success_rate) == ((0.0, 1.0), None, None)


def test_terms_are_counted_by_how_they_were_measured_and_meant_over_their_values() -> None:
    down = TermResult.invalid("t", error="down", weight=1.0)
    skipped = TermResult.skipped("t", why="shut", weight=1.0)
    given = [{"t": valid(1.0), "u": skipped}, {"t": valid(0.5)}, {"t": down}, {"t": skipped}, {"t": skipped}]
    found = summarise([with_terms(played(task=task), **one) for task, one in enumerate(given)], seconds=1.0)
    assert found.terms == {"t": 0.75, "u": None}
    assert (found.terms_valid, found.terms_invalid) == ({"t": 2, "u": 0}, {"t": 1, "u": 0})
    assert found.terms_skipped == {"t": 2, "u": 1}
    assert (found.terms_interval["u"], found.terms_interval["t"] is not None) == (None, True)


def test_calls_that_were_run_have_times_without_what_they_waited() -> None:
    outcomes = ("ok", "failed", "timeout", "malformed", "skipped", "unknown_tool", "bad_arguments")
    one = played(calls=[("a", outcome, 2.0) for outcome in outcomes])
    turn = one.turns[0]
    results = tuple(
        replace(result, waited=waited) for result, waited in zip(turn.results, (0.5, 0, 9, 0, 0, 0, 0), strict=True)
    )
    one = replace(one, turns=(replace(turn, results=results, calls_malformed=3), *one.turns[1:]))
    found = summarise([one, played(task=1, calls=[])], seconds=1.0)
    assert found.latency == {"a": Latency(3, 1.5, 2.0, 2.0)}
    assert (found.calls_failed, found.calls_malformed, found.calls_mean, found.turns_mean) == (2, 3, 3.5, 2.0)


def test_groups_count_alike_however_many_tasks_they_have() -> None:
    episodes = [played(task=task, question=question, success=won) for task, (question, won) in enumerate(
        [("a", True), ("b", False), ("b", False), ("b", True), ("b", False)])]  # fmt: skip
    found = summarise(episodes, seconds=1.0, by="question")
    assert {name: (one.episodes, one.success_rate) for name, one in found.groups.items()} == {
        "a": (1, 1.0),
        "b": (4, 0.25),
    }
    assert found.groups_success_mean == 0.625
    assert list(summarise(episodes, seconds=1.0, by="nothing").groups) == ["None"]
    assert summarise(episodes, seconds=1.0).groups == {}


def test_samples_of_a_task_are_those_of_its_place_or_else_of_its_content() -> None:
    def places(*given: tuple[str, int, str]) -> int:
        return len({task_of(played(split=split, task=task, question=question)) for split, task, question in given})

    assert places(("a", 0, "x"), ("a", 0, "y")) == 1
    assert places(("a", 0, "x"), ("b", 0, "x"), ("a", 1, "x")) == 3
    assert places(("a", -1, "x"), ("a", -1, "y"), ("a", -1, "x")) == 2
    twice = [played(seed=seed, success=won) for seed, won in enumerate((True, False))]
    found = summarise([*twice, played(task=1)], seconds=1.0)
    assert {k: one.value for k, one in found.pass_at_k.items()} == {1: 0.75, 2: 1.0}
    assert {k: one.value for k, one in found.pass_hat_k.items()} == {1: 0.75, 2: 0.0}
    assert [one.left_out for one in found.pass_at_k.values()] == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (True, True, (0, 0, 0)),
        (False, True, (1, 0, 0)),
        (None, True, (1, 0, 0)),
        (True, False, (0, 1, 0)),
        (None, False, (0, 0, 0)),
        (True, None, (0, 0, 1)),
        (False, None, (0, 0, 1)),
        (None, None, (0, 0, 0)),
    ],
)
def test_a_success_is_gained_lost_or_not_known_any_more(
    old: bool | None, new: bool | None, counts: tuple[int, int, int]
) -> None:
    found = compare([played(success=old)], [played(success=new)])
    assert (found.gained, found.lost, found.unknown) == counts


def test_what_changed_is_told_by_term_the_largest_move_first() -> None:
    before = with_terms(played(), a=valid(1.0), b=valid(0.5, 2.0), c=valid(0.25), d=valid(1.0), e=valid(2.0))
    after = with_terms(played(reward=0.5), a=valid(1.0 + 1e-12), b=valid(0.5, 1.0), c=valid(1.0), e=valid(4.0, 0.5))
    found = compare([before, played()], [after, played()])
    (change,) = found.changes
    assert change.index == 0
    assert change.terms == {"c": (0.25, 1.0), "d": (1.0, None), "e": (2.0, 4.0)}
    # Of e's value and its weight together nothing has changed.
    assert list(change.moved.items()) == [("d", (1.0, None)), ("c", (0.25, 1.0)), ("b", (1.0, 0.5))]
    assert (change.before, change.after, change.error) == (1.0, 0.5, "")
    assert (found.reward, found.invalid, found.episodes) == ((1.0, 0.75), (0, 0), 2)
    (lost,) = compare([played()], [played(reward=None)]).changes
    assert (lost.after, lost.error) == (None, "the judge is down")


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        (None, None, True),
        (None, 0.0, False),
        (0.0, None, False),
        (0.0, 1e-10, True),
        (0.0, 1e-8, False),
        (1e9, 1e9 + 1e-3, True),
    ],
)
def test_values_are_the_same_but_for_rounding(one: float | None, other: float | None, are_same: bool) -> None:
    assert is_same(one, other) is are_same
