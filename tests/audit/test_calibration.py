"""Agreement and calibration against the figures of others, kept beside this file with their versions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.audit.agreement import alpha, distance, kappa, spearman
from rlenv.audit.calibration import calibration, isotonic, line

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
    found = line(pairs)
    assert found is not None
    assert list(found) == [near(one) for one in case["line"]]
    assert [list(step) for step in isotonic(pairs)] == [[near(x), near(y)] for x, y in case["isotonic"]]


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
    steps = dict(isotonic(pairs))
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
