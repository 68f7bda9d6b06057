"""`rlenv train --lora RANK`: the settings of veRL that train an adapter instead of all weights."""

from __future__ import annotations

from rlenv.errors import UsageError
from rlenv_verl.preset import Preset, override

__all__ = ["lora_overrides"]


def lora_overrides(preset: Preset, rank: int | None) -> list[str]:
    """The Hydra overrides of LoRA with that rank on all linear layers; none where `rank` is None.

    The factor alpha / rank is 2 at every rank, so that the rank can be changed without another learning rate.

    Raises:
        UsageError: the rank is below 1.
    """
    if rank is None:
        return []
    if rank < 1:
        raise UsageError(f"--lora {rank}: a rank is at least 1, such as --lora 32")
    saved = preset.verl["actor_rollout_ref"]["actor"].get("checkpoint", {}).get("save_contents", ["model"])
    keys = {
        "actor_rollout_ref.model.lora_rank": rank,
        "actor_rollout_ref.model.lora_alpha": 2 * rank,
        "actor_rollout_ref.model.target_modules": "all-linear",
        # Not `hf_model`: veRL 0.9.1 writes base and adapter there under peft's names, which transformers does not
        # know; it would draw all weights at random. The shards are merged by `rlenv export-policy` instead.
        "actor_rollout_ref.actor.checkpoint.save_contents": [part for part in saved if part != "hf_model"],
    }
    return [override(key, value) for key, value in keys.items()]
