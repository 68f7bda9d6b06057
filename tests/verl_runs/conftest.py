"""What the real runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verl_runs.driving import make_policy


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy for the arithmetic spec, made once."""
    return make_policy(tmp_path_factory.mktemp("tiny") / "policy", "arithmetic")
