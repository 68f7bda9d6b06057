"""rlenv's sampler, which also writes down every row that it hands to the trainer. Imported by a run's processes."""

from __future__ import annotations

from typing import Any

import orjson
import transfer_queue as tq

from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer

FIELDS = ["uid", "prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "extra_fields"]


class RecordingBuffer(RlenvReplayBuffer):
    """Appends to `rows.jsonl` beside the run's `trained.jsonl`."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As rlenv's own."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        found = tq.kv_batch_get(keys=list(batch.keys), partition_id=partition_id, select_fields=FIELDS)
        assert self._trained_file is not None
        with (self._trained_file.parent / "rows.jsonl").open("ab") as file:
            for at, key in enumerate(batch.keys):
                extra = getattr(found["extra_fields"][at], "data", found["extra_fields"][at])
                row = {name: found[name][at].tolist() for name in FIELDS[1:-1]}
                uid = getattr(found["uid"][at], "data", found["uid"][at])
                known = {"rlenv": extra["rlenv"], "carried": extra["rlenv_carried"]}
                row |= {"key": key, "uid": str(uid), "step": global_steps, "partition": partition_id, **known}
                file.write(orjson.dumps(row) + b"\n")
        return batch, metrics
