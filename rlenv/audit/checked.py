"""All checks of a spec's data, over the episodes that the oracle has played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rlenv.audit.data import Found, check_rows, read_rows
from rlenv.audit.golds import check_golds
from rlenv.audit.report import Finding
from rlenv.audit.seen_tests import check_tests
from rlenv.episodes.environment import Environment
from rlenv.trajectory import Trajectory

__all__ = ["check_data"]


def check_data(environment: Environment, golds: Sequence[Trajectory]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings and notes over the rows of the splits that the oracle played.

    Args:
        environment: an open one.
        golds: the oracle's episodes, of all splits that are looked at.
    """
    played: dict[str, list[Trajectory]] = defaultdict(list)
    for gold in golds:
        played[gold.split].append(gold)
    found = Found([], [])
    rows = read_rows(environment, played, found.notes)
    check_rows(environment, rows, found)
    check_golds(environment, rows, found)
    check_tests(environment, rows, found)
    return tuple(found.findings), tuple(found.notes)
