"""The extension of vLLM's worker, where what it extends is replaced: vLLM is not there in these tests."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

MODULE = "rlenv_verl.cpu.vllm_worker"


class Extension:
    """In place of veRL's: it receives a bucket, and can close its memory where nobody holds a view of it any more."""

    can_close = False

    def update_weights_from_ipc(self, **_options: Any) -> None:
        def on_bucket_received(weights: Any) -> None:
            self._update_weights(weights, peft_config=None, base_sync_done=True)

        weights = [("norm", torch.zeros(2))]
        view = weakref.ref(weights[0][1])
        on_bucket_received(weights)
        del weights
        self.can_close = view() is None

    def _update_weights(self, weights: Any, **_options: Any) -> None:
        """Fails with an exception that has a cause, and another one behind it."""
        try:
            raise KeyError("nrom")
        except KeyError:
            raise RuntimeError("not loaded") from OSError("a cause")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    utils: Any = ModuleType("utils")
    utils.vLLMColocateWorkerExtension = Extension
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.utils", utils)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers", "vllm.model_executor.layers.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    yield importlib.import_module(MODULE).CpuVllmWorker()
    del sys.modules[MODULE]


def test_a_fault_holds_nothing_of_what_was_received_and_is_raised_at_the_end(worker: Any) -> None:
    with pytest.raises(RuntimeError, match="not loaded"):
        worker.update_weights_from_ipc()
    assert worker.can_close
