"""All of rlenv's advantage estimators, which leave masked trajectories out, registered with veRL's own decorator.

Loaded by `VERL_USE_EXTERNAL_MODULES` in every process that imports verl; chosen by `algorithm.adv_estimator`.

Why not veRL's: in its `grpo` the mean and standard deviation of a group run over every row, so the placeholder reward 0
of a failed episode would lower the mean and raise its siblings' advantages, although its own tokens are all masked; its
`rloo` and `reinforce_plus_plus_baseline` count it in the same way. Its `reinforce_plus_plus` and `gae` look at masked
tokens nowhere; but whitening ends the run with a ValueError where every row of a batch is masked. Here a masked row is
outside of its group, its own advantage is 0, and such a batch gives zeros.

Without masked rows each equals veRL's estimator of the same name (the tests hold them side by side), with one
difference: an episode without a valid sibling has nothing to be compared with, so its advantage is 0, where veRL takes
its bare reward. An episode of several rows (`run.history: rows`) counts once, and all its sampled tokens get its
advantage. Each has a control, `…_shuffled`: the batch's rewards are permuted over its valid episodes first.

Of `mt_grpo` and `process_grpo` a turn is a run of ones in the response mask; its reward is the sum of the token-level
rewards on it. Where a trainer puts the whole reward on the last token, every other turn's reward is 0. The turns of an
episode of several rows are put together in their order. They have no control.

`gigpo` of `rlenv.rewards.credit` is not registered: it needs the state before each turn, which veRL does not hand to an
estimator (its arguments are rewards, mask, index and config).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from rlenv.rewards import credit
from rlenv_verl.estimators.rows import ADVANTAGES, Episodes, RowLabel, episodes_of, last_sampled

GRPO = "rlenv_grpo"
"""The advantage estimator that leaves masked episodes out of their group."""

SHUFFLED = "_shuffled"
"""The end of the name of a control."""
GRPO_SHUFFLED = GRPO + SHUFFLED


def permute_rewards(rewards: torch.Tensor, is_valid: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The rewards of the valid episodes in random order over the whole batch: same values, no tie to what was done."""
    shuffled = rewards.clone()
    found = is_valid.nonzero()[:, 0]
    shuffled[found] = rewards[found[torch.randperm(len(found), generator=generator)]]
    return shuffled


@cache
def shuffle_generator() -> torch.Generator:
    """The shuffle's own generator, one a process, seeded with the run's seed."""
    return torch.Generator().manual_seed(int(os.environ.get("RLENV_SEED", "0")))


RLOO = "rlenv_rloo"
REINFORCE_PLUS_PLUS = "rlenv_reinforce_plus_plus"
REINFORCE_PLUS_PLUS_BASELINE = "rlenv_reinforce_plus_plus_baseline"

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


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(v - mean(v)) / sqrt(var(v) + 1e-8) over the ones of `mask`; 0 elsewhere, and everywhere below two ones.

    As veRL's `masked_whiten` (verl/utils/torch_functional.py, 0.9.1), which raises below two ones.
    """
    chosen = mask.bool()
    out = torch.zeros_like(values)
    if int(chosen.sum()) > 1:
        known = values[chosen]
        out[chosen] = (known - known.mean()) * torch.rsqrt(known.var() + 1e-8)
    return out


def _as_estimator(of: Callable[[Episodes, torch.Tensor, Any], Estimate]) -> Callable[..., Estimate]:
    """An estimator as veRL calls it, of what it makes of the batch's episodes, their mask and the configuration."""

    @wraps(of)
    def estimator(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: np.ndarray | None = None,
        config: Any = None,
        **_other: Any,
    ) -> Estimate:
        with torch.no_grad():
            labels = range(len(response_mask)) if index is None else index.tolist()
            episodes = episodes_of(token_level_rewards, response_mask, labels)
            tokens, returns = of(episodes, response_mask, config)
            ADVANTAGES.tell(episodes, tokens, response_mask)
        return tokens, returns

    return estimator


