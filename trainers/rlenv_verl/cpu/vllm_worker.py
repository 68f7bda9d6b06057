"""An extension of vLLM's worker for veRL's own vLLM server on a CPU, named by
`rollout.engine_kwargs.vllm.worker_extension_cls` (preset `cpu-vllm`).

veRL's replica, server and adapter of vLLM run as they are; this class takes the place of veRL's extension, which it
extends.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import vllm.model_executor.layers.utils as linear_layers
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

_LOG = logging.getLogger(__name__)


def _keep_weight(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


class CpuVllmWorker(vLLMColocateWorkerExtension):
    """veRL's extension of vLLM's worker, on a CPU whose weights are loaded again after every update."""

    _sync_fault: Exception | None = None

    def __new__(cls, **kwargs: Any) -> CpuVllmWorker:
        # Expected: weights can be loaded into a model that serves, as on a GPU. Actual: on a CPU vLLM packs each linear
        # layer's weight for oneDNN or its own kernels once and replaces `layer.weight` by an empty tensor
        # (dispatch_cpu_unquantized_gemm in vllm/model_executor/layers/utils.py), so there is nothing to load into, and
        # what was packed would go on serving. Here layers stay plain. Remove when vLLM packs again after a load.
        linear_layers.dispatch_cpu_unquantized_gemm = _keep_weight
        new: Any = super().__new__
        made: CpuVllmWorker = new(cls, **kwargs)
        return made

    def update_weights_from_ipc(
        self, peft_config: Mapping[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Takes the weights that the trainer sends.

        Raises:
            Exception: what loading them met, once the trainer has sent all of them.
        """
        # Expected: where weights cannot be loaded, the run fails. Actual: veRL's receiver leaves without an answer, and
        # the trainer waits for it in a blocking receive for ever
        # (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py). So what comes after a fault is received and
        # dropped, and the fault is raised then. Remove when veRL's sender learns of it.
        self._sync_fault = None
        receive: Any = super().update_weights_from_ipc
        receive(peft_config=peft_config, base_sync_done=base_sync_done, use_shm=use_shm)
        if self._sync_fault is not None:
            raise self._sync_fault

    def _update_weights(
        self, weights: Sequence[tuple[str, torch.Tensor]], peft_config: Mapping[str, Any] | None, base_sync_done: bool
    ) -> None:
        if self._sync_fault is not None:
            return
        # Expected: a bucket's shared memory can be closed once its weights are loaded. Actual: on a CPU the received
        # tensors are views of it (`tensor.to(device)` copies nothing where the device is the same,
        # verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py), vLLM's loaders leave some of them in reference
        # cycles, and closing fails with "cannot close exported pointers exist". Remove when veRL's receiver copies.
        owned = [(name, tensor.clone()) for name, tensor in weights]
        load: Any = super()._update_weights
        try:
            load(owned, peft_config=peft_config, base_sync_done=base_sync_done)
        except Exception as error:  # the boundary: raised again once all of the weights were received
            # The frames behind an exception, and behind all that it is chained to, hold what they were given, so that
            # the memory could not be closed. The log gets them as text: a handler may keep what it is handed.
            _LOG.error("weights could not be loaded\n%s", traceback.format_exc())
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self._sync_fault = error
        del owned
        gc.collect()
