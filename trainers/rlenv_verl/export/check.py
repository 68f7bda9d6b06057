"""Proof that an exported folder is the policy of its checkpoint: both compute the same logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlenv.errors import UsageError
from rlenv_verl.export.checkpoints import Checkpoint
from rlenv_verl.export.export import Exported
from rlenv_verl.export.lora import split
from rlenv_verl.export.weights import build_model, load_model, lora_config, plain_weights, quiet

__all__ = ["Agreement", "agreement"]

# How far rounding the weights may move a logit, in units of the logits' standard deviation. Weights of another step
# or without their adapter are apart by tenths and more; these leave rounding in deep models some room.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1.5e-1}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the folder's logits differ from the checkpoint's, over `tokens` positions.

    `difference` is the largest absolute one, `spread` the standard deviation of the checkpoint's logits, `same_choice`
    the share of positions at which both prefer the same token, `tolerance` what `difference / spread` may be.
    """

    difference: float
    spread: float
    same_choice: float
    tokens: int
    tolerance: float
    same_tokenizer: bool

    @property
    def holds(self) -> bool:
        """Whether the folder is the checkpoint's policy, but for rounding."""
        return self.same_tokenizer and self.difference <= self.tolerance * self.spread


def agreement(exported: Exported, *, base: str, sequences: int = 2, length: int = 32) -> Agreement:
    """Load the folder as a user would and compare it with the checkpoint, both in float32 on the CPU.

    The checkpoint's side is computed from its shards, with peft's own arithmetic for an adapter: nothing of the
    export takes part in it. The ids are drawn at random with a fixed seed.

    Raises:
        UsageError: the folder cannot be loaded, or the checkpoint has no shards to compare with.
    """
    checkpoint = exported.checkpoint
    if not checkpoint.shards:
        raise UsageError(
            f"step {checkpoint.step} has no shards to compare with",
            hint="train with actor.checkpoint.save_contents that holds 'model'",
        )
    reference = _reference(checkpoint, base=base)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, reference.config.vocab_size, (sequences, length), generator=generator)
    with torch.no_grad():
        expected = reference(ids).logits
        del reference
        found = _exported(exported, base=base)(ids).logits
    return Agreement(
        difference=float((found - expected).abs().max()),
        spread=float(expected.std()),
        same_choice=float((found.argmax(-1) == expected.argmax(-1)).float().mean()),
        tokens=ids.numel(),
        tolerance=_TOLERANCE[exported.dtype],
        same_tokenizer=_same_tokenizer(exported, checkpoint),
    )


def _reference(checkpoint: Checkpoint, *, base: str) -> Any:
    """The checkpoint's model, an adapter beside the base weights and not in them."""
    if checkpoint.lora is None:
        return build_model(checkpoint, plain_weights(checkpoint, base=base)[0]).float()
    weights, adapter = split(checkpoint.state())
    model = build_model(checkpoint, weights) if weights else load_model(base)
    return _with_adapter(model.float(), adapter, rank=lora_config(checkpoint)["r"], checkpoint=checkpoint)


def _with_adapter(model: Any, adapter: dict[str, torch.Tensor], *, rank: int, checkpoint: Checkpoint) -> Any:
    layers = sorted({name.split(".lora_")[0].removeprefix("base_model.model.") for name in adapter})
    with quiet():
        import peft
        from peft.utils.save_and_load import set_peft_model_state_dict

        alpha = int(lora_config(checkpoint)["lora_alpha"])
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, task_type=peft.TaskType.CAUSAL_LM)
        wrapped: Any = peft.get_peft_model(model, config)
        report: Any = set_peft_model_state_dict(wrapped, {name: tensor.float() for name, tensor in adapter.items()})
    if report.unexpected_keys:
        raise UsageError(f"the adapter's tensors do not fit the model: {', '.join(report.unexpected_keys[:3])}")
    return wrapped.eval()


def _exported(exported: Exported, *, base: str) -> Any:
    if not exported.is_adapter:
        return load_model(exported.folder).float()
    with quiet():
        import peft

        model: Any = peft.PeftModel.from_pretrained(load_model(base, dtype=torch.float32), str(exported.folder))
    return model.float().eval()


def _same_tokenizer(exported: Exported, checkpoint: Checkpoint) -> bool:
    from transformers import AutoTokenizer

    sides: list[Any] = []
    with quiet():
        for folder in (exported.folder, checkpoint.huggingface):
            load: Any = AutoTokenizer.from_pretrained
            sides.append(load(folder))
    message = [{"role": "user", "content": "What is 47 * 83?\nünïcödé <answer>"}]
    rendered = [side.apply_chat_template(message, tokenize=False, add_generation_prompt=True) for side in sides]
    ids = [side(text)["input_ids"] for side, text in zip(sides, rendered, strict=True)]
    return bool(rendered[0] == rendered[1] and ids[0] == ids[1])
