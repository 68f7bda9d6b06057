"""Train policies on rlenv environments with unmodified TRL.

    rollout = rlenv_trl.Rollout("arithmetic")
    trainer = trl.GRPOTrainer(
        model, args=config, train_dataset=Dataset.from_list(rollout.rows("train")),
        rollout_func=rollout, reward_funcs=rlenv_trl.rlenv_reward,
    )

`Rollout` is token-exact. `environment_class` is the other door, at which TRL owns the loop, the template and how calls
are read. Importing this package is light: it imports neither TRL nor torch.
"""

from __future__ import annotations

from rlenv_trl.rollout import Rollout, rlenv_reward
from rlenv_trl.tools import environment_class, environment_reward, environment_rows

__all__ = ["TRL_RANGE", "Rollout", "environment_class", "environment_reward", "environment_rows", "rlenv_reward"]

TRL_RANGE = ">=1.16,<1.17"
"""The releases of TRL whose interface the contract test covers."""
