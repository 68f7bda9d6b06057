"""The words of failures, and where they are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from rlenv._base.reasons import WHOSE, Whose, whose
from rlenv.errors import ToolFailed
from rlenv.messages import Outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training" / "failures.md"
ROWS = {"the policy's": "policy", "the infrastructure's": "infrastructure", "unclear": "unclear"}


def test_the_page_on_failures_lists_every_reason_under_whose_it_is() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Reasons: why a call failed")[2].partition("\n## ")[0]
    told = {
        reason: ROWS[head.strip()]
        for head, words in re.findall(r"^\| ([^|`]+) \| (`.*) \|$", section, re.MULTILINE)
        for reason in re.findall(r"`(\w+)`", words)
    }
    assert told == WHOSE


def test_whatever_keeps_a_call_from_its_tool_is_the_policys() -> None:
    refusals = set(get_args(Outcome)) - {"ok"}
    assert {WHOSE[outcome] for outcome in refusals} == {"policy"}
    assert set(WHOSE.values()) == set(get_args(Whose))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "policy"),
        ({"reason": "breaker_open"}, "infrastructure"),
        ({"reason": "late"}, "unclear"),
        ({"reason": "quota"}, "policy"),
        ({"reason": "quota", "retryable": True}, "infrastructure"),
        ({"reason": "failed", "whose": "infrastructure"}, "infrastructure"),
    ],
)
def test_a_tools_failure_says_whose_it_is(arguments: dict[str, object], expected: str) -> None:
    assert ToolFailed("no", **arguments).whose == expected  # type: ignore[arg-type]


def test_what_would_have_gone_well_a_little_later_is_never_the_policys() -> None:
    assert {whose(reason, retryable=True) for reason in [*WHOSE, "quota"]} == {"infrastructure", "unclear"}
