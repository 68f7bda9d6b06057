"""Registers the CPU rollout, the CPU training engines, and what carries weights to rollout servers.

Named by `actor_rollout_ref.model.external_lib`, which veRL imports in every process that loads a model configuration,
and by `rollout.checkpoint_engine.custom_backend_module`, which it imports in every process of either side: where
CheckpointEngineWorker (verl/checkpoint_engine/base.py) builds the rollout's adapter without a model configuration, too.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import verl.utils.model as verl_models
from hydra.utils import get_class
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

ROLLOUT_NAME = "transformers_cpu"


def register_rollout(name: str, replica: str) -> None:
    """Makes a rollout known to veRL: its servers are this class, which is imported when they are started.

    `CpuServerAdapter` carries the weights to any of them: to whichever server has the name that it asks for.
    """
    RolloutReplicaRegistry.register(name, lambda: get_class(replica))
    # Expected: a public function that registers the trainer's side of a rollout, as there is for its servers. Actual:
    # `_ROLLOUT_REGISTRY` in verl/workers/rollout/base.py has none. Remove when veRL adds one.
    rollout_base._ROLLOUT_REGISTRY[(name, "async")] = "rlenv_verl.cpu.rollout.CpuServerAdapter"


register_rollout(ROLLOUT_NAME, "rlenv_verl.cpu.rollout.CpuReplica")


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngine(FSDPEngineWithLMHead):
    """veRL's FSDP engine for the device `cpu`; veRL registers it for CUDA and NPU only."""

    def _build_fsdp_module(self, module: Any) -> Any:
        # Expected: no pinned memory without an accelerator. Actual: a forward-only engine (the reference policy)
        # always gets CPUOffloadPolicy(pin_memory=True) (verl/workers/engine/fsdp/transformer_impl.py), and pinning
        # fails here. The flag is read only for that choice. Remove when veRL pins where a device needs it.
        forward_only = self.engine_config.forward_only
        object.__setattr__(self.engine_config, "forward_only", False)
        try:
            build: Any = super()._build_fsdp_module
            return build(module)
        finally:
            object.__setattr__(self.engine_config, "forward_only", forward_only)


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuCritic(FSDPEngineWithValueHead):
    """veRL's FSDP engine of a critic for the device `cpu`."""

    def _build_module(self) -> Any:
        # Expected: a critic is loaded with the attention that `model.override_config` names, as an actor is. Actual:
        # load_valuehead_model (verl/utils/model.py) always asks for flash_attention_2, which needs a GPU; what fails
        # there is hidden by a second attempt through trl. Remove when veRL hands the choice on.
        original = verl_models.load_valuehead_model
        verl_models.load_valuehead_model = _load_critic
        try:
            build: Any = super()._build_module
            return build()
        finally:
            verl_models.load_valuehead_model = original


def _load_critic(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """The policy's weights below a new head with one value a token."""
    from transformers import AutoModelForTokenClassification

    auto: Any = AutoModelForTokenClassification
    named = getattr(model_config, "_attn_implementation", None) or "sdpa"
    return auto.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa" if named.startswith("flash") else named,
        trust_remote_code=trust_remote_code,
    )


BACKEND = "rlenv_file"

_POLL_S = 0.02
# A sender that failed would leave its receivers, and so the trainer, waiting for ever.
_LIMIT_S = 120.0


@CheckpointEngineRegistry.register(BACKEND)
class FileCheckpointEngine(CheckpointEngine):
    """The trainer's first rank writes all weights into a file; every rollout process reads it.

    The file appears under its name when it is whole, and is removed by `finalize`.

    Args:
        bucket_size: not used; the adapter makes buckets of its own.
        limit_s: how long `receive_weights` waits for the file, in seconds.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, *, limit_s: float = _LIMIT_S) -> None:
        self.is_master = is_master
        self.limit_s = limit_s
        self._path: Path | None = None
        self._sends = False

    def prepare(self) -> dict[str, Any]:
        """The file's path, from the master; nothing from the others."""
        if not self.is_master:
            return {}
        return {"path": str(Path(tempfile.gettempdir()) / f"rlenv-weights-{uuid4().hex}.pt")}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """One sender, the trainer's rank 0; all others of the trainer only take part in gathering the weights."""
        (path,) = [found["path"] for found in metadata if found]
        return (
            {"path": [path] * actor_wg_world_size, "sends": [rank == 0 for rank in range(actor_wg_world_size)]},
            {"path": [path] * rollout_world_size, "sends": [False] * rollout_world_size},
        )

    def init_process_group(self, path: str, sends: bool) -> None:  # type: ignore[override]
        """Takes this process's part."""
        self._path, self._sends = Path(path), sends

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Writes the weights. Every rank has to call it: each tensor is gathered from all of them."""
        path = self._named_path()
        named = [(name, tensor.detach().cpu().clone() if self._sends else tensor) for name, tensor in weights]
        if self._sends:
            partial = path.with_suffix(".part")
            torch.save(named, partial)
            partial.rename(path)

    async def receive_weights(  # type: ignore[override]
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The weights, once they are there.

        Raises:
            TimeoutError: they did not come within `limit_s`.
        """
        path = self._named_path()
        started = time.monotonic()
        while not path.exists():
            if time.monotonic() - started > self.limit_s:
                raise TimeoutError(f"no weights came from the trainer within {self.limit_s:.0f} s ({path})")
            await asyncio.sleep(_POLL_S)
        for name, tensor in torch.load(path, weights_only=True):
            yield name, tensor

    def finalize(self) -> None:
        """Removes the file; veRL calls this when every receiver has read it."""
        if self._sends:
            self._named_path().unlink(missing_ok=True)

    def _named_path(self) -> Path:
        if self._path is None:
            raise RuntimeError("weights were asked for before init_process_group named the file")
        return self._path
