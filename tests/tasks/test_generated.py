"""Tasks of reasoning-gym where it is not installed: that is said by name. tests/peers plays them where it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import rlenv
from rlenv.errors import MissingExtra

SPEC = """
rlenv: 1
name: generated
tasks: {train: {reasoning_gym: {name: chain_sum, limit: 3}}}
prompt: {user: "{{ task.question }}"}
rewards: {right: {kind: rule, rule: exact_match}}
"""


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is not None, reason="reasoning-gym is installed")
@pytest.mark.parametrize("rule", ["exact_match", "reasoning_gym"])
def test_the_library_that_is_missing_is_named(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "generated.yaml"
    path.write_text(SPEC.replace("exact_match", rule), encoding="utf-8")
    with pytest.raises((MissingExtra, rlenv.SpecError), match="reasoning-gym"):
        rlenv.load(path).tasks("train")
