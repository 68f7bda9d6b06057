"""Refuses settings of veRL under which a masked sample would move the policy.

A sample that the failure policy masks has a response mask of zeros. With rlenv's estimators and veRL's own losses the
gradient is then the same as without the sample, to the last bit, for every `loss_agg_mode` and every registered policy
loss but the ones below (tests/trainers/test_masking.py measures all of them).

The three modes that average over sequences divide by the number of samples that the configuration says
(`ppo_mini_batch_size` times `rollout.n`), not by those that are there. So each masked sample, like each missing one,
scales the whole step, policy loss, KL and entropy alike, by valid / all; its direction stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlenv.errors import UsageError

__all__ = ["check_masking"]

# veRL's estimators that count the placeholder reward of a masked sample in what its siblings are compared with, and
# what to take instead. Its `gae`, `reinforce_plus_plus` and `opo` (a mean weighted by length, which is 0 there) count
# none: tests/trainers/test_baselines.py.
_COUNTING = {
    "grpo": "rlenv_grpo",
    "grpo_vectorized": "rlenv_grpo",
    "grpo_passk": "rlenv_grpo",
    "gdpo": "rlenv_grpo",
    "gpg": "rlenv_grpo",
    "rloo": "rlenv_rloo",
    "rloo_vectorized": "rlenv_rloo",
    "reinforce_plus_plus_baseline": "rlenv_reinforce_plus_plus_baseline",
}


def check_masking(config: Mapping[str, Any]) -> None:
    """Looks at what in veRL's resolved configuration counts masked samples.

    Raises:
        UsageError: a setting under which a masked sample changes the gradient; the message names one that does not.
    """
    actor = config["actor_rollout_ref"]["actor"]
    algorithm = config["algorithm"]
    estimator = algorithm.get("adv_estimator")
    if estimator in _COUNTING:
        raise UsageError(
            f"algorithm.adv_estimator: veRL's {estimator} counts the placeholder reward of failed episodes in the "
            f"baseline of their siblings; use {_COUNTING[estimator]}"
        )
    loss = actor.get("policy_loss", {}).get("loss_mode", "vanilla")
    if loss == "geo_mean":
        raise UsageError(
            "actor_rollout_ref.actor.policy_loss.loss_mode: geo_mean averages over all samples of a micro-batch, "
            "masked ones included, so failed episodes would shrink the others' gradient; use gspo or vanilla"
        )
    if actor.get("loss_agg_mode") == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        raise UsageError(
            "actor_rollout_ref.actor.loss_agg_mode: seq-mean-token-sum-norm divides by the longest response of the "
            "micro-batch, masked ones included; set actor_rollout_ref.actor.loss_scale_factor to a constant, such as "
            f"data.max_response_length ({config['data']['max_response_length']})"
        )
    if algorithm.get("use_kl_in_reward") and algorithm.get("kl_ctrl", {}).get("type") == "adaptive":
        raise UsageError(
            "algorithm.kl_ctrl.type: adaptive follows a mean KL in which masked samples count as 0, so failed "
            "episodes would weaken the penalty; use fixed"
        )
