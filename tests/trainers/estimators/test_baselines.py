"""RLOO, REINFORCE++ and veRL's own GAE with failed episodes among the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlenv.errors import UsageError
from rlenv_verl.settings.checks import check_masking

WITH_GROUPS = ["rlenv_rloo", "rlenv_reinforce_plus_plus_baseline"]
ALL = [*WITH_GROUPS, "rlenv_reinforce_plus_plus"]
THEIRS = {name: name.removeprefix("rlenv_") for name in ALL}
CONFIG = {"gamma": 0.9}
SETTINGS = {"actor_rollout_ref": {"actor": {"loss_agg_mode": "token-mean"}}}


@pytest.fixture
def estimator(verl: Any) -> Callable[[str], Any]:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import rlenv_verl.estimators  # noqa: F401

    return get_adv_estimator_fn


def batch(rows: int, *, seed: int = 0) -> dict[str, Any]:
    """Groups of four; each row has two turns with an observation between them, and a reward on either turn's end."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0]]).repeat(rows, 1)
    mask[::3, 6] = 0
    rewards = torch.zeros(rows, 8)
    rewards[:, 1] = torch.rand(rows, generator=generator)
    rewards[:, 5] = torch.rand(rows, generator=generator)
    index = np.array([f"uid{row // 4}" for row in range(rows)], dtype=object)
    return {"token_level_rewards": rewards, "response_mask": mask, "index": index, "config": CONFIG}


def with_failures(rows: dict[str, Any], failed: list[int]) -> dict[str, Any]:
    """The batch with rows that failed: an all-zero mask and a placeholder reward of 0, as the agent loop makes them."""
    mask, rewards = rows["response_mask"].clone(), rows["token_level_rewards"].clone()
    mask[failed], rewards[failed] = 0, 0.0
    return {**rows, "response_mask": mask, "token_level_rewards": rewards}


def without(rows: dict[str, Any], failed: list[int]) -> dict[str, Any]:
    keep = [row for row in range(len(rows["index"])) if row not in failed]
    return {key: value if key == "config" else value[keep] for key, value in rows.items()}


