"""What an episode hands to veRL: token ids, mask, reward, and figures under a fixed set of keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlenv.trajectory import Trajectory
from rlenv_verl.failure_policy import CRASH, SAFE, FailurePolicy

__all__ = ["Outcome", "failed_outcome", "outcome_of", "token_rewards"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trajectory as veRL's `AgentLoopOutput` takes it.

    `len(mask) == len(response_ids) == len(logprobs)`; there is at least one response token, since veRL puts the score
    on the last one. `reward` of a masked sample is a placeholder: its mask is all zeros, `info["masked"]` is 1, and
    rlenv's advantages leave it out of its group. `info["invalid"]` is 1 where no reward could be measured. `info`
    always has the same keys for one spec, and a value that could not be measured is None there, which veRL's
    validation figures leave out of their means.

    `ended` is why the episode ended; `masked` and `zeroed` repeat it where the failure policy chose that.
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
    ended: str = ""
    masked: str = ""
    zeroed: str = ""


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
    policy: FailurePolicy = SAFE,
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
        policy: what becomes of a sample that failed or was cut. One in which nothing was sampled is masked whatever
            the policy says: it has no token to train on.
    """
    choice = policy.choice(trajectory) if any(mask) else "mask"
    total = 0.0 if choice == "zero" else trajectory.reward.total
    is_kept = choice != "mask" and total is not None
    reason = trajectory.failure.reason if trajectory.failure is not None else trajectory.reason
    info: dict[str, float | None] = {
        "success": None if trajectory.success is None else float(trajectory.success),
        "invalid": float(trajectory.reward.total is None),
        "masked": float(not is_kept),
        "truncated": float(trajectory.truncated),
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.calls),
        "calls_malformed": float(sum(turn.calls_malformed for turn in trajectory.turns)),
    }
    for name in terms:
        term = trajectory.reward.terms.get(name)
        info[f"term_{name}"] = None if term is None else term.value
    turn_rewards = trajectory.reward.turn_rewards if is_kept and choice != "zero" else (0.0,) * len(trajectory.turns)
    ids = tuple(response_ids) or (filler_id,)
    aligned = tuple(mask) if response_ids else (0,)
    return Outcome(
        prompt_ids=tuple(prompt_ids) or (filler_id,),
        response_ids=ids,
        mask=aligned if is_kept else (0,) * len(ids),
        logprobs=tuple(logprobs) if response_ids else (0.0,),
        reward=total if is_kept and total is not None else 0.0,
        info=info,
        turn_rewards=turn_rewards,
        token_rewards=token_rewards(turn_rewards, turn_spans, tokens=len(ids), total=total)
        if is_kept and total is not None
        else (),
        ended=reason,
        masked="" if is_kept else reason,
        zeroed=reason if choice == "zero" else "",
    )


def failed_outcome(*, terms: Sequence[str], filler_id: int, reason: str = CRASH) -> Outcome:
    """The outcome where not even a record of an episode exists: one masked token."""
    keys = ("truncated", "turns", "calls", "calls_malformed")
    info: dict[str, float | None] = {"success": None, "invalid": 1.0, "masked": 1.0} | dict.fromkeys(keys, 0.0)
    info |= {f"term_{name}": None for name in terms}
    return Outcome((filler_id,), (filler_id,), (0,), (0.0,), 0.0, info, ended=reason, masked=reason)
