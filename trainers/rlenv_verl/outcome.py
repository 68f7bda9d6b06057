"""What an episode hands to veRL: token ids, mask, reward, and figures under a fixed set of keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlenv.trajectory import Trajectory

__all__ = ["Outcome", "failed_outcome", "outcome_of", "token_rewards"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trajectory as veRL's `AgentLoopOutput` takes it.

    `len(mask) == len(response_ids) == len(logprobs)`; there is at least one response token, since veRL puts the score
    on the last one. `reward` of a failed episode is a placeholder: its mask is all zeros and `info["invalid"]` is 1,
    and the advantages `rlenv_grpo` leave it out of its group. `info` always has the same keys for one spec, and a
    value that could not be measured is None there, which veRL's validation figures leave out of their means.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float
    info: Mapping[str, float | None]
    turn_rewards: tuple[float, ...] = ()
    token_rewards: tuple[float, ...] = ()
    """One a response token, summing to `reward`: each turn's share on the turn's last token; () where unknown."""


def token_rewards(
    turn_rewards: Sequence[float], turn_spans: Sequence[tuple[int, int]], *, tokens: int, total: float
) -> tuple[float, ...]:
    """The rewards of turns on the tokens of a response.

    Args:
        turn_rewards: one a turn, as `RewardBreakdown.turn_rewards`.
        turn_spans: first token and the one behind the last of each sampled turn, in the response.
        tokens: the response's length.
        total: the episode's reward.

    Returns:
        Length `tokens`. Each turn's reward stands on its last token; what is left of `total` (a turn that sampled
        nothing, rounding) on the last sampled one. Empty where there is no turn to stand on.
    """
    placed = [0.0] * tokens
    spans = [(start, end) for start, end in turn_spans if end > start]
    if not spans:
        return ()
    if len(turn_rewards) == len(turn_spans):
        for (start, end), reward in zip(turn_spans, turn_rewards, strict=True):
            if end > start:
                placed[end - 1] += reward
    placed[spans[-1][1] - 1] += total - math.fsum(placed)
    return tuple(placed)


def outcome_of(
    trajectory: Trajectory,
    *,
    terms: Sequence[str],
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    mask: Sequence[int],
    logprobs: Sequence[float],
    filler_id: int,
    turn_spans: Sequence[tuple[int, int]] = (),
) -> Outcome:
    """The outcome of an episode that ended, valid or not.

    Args:
        trajectory: the record.
        terms: the spec's reward terms; each becomes a key of `info`.
        prompt_ids: empty where the episode failed before it had a prompt.
        response_ids: everything after the prompt; may be empty for a failed episode.
        mask: 1 where the policy sampled; aligned with `response_ids`.
        logprobs: aligned with `response_ids`, 0.0 for tokens that were not sampled.
        filler_id: the masked token that stands where there is none.
        turn_spans: the sampled turns in `response_ids`, for rewards that stand on their own turns.
    """
    total = trajectory.reward.total
    is_valid = total is not None
    info: dict[str, float | None] = {
        "success": None if trajectory.success is None else float(trajectory.success),
        "invalid": float(not is_valid),
        "truncated": float(trajectory.truncated),
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.calls),
        "calls_malformed": float(sum(turn.calls_malformed for turn in trajectory.turns)),
    }
    for name in terms:
        term = trajectory.reward.terms.get(name)
        info[f"term_{name}"] = None if term is None else term.value
    ids = tuple(response_ids) or (filler_id,)
    aligned = tuple(mask) if response_ids else (0,)
    return Outcome(
        prompt_ids=tuple(prompt_ids) or (filler_id,),
        response_ids=ids,
        mask=aligned if is_valid else (0,) * len(ids),
        logprobs=tuple(logprobs) if response_ids else (0.0,),
        reward=0.0 if total is None else total,
        info=info,
        turn_rewards=trajectory.reward.turn_rewards,
        token_rewards=()
        if total is None
        else token_rewards(trajectory.reward.turn_rewards, turn_spans, tokens=len(ids), total=total),
    )


def failed_outcome(*, terms: Sequence[str], filler_id: int) -> Outcome:
    """The outcome where not even a record of an episode exists: one masked token."""
    keys = ("truncated", "turns", "calls", "calls_malformed")
    info: dict[str, float | None] = {"success": None, "invalid": 1.0} | dict.fromkeys(keys, 0.0)
    info |= {f"term_{name}": None for name in terms}
    return Outcome((filler_id,), (filler_id,), (0,), (0.0,), 0.0, info)
