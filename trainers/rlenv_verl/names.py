"""Names that the parts of a run agree on; importing this is free."""

from __future__ import annotations

__all__ = ["GRPO", "GRPO_SHUFFLED", "LOOP_CLASS", "agent_name"]


def agent_name(spec: str) -> str:
    """The name of a spec's agent loop in veRL's registry and in the data sets' rows."""
    return f"rlenv/{spec}"


LOOP_CLASS = "rlenv_verl.agent_loop.RlenvAgentLoop"

GRPO = "rlenv_grpo"
"""The advantage estimator that leaves masked episodes out of their group."""

GRPO_SHUFFLED = "rlenv_grpo_shuffled"
"""The control: as GRPO, with the rewards of a batch permuted over its episodes."""
