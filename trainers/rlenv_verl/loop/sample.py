"""One sample on its way: which row it is, what the loop learns of it, and what veRL is handed at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from rlenv.concurrency.lanes import Lane
from rlenv.runs.schema import Facts, Mode, Tokens
from rlenv.tokens import TokenRows
from rlenv_verl.loop.fate import FailurePolicy
from rlenv_verl.loop.figures import EpisodeFigures
from rlenv_verl.loop.outcome import Outcome, Row
from rlenv_verl.loop.stalls import Activity

__all__ = ["Play", "SampleTask", "TurnRewards", "figures_of", "outputs_of"]


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Which row is played, and when; `sample` is its place in `group`, which names the samples that are compared."""

    split: str
    index: int
    step: int
    is_validation: bool
    is_greedy: bool
    sample: int = 0
    group: str = ""

    @property
    def mode(self) -> Mode:
        """How its actions are sampled, and what for."""
        if self.is_validation:
            return "greedy" if self.is_greedy else "sampled"
        return "train"


@dataclass(slots=True)
class Play:
    """What the loop learns on the way, kept outside of the episode so that a fault does not lose it.

    `began` is its start in seconds since the epoch; `rows` are what veRL can take of it; `respelled` is how many turns
    the chat template spells otherwise, None as long as that was not counted; `id` is the episode's in the
    run's folder, "" as long as it is not kept, and `lane` is where its requests are recorded, None where none is.
    """

    activity: Activity
    policy: FailurePolicy
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: TokenRows | None = None
    versions: list[int | None] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    rows: list[Row] = field(default_factory=list)
    respelled: int | None = None
    id: str = ""
    lane: Lane | None = None

    def facts(self, task: SampleTask) -> Facts:
        """What the run's folder keeps of the episode beside its record."""
        has_logprobs = self.tokens is not None and all(row.has_logprobs for row in self.tokens.rows)
        rows = [
            Tokens(row.prompt_ids, row.response_ids, row.mask, row.logprobs if has_logprobs else (), row.turn_spans)
            for row in self.rows
        ]
        return Facts(task.step, task.sample, task.mode, task.group, self.began, rows, respelled=self.respelled)

    @property
    def sampled(self) -> int:
        """How many tokens the policy sampled."""
        rows = self.tokens.rows if self.tokens is not None else ()
        return sum(end - start for row in rows for start, end in row.turn_spans)


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


def figures_of(
    spec: str, task: SampleTask, outcome: Outcome, play: Play, *, terms: Sequence[str], stops: str, is_kept: bool
) -> EpisodeFigures:
    """What the replay buffer counts of one sample; `is_kept` where episodes are."""
    info = outcome.info
    return EpisodeFigures(
        spec,
        task.split,
        task.index,
        outcome.ended,
        masked=outcome.masked,
        zeroed=outcome.zeroed,
        reward=None if outcome.masked else outcome.reward,
        success=info["success"],
        is_invalid=bool(info["invalid"]),
        turns=int(info["turns"] or 0),
        calls=int(info["calls"] or 0),
        calls_malformed=int(info["calls_malformed"] or 0),
        rows=int(info["rows"] or 1),
        differences=int(info["differences"] or 0),
        respelled=int(info["respelled"] or 0),
        tokens=play.sampled,
        tool_s=play.metrics.get("tool_calls", 0.0),
        generate_s=play.metrics.get("generate_sequences", 0.0),
        began=play.began,
        finished=time.time(),
        stops=stops,
        terms={name: info[f"term_{name}"] for name in terms},
        id=play.id,
        is_lost=is_kept and not play.id,
    )


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
