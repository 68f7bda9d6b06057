"""Credit by turn: returns and turn-level advantages, on plain numbers.

Rewards stand in one list a trajectory, one entry a turn, as `RewardBreakdown.turn_rewards` holds them. An invalid
reward is no number: pass None for its trajectory, which then is no part of its group and gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from rlenv.trajectory import Trajectory

__all__ = ["anchor_states", "discounted_returns", "gigpo", "group_relative", "mt_grpo", "process_grpo", "turn_rewards"]

EPSILON = 1e-6
"""Keeps a division by a standard deviation finite, as in veRL's GRPO."""

Rewards = Sequence[float]
Advantages = list[list[float]]


def turn_rewards(trajectory: Trajectory) -> list[float] | None:
    """The rewards of a trajectory by turn, None where its reward is invalid."""
    return None if trajectory.reward.total is None else list(trajectory.reward.turn_rewards)


def discounted_returns(rewards: Rewards, *, discount: float = 1.0) -> list[float]:
    """The return from each turn on: G_t = Σ_{k ≥ t} γ^(k-t) · r_k (Sutton and Barto 2018, equation 3.8).

    Args:
        rewards: one a turn.
        discount: γ, in [0, 1].

    Returns:
        One a turn; `len(result) == len(rewards)`.
    """
    found = [0.0] * len(rewards)
    ahead = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        ahead = rewards[index] + discount * ahead
        found[index] = ahead
    return found


def group_relative(
    values: Sequence[float | None], groups: Sequence[Hashable], *, by_std: bool = True, epsilon: float = EPSILON
) -> list[float]:
    """A_i = (x_i - mean(x)) / (std(x) + ε) within each group, with the sample standard deviation, as veRL does.

    Source: GRPO, Shao et al. 2024, arXiv:2402.03300, section 4.1.2; without the division, Dr. GRPO, arXiv:2503.20783.
    Values that are None are left out and get 0, and so does a group with fewer than two values.
    """
    members: dict[Hashable, list[int]] = {}
    for index, (value, group) in enumerate(zip(values, groups, strict=True)):
        if value is not None:
            members.setdefault(group, []).append(index)
    found = [0.0] * len(values)
    for indexes in members.values():
        if len(indexes) < 2:
            continue
        known = [value for index in indexes if (value := values[index]) is not None]
        mean = math.fsum(known) / len(known)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)) if by_std else 1.0
        for index, value in zip(indexes, known, strict=True):
            found[index] = (value - mean) / (spread + epsilon if by_std else 1.0)
    return found


def mt_grpo(
    rewards: Sequence[Rewards | None],
    groups: Sequence[Hashable],
    *,
    turn_weight: float = 1.0,
    by_std: bool = True,
    epsilon: float = EPSILON,
) -> Advantages:
    """MT-GRPO: turns before the last get a turn advantage beside the outcome's, the last turn the outcome's alone.

    For two turns the paper sets Â_{i,(1)} = Â^O_i + λ · Â^T_i and Â_{i,(2)} = Â^O_i, where Â^T and Â^O are the rewards
    of the turn and of the outcome, each normalised over the group (Zeng et al. 2025, "Reinforcing Multi-Turn Reasoning
    in LLM Agents via Turn-Level Credit Assignment", arXiv:2505.11821, section 4). For more turns, each turn t before a
    trajectory's last has an Â^T of its own, over those of the group for which t is not the last turn either. The
    outcome's reward is that of the last turn.

    Args:
        rewards: turn rewards of each trajectory; None where invalid.
        groups: one label a trajectory: the task.
        turn_weight: λ.

    Returns:
        Advantages in the shape of `rewards` ([] where it is None).
    """
    outcomes = [found[-1] if found else None for found in rewards]
    outcome = group_relative(outcomes, groups, by_std=by_std, epsilon=epsilon)
    advantages = [[outcome[index]] * len(found or ()) for index, found in enumerate(rewards)]
    for turn in range(max((len(found or ()) for found in rewards), default=0) - 1):
        at_turn = [found[turn] if found is not None and turn < len(found) - 1 else None for found in rewards]
        relative = group_relative(at_turn, groups, by_std=by_std, epsilon=epsilon)
        for index, value in enumerate(at_turn):
            if value is not None:
                advantages[index][turn] += turn_weight * relative[index]
    return advantages


def process_grpo(
    rewards: Sequence[Rewards | None], groups: Sequence[Hashable], *, by_std: bool = True, epsilon: float = EPSILON
) -> Advantages:
    """GRPO with process supervision, a turn as a step: the sum of the normalised rewards from the turn on.

    r̃_i^j = (r_i^j - mean(R)) / std(R) over the rewards of all turns of the group's trajectories, and
    Â_{i,t} = Σ_{j ≥ t} r̃_i^j (Shao et al. 2024, arXiv:2402.03300, section 4.1.3).

    Args and returns are those of `mt_grpo`.
    """
    flat: list[float | None] = []
    labels: list[Hashable] = []
    for found, group in zip(rewards, groups, strict=True):
        flat.extend(found or ())
        labels.extend([group] * len(found or ()))
    relative = iter(group_relative(flat, labels, by_std=by_std, epsilon=epsilon))
    return [discounted_returns([next(relative) for _ in found or ()]) for found in rewards]


def gigpo(
    rewards: Sequence[Rewards | None],
    groups: Sequence[Hashable],
    states: Sequence[Sequence[Hashable]],
    *,
    step_weight: float = 1.0,
    discount: float = 0.95,
    by_std: bool = True,
    epsilon: float = EPSILON,
) -> Advantages:
    """GiGPO: the episode's advantage within its task plus the turn's within the turns that began in the same state.

    A(a_t^i) = A^E(τ_i) + ω · A^S(a_t^i), where A^E normalises the total returns of the task's trajectories, and A^S the
    discounted returns R_t^i = Σ_{k ≥ t} γ^(k-t) · r_k^i of all turns of the task that began in the same anchor state
    (Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv:2505.10978, section 4).

    Args:
        rewards: turn rewards of each trajectory; None where invalid.
        groups: one label a trajectory: the task.
        states: the state before each turn, such as `anchor_states` gives; in the shape of `rewards`.
        step_weight: ω.
        discount: γ.

    Returns:
        Advantages in the shape of `rewards` ([] where it is None).
    """
    totals = [None if found is None else math.fsum(found) for found in rewards]
    episode = group_relative(totals, groups, by_std=by_std, epsilon=epsilon)
    returns: list[float | None] = []
    anchors: list[Hashable] = []
    for found, group, seen in zip(rewards, groups, states, strict=True):
        ahead = discounted_returns(found or (), discount=discount)
        returns.extend(ahead)
        anchors.extend((group, state) for state in seen[: len(ahead)])
    step = iter(group_relative(returns, anchors, by_std=by_std, epsilon=epsilon))
    return [[episode[index] + step_weight * next(step) for _ in found or ()] for index, found in enumerate(rewards)]


def anchor_states(trajectory: Trajectory) -> list[str]:
    """The state before each turn as GiGPO compares it: what the environment showed last; the prompt before the first.

    `len(result) == len(trajectory.turns)`. Two turns of one task that saw the same observation began in one state,
    whatever was written before.
    """
    states = ["\x00".join(message.content for message in trajectory.messages)]
    for turn in trajectory.turns[:-1]:
        states.append(turn.observation.text if turn.observation is not None else "")
    return states[: len(trajectory.turns)]
