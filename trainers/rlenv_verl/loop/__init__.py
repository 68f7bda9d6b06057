"""The agent loop that veRL runs for each sample, one episode of rlenv each, and its replay buffer.

Here: an endpoint of a spec that veRL's own generative reward model serves. With `reward.reward_model.enable` veRL
starts a model beside the policy, on devices of their own, and hands the address of its OpenAI-compatible router to the
workers of its reward loop. An episode's judge asks there like any other server: while its siblings still generate, with
the spec's own limits, retries and rules for what could not be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlenv.errors import UsageError

_WORKER = "reward_loop_worker_0"
"""The name of veRL's first reward loop worker among Ray's actors (experimental/reward_loop/reward_loop.py)."""

_TIMEOUT_S = 60.0


def check_reward_model(config: Mapping[str, Any]) -> None:
    """Raises unless the reward model of veRL's configuration can answer while episodes are played.

    Raises:
        UsageError: it is off, or it sleeps during the rollout.
    """
    model = config["reward"]["reward_model"]
    wanted = {
        "enable": (True, "nothing would answer"),
        # A colocated model is woken only after the rollout, and then veRL 0.9.1 hands it nothing but token ids
        # (PPOTrainer._compute_reward_colocate).
        "enable_resource_pool": (True, "a reward model on the policy's own devices sleeps while episodes are played"),
        # RewardModelManager puts such a model to sleep when it has started; only a colocated one is ever woken.
        "rollout.free_cache_engine": (False, "veRL puts the model to sleep at the start and does not wake it"),
    }
    for key, (expected, why) in wanted.items():
        found: Any = model
        for part in key.split("."):
            found = found[part]
        if bool(found) is not expected:
            raise UsageError(
                f"reward.reward_model.{key} is {str(found).lower()}, so {why}",
                key="run.reward_model",
                hint=f"add reward.reward_model.{key}={str(expected).lower()}",
            )
    if not model["model_path"]:
        raise UsageError("reward.reward_model.model_path names no model", key="run.reward_model")


def served_by_reward_model(config: Mapping[str, Any], *, endpoint: str, ask: Callable[[], str]) -> dict[str, Any]:
    """The settings by dotted path that make a spec's endpoint the reward model of this run.

    Args:
        ask: gives the address of veRL's router, as `ask_for_router`.

    Raises:
        UsageError: the configuration cannot serve it, or whatever `ask` raises.
    """
    check_reward_model(config)
    return {
        f"endpoints.{endpoint}.base_url": f"http://{ask()}/v1",
        # The name under which veRL's servers know it.
        f"endpoints.{endpoint}.model": str(config["reward"]["reward_model"]["model_path"]),
    }


def ask_for_router() -> str:
    """The address of the router, by veRL's reward loop; it holds up the event loop for that moment.

    Raises:
        UsageError: no reward loop runs in this Ray job, or it has no reward model.
    """
    import ray

    problem = f"run.reward_model: no actor '{_WORKER}' runs in this Ray job; veRL starts it for a training run"
    if not ray.is_initialized():  # asking would start a cluster
        raise UsageError(problem)
    try:
        worker: Any = ray.get_actor(_WORKER)
    except ValueError as error:
        raise UsageError(problem) from error
    address = ray.get(worker.__ray_call__.remote(_address), timeout=_TIMEOUT_S)
    if not address:
        raise UsageError(f"veRL's '{_WORKER}' has no address of a reward model", key="run.reward_model")
    return str(address)


def _address(worker: Any) -> str | None:
    # The public way leads through a custom reward function, which is called with this value; but it is called for one
    # sample at a time and only where an agent loop left the reward open.
    address: str | None = worker.reward_router_address
    return address
