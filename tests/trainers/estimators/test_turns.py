"""Turn-level estimators in veRL's registry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def estimators(verl: Any) -> Any:
    import rlenv_verl.estimators

    return rlenv_verl.estimators


# Two turns of two tokens with an observation between them, and one failed episode whose mask is all zeros.
MASK = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
REWARDS = torch.tensor([[0.0, 1, 0, 0, 0, 0], [0.0, 0, 0, 0, 1, 0], [0.0, 0, 0, 0, 0, 0]])
INDEX = np.array(["q", "q", "q"], dtype=object)


def test_both_are_found_by_their_names_in_verls_registry(estimators: Any) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    assert get_adv_estimator_fn(estimators.MT_GRPO) is estimators.mt_grpo
    assert get_adv_estimator_fn(estimators.PROCESS_GRPO) is estimators.process_grpo


def test_turns_are_the_runs_of_the_mask(estimators: Any) -> None:
    assert estimators.turn_spans(MASK[0]) == [(0, 2), (3, 5)]
    assert estimators.turn_spans(torch.tensor([1, 1, 1])) == [(0, 3)]
    assert estimators.turn_spans(MASK[2]) == []


def test_mt_grpo_stands_on_each_turns_tokens(estimators: Any) -> None:
    found, returns = estimators.mt_grpo(token_level_rewards=REWARDS, response_mask=MASK, index=INDEX)
    half = math.sqrt(2) / 2
    # Turn rewards 1, 0 and outcomes 0, 1: the first turns' two parts cancel, the second turns have the outcome's.
    expected = torch.tensor([[0.0, 0, 0, -half, -half, 0], [0.0, 0, 0, half, half, 0], [0.0] * 6])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert returns is found


def test_the_weight_of_turns_and_the_deviation_come_from_the_configuration(estimators: Any) -> None:
    found, _ = estimators.mt_grpo(
        token_level_rewards=REWARDS,
        response_mask=MASK,
        index=INDEX,
        config={"turn_weight": 3.0, "norm_adv_by_std_in_grpo": False},
    )
    assert found[0].tolist() == [1.0, 1.0, 0.0, -0.5, -0.5, 0.0]


def test_process_grpo_stands_on_each_turns_tokens(estimators: Any) -> None:
    found, _ = estimators.process_grpo(token_level_rewards=REWARDS, response_mask=MASK, index=INDEX)
    # Rewards 1, 0 and 0, 1: mean 0.5, deviation √(1/3); the sums from the first turn on are 0.
    half = math.sqrt(3) / 2
    expected = torch.tensor([[0.0, 0, 0, -half, -half, 0], [0.0, 0, 0, half, half, 0], [0.0] * 6])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_reward_on_the_last_token_alone_is_the_outcome(estimators: Any) -> None:
    rewards = torch.tensor([[0.0, 0, 0, 0, 1, 0], [0.0, 0, 0, 0, 0, 0], [0.0] * 6])
    found, _ = estimators.mt_grpo(token_level_rewards=rewards, response_mask=MASK, index=INDEX)
    half = math.sqrt(2) / 2
    assert found[0].tolist() == pytest.approx([half, half, 0, half, half, 0], abs=1e-5)
    assert not found[2].any()
