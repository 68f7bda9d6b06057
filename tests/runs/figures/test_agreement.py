"""Agreement of terms equals the reference implementations, and its intervals go by task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.runs.figures.agreement import agreements, between

DATA = json.loads(Path(__file__).with_name("data").joinpath("agreement.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", DATA["cases"])
def test_the_figures_are_those_of_the_reference_implementations(case: dict[str, list[float]]) -> None:
    found = between("a", case["a"], "b", case["b"], range(len(case["a"])))
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
    once = between("a", a, "b", b, range(8))
    often = between("a", a * 16, "b", b * 16, [task for _ in range(16) for task in range(8)])
    apart = between("a", a * 16, "b", b * 16, range(128))
    assert once.kappa is not None
    assert often.kappa == once.kappa
    assert apart.kappa is not None
    assert apart.kappa.low is not None
    assert once.kappa.low is not None
    assert apart.kappa.low > once.kappa.low


def test_episodes_without_one_of_the_values_are_left_out() -> None:
    found = between("a", [1.0, None, 0.0, 1.0], "b", [1.0, 1.0, 0.0, None], "wxyz")
    assert (found.episodes, found.kappa and found.kappa.value) == (2, 1.0)
    empty = between("a", [None], "b", [1.0], "w")
    assert (empty.episodes, empty.kappa, empty.spearman.value) == (0, None, None)


def test_where_nothing_varies_nothing_is_said() -> None:
    found = between("a", [1.0, 1.0], "b", [1.0, 0.0], "xy")
    assert found.spearman.value is None
    assert found.kendall.value is None
    assert found.kappa is not None
    assert found.kappa.value is None
    assert between("a", [1.0, 1.0], "b", [1.0, 1.0], "xy").kappa.value is None  # type: ignore[union-attr]


def test_one_task_has_no_interval() -> None:
    found = between("a", [1.0, 0.0], "b", [1.0, 0.0], "xx")
    assert found.spearman.value == pytest.approx(1.0)
    assert found.spearman.low is None


def test_every_pair_is_there_once() -> None:
    columns = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.5, 0.2]}
    assert [(one.a, one.b) for one in agreements(columns, "xy")] == [("a", "b"), ("a", "c"), ("b", "c")]
