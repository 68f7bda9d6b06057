"""RLOO and REINFORCE++ that leave masked trajectories out, registered with veRL's own decorator.

Chosen by `algorithm.adv_estimator`. Without masked rows each equals veRL's estimator of the same name (the tests hold
them side by side), with one difference: an episode without a valid sibling has nothing to be compared with, so
its advantage is 0, where veRL takes its bare reward. An episode of several rows (`run.history: rows`) counts once.

Why not veRL's: its `rloo` and `reinforce_plus_plus_baseline` count the placeholder reward of a failed episode in the
mean of its group, and so raise its siblings. Its `reinforce_plus_plus` and `gae` look at masked tokens nowhere; but
whitening ends the run with a ValueError where every row of a batch is masked, and here such a batch gives zeros.

Each has a control, `…_shuffled`: the batch's rewards are permuted over its valid episodes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from rlenv_verl.estimators.episode_rows import Episodes, RowLabel, episodes_of, last_sampled
from rlenv_verl.estimators.grpo import permuted, shuffle_generator
from rlenv_verl.estimators.told import ADVANTAGES

__all__ = [
    "REINFORCE_PLUS_PLUS",
    "REINFORCE_PLUS_PLUS_BASELINE",
    "RLOO",
    "SHUFFLED",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "sibling_means",
    "whitened",
]

RLOO = "rlenv_rloo"
REINFORCE_PLUS_PLUS = "rlenv_reinforce_plus_plus"
REINFORCE_PLUS_PLUS_BASELINE = "rlenv_reinforce_plus_plus_baseline"
SHUFFLED = "_shuffled"
"""What the name of a control ends in."""

Estimate = tuple[torch.Tensor, torch.Tensor]


def sibling_means(
    rewards: torch.Tensor, is_valid: torch.Tensor, groups: Sequence[Any] | np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean reward of each episode's valid siblings, itself left out, and how many those are.

    Args:
        rewards: float, shape (episodes,).
        is_valid: bool, shape (episodes,).
        groups: one label an episode.

    Returns:
        Means and counts, shape (episodes,). The mean is 0 where the count is 0.
    """
    labels = torch.from_numpy(np.unique(np.asarray(groups).astype(str), return_inverse=True)[1]).to(rewards.device)
    weight = is_valid.to(rewards.dtype)
    total = torch.zeros_like(rewards).index_add(0, labels, rewards * weight)[labels] - rewards * weight
    count = torch.zeros_like(rewards).index_add(0, labels, weight)[labels] - weight
    return total / count.clamp_min(1), count


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(v - mean(v)) / sqrt(var(v) + 1e-8) over the ones of `mask`; 0 elsewhere, and everywhere below two ones.

    As veRL's `masked_whiten` (verl/utils/torch_functional.py, 0.9.1), which raises below two ones.
    """
    chosen = mask.bool()
    out = torch.zeros_like(values)
    if int(chosen.sum()) > 1:
        known = values[chosen]
        out[chosen] = (known - known.mean()) * torch.rsqrt(known.var() + 1e-8)
    return out


def rloo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> Estimate:
    """A_i = r_i - mean of the valid siblings' rewards (RLOO, arXiv:2402.14740).

    Args:
        token_level_rewards: shape (rows, response tokens); what a row earns is its sum.
        response_mask: same shape; a row of zeros is a failed episode.
        index: one label a row; see `rlenv_verl.estimators.episode_rows`.
        config: not used.

    Returns:
        Advantages and returns (the same), shape (rows, response tokens), 0 where the mask is 0.
    """
    with torch.no_grad():
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        centred, _ = _centred(episodes)
        tokens = episodes.to_rows(centred)[:, None] * response_mask
        ADVANTAGES.tell(episodes, tokens, response_mask)
    return tokens, tokens


def reinforce_plus_plus_baseline(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> Estimate:
    """A_{i,t} = whitened over the batch's tokens of (r_i - mean of its group) (arXiv:2501.03262, REINFORCE++-baseline).

    Arguments and shapes as in `rloo`. The group's mean is over valid episodes, the episode itself included. One without
    a valid sibling is outside of the whitening too.
    """
    with torch.no_grad():
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        centred, count = _centred(episodes)
        # r - mean over all k of the group is (k - 1)/k of r - mean over the others.
        tokens = episodes.to_rows(centred * count / (count + 1))[:, None].expand_as(token_level_rewards)
        tokens = whitened(tokens, response_mask * (episodes.to_rows(count) > 0)[:, None])
        ADVANTAGES.tell(episodes, tokens, response_mask)
    return tokens, tokens


def reinforce_plus_plus(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray | None = None,
    config: Any = None,
    **_other: Any,
) -> Estimate:
    """A_t = whitened over the batch of G_t = Σ_{s ≥ t} γ^{s-t} r_s (REINFORCE++, arXiv:2501.03262).

    s and t count the tokens that the policy sampled in the episode, in all its rows: observations and a new row's
    prompt take no time. γ is `algorithm.gamma`. There are no groups; arguments and shapes are otherwise as in `rloo`,
    and the second result holds G_t.
    """
    gamma = 1.0 if config is None else float(config.get("gamma", 1.0))
    with torch.no_grad():
        labels = range(len(response_mask)) if index is None else index.tolist()
        episodes = episodes_of(token_level_rewards, response_mask, labels)
        returns = _returns(episodes, response_mask, gamma)
        tokens = whitened(returns, response_mask)
        ADVANTAGES.tell(episodes, tokens, response_mask)
    return tokens, returns


def _returns(episodes: Episodes, response_mask: torch.Tensor, gamma: float) -> torch.Tensor:
    """G_t of every sampled token, over the rows of each episode in their order; 0 elsewhere."""
    mask = response_mask.to(episodes.own.dtype)
    returns = torch.zeros_like(episodes.own)
    running = torch.zeros_like(returns[:, 0])
    for t in reversed(range(mask.shape[1])):
        here = episodes.own[:, t] + gamma * running
        returns[:, t] = here * mask[:, t]
        running = here * mask[:, t] + running * (1 - mask[:, t])
    # Each row by itself so far: `running` is the return of its first sampled token. What comes in later rows is as
    # many sampled tokens further away as are left in the row.
    for rows in episodes.rows:
        for row, later in reversed(list(pairwise(rows))):
            left = mask[row].flip(-1).cumsum(-1).flip(-1)
            returns[row] += gamma**left * running[later] * mask[row]
            running[row] += gamma ** left[0] * running[later]
    return returns


def _centred(episodes: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
    """r_i - mean of the valid siblings, 0 for episodes that are masked or alone; and the number of those siblings."""
    means, count = sibling_means(episodes.rewards, episodes.is_valid, episodes.groups)
    count = count * episodes.is_valid
    return torch.where(count > 0, episodes.rewards - means, torch.zeros_like(means)), count


def _shuffled(estimator: Callable[..., Estimate]) -> Callable[..., Estimate]:
    """`estimator` after the rewards were permuted over the valid episodes of the batch."""

    def control(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, **other: Any
    ) -> Estimate:
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        rewards = permuted(episodes.rewards, episodes.is_valid, shuffle_generator())
        # On the last token that was sampled: a reward elsewhere would be in no return.
        placed = torch.zeros_like(token_level_rewards)
        last = episodes.last_rows
        placed[last, last_sampled(response_mask)[last]] = rewards
        bare = [RowLabel.of(str(label), row=row) for row, label in enumerate(index.tolist())]
        labels = np.array([RowLabel(label.uid, label.session, label.index).text for label in bare], dtype=object)
        return estimator(token_level_rewards=placed, response_mask=response_mask, index=labels, **other)

    return control


for _name, _estimator in (
    (RLOO, rloo),
    (REINFORCE_PLUS_PLUS, reinforce_plus_plus),
    (REINFORCE_PLUS_PLUS_BASELINE, reinforce_plus_plus_baseline),
):
    register_adv_est(_name)(_estimator)
    register_adv_est(_name + SHUFFLED)(_shuffled(_estimator))
