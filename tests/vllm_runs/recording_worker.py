"""rlenv's worker extension, which also writes down the weights that vLLM holds after each sync."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checksums import checksums, write

from rlenv_verl.cpu.vllm_worker import CpuVllmWorker


class RecordingWorker(CpuVllmWorker):
    """Named by `rollout.engine_kwargs.vllm.worker_extension_cls`."""

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        write("engine.jsonl", {"adapter": bool(peft_config and base_sync_done), "tensors": checksums(self._held())})

    def _held(self) -> Iterator[tuple[str, Any]]:
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        words = runner.model_config.get_vocab_size()
        for name, tensor in runner.model.named_parameters():
            # vLLM makes room for a multiple of 64 ids.
            is_table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
            yield name, tensor[:words] if is_table else tensor


class FailingWorker(CpuVllmWorker):
    """Cannot load the weights that come after the first ones."""

    _syncs = 0

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        self._syncs += 1
        super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)

    def _update_weights(self, weights: Any, peft_config: Any, base_sync_done: bool) -> None:
        if self._syncs > 1:
            weights = [(name.replace("norm", "nrom"), tensor) for name, tensor in weights]
        super()._update_weights(weights, peft_config, base_sync_done)
