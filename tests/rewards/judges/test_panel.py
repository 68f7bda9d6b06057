"""Several judges' scores as one: which of them count, and how much."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import UsageError
from rlenv.rewards.judges.panel import Combine, check_panel, combine, needed


@pytest.mark.parametrize(
    ("how", "scores", "weights", "expected"),
    [
        ("mean", [1, 4], [3, 1], 1.75),
        ("median", [1, 2, 9], [1, 1, 1], 2),
        ("median", [1, 2, 3, 9], [1, 1, 1, 1], 2.5),
        ("median", [9, 1, 5], [3, 1, 1], 9),
        ("median", [1, 5], [1, 1], 3),
        ("majority", [5, 5, 2, 2], [1, 1, 1, 1], 2),
        ("majority", [5, 2, 2], [3, 1, 1], 5),
        ("majority", [5, 2, 2], [2, 1, 1], 2),
        ("min", [3, 1, 5], [], 1),
        ("max", [3, 1, 5], [], 5),
        ("trimmed", [1, 4, 4, 5], [], 4),
        ("trimmed", [0, 2, 4, 9], [9, 1, 3, 9], 3.5),
        ("trimmed", [1, 5], [], 3),
    ],
)
def test_scores_and_weights_make_one_number(
    how: Combine, scores: list[float], weights: list[float], expected: float
) -> None:
    assert combine(scores, how=how, weights=weights) == expected


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_equal_weights_are_none(scores: list[float]) -> None:
    assert combine(scores, how="median", weights=[0.1] * len(scores)) == statistics.median(scores)
    for how in ("mean", "median", "majority", "trimmed"):
        found = combine(scores, how=how)
        assert combine(scores, how=how, weights=[2.0] * len(scores)) == pytest.approx(found)
        assert min(scores) - 1e-9 <= found <= max(scores) + 1e-9


@pytest.mark.parametrize(("quorum", "least"), [(None, 5), (2, 2), (0.5, 3), (0.6, 3), (1.0, 5), (0.01, 1)])
def test_a_quorum_is_a_number_or_a_share_rounded_up(quorum: Any, least: int) -> None:
    assert needed(quorum, 5) == least


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"how": "trimmed", "count": 2}, "leaves out two of 2"),
        ({"how": "min", "is_weighted": True}, "no use for weights"),
        ({"quorum": 4}, "4 of 3 judges"),
        ({"quorum": 1, "count": 1}, "one of several"),
    ],
)
def test_a_panel_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"how": "mean", "count": 3, "is_weighted": False, "quorum": None, **keys}
    with pytest.raises(UsageError, match=message):
        check_panel(given.pop("how"), **given)
