"""No masked sample moves the policy: the gradient of a batch with masked rows is that of the batch without them.

Through veRL's own `ppo_loss`, with the KL loss and the entropy bonus on, for each policy loss and each way of
aggregating that veRL has, and for each of rlenv's estimators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rlenv.errors import UsageError
from tests.trainers.conftest import quiet

VOCABULARY, GROUPS, SIZE = 11, 3, 4
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
LOSSES = ["vanilla", "bypass_mode", "cispo", "clip_cov", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo", "kl_cov", "sapo"]
ESTIMATORS = [
    "rlenv_grpo",
    "rlenv_rloo",
    "rlenv_reinforce_plus_plus",
    "rlenv_reinforce_plus_plus_baseline",
    "rlenv_mt_grpo",
    "rlenv_process_grpo",
]


@dataclass(frozen=True)
class Row:
    """One sample: `prompt` tokens, then the response."""

    ids: torch.Tensor
    prompt: int
    mask: torch.Tensor
    reward: float
    group: int
    is_masked: bool
    old_gap: torch.Tensor
    reference_gap: torch.Tensor


def batch() -> list[Row]:
    """Three groups of four, three of twelve rows masked, the longest response among them; placeholders of reward 0."""
    random = torch.Generator().manual_seed(1)
    rows = []
    for group in range(GROUPS):
        for sample in range(SIZE):
            is_masked = (group, sample) in {(0, 1), (1, 0), (1, 2)}
            prompt = int(torch.randint(1, 4, (1,), generator=random))
            length = 9 if (group, sample) == (1, 0) else int(torch.randint(2, 7, (1,), generator=random))
            mask = (torch.rand(length, generator=random) > 0.3).long()
            mask[-1] = 1
            rows.append(
                Row(
                    torch.randint(0, VOCABULARY, (prompt + length,), generator=random),
                    prompt,
                    mask * 0 if is_masked else mask,
                    0.0 if is_masked else float(torch.rand(1, generator=random)),
                    group,
                    is_masked,
                    0.1 * torch.randn(length, generator=random, dtype=torch.float64),
                    0.1 * torch.randn(length, generator=random, dtype=torch.float64),
                )
            )
    return rows


def forward(weights: torch.Tensor, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy at each position of the next token, of a policy that looks at one token."""
    logs = torch.log_softmax(weights[row.ids], -1)
    following = torch.cat([row.ids[1:], row.ids[:1]])
    return logs.gather(-1, following[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def advantages(rows: Sequence[Row], estimator: str) -> list[torch.Tensor]:
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    width = max(len(row.mask) for row in rows)
    mask = torch.zeros(len(rows), width)
    rewards = torch.zeros(len(rows), width, dtype=torch.float64)
    for index, row in enumerate(rows):
        mask[index, : len(row.mask)] = row.mask
        rewards[index, len(row.mask) - 1] = row.reward
    groups = np.array([row.group for row in rows])
    estimate = get_adv_estimator_fn(estimator)
    found, _ = estimate(token_level_rewards=rewards, response_mask=mask, index=groups, config=AlgoConfig())
    return [found[index, : len(row.mask)] for index, row in enumerate(rows)]


def configured(mode: str, loss: str) -> Any:
    """The actor's configuration, with every term of the loss in it."""
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    options: dict[str, Any] = {"dro_beta": 0.1} if loss == "dro" else {}
    if loss == "bypass_mode":
        options["rollout_correction"] = {"bypass_mode": True}
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=SIZE,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=mode,
        loss_scale_factor=9 if mode == "seq-mean-token-sum-norm" else None,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="low_var_kl",
        entropy_coeff=0.05,
        policy_loss=PolicyLossConfig(loss_mode=loss, **options),
    )


def gradient(
    rows: Sequence[Row],
    *,
    mode: str,
    loss: str = "vanilla",
    estimator: str = "rlenv_grpo",
    divisor: int,
    given: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The gradient of the policy's weights; `divisor` is the number of samples that the configuration says.

    `given` are advantages that were estimated already, one a response token of each row.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import ppo_loss

    random = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(0.3 * torch.randn(VOCABULARY, VOCABULARY, generator=random, dtype=torch.float64))

    def nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    with torch.no_grad():
        now = [forward(weights, row)[0][row.prompt - 1 : -1] for row in rows]
    fields = {
        "prompts": nested([row.ids[: row.prompt] for row in rows]),
        "responses": nested([row.ids[row.prompt :] for row in rows]),
        "response_mask": nested([row.mask for row in rows]),
        "advantages": nested(advantages(rows, estimator) if given is None else given),
        "old_log_probs": nested([logs + row.old_gap for logs, row in zip(now, rows, strict=True)]),
        "ref_log_prob": nested([logs + row.reference_gap for logs, row in zip(now, rows, strict=True)]),
    }
    tokens = float(sum(row.mask.sum() for row in rows))
    with quiet():
        data = TensorDict(fields, batch_size=len(rows))
        # As veRL's engine does: valid tokens are counted, samples are what the configuration says.
        tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=divisor)
        config = configured(mode, loss)
        torch.manual_seed(0)
        outputs = [forward(weights, row) for row in rows]
        output = {"log_probs": nested([logs for logs, _ in outputs]), "entropy": nested([e for _, e in outputs])}
        total, _ = ppo_loss(config, output, data)
        total.backward()
    assert weights.grad is not None
    assert weights.grad.norm() > 1e-3
    return weights.grad


def valid(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.is_masked]


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_masked_rows_do_not_change_the_gradient(verl: Any, loss: str, mode: str) -> None:
    rows = batch()
    with_masked = gradient(rows, mode=mode, loss=loss, divisor=len(rows))
    without = gradient(valid(rows), mode=mode, loss=loss, divisor=len(rows))
    torch.testing.assert_close(with_masked, without, rtol=1e-12, atol=1e-14)


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_masked_rows_do_not_change_it_with_any_of_the_estimators(verl: Any, estimator: str, mode: str) -> None:
    import rlenv_verl.estimators  # noqa: F401

    rows = batch()
    with_masked = gradient(rows, mode=mode, estimator=estimator, divisor=len(rows))
    without = gradient(valid(rows), mode=mode, estimator=estimator, divisor=len(rows))
    torch.testing.assert_close(with_masked, without, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("seq-mean")])
