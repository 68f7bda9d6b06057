"""The toy environment that many tests play, and the type of the fixture that makes it."""

from __future__ import annotations

from collections.abc import Callable

from rlenv.episodes.environment import Environment

BASE = """
rlenv: 1
name: toy
tasks:
  train:
    rows:
      - {question: "What is 2 + 3?", answer: 5}
      - {question: "What is 4 + 4?", answer: 8}
prompt:
  system: Use the tools.
  user: "{{ task.question }}"
tools:
  calculate: {kind: calculator}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: numeric_match}
oracle:
  - call: {calculate: {expression: "1 + 1"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""

Make = Callable[..., Environment]
