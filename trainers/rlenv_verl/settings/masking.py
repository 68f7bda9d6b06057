"""Refuses settings of veRL under which a masked sample would move the policy.

A sample that the failure policy masks has a response mask of zeros. With rlenv's estimators and veRL's own losses the
gradient is then the same as without the sample, to the last bit, for every `loss_agg_mode` and every registered policy
loss but the ones below (tests/trainers/settings/test_masking.py measures all of them).

The three modes that average over sequences divide by the number of samples that the configuration says
(`ppo_mini_batch_size` times `rollout.n`), not by those that are there. So each masked sample, like each missing one,
scales the whole step, policy loss, KL and entropy alike, by valid / all; its direction stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlenv.errors import UsageError

__all__ = ["check_masking", "check_rows"]

# veRL's estimators that count the placeholder reward of a masked sample in what its siblings are compared with, and
# what to take instead. Its `gae`, `reinforce_plus_plus` and `opo` (a mean weighted by length, which is 0 there) count
# none: tests/trainers/estimators/test_baselines.py.
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


# What counts an episode of several rows once: rlenv's estimators, and those of veRL that look at each token alone.
_KNOWING_ROWS = ("gae", "reinforce_plus_plus")


def check_rows(config: Mapping[str, Any]) -> None:
    """Looks at what in veRL's resolved configuration takes a row for an episode, for a run with `history: rows`.

    Raises:
        UsageError: a setting under which an episode would count more the more rows it has, or be discounted only
            within its rows; the message names one that is right.
    """
    actor = config["actor_rollout_ref"]["actor"]
    algorithm = config["algorithm"]
    estimator = str(algorithm.get("adv_estimator"))
    if estimator not in _KNOWING_ROWS and not estimator.startswith("rlenv_"):
        message = f"algorithm.adv_estimator={estimator} counts each as an episode of its own"
        raise _of_rows(message, f"use {_COUNTING.get(estimator, 'rlenv_grpo')}")
    if estimator in _KNOWING_ROWS and float(algorithm.get("gamma", 1.0)) != 1.0:
        instead = ", or adv_estimator=rlenv_reinforce_plus_plus" if estimator == "reinforce_plus_plus" else ""
        message = f"algorithm.gamma={algorithm['gamma']} would discount within a row alone with veRL's {estimator}"
        raise _of_rows(message, f"set algorithm.gamma=1.0{instead}")
    if estimator in _KNOWING_ROWS and algorithm.get("use_kl_in_reward"):
        late = "the penalty of algorithm.use_kl_in_reward on a later row would be in no return of an earlier one"
        raise _of_rows(f"with veRL's {estimator} {late}", "use actor_rollout_ref.actor.use_kl_loss=true instead")
    sections = [("actor_rollout_ref.actor", actor)]
    if estimator == "gae":
        sections.append(("critic", config["critic"]))
    for name, section in sections:
        mode = str(section.get("loss_agg_mode", "token-mean"))
        if mode.startswith("seq-"):
            more = "averages over rows, so an episode would count more the more it has"
            raise _of_rows(f"{name}.loss_agg_mode={mode} {more}", "use token-mean or token-sum")
        if not section.get("use_dynamic_bsz"):
            differs = (
                "their number differs from batch to batch, which micro-batches of a fixed number of rows do not divide"
            )
            raise _of_rows(differs, f"set {name}.use_dynamic_bsz=true")
    loss = actor.get("policy_loss", {}).get("loss_mode", "vanilla")
    if loss in ("gspo", "sapo", "geo_mean"):
        name = f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"
        raise _of_rows(f"{name} averages over rows whatever loss_agg_mode says", "use vanilla")
    if (config.get("distillation") or {}).get("enabled"):
        raise _of_rows(
            "veRL asks a teacher about the last of them alone", "set distillation.enabled=false, or take keep"
        )
    sampler = config["trainer"].get("v1", {}).get("sampler", {}).get("custom_sampler") or {}
    if not _labels_rows(str(sampler.get("path") or ""), str(sampler.get("name") or "")):
        own = "leave trainer.v1.sampler.custom_sampler as the presets have it, or name a class that inherits from it"
        raise _of_rows("which rows are one is told by rlenv's sampler", own)


def _of_rows(message: str, hint: str) -> UsageError:
    return UsageError(f"run.history=rows makes several training rows of an episode, and {message}", hint=hint)


def _labels_rows(path: str, name: str) -> bool:
    """Whether a custom sampler is rlenv's, or inherits from it."""
    if path.endswith("rlenv_verl.loop.replay_buffer"):
        return True
    if not path or not name:
        return False
    from verl.utils.import_utils import load_extern_type

    from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer, RlenvReplayBufferAsync

    found = load_extern_type(path, name)
    return isinstance(found, type) and issubclass(found, (RlenvReplayBuffer, RlenvReplayBufferAsync))


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
            f"veRL's {estimator} counts the placeholder reward of failed episodes in the baseline of their siblings",
            key="algorithm.adv_estimator",
            hint=f"use {_COUNTING[estimator]}",
        )
    loss = actor.get("policy_loss", {}).get("loss_mode", "vanilla")
    if loss == "geo_mean":
        raise UsageError(
            "geo_mean averages over all samples of a micro-batch, "
            "masked ones included, so failed episodes would shrink the others' gradient",
            key="actor_rollout_ref.actor.policy_loss.loss_mode",
            hint="use gspo or vanilla",
        )
    if actor.get("loss_agg_mode") == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        raise UsageError(
            "seq-mean-token-sum-norm divides by the longest response of the micro-batch, masked ones included",
            key="actor_rollout_ref.actor.loss_agg_mode",
            hint="set actor_rollout_ref.actor.loss_scale_factor to a constant, such as "
            f"data.max_response_length ({config['data']['max_response_length']})",
        )
    if algorithm.get("use_kl_in_reward") and algorithm.get("kl_ctrl", {}).get("type") == "adaptive":
        raise UsageError(
            "adaptive follows a mean KL in which masked samples count as 0, so failed "
            "episodes would weaken the penalty",
            key="algorithm.kl_ctrl.type",
            hint="use fixed",
        )
