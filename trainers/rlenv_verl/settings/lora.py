"""`--lora RANK`: the settings of veRL that train an adapter instead of all weights."""

from __future__ import annotations

from typing import Any

from rlenv.errors import UsageError
from rlenv_verl.settings.preset import Preset, override

__all__ = ["lora_keys", "lora_overrides"]


def lora_keys(rank: int | None, *, model: str) -> dict[str, Any]:
    """The keys of LoRA with that rank on all linear layers; none where `rank` is None.

    The factor alpha / rank is 2 at every rank, so that the rank can be changed without another learning rate.

    Args:
        model: the dotted path of the model's section in veRL's configuration.

    Raises:
        UsageError: the rank is below 1.
    """
    if rank is None:
        return {}
    if rank < 1:
        raise UsageError(f"--lora {rank}: a rank is at least 1, such as --lora 32")
    return {f"{model}.lora_rank": rank, f"{model}.lora_alpha": 2 * rank, f"{model}.target_modules": "all-linear"}


def lora_overrides(preset: Preset, rank: int | None) -> list[str]:
    """The Hydra overrides of LoRA with that rank on all linear layers; none where `rank` is None.

    Raises:
        UsageError: the rank is below 1.
    """
    if rank is None:
        return []
    saved = preset.verl["actor_rollout_ref"]["actor"].get("checkpoint", {}).get("save_contents", ["model"])
    keys = {
        **lora_keys(rank, model="actor_rollout_ref.model"),
        # Not `hf_model`: veRL 0.9.1 writes base and adapter there under peft's names, which transformers does not
        # know; it would draw all weights at random. The shards are merged by `rlenv runs export-policy` instead.
        "actor_rollout_ref.actor.checkpoint.save_contents": [part for part in saved if part != "hf_model"],
    }
    return [override(key, value) for key, value in keys.items()]
