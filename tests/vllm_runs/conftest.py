"""What the runs with vLLM share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.vllm_runs.driving import make_exact_policy, make_real_policy


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not in this environment; `make test-vllm` runs these in its own")


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy for the arithmetic spec, made once."""
    return make_exact_policy(tmp_path_factory.mktemp("tiny") / "policy", "arithmetic")


@pytest.fixture(scope="session")
def real_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model after a cold start on word problems; `RLENV_EXACT_MODEL` names another folder."""
    if "RLENV_EXACT_MODEL" in os.environ:
        return Path(os.environ["RLENV_EXACT_MODEL"])
    return make_real_policy(tmp_path_factory.mktemp("real"))
