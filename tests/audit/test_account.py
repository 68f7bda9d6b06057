"""A term that compares answers is found where a policy without merit stands above the oracle; a gate closes that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rewarded import audited, holes

CODE = """
def words(context):
    return float(len(context.final_text.split()))


def short(context):
    return -float(len(context.final_text))


def right(context):
    return float((context.answer or "").strip() == context.task["answer"])


def longest(trajectories):
    most = max(len(one.turns[-1].action) for one in trajectories)
    return [len(one.turns[-1].action) / most for one in trajectories]
"""
ROWS = [{"question": f"What is {n} times 13?", "answer": str(13 * n)} for n in range(20, 44)]
OTHERS = (
    'words: {kind: rule, function: "code.py:words", weight: 0}, '
    'short: {kind: rule, function: "code.py:short", weight: 0}, '
    'right: {kind: rule, function: "code.py:right"}'
)


def found(folder: Path, term: str) -> set[str]:
    report = audited(folder, ROWS, CODE, rewards=f"{{{OTHERS}, lively: {term}}}")
    assert {one.term for one in report.findings} <= {"lively"}
    return holes(report)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("term", "hole"),
    [
        ("{kind: group, of: words, by: centred, weight: 0.01}", "length_paid"),
        ("{kind: group, of: words, by: rank, weight: 0.5}", "length_paid"),
        ("{kind: group, of: short, by: rank, weight: -0.5}", "length_paid"),
        ('{kind: group, function: "code.py:longest", weight: 0.4}', "length_paid"),
        ("{kind: group, of: short, by: best, weight: 0.5}", "paid_for_ending"),
    ],
)
def test_a_group_s_term_that_pays_without_a_gate_is_found(tmp_path: Path, term: str, hole: str) -> None:
    names = found(tmp_path, term)
    assert names == {hole}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "term",
    [
        "{kind: group, of: words, by: rank, weight: 0.5, gate: right >= 1}",
        "{kind: group, of: words, by: rank, weight: 0.05}",
        "{kind: group, of: right, by: deviation, weight: 0.5}",
        "{kind: group, of: right, by: centred}",
        "{kind: group, of: words, by: centred, weight: 0}",
    ],
)
def test_a_gate_a_small_weight_and_a_comparison_of_what_is_right_are_sound(tmp_path: Path, term: str) -> None:
    assert found(tmp_path, term) == set()
