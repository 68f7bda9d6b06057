"""How many updates a batch makes, where its episodes are several rows each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Updates", "fitting"]


def fitting(size: int, *, rows: int, prompts: int, n: int, workers: int) -> int:
    """A mini-batch size, in prompts, with which `rows` rows make as many updates as `prompts` times `n` rows do.

    Args:
        size: `ppo_mini_batch_size`, in prompts.
        rows: training rows of the batch.
        prompts: prompts of the batch.
        n: samples a prompt.
        workers: the size that a mini-batch of `size` times `n` rows is divided by.

    Returns:
        `size` where the rows are no more than that; else the least number for which they suffice, and which the
        workers divide.
    """
    if rows <= prompts * n:
        return size
    updates = max(1, prompts // size)
    step = workers // math.gcd(workers, n)
    return -(-rows // (n * updates * step)) * step


@dataclass(slots=True)
class Updates:
    """The mini-batch sizes of a trainer, fitted to each batch.

    Expected: `ppo_mini_batch_size` counts prompts, and their samples make one update, however many rows an episode is.
    Actual (0.9.1): `PPOTrainer._get_required_batch_multiple` and `_update_actor` take `ppo_mini_batch_size` times
    `rollout.n` rows for an update, so that episodes of three rows make three, the last mostly of padding; and
    `validate_config` refuses a mini-batch that is larger than `train_batch_size`. Both read the sizes for each batch,
    so they are set before. Remove when veRL counts episodes.

    Args:
        config: the trainer's whole configuration; None where there is no trainer, as in a test of the buffer alone.
    """

    config: Any
    actor: int = 0
    critic: int = 0

    @classmethod
    def of(cls, refill_fn: Callable[[int], None] | None) -> Updates:
        """Those of the trainer whose method a replay buffer is handed (`PPOTrainer._build_replay_buffer`)."""
        config = getattr(getattr(refill_fn, "__self__", None), "config", None)
        if config is None:
            return cls(None)
        actor, critic = config.actor_rollout_ref.actor, config.get("critic")
        return cls(config, int(actor.ppo_mini_batch_size), int(critic.ppo_mini_batch_size) if critic else 0)

    def fit(self, *, rows: int, prompts: int) -> None:
        """Sets the sizes for a batch of that many rows; those of the configuration again where they suffice."""
        config = self.config
        if config is None:
            return
        n = int(config.actor_rollout_ref.rollout.n)
        workers = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        for section, size in ((config.actor_rollout_ref.actor, self.actor), (config.get("critic"), self.critic)):
            if section is None or not size:
                continue
            wanted = fitting(size, rows=rows, prompts=prompts, n=n, workers=workers)
            if int(section.ppo_mini_batch_size) != wanted:
                section.ppo_mini_batch_size = wanted
