"""What the runs with vLLM share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.vllm_runs.driving import make_exact_policy


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not in this environment; `make test-vllm` runs these in its own")


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy for the arithmetic spec, made once."""
    return make_exact_policy(tmp_path_factory.mktemp("tiny") / "policy", "arithmetic")
