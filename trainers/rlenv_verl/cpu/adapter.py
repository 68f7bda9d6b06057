"""The trainer's side of the CPU rollout: carries weights from the training worker to the server."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from rlenv_verl.cpu.replica import actor_name

__all__ = ["CpuServerAdapter"]


class CpuServerAdapter(BaseRollout):
    """Lives in the training worker and forwards weights through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_other: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ.get("RANK", "0")) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._found: Any = None

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
        self, weights: Any, wire_format: str = "named_tensors", *, global_steps: int | None = None, **_other: Any
    ) -> None:
        """Sends all weights in buckets of `checkpoint_engine.update_weights_bucket_megabytes`."""
        if wire_format != "named_tensors":
            raise ValueError(f"the CPU rollout takes whole tensors, not {wire_format}")
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        iterate: Any = ensure_async_iterator
        async for name, tensor in iterate(weights):
            # A copy: the trainer's next optimiser step must not reach into a bucket that is still on its way.
            bucket.append((name, tensor.detach().cpu().clone()))
            size += tensor.nbytes
            if size > limit:
                await self._server.update_weights.remote(bucket, False, None)
                bucket, size = [], 0
        await self._server.update_weights.remote(bucket, True, global_steps)
