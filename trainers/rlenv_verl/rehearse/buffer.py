"""rlenv's replay buffer, which also writes down what the trainer is handed in a rehearsal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transfer_queue as tq  # type: ignore[import-untyped]

from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer
from rlenv_verl.rehearse.loop import checksum
from rlenv_verl.rehearse.server import FOLDER_VARIABLE

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

__all__ = ["RehearsalBuffer"]

_AT_ONCE = 64  # rows that are read back at a time: a batch may be gigabytes


class RehearsalBuffer(RlenvReplayBuffer):
    """Appends each row of a training batch to `arrived.jsonl`, with the checksum of its ids and its mask."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As rlenv's own."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
            path = Path(os.environ[FOLDER_VARIABLE]) / "arrived.jsonl"
            with path.open("a", encoding="utf-8") as file:
                for start in range(0, len(keys), _AT_ONCE):
                    for entry in _read(keys[start : start + _AT_ONCE], partition_id):
                        file.write(json.dumps({"step": global_steps, **entry}) + "\n")
        return batch, metrics


def _read(keys: list[str], partition_id: str) -> list[dict[str, Any]]:
    names = ["prompts", "responses", "response_mask", "input_ids", "position_ids"]
    found = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=names)
    entries = []
    for at, key in enumerate(keys):
        prompt, response, mask, whole, positions = (found[name][at] for name in names)
        joined = [*prompt.tolist(), *response.tolist()]
        entries.append(
            {
                "key": key,
                "prompt": len(prompt),
                "response": len(response),
                "trained": int(mask.sum()),
                "checksum": checksum(prompt.tolist(), response.tolist(), mask.tolist()),
                # What the passes read: prompt and response in one, each token at its place.
                "is_whole": whole.tolist() == joined and positions.tolist() == list(range(len(joined))),
            }
        )
    return entries
