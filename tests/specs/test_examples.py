from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.environment import load


@pytest.mark.parametrize("name", ["first", "python_tool"])
def test_the_oracle_earns_the_maximum_on_every_task(
    name: str, root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    environment = load(root / "examples" / name / "env.yaml")
    assert_all_earn_maximum(environment, play_oracle(environment, "train"))


def test_the_step_loop_runs_and_succeeds(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "examples/step_loop.py"],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.endswith("reward 1.1, success True") for line in lines)