def clone(rows: dict[str, Any]) -> dict[str, Any]:
    """veRL's estimators write into the sums they take."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in rows.items()}


@pytest.mark.parametrize("name", ALL)
def test_without_failures_it_equals_verls(estimator: Callable[[str], Any], name: str) -> None:
    from omegaconf import OmegaConf

    rows = batch(12)
    theirs = {**clone(rows), "config": OmegaConf.create(CONFIG)}
    for ours, expected in zip(estimator(name)(**rows), estimator(THEIRS[name])(**theirs), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_rloo_equals_verls_vectorised_one_also_where_a_row_is_alone(estimator: Callable[[str], Any]) -> None:
    rows = batch(9)  # the last row is a group of its own
    ours, _ = estimator("rlenv_rloo")(**rows)
    theirs, _ = estimator("rloo_vectorized")(**clone(rows))
    torch.testing.assert_close(ours, theirs.float())
    assert not ours[8].any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("failed", [[0], [1, 2, 3], [4, 5, 6, 7], [0, 5, 6, 10]])
def test_failed_rows_change_no_other_row(estimator: Callable[[str], Any], name: str, failed: list[int]) -> None:
    rows = batch(12)
    ours, returns = estimator(name)(**with_failures(rows, failed))
    alone, alone_returns = estimator(name)(**without(rows, failed))
    keep = [row for row in range(12) if row not in failed]
    torch.testing.assert_close(ours[keep], alone)
    torch.testing.assert_close(returns[keep], alone_returns)
    assert not ours[failed].any()


@pytest.mark.parametrize("name", [THEIRS[name] for name in WITH_GROUPS])
def test_verls_own_are_moved_by_a_placeholder_reward(estimator: Callable[[str], Any], name: str) -> None:
    # The reason for ours: when this fails, veRL leaves masked rows out itself.
    rows = batch(12)
    moved, _ = estimator(name)(**clone(with_failures(rows, [0])))
    alone, _ = estimator(name)(**clone(without(rows, [0])))
    assert not torch.allclose(moved[1:], alone, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_failures_gives_zeros(estimator: Callable[[str], Any], name: str) -> None:
    advantages, returns = estimator(name)(**with_failures(batch(4), [0, 1, 2, 3]))
    assert not advantages.any()
    assert not returns.any()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ALL)
def test_the_control_keeps_the_rewards_and_follows_no_episode(estimator: Callable[[str], Any], name: str) -> None:
    # Every odd row earns 1: over many batches an odd row's advantage must be about that of an even row.
    rows = with_failures(batch(32), [3, 17])
    rows["token_level_rewards"][:] = 0.0
    rows["token_level_rewards"][1::2, 5] = 1.0
    rows["token_level_rewards"][[3, 17]] = 0.0
    true, _ = estimator(name)(**rows)
    total = torch.zeros(())
    for _ in range(200):
        advantages, _ = estimator(f"{name}_shuffled")(**rows)
        assert not advantages[[3, 17]].any()
        total += advantages[1::2, 5].mean() - advantages[::2, 5].mean()
    assert float(true[1::2, 5].mean() - true[::2, 5].mean()) > 0.6
    assert abs(float(total) / 200) < 0.1


def gae(rows: dict[str, Any], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    found = compute_gae_advantage_return(
        token_level_rewards=rows["token_level_rewards"].clone(),
        values=values,
        response_mask=rows["response_mask"],
        gamma=1.0,
        lam=0.95,
    )
    return found[0] * rows["response_mask"], found[1]


def test_failed_rows_change_no_other_row_of_verls_gae(verl: Any) -> None:
    rows, failed = batch(12), [0, 5, 6]
    values = torch.rand(12, 8, generator=torch.Generator().manual_seed(1))
    advantages, returns = gae(with_failures(rows, failed), values)
    keep = [row for row in range(12) if row not in failed]
    alone, alone_returns = gae(without(rows, failed), values[keep])
    torch.testing.assert_close(advantages[keep], alone)
    torch.testing.assert_close(returns[keep], alone_returns)
    # What the critic would be taught on a failed row is what it says already, were the row in its loss at all.
    torch.testing.assert_close(returns[failed], values[failed])


def test_failed_rows_are_in_neither_loss_of_verl(verl: Any) -> None:
    from verl.trainer.ppo.core_algos import agg_loss, compute_value_loss

    rows, failed = batch(12), [0, 5, 6]
    mask = with_failures(rows, failed)["response_mask"]
    keep = [row for row in range(12) if row not in failed]
    generator = torch.Generator().manual_seed(2)
    predicted, old, returns = (torch.rand(12, 8, generator=generator) for _ in range(3))
    tokens = int(mask.sum())
    for mode in ("token-mean", "token-sum"):
        all_rows = agg_loss(predicted, mask, mode, batch_num_tokens=tokens)
        assert all_rows == pytest.approx(float(agg_loss(predicted[keep], mask[keep], mode, batch_num_tokens=tokens)))

    def value_loss(chosen: list[int]) -> torch.Tensor:
        loss, _ = compute_value_loss(
            vpreds=predicted[chosen],
            values=old[chosen],
            returns=returns[chosen],
            response_mask=mask[chosen],
            cliprange_value=0.2,
            batch_num_tokens=tokens,
        )
        return loss

    torch.testing.assert_close(value_loss(list(range(12))), value_loss(keep))
    predicted.requires_grad_(True)
    value_loss(list(range(12))).backward()
    assert predicted.grad is not None
    assert not predicted.grad[failed].any()
    assert predicted.grad[keep].any()


def test_a_loss_averaged_over_sequences_divides_by_failed_ones_too(verl: Any) -> None:
    # Why the presets keep token-mean: with the trainer's global batch size a failed row shrinks the others' loss.
    from verl.trainer.ppo.core_algos import agg_loss

    mask = with_failures(batch(4), [0, 1])["response_mask"]
    loss = agg_loss(torch.ones(4, 8), mask, "seq-mean-token-mean", global_batch_size=4)
    assert float(loss) == pytest.approx(0.5)


def test_a_batch_of_failures_ends_a_run_with_verls_gae(verl: Any) -> None:
    # Documented in docs/training/algorithms.md: veRL takes no other estimator with values.
    with pytest.raises(ValueError, match="At least one element in the mask"):
        gae(with_failures(batch(4), [0, 1, 2, 3]), torch.zeros(4, 8))


def test_a_reward_on_an_observation_would_be_lost_to_a_critic(verl: Any) -> None:
    # Why rewards of turns stand on sampled tokens (rlenv_train.fate), not on the response's last one.
    rows = batch(4)
    rows["token_level_rewards"][:] = 0.0
    rows["token_level_rewards"][:, 3] = 1.0
    _, returns = gae(rows, torch.zeros(4, 8))
    assert not (returns * rows["response_mask"]).any()


COUNTING = ["grpo", "grpo_vectorized", "grpo_passk", "gpg", "rloo", "rloo_vectorized"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*COUNTING, "reinforce_plus_plus_baseline", "gdpo"])
def test_estimators_of_verl_that_count_failed_rows_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"veRL's {name} counts .*; use rlenv_"):
        check_masking({**SETTINGS, "algorithm": {"adv_estimator": name}})


@pytest.mark.parametrize("name", COUNTING)
def test_what_is_refused_does_count_them(estimator: Callable[[str], Any], name: str) -> None:
    from omegaconf import OmegaConf

    rows = batch(12)
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": True})
    moved, _ = estimator(name)(**{**clone(with_failures(rows, [0])), "config": config})
    alone, _ = estimator(name)(**{**clone(without(rows, [0])), "config": config})
    assert not torch.allclose(moved[1:].float(), alone.float(), atol=1e-3)


def test_failed_rows_change_no_other_row_of_verls_opo(estimator: Callable[[str], Any]) -> None:
    rows, failed = batch(12), [0, 5, 6]
    ours, _ = estimator("opo")(**clone(with_failures(rows, failed)))
    alone, _ = estimator("opo")(**clone(without(rows, failed)))
    torch.testing.assert_close(ours[[row for row in range(12) if row not in failed]], alone)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "opo", "rlenv_grpo", "rlenv_mt_grpo", "somebodys_own"])
def test_other_estimators_pass(name: str) -> None:
    check_masking({**SETTINGS, "algorithm": {"adv_estimator": name}})
