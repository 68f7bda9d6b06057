"""What veRL's own vLLM server needs on a CPU: an extension of vLLM's worker, named by
`rollout.engine_kwargs.vllm.worker_extension_cls` (preset `cpu-vllm`).

veRL's replica, server and adapter of vLLM run as they are; this class takes the place of veRL's extension, which it
extends.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import vllm.model_executor.layers.utils as linear_layers
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

__all__ = ["CpuVllmWorker"]


def _keep_weight(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


class CpuVllmWorker(vLLMColocateWorkerExtension):
    """veRL's extension of vLLM's worker, on a CPU whose weights are loaded again after every update."""

    def __new__(cls, **kwargs: Any) -> CpuVllmWorker:
        # Expected: weights can be loaded into a model that serves, as on a GPU. Actual: on a CPU vLLM packs each linear
        # layer's weight for oneDNN or its own kernels once and replaces `layer.weight` by an empty tensor
        # (dispatch_cpu_unquantized_gemm in vllm/model_executor/layers/utils.py), so there is nothing to load into, and
        # what was packed would go on serving. Here layers stay plain. Remove when vLLM packs again after a load.
        linear_layers.dispatch_cpu_unquantized_gemm = _keep_weight
        made: CpuVllmWorker = super().__new__(cls, **kwargs)
        return made

    def _update_weights(
        self, weights: Sequence[tuple[str, torch.Tensor]], peft_config: Mapping[str, Any] | None, base_sync_done: bool
    ) -> None:
        # Expected: a bucket's shared memory can be closed once its weights are loaded. Actual: on a CPU the received
        # tensors are views of it (`tensor.to(device)` copies nothing where the device is the same,
        # verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py), vLLM's loaders leave some of them in reference
        # cycles, and closing fails with "cannot close exported pointers exist". Remove when veRL's receiver copies.
        owned = [(name, tensor.clone()) for name, tensor in weights]
        super()._update_weights(owned, peft_config=peft_config, base_sync_done=base_sync_done)
        del owned
        gc.collect()