def test_modes_over_sequences_scale_the_step_by_the_share_that_is_valid(verl: Any, mode: str) -> None:
    rows = batch()
    kept = valid(rows)
    with_masked = gradient(rows, mode=mode, divisor=len(rows))
    alone = gradient(kept, mode=mode, divisor=len(kept))
    torch.testing.assert_close(with_masked * len(rows) / len(kept), alone, rtol=1e-12, atol=1e-14)


def test_verls_own_grpo_is_moved_by_masked_rows(verl: Any) -> None:
    rows = batch()
    with_masked = gradient(rows, mode="token-mean", estimator="grpo", divisor=len(rows))
    without = gradient(valid(rows), mode="token-mean", estimator="grpo", divisor=len(rows))
    assert (with_masked - without).norm() > 0.05 * without.norm()


def test_every_loss_of_verl_is_measured_or_refused(verl: Any) -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    assert set(POLICY_LOSS_REGISTRY) == {*LOSSES, "geo_mean"}, "veRL has other losses now: measure them above"


def settings(**keys: Any) -> dict[str, Any]:
    actor = {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "policy_loss": {"loss_mode": "vanilla"}}
    algorithm = {"use_kl_in_reward": False, "kl_ctrl": {"type": "fixed"}}
    for key, value in keys.items():
        (actor if key in actor else algorithm)[key] = value
    return {"actor_rollout_ref": {"actor": actor}, "algorithm": algorithm, "data": {"max_response_length": 96}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"policy_loss": {"loss_mode": "geo_mean"}}, "geo_mean averages over all samples.*use gspo or vanilla"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, r"loss_scale_factor to a constant.*\(96\)"),
        ({"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive"}}, "adaptive follows a mean KL.*use fixed"),
    ],
)
def test_settings_that_count_masked_samples_are_refused(keys: dict[str, Any], message: str) -> None:
    from rlenv_verl.settings.checks import check_masking

    with pytest.raises(UsageError, match=message):
        check_masking(settings(**keys))


def test_other_settings_pass() -> None:
    from rlenv_verl.settings.checks import check_masking

    check_masking(settings())
    check_masking(settings(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=96))
    check_masking(settings(kl_ctrl={"type": "adaptive"}))


@pytest.mark.parametrize("kind", ["geo_mean", "norm"])
def test_what_is_refused_does_count_masked_samples(verl: Any, kind: str) -> None:
    rows = batch()
    if kind == "geo_mean":
        options: dict[str, Any] = {"mode": "token-mean", "loss": "geo_mean", "divisor": len(rows)}
        with_masked, without = gradient(rows, **options), gradient(valid(rows), **options)
        assert (with_masked - without).norm() > 0.05 * without.norm()
        return
    from verl.trainer.ppo.core_algos import agg_loss

    loss, mask = torch.ones(2, 4), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]])
    wide = agg_loss(loss, mask, "seq-mean-token-sum-norm", global_batch_size=2)
    narrow = agg_loss(loss[:1, :2], mask[:1, :2], "seq-mean-token-sum-norm", global_batch_size=2)
    assert wide != narrow
