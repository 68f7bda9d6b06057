"""Specs to be edited, and texts with a cursor in them."""

from __future__ import annotations

__all__ = ["SMALL", "SPEC", "cursor"]

SMALL = """\
rlenv: 1
name: small
tasks:
  train: {rows: [{question: a, answer: b}]}
prompt: {user: "{{ task.question }}"}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""

SPEC = """\
rlenv: 1
name: small
vars: {most: 3}
tasks:
  train: {rows: [{question: "2 + 2?", answer: 4, where: {page: 7}}]}
prompt:
  system: Use the tools.
  user: "{{ task.question }}"
resources:
  db: {kind: sqlite, init: rows.sql}
tools:
  query: {kind: sql, resource: db}
  sum:
    kind: calculator
rewards:
  correct: {kind: rule, rule: numeric_match}
  calls: {kind: rule, rule: valid_calls, weight: 0.1}
success: correct >= 1
oracle:
  - call: {sum: {expression: "2 + 2"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""


def cursor(text: str) -> tuple[str, int, int]:
    """The text without its `‸`, and the line and column (from 1) where that stood."""
    before, mark, after = text.partition("‸")
    assert mark, "no cursor in the text"
    return before + after, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