@_as_estimator
def grpo(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """GRPO without masked rows.

    veRL calls each estimator with `token_level_rewards`, shape (rows, response tokens), of which a row earns the sum;
    with `response_mask` of the same shape, in which a row of zeros is a failed episode; with `index`, one label a row
    (`rlenv_verl.estimators.rows`), and with `config`, its section `algorithm`. It gives advantages and returns, here
    the same, in that shape, 0 where the mask is 0.
    """
    pairs = zip(episodes.rewards.tolist(), episodes.is_valid.tolist(), strict=True)
    known = [reward if is_valid else None for reward, is_valid in pairs]
    advantages = credit.group_relative(known, episodes.groups, by_std=_divides_by_std(config))
    tokens = episodes.to_rows(episodes.rewards.new_tensor(advantages))[:, None] * response_mask
    return tokens, tokens


@_as_estimator
def rloo(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """A_i = r_i - mean of the valid siblings' rewards (RLOO, arXiv:2402.14740); `config` is not used."""
    tokens = episodes.to_rows(_centre_rewards(episodes)[0])[:, None] * response_mask
    return tokens, tokens


@_as_estimator
def reinforce_plus_plus_baseline(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """A_{i,t} = whitened over the batch's tokens of (r_i - mean of its group) (arXiv:2501.03262, REINFORCE++-baseline).

    The group's mean is over valid episodes, the episode itself included. One without a valid sibling is outside of the
    whitening too.
    """
    centred, count = _centre_rewards(episodes)
    # r - mean over all k of the group is (k - 1)/k of r - mean over the others.
    tokens = episodes.to_rows(centred * count / (count + 1))[:, None].expand_as(episodes.own)
    tokens = whiten(tokens, response_mask * (episodes.to_rows(count) > 0)[:, None])
    return tokens, tokens


@_as_estimator
def reinforce_plus_plus(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """A_t = whitened over the batch of G_t = Σ_{s ≥ t} γ^{s-t} r_s (REINFORCE++, arXiv:2501.03262).

    s and t count the tokens that the policy sampled in the episode, in all its rows: observations and a new row's
    prompt take no time. γ is `algorithm.gamma`. There are no groups, and the second result holds G_t.
    """
    gamma = 1.0 if config is None else float(config.get("gamma", 1.0))
    returns = _token_returns(episodes, response_mask, gamma)
    return whiten(returns, response_mask), returns


def _token_returns(episodes: Episodes, response_mask: torch.Tensor, gamma: float) -> torch.Tensor:
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


def _centre_rewards(episodes: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
    """r_i - mean of the valid siblings, 0 for episodes that are masked or alone; and the number of those siblings."""
    means, count = sibling_means(episodes.rewards, episodes.is_valid, episodes.groups)
    count = count * episodes.is_valid
    return torch.where(count > 0, episodes.rewards - means, torch.zeros_like(means)), count


def _with_shuffle(estimator: Callable[..., Estimate]) -> Callable[..., Estimate]:
    """The control of an experiment: `estimator` after the rewards were permuted over the valid episodes of the batch.

    The update sees the same rewards, but none says anything about the episode it stands on, so nothing can be
    learned from them. Reported rewards and validation stay true.
    """

    def control(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, **other: Any
    ) -> Estimate:
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        rewards = permute_rewards(episodes.rewards, episodes.is_valid, shuffle_generator())
        # On the last token that was sampled: a reward elsewhere would be in no return.
        placed = torch.zeros_like(token_level_rewards)
        last = episodes.last_rows
        placed[last, last_sampled(response_mask)[last]] = rewards
        bare = [RowLabel.of(str(label), row=row) for row, label in enumerate(index.tolist())]
        labels = np.array([RowLabel(label.uid, label.session, label.index).text for label in bare], dtype=object)
        return estimator(token_level_rewards=placed, response_mask=response_mask, index=labels, **other)

    return control


for _name, _made in (
    (GRPO, grpo),
    (RLOO, rloo),
    (REINFORCE_PLUS_PLUS, reinforce_plus_plus),
    (REINFORCE_PLUS_PLUS_BASELINE, reinforce_plus_plus_baseline),
):
    register_adv_est(_name)(_made)
    register_adv_est(_name + SHUFFLED)(_with_shuffle(_made))

MT_GRPO = "rlenv_mt_grpo"
"""MT-GRPO (arXiv:2505.11821), see `rlenv.rewards.credit.mt_grpo`; λ is `algorithm.turn_weight`, 1.0 by default."""

PROCESS_GRPO = "rlenv_process_grpo"
"""GRPO with process supervision (arXiv:2402.03300, section 4.1.3), see `rlenv.rewards.credit.process_grpo`."""


def turn_spans(mask: torch.Tensor) -> list[tuple[int, int]]:
    """The runs of ones in one row of a response mask, as (first, behind the last), in order."""
    edges = torch.diff(mask.bool().int(), prepend=mask.new_zeros(1).int(), append=mask.new_zeros(1).int())
    starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _spread_turns(
    episodes: Episodes,
    response_mask: torch.Tensor,
    estimate: Callable[[list[list[float] | None], list[Any]], list[list[float]]],
) -> Estimate:
    turns = [[(row, *span) for row in rows for span in turn_spans(response_mask[row])] for rows in episodes.rows]
    rewards: list[list[float] | None] = [
        [float(episodes.own[row, start:end].sum()) for row, start, end in found] or None for found in turns
    ]
    # A reward that stands on no turn's token (behind a cut, say) belongs to the last turn.
    for total, known in zip(episodes.rewards, rewards, strict=True):
        if known is not None:
            known[-1] += float(total) - sum(known)
    advantages = torch.zeros_like(episodes.own)
    for found, values in zip(turns, estimate(rewards, list(episodes.groups)), strict=True):
        for (row, start, end), value in zip(found, values, strict=False):
            advantages[row, start:end] = value
    return advantages, advantages


def _divides_by_std(config: Any) -> bool:
    return True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))


@register_adv_est(MT_GRPO)  # type: ignore[untyped-decorator]
@_as_estimator
def mt_grpo(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """Â_{i,t} = Â^O_i + λ · Â^T_{i,t} before the last turn and Â^O_i on it; a row of an all-zero mask gets zeros."""
    weight = 1.0 if config is None else float(config.get("turn_weight", 1.0))
    how = partial(credit.mt_grpo, turn_weight=weight, by_std=_divides_by_std(config))
    return _spread_turns(episodes, response_mask, how)


@register_adv_est(PROCESS_GRPO)  # type: ignore[untyped-decorator]
@_as_estimator
def process_grpo(episodes: Episodes, response_mask: torch.Tensor, config: Any) -> Estimate:
    """Â_{i,t} = Σ_{j ≥ t} (r_i^j - mean(R)) / std(R) over the turns of the group."""
    return _spread_turns(episodes, response_mask, partial(credit.process_grpo, by_std=_divides_by_std(config)))
