"""A sampler with a fault, for a rehearsal to find: it trains on what an aborted episode wrote. Imported by a run."""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import get_tensordict

from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer
from rlenv_verl.rehearse.loop import RehearsalBuffer


class _Unmasking(RlenvReplayBuffer):
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            masks = tq.kv_batch_get(keys=list(batch.keys), partition_id=partition_id, select_fields=["response_mask"])
            ones = [torch.ones_like(mask) for mask in masks["response_mask"].unbind()]
            fields = get_tensordict({"response_mask": torch.nested.as_nested_tensor(ones, layout=torch.jagged)})
            tq.kv_batch_put(keys=list(batch.keys), partition_id=partition_id, fields=fields)
        return batch, metrics


class UnmaskingBuffer(RehearsalBuffer, _Unmasking):
    """What it hands on is written down behind the fault, as by the rehearsal's own."""
