"""Which cases of a test `make test` plays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def first_of_many(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """The first N cases of each test with the mark `slow(but=N)`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    marked = [(of_one, of_one[0].get_closest_marker("slow")) for of_one in cases.values()]
    return {item for of_one, mark in marked if mark for item in of_one[: mark.kwargs.get("but", 0)]}
