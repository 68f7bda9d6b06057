"""What the tests of the veRL adapter share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the verl extra is not installed")


@contextmanager
def quiet() -> Iterator[None]:
    """Third-party packages warn while they are imported, and warnings are errors in these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    import torch  # noqa: F401
    import transformers


@pytest.fixture(scope="session")
def verl() -> Any:
    """veRL, imported once, with the adapter's plug-ins registered in it."""
    with quiet():
        module = pytest.importorskip("verl", reason="the verl extra is not installed")
        fault = ""
        try:
            import rlenv_verl.cpu.registries
            import rlenv_verl.estimators
            import rlenv_verl.loop.agent_loop
            import rlenv_verl.loop.replay_buffer  # noqa: F401
        except (ImportError, AttributeError) as error:
            fault = f"the adapter cannot be imported with this veRL: {error}; see tests/trainers/test_contract.py"
    if fault:
        pytest.fail(fault, pytrace=False)
    return module


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy for the arithmetic spec that has hardly learned anything: its format is what tests need."""
    from rlenv.episodes.environment import load
    from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

    folder = tmp_path_factory.mktemp("tiny")
    with quiet():
        make_tiny_policy(
            load("arithmetic"), folder, seed=0, settings=WarmupSettings(steps=12, golds=40, clean=60, mixed=60)
        )
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Any:
    """The tiny policy's tokenizer, which no test changes: what is found of its template is found once for all loops."""
    return transformers.AutoTokenizer.from_pretrained(tiny_folder)
