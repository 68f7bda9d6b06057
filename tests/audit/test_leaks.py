"""Answers that stand where a policy can read them: the rules that find them, and each place named once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import rlenv
from rlenv.audit.leaks import find
from rlenv.audit.report import Report
from rlenv.audit.run import audit

SPEC = """
rlenv: 1
name: planted
tasks: {train: {rows: [ROWS]}}
prompt: {user: "{{ task.question }} SHOWN"}
tools: {look: {kind: python, function: "tools.py:look", inject: [task], run_in: loop}}
limits: {turns: 3}
rewards:
  correct: {kind: rule, rule: exact_match}
oracle:
  - say: "<answer>{{ task.answer }}</answer>"
"""
LOOK = '''
from rlenv.errors import ToolFailed


def look(about: str, task: dict) -> str:
    """Looks something up."""
    raise ToolFailed(f"expected {task['answer']}, found {about}")
'''


def test_a_rule_is_told_from_chance_on_thousands_of_tasks() -> None:
    rights = [str(1_000 + index) for index in range(2_000)]
    # Three of four prompts end with the answer: enough to be sure, and far from all.
    prompts = [{"prompt": f"How many? 7 {right if int(right) % 4 else 3}"} for right in rights]
    leak = find(prompts, rights)[0]
    assert (leak.where, leak.hits) == ("prompt", 1_500)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("", {("leak", "error")}), ("(ref: {{ task.answer }})", {("leak", "prompt"), ("gold_in_error", "")})],
)
def test_a_place_that_a_policy_earned_by_is_named_once_and_hides_no_other(
    tmp_path: Path, shown: str, expected: set[tuple[str, str]]
) -> None:
    pairs = [(17 + 5 * at, 23 + at) for at in range(24)]
    rows = [f"{{question: 'What is {one} times {other}?', answer: '{one * other}'}}" for one, other in pairs]
    (tmp_path / "tools.py").write_text(LOOK)
    (tmp_path / "env.yaml").write_text(SPEC.replace("ROWS", ", ".join(rows)).replace("SHOWN", shown))

    async def main() -> Report:
        async with rlenv.load(tmp_path / "env.yaml") as environment:
            return await audit(environment)

    report = asyncio.run(main())
    assert {(one.hole, one.where.partition(" ")[0]) for one in report.findings} == expected
