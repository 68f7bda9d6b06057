"""Turn-level advantages for veRL: `rlenv_mt_grpo` and `rlenv_process_grpo`, registered with veRL's own decorator.

Chosen by `algorithm.adv_estimator`. A turn is a run of ones in the response mask; its reward is the sum of the
token-level rewards on it. Where a trainer puts the whole reward on the last token, every other turn's reward is 0. The
turns of an episode of several rows (`run.history: rows`) are put together in their order.

`gigpo` of `rlenv.rewards.credit` is not registered: it needs the state before each turn, which veRL does not hand to an
estimator (its arguments are rewards, mask, index and config).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from rlenv.rewards import credit
from rlenv_verl.estimators.episode_rows import episodes_of
from rlenv_verl.estimators.told import ADVANTAGES

__all__ = ["MT_GRPO", "PROCESS_GRPO", "mt_grpo", "process_grpo", "turn_spans"]

MT_GRPO = "rlenv_mt_grpo"
"""MT-GRPO (arXiv:2505.11821), see `rlenv.rewards.credit.mt_grpo`; λ is `algorithm.turn_weight`, 1.0 by default."""

PROCESS_GRPO = "rlenv_process_grpo"
"""GRPO with process supervision (arXiv:2402.03300, section 4.1.3), see `rlenv.rewards.credit.process_grpo`."""


def turn_spans(mask: torch.Tensor) -> list[tuple[int, int]]:
    """The runs of ones in one row of a response mask, as (first, behind the last), in order."""
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for index, value in enumerate([*mask.tolist(), 0]):
        if value and start is None:
            start = index
        elif not value and start is not None:
            spans.append((start, index))
            start = None
    return spans


def _spread(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    estimate: Callable[[list[list[float] | None], list[Any]], list[list[float]]],
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        episodes = episodes_of(token_level_rewards, response_mask, index.tolist())
        turns = [[(row, *span) for row in rows for span in turn_spans(response_mask[row])] for rows in episodes.rows]
        rewards: list[list[float] | None] = [
            [float(episodes.own[row, start:end].sum()) for row, start, end in found] or None for found in turns
        ]
        # A reward that stands on no turn's token (behind a cut, say) belongs to the last turn.
        for total, known in zip(episodes.rewards, rewards, strict=True):
            if known is not None:
                known[-1] += float(total) - sum(known)
        advantages = torch.zeros_like(token_level_rewards)
        for found, values in zip(turns, estimate(rewards, list(episodes.groups)), strict=True):
            for (row, start, end), value in zip(found, values, strict=False):
                advantages[row, start:end] = value
        ADVANTAGES.tell(episodes, advantages, response_mask)
    return advantages, advantages


def _by_std(config: Any) -> bool:
    return True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))


@register_adv_est(MT_GRPO)  # type: ignore[untyped-decorator]
def mt_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Â_{i,t} = Â^O_i + λ · Â^T_{i,t} before the last turn and Â^O_i on it; a row of an all-zero mask gets zeros.

    Args:
        token_level_rewards: shape (rows, response tokens).
        response_mask: same shape.
        index: one label a row; see `rlenv_verl.estimators.episode_rows`.
        config: veRL's `algorithm` section.

    Returns:
        Advantages and returns (the same), shape (rows, response tokens), 0 where the mask is 0.
    """
    weight = 1.0 if config is None else float(config.get("turn_weight", 1.0))
    by_std = _by_std(config)
    return _spread(
        token_level_rewards,
        response_mask,
        index,
        lambda rewards, groups: credit.mt_grpo(rewards, groups, turn_weight=weight, by_std=by_std),
    )


@register_adv_est(PROCESS_GRPO)  # type: ignore[untyped-decorator]
def process_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_other: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Â_{i,t} = Σ_{j ≥ t} (r_i^j - mean(R)) / std(R) over the turns of the group; arguments as in `mt_grpo`."""
    by_std = _by_std(config)
    return _spread(
        token_level_rewards,
        response_mask,
        index,
        lambda rewards, groups: credit.process_grpo(rewards, groups, by_std=by_std),
    )
