"""GRPO advantages that leave masked trajectories out of their group, registered with veRL's own decorator.

Loaded by `VERL_USE_EXTERNAL_MODULES` in every process that imports verl; chosen by `algorithm.adv_estimator`.

Why not veRL's `grpo`: its group mean and standard deviation run over every row of the group, so the placeholder
reward 0 of a failed episode would lower the mean and raise its siblings' advantages, although its own tokens are all
masked. Here such a row is outside of its group, and its own advantage is 0. An episode of several rows
(`run.history: rows`) counts once, and all its sampled tokens get its advantage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from rlenv_verl.estimators.episode_rows import episodes_of
from rlenv_verl.estimators.told import ADVANTAGES

__all__ = ["GRPO", "GRPO_SHUFFLED", "group_advantages", "grpo", "grpo_shuffled", "permuted", "shuffle_generator"]

GRPO = "rlenv_grpo"
"""The advantage estimator that leaves masked episodes out of their group."""

GRPO_SHUFFLED = "rlenv_grpo_shuffled"
"""The control: as GRPO, with the rewards of a batch permuted over its episodes."""


def group_advantages(
    rewards: torch.Tensor, is_valid: torch.Tensor, groups: Sequence[Any], *, by_std: bool, epsilon: float = 1e-6
) -> torch.Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + ε) over the valid episodes of each group; 0 for invalid ones.

    As in GRPO (DeepSeekMath, arXiv:2402.03300, section 4.1.2), with the sample standard deviation as veRL computes it.
    A group with fewer than two valid episodes has nothing to compare: all its advantages are 0.

    Args:
        rewards: float, shape (episodes,).
        is_valid: bool, shape (episodes,).
        groups: one label an episode.
        by_std: divide by the standard deviation; without, as in Dr. GRPO (arXiv:2503.20783).
        epsilon: keeps the division finite.

    Returns:
        Shape (episodes,).
    """
    advantages = torch.zeros_like(rewards)
    members: dict[Any, list[int]] = {}
    for episode, group in enumerate(groups):
        if bool(is_valid[episode]):
            members.setdefault(group, []).append(episode)
    for found in members.values():
        if len(found) < 2:
            continue
        values = rewards[found]
        centred = values - values.mean()
        advantages[found] = centred / (values.std() + epsilon) if by_std else centred
    return advantages


def permuted(rewards: torch.Tensor, is_valid: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The rewards of the valid episodes in random order over the whole batch: same values, no tie to what was done."""
    shuffled = rewards.clone()
    found = is_valid.nonzero()[:, 0]
    shuffled[found] = rewards[found[torch.randperm(len(found), generator=generator)]]
    return shuffled


def _estimate(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any, *, shuffle: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        rewards = episodes.rewards
        if shuffle:
            rewards = permuted(rewards, episodes.is_valid, shuffle_generator())
        by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
        advantages = group_advantages(rewards, episodes.is_valid, episodes.groups, by_std=by_std)
        tokens = episodes.to_rows(advantages)[:, None] * response_mask
        ADVANTAGES.tell(episodes, tokens, response_mask)
    return tokens, tokens


@cache
def shuffle_generator() -> torch.Generator:
    """The shuffle's own generator, one a process, seeded with the run's seed."""
    return torch.Generator().manual_seed(int(os.environ.get("RLENV_SEED", "0")))


@register_adv_est(GRPO)  # type: ignore[untyped-decorator]
def grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO without masked rows.

    Args:
        token_level_rewards: shape (rows, response tokens); what a row earns is its sum.
        response_mask: same shape; a row of zeros is a failed episode.
        index: one label a row; see `rlenv_verl.estimators.episode_rows`.
        config: veRL's `algorithm` section.

    Returns:
        Advantages and returns (the same), shape (rows, response tokens), 0 where the mask is 0.
    """
    return _estimate(token_level_rewards, response_mask, index, config, shuffle=False)


@register_adv_est(GRPO_SHUFFLED)  # type: ignore[untyped-decorator]
def grpo_shuffled(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The control of an experiment: as `grpo`, with the batch's rewards permuted over its episodes.

    The update sees the same rewards, but none says anything about the episode it stands on, so nothing can be
    learned from them. Reported rewards and validation stay true.
    """
    return _estimate(token_level_rewards, response_mask, index, config, shuffle=True)
