"""What an episode hands to veRL: token ids, mask, reward, and figures under a fixed set of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlenv.trajectory import Trajectory

__all__ = ["Outcome", "failed_outcome", "outcome_of"]


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


def outcome_of(
    trajectory: Trajectory,
    *,
    terms: Sequence[str],
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    mask: Sequence[int],
    logprobs: Sequence[float],
    filler_id: int,
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
    )


def failed_outcome(*, terms: Sequence[str], filler_id: int) -> Outcome:
    """The outcome where not even a record of an episode exists: one masked token."""
    keys = ("truncated", "turns", "calls", "calls_malformed")
    info: dict[str, float | None] = {"success": None, "invalid": 1.0} | dict.fromkeys(keys, 0.0)
    info |= {f"term_{name}": None for name in terms}
    return Outcome((filler_id,), (filler_id,), (0,), (0.0,), 0.0, info)
