"""Where a run's reward comes from.

Agreement of terms equals the reference implementations, and its intervals go by task.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlenv.runs.figures.query import parse
from rlenv.runs.figures.rewards import (
    agreement_of,
    agreements,
    invalid_reasons,
    judge_agreement,
    kappa,
    quadrants,
    scatter,
    term_figures,
)
from tests.support.runs import row, snapshot

ROWS = snapshot(
    row(0, step=0, reward=1.0, success=True, terms={"right": 1.0, "form": 0.5}, calls=[("search", "ok", 0.1)]),
    row(1, step=1, reward=1.0, success=False, terms={"right": 0.0, "form": None}),
    row(2, step=1, reward=0.2, success=False, terms={"right": 0.0, "form": 0.1}),
    row(3, step=1, reward=1.1, success=True, terms={"right": 1.0, "form": 0.0}),
    row(4, step=1, reward=None, success=None, failure="reward", terms={"right": None}),
)
ALL = np.arange(5)


def test_each_term_has_its_mean_and_its_states() -> None:
    right, form = term_figures(ROWS, ALL)
    assert (right["name"], right["mean"], right["valid"], right["invalid"]) == ("right", 0.5, 4, 1)
    assert right["by_step"] == [{"step": 0, "mean": 1.0}, {"step": 1, "mean": pytest.approx(1 / 3)}]
    assert form["errors"] == [{"error": "down", "count": 1}]
    assert (form["weight"], form["valid"], form["skipped"]) == (1.0, 3, 0)


def test_what_may_be_hacked_is_a_query() -> None:
    found = quadrants(ROWS, ALL)
    high = found["high reward, no success"]
    assert high["n"] == 1
    assert parse(high["q"]).places(ROWS).tolist() == [1]
    assert parse(found["success without a call"]["q"]).places(ROWS).tolist() == [3]


def test_rewards_are_counted_by_success() -> None:
    found = scatter(ROWS, ALL)
    assert sum(one["n"] for one in found) == 4
    assert {"reward": 1.0, "success": False, "n": 1} in found
    many = snapshot(*(row(number, reward=number / 1000, success=None) for number in range(1000)))
    assert len(scatter(many, np.arange(1000))) == 40


def test_reasons_of_invalid_rewards_are_queries() -> None:
    (one,) = invalid_reasons(ROWS, ALL)
    assert (one["reason"], one["n"]) == ("reward", 1)
    assert parse(one["q"]).places(ROWS).tolist() == [4]


def test_no_rows_have_no_figures() -> None:
    empty = snapshot()
    none = np.array([], dtype=np.int64)
    assert (term_figures(empty, none), scatter(empty, none), invalid_reasons(empty, none)) == ([], [], [])
    assert list(quadrants(empty, none)) == ["success without a call"]


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ([], None),
        ([(True, True)] * 5, None),
        ([(True, True), (False, False)], 1.0),
        ([(True, False), (False, True)], -1.0),
        # Cohen 1960's kind of table: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no.
        ([(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15, 0.4),
    ],
)
def test_kappa_is_agreement_beyond_chance(pairs: list[tuple[bool, bool]], value: float | None) -> None:
    assert kappa(pairs) == (value if value is None else pytest.approx(value))


def test_judges_are_compared_with_each_other_and_with_success() -> None:
    def record(scores: list[int], success: bool) -> dict[str, object]:
        details = {"judges": [{"score": score} for score in scores], "scale": [1, 5]}
        return {"success": success, "reward": {"terms": {"j": {"status": "valid", "details": details}}}}

    two, mean = judge_agreement([("a", record([5, 4], True)), ("b", record([5, 1], True)), ("c", record([4, 1], True))])
    assert (two["against"], two["n"], [d["id"] for d in two["disagree"]]) == ("judges", 3, ["b", "c"])
    assert (mean["against"], mean["n"], mean["disagreed"]) == ("success", 3, 1)
    assert [d["id"] for d in mean["disagree"]] == ["c"]
    (one,) = judge_agreement([("a", record([5], True)), ("b", record([5], False)), ("c", record([1], False))])
    assert (one["against"], [d["id"] for d in one["disagree"]]) == ("success", ["b"])
    for details in (
        {},
        {"judges": 1},
        {"judges": [1], "scale": ["a", 5]},
        {"judges": [{"score": 10**400}], "scale": [1, 5]},
    ):
        term = {"status": "valid", "details": details}
        assert judge_agreement([("a", {"success": True, "reward": {"terms": {"x": term}}})]) == []


DATA = json.loads(Path(__file__).with_name("data").joinpath("agreement.json").read_text(encoding="utf-8"))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("case", DATA["cases"])
def test_the_figures_are_those_of_the_reference_implementations(case: dict[str, list[float]]) -> None:
    found = agreement_of("a", case["a"], "b", case["b"], range(len(case["a"])))
    assert found.spearman.value == pytest.approx(case["spearman"], abs=1e-9)
    assert found.kendall.value == pytest.approx(case["kendall"], abs=1e-9)
    if case["kappa"] is None:
        assert found.kappa is None
    else:
        assert found.kappa is not None
        assert found.kappa.value == pytest.approx(case["kappa"], abs=1e-9)


def test_episodes_of_one_task_are_no_more_than_one_observation() -> None:
    a = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    b = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    once = agreement_of("a", a, "b", b, range(8))
    often = agreement_of("a", a * 16, "b", b * 16, [task for _ in range(16) for task in range(8)])
    apart = agreement_of("a", a * 16, "b", b * 16, range(128))
    assert once.kappa is not None
    assert often.kappa == once.kappa
    assert apart.kappa is not None
    assert apart.kappa.low is not None
    assert once.kappa.low is not None
    assert apart.kappa.low > once.kappa.low


def test_episodes_without_one_of_the_values_are_left_out() -> None:
    found = agreement_of("a", [1.0, None, 0.0, 1.0], "b", [1.0, 1.0, 0.0, None], "wxyz")
    assert (found.episodes, found.kappa and found.kappa.value) == (2, 1.0)
    empty = agreement_of("a", [None], "b", [1.0], "w")
    assert (empty.episodes, empty.kappa, empty.spearman.value) == (0, None, None)


def test_where_nothing_varies_nothing_is_said() -> None:
    found = agreement_of("a", [1.0, 1.0], "b", [1.0, 0.0], "xy")
    assert found.spearman.value is None
    assert found.kendall.value is None
    assert found.kappa is not None
    assert found.kappa.value is None
    assert agreement_of("a", [1.0, 1.0], "b", [1.0, 1.0], "xy").kappa.value is None  # type: ignore[union-attr]


def test_one_task_has_no_interval() -> None:
    found = agreement_of("a", [1.0, 0.0], "b", [1.0, 0.0], "xx")
    assert found.spearman.value == pytest.approx(1.0)
    assert found.spearman.low is None


def test_every_pair_is_there_once() -> None:
    columns = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.5, 0.2]}
    assert [(one.a, one.b) for one in agreements(columns, "xy")] == [("a", "b"), ("a", "c"), ("b", "c")]
