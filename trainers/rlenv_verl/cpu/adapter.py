"""The trainer's side of the CPU rollout: carries weights from the training worker to the server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from rlenv_verl.cpu.replica import actor_name
from rlenv_verl.export.lora import LoraShape, merge, split

__all__ = ["CpuServerAdapter"]


class CpuServerAdapter(BaseRollout):
    """Lives in the training worker and forwards weights through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_other: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ.get("RANK", "0")) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._found: Any = None
        self._base: dict[str, torch.Tensor] = {}

    @property
    def _server(self) -> Any:
        if self._found is None:
            self._found = ray.get_actor(actor_name(self.replica_rank))
        return self._found

    async def resume(self, tags: list[str]) -> None:
        """Lets the server serve."""
        await self._server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Nothing to give back."""
        await self._server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Mapping[str, Any] | None = None,
        base_sync_done: bool = False,
        **_other: Any,
    ) -> None:
        """Sends all weights in buckets of `checkpoint_engine.update_weights_bucket_megabytes`.

        With LoRA veRL hands over the base weights once (`base_sync_done` false) and the adapter's at every step. The
        server has plain weights: they are merged here, in float32, so that rollout and trainer agree. (veRL's own
        merging, `model.lora.merge`, rounds to bfloat16.)
        """
        if wire_format != "named_tensors":
            raise ValueError(f"the CPU rollout takes whole tensors, not {wire_format}")
        if peft_config is not None:
            given = {name: tensor.detach().cpu() async for name, tensor in _each(weights)}
            if not base_sync_done:
                self._base = {name: tensor.clone() for name, tensor in split(given)[0].items()}
                return
            if not self._base:
                raise ValueError("the adapter came before the base weights; set rollout.load_format=dummy")
            weights = merge(self._base, split(given)[1], scaling=LoraShape.of(peft_config).scaling).items()
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        async for name, tensor in _each(weights):
            # A copy: the trainer's next optimiser step must not reach into a bucket that is still on its way.
            bucket.append((name, tensor.detach().cpu().clone()))
            size += tensor.nbytes
            if size > limit:
                await self._server.update_weights.remote(bucket, False, None)
                bucket, size = [], 0
        await self._server.update_weights.remote(bucket, True, global_steps)


def _each(weights: Any) -> AsyncIterator[tuple[str, torch.Tensor]]:
    iterate: Any = ensure_async_iterator
    each: AsyncIterator[tuple[str, torch.Tensor]] = iterate(weights)
    return each
