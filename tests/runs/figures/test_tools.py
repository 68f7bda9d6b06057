"""What is said of tools."""

from __future__ import annotations

import numpy as np

from rlenv.runs.figures.tools import tools
from tests.support.runs import row, snapshot

ROWS = snapshot(
    row(0, step=1, calls=[("search", "ok", 0.1), ("search", "timeout", 5.0), ("sql", "ok", 0.2)]),
    row(1, step=2, calls=[("search", "ok", 0.3), ("search", "bad_arguments", 0.0)]),
    row(2, step=2),
)


def test_tools_are_told_by_how_often_they_were_called() -> None:
    search, sql = tools(ROWS, np.arange(3))
    assert (search["tool"], search["calls"], search["errors"]) == ("search", 4, 2)
    assert search["outcomes"] == {"ok": 2, "bad_arguments": 1, "timeout": 1}
    assert (sql["tool"], sql["calls"], sql["errors"]) == ("sql", 1, 0)


def test_seconds_are_of_calls_that_reached_the_tool() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert [round(search[f"p{share}"], 3) for share in (50, 90, 99)] == [0.3, 5.0, 5.0]
    never = snapshot(row(0, calls=[("typo", "unknown_tool", 0.0)]))
    assert tools(never, np.arange(1))[0]["p50"] is None


def test_calls_to_look_at_are_named() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert (search["slowest"][0]["id"], search["slowest"][0]["index"]) == ("e-0", 1)
    assert [one["id"] for one in search["failing"]] == ["e-1", "e-0"]


def test_each_step_has_its_calls() -> None:
    search, _ = tools(ROWS, np.arange(3))
    assert [(one["step"], one["calls"], one["errors"]) for one in search["by_step"]] == [(1, 2, 1), (2, 2, 1)]


def test_only_the_rows_that_were_asked_for_count() -> None:
    (search,) = tools(ROWS, np.array([1, 2]))
    assert search["calls"] == 2
    assert tools(ROWS, np.array([], dtype=np.int64)) == []
