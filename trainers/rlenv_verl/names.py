"""Names that the parts of a run agree on; importing this is free."""

from __future__ import annotations

__all__ = ["AGENT_NAME", "GRPO", "GRPO_SHUFFLED", "LOOP_CLASS"]

AGENT_NAME = "rlenv"
"""The agent loop's name in veRL's registry and in the data sets' rows."""

LOOP_CLASS = "rlenv_verl.agent_loop.RlenvAgentLoop"

GRPO = "rlenv_grpo"
"""The advantage estimator that leaves masked episodes out of their group."""

GRPO_SHUFFLED = "rlenv_grpo_shuffled"
"""The control: as GRPO, with the rewards of a batch permuted over its episodes."""
