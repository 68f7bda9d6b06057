"""The outputs that veRL is handed of an episode: one a training row, in their order."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from rlenv_train.fate import Outcome, Row
from rlenv_train.samples import EpisodeFigures, Play

__all__ = ["TurnRewards", "outputs_of"]


class TurnRewards(AgentLoopOutput):
    """An output whose rewards stand on their own turns.

    veRL's `as_dict` puts `reward_score` on the response's last token. The field it fills, `rm_scores`, has one entry
    a token: with the same sum, rewards of turns stand where they were earned, for estimators and critics that look.
    """

    _token_rewards: tuple[float, ...] = PrivateAttr(default=())

    def as_dict(self) -> dict[str, Any]:
        """As veRL's own, with the rewards of turns in `rm_scores`."""
        fields: dict[str, Any] = super().as_dict()
        if self._token_rewards:
            fields["rm_scores"] = torch.tensor(self._token_rewards, dtype=torch.float32)
        return fields


def outputs_of(
    outcome: Outcome,
    play: Play,
    figures: EpisodeFigures,
    *,
    first_version: int,
    with_logprobs: bool,
    is_validation: bool = False,
) -> list[AgentLoopOutput]:
    """What veRL is handed: one output a row, in their order.

    Each has the episode's own figures, since veRL looks at the last row of a validation and at any of a batch.

    Args:
        first_version: the version of the weights that is named where nothing was generated.
        with_logprobs: hand over the rollout's log-probabilities.
        is_validation: the rows are not trained on; veRL reads the episode's whole reward off the last one.
    """
    versions = [version for version in play.versions if version is not None]

    def made(row: Row) -> AgentLoopOutput:
        output = TurnRewards(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.mask),
            response_logprobs=list(row.logprobs) if with_logprobs else None,
            reward_score=outcome.reward,
            num_turns=int(outcome.info["turns"] or 0),
            metrics=AgentLoopMetrics.model_validate(play.metrics),
            extra_fields={
                "reward_extra_info": dict(outcome.info),
                "rlenv": figures.as_fields(),
                "rlenv_carried": row.carried,
                "turn_scores": list(outcome.turn_rewards),
                "tool_rewards": [],
                # veRL computes staleness from these and needs numbers, also where nothing was generated.
                "global_steps": max(versions, default=first_version),
                "min_global_steps": min(versions, default=first_version),
                "max_global_steps": max(versions, default=first_version),
            },
        )
        if row.images:
            output.multi_modal_data = {"images": list(row.images)}
        if not is_validation:
            output._token_rewards = row.token_rewards
        return output

    return [made(row) for row in outcome.rows]
