"""What an agent loop reads of veRL's configuration.

veRL builds a loop object for each sample, and reading one key through OmegaConf takes as long as parsing an action, a
mapping as long as the rest of a turn. So it is read once for each configuration of a process (`ProcessState`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

__all__ = ["LoopSettings", "plain", "read_settings"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What is read of the configuration.

    `prompt_length` (of the first prompt), `response_length` and `context_length` (of prompt and response of any
    training row) are tokens; `model` is the policy's folder or name ("" where there is none); `processor_kwargs` go to
    the model's image processor; `workers` is how many processes play episodes.
    """

    prompt_length: int
    response_length: int
    context_length: int
    model: str
    with_logprobs: bool
    template_kwargs: Mapping[str, Any]
    processor_kwargs: Mapping[str, Any]
    workers: int = 1


def read_settings(config: Any, data_config: Any) -> LoopSettings:
    """The settings in a trainer's configuration and that of its data."""
    rollout = config.actor_rollout_ref.rollout
    prompt, response = int(rollout.prompt_length), int(rollout.response_length)
    most = rollout.get("max_model_len")
    return LoopSettings(
        prompt_length=prompt,
        response_length=response,
        context_length=prompt + response if most is None else min(prompt + response, int(most)),
        model=str((config.actor_rollout_ref.get("model") or {}).get("path") or ""),
        with_logprobs=bool(rollout.calculate_log_probs),
        template_kwargs=plain(data_config.get("apply_chat_template_kwargs")),
        processor_kwargs=plain(data_config.get("mm_processor_kwargs")),
        workers=int((rollout.get("agent") or {}).get("num_workers") or 1),
    )


def plain(value: Any) -> dict[str, Any]:
    """A mapping without OmegaConf's containers, into which Hydra wraps an agent loop's arguments."""
    if type(value) is dict:
        return dict(value)
    made: Any = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return dict(made or {})
