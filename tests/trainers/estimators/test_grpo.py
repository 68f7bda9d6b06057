from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def advantage(verl: Any) -> Any:
    import rlenv_verl.estimators

    return rlenv_verl.estimators


def batch(rewards: list[float], valid: list[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards on the last of three tokens; the first token is an observation's."""
    scores = torch.zeros(len(rewards), 3)
    scores[:, -1] = torch.tensor(rewards)
    mask = torch.tensor([[0, 1, 1] if is_valid else [0, 0, 0] for is_valid in valid])
    return scores, mask


def test_without_failures_the_advantages_are_verls(advantage: Any) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    scores, mask = batch([1.0, 0.0, 0.1, 0.7, 0.7, 0.2], [True] * 6)
    index = np.array(["a", "a", "a", "b", "b", "b"])
    ours, _ = advantage.grpo(token_level_rewards=scores, response_mask=mask, index=index)
    theirs, _ = compute_grpo_outcome_advantage(scores.clone(), mask, index)
    torch.testing.assert_close(ours, theirs)


def test_a_failed_episode_does_not_move_its_siblings(advantage: Any) -> None:
    index = np.array(["a"] * 4)
    scores, mask = batch([1.0, 0.0, 1.0, 0.0], [True, True, True, False])
    with_failure, _ = advantage.grpo(token_level_rewards=scores, response_mask=mask, index=index)
    alone, _ = advantage.grpo(token_level_rewards=scores[:3], response_mask=mask[:3], index=index[:3])
    torch.testing.assert_close(with_failure[:3], alone)
    assert not with_failure[3].any()


def test_verls_own_grpo_is_moved_by_a_placeholder_reward(verl: Any) -> None:
    # The reason for the estimator: when this fails, veRL leaves masked rows out itself and ours can go.
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    index = np.array(["a"] * 4)
    scores, mask = batch([1.0, 0.0, 1.0, 0.0], [True, True, True, False])
    with_failure, _ = compute_grpo_outcome_advantage(scores.clone(), mask, index)
    alone, _ = compute_grpo_outcome_advantage(scores[:3].clone(), mask[:3], index[:3])
    assert not torch.allclose(with_failure[:3], alone)


@pytest.mark.parametrize("valid", [[True, False, False], [False, False, False]])
def test_a_group_with_nothing_to_compare_gives_zeros(advantage: Any, valid: list[bool]) -> None:
    scores, mask = batch([1.0, 0.0, 0.0], valid)
    tokens, _ = advantage.grpo(token_level_rewards=scores, response_mask=mask, index=np.array(["a"] * 3))
    assert torch.isfinite(tokens).all()
    assert not tokens.any()


def test_division_by_the_deviation_can_be_turned_off(advantage: Any) -> None:
    scores, mask = batch([1.0, 0.0], [True, True])
    given = {"token_level_rewards": scores, "response_mask": mask, "index": np.array(["a", "a"])}
    plain, _ = advantage.grpo(**given, config={"norm_adv_by_std_in_grpo": False})
    torch.testing.assert_close(plain[:, -1], torch.tensor([0.5, -0.5]))


def test_shuffling_keeps_the_rewards_and_leaves_failed_rows_alone(advantage: Any) -> None:
    rewards = torch.arange(64, dtype=torch.float32)
    valid = torch.tensor([row % 4 != 0 for row in range(64)])
    shuffled = advantage.permute_rewards(rewards, valid, torch.Generator().manual_seed(0))
    assert sorted(shuffled.tolist()) == rewards.tolist()
    assert torch.equal(shuffled[~valid], rewards[~valid])
    assert not torch.equal(shuffled, rewards)


@pytest.mark.slow
def test_shuffled_advantages_do_not_follow_the_episodes(advantage: Any) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    control = get_adv_estimator_fn(advantage.GRPO_SHUFFLED)
    # Every odd row of every group earns 1: over many batches an odd row's advantage must be about 0 on average.
    total = torch.zeros(())
    for _ in range(200):
        scores, mask = batch([float(row % 2) for row in range(32)], [True] * 32)
        index = np.array([str(row // 8) for row in range(32)])
        tokens, _ = control(token_level_rewards=scores, response_mask=mask, index=index)
        total += tokens[1::2, -1].mean()
    assert abs(float(total) / 200) < 0.1
