"""The toy environment that many tests play, the type of the fixture that makes it, and what ships as parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import Environment
from rlenv.language.shipped import shipped

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


def named(name: str, path: Path) -> Any:
    """A spec's name as a parameter; one that runs code in the sandbox of bubblewrap has its suite's mark."""
    text = path.read_text(encoding="utf-8")
    needs = ("sandbox: bubblewrap", "kind: tests", "kind: workspace")
    marks = [pytest.mark.sandbox] if any(one in text for one in needs) else []
    return pytest.param(name, marks=marks, id=name)


def shipped_names(*left_out: str) -> list[Any]:
    """The environments that ship, as parameters."""
    return [named(*one) for one in sorted(shipped().items()) if one[0] not in left_out]
