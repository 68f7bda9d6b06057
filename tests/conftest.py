"""What tests of whole environments share."""

from __future__ import annotations

import gc
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rlenv import secrets
from rlenv.environment import Environment, load

# The same examples in every run, and no clock in the verdict.
settings.register_profile("rlenv", deadline=None, derandomize=True)
settings.load_profile("rlenv")

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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the suite of `make test-real`, which loads transformers and looks for packages, unless -m names it."""
    return (
        True
        if collection_path == Path(__file__).parent / "real" and "real_data" not in config.option.markexpr
        else None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the runs of `make test-verl` and `make test-vllm` out unless -m names them; of the rest, the long first."""
    for mark in {"verl_runs", "vllm"} - set(re.findall(r"\w+", config.option.markexpr)):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(mark)])
        items[:] = [item for item in items if not item.get_closest_marker(mark)]
    # The other worker does the rest meanwhile.
    items.sort(key=lambda item: item.get_closest_marker("verl") is None)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has given out is redacted for its life; a test sees its own values alone, in whatever order."""
    monkeypatch.setattr(secrets, "_known", secrets._Known())


@pytest.fixture
def make_environment(tmp_path: Path) -> Make:
    """Compiles a spec: the base above, another text, functions in tools.py, overrides."""

    def make(text: str = BASE, *, tools: str = "", **overrides: Any) -> Environment:
        (tmp_path / "spec.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
        if tools:
            (tmp_path / "tools.py").write_text(textwrap.dedent(tools), encoding="utf-8")
        return load(tmp_path / "spec.yaml", set={key.replace("__", "."): value for key, value in overrides.items()})

    return make


def pytest_collection_finish() -> None:
    """Takes what collecting has made out of the garbage collector's sight.

    Ten thousand tests are a million objects, and each full collection walks them all: half a second of CPU time in
    the middle of a test that measures its own.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Gives it back, so that what other libraries count at the end is freed."""
    gc.unfreeze()
