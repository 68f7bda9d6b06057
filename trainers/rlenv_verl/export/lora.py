"""LoRA: telling adapter tensors from base weights, and adding the one to the other.

A linear layer with an adapter computes `W x + s B A x` (Hu et al. 2021, arXiv:2106.09685, equation 3), so its merged
weight is `W + s B A`. The names are those of peft: `base_model.model.` before every name, `.base_layer` in the names
of wrapped layers, `.lora_A` and `.lora_B` (with `.default` where an adapter's name is kept) for A and B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlenv.errors import UsageError

__all__ = ["LoraShape", "base_name", "is_adapter_name", "merge", "split"]

_A, _B = ".lora_A.weight", ".lora_B.weight"
_PLAIN_ONLY = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication")


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What of an adapter's configuration its merged weights depend on. `scaling` is the factor s."""

    rank: int
    alpha: float
    scaling: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LoraShape:
        """The shape that a configuration of peft describes.

        Raises:
            UsageError: a variant of LoRA whose weights are not `W + s B A` alike in every layer.
        """
        unknown = [key for key in _PLAIN_ONLY if config.get(key)]
        if config.get("bias", "none") != "none":
            unknown.append("bias")
        if unknown:
            raise UsageError(
                f"this LoRA adapter uses {', '.join(unknown)}, which cannot be merged here; expected plain LoRA",
                hint="keep the adapter and merge it with peft's merge_and_unload",
            )
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        return cls(rank, alpha, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def is_adapter_name(name: str) -> bool:
    """Whether a tensor of that name belongs to an adapter."""
    return "lora_" in name or ".adapter_" in name


def base_name(name: str) -> str:
    """The name that a tensor has in the model without adapters."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def split(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The base weights under the model's own names, and the adapter's tensors as peft writes them to a file."""
    base = {base_name(name): tensor for name, tensor in state.items() if not is_adapter_name(name)}
    adapter = {name.replace(".default.", "."): tensor for name, tensor in state.items() if is_adapter_name(name)}
    return base, adapter


def merge(
    base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor], *, scaling: float
) -> dict[str, torch.Tensor]:
    """The weights of the model that base and adapter make together.

    Products and sums are taken in float32 and rounded to the base weight's dtype once. Tensors without an adapter are
    the base's own, not copies.

    Args:
        base: weights under the model's own names.
        adapter: tensors under peft's names, an A and a B for each layer.
        scaling: the factor s.

    Raises:
        UsageError: a tensor that is no A or B of a linear layer, one without its partner, or a layer that the base
            does not have.
    """
    merged = dict(base)
    for name, down in adapter.items():
        if name.endswith(_B):
            if name.removesuffix(_B) + _A not in adapter:
                raise UsageError(f"the adapter has {name} and no {_A} beside it")
            continue
        layer = name.removesuffix(_A)
        up = adapter.get(layer + _B)
        target = base_name(layer) + ".weight"
        if layer == name or up is None or down.ndim != 2:
            raise UsageError(
                f"the adapter's tensor {name} is no pair of matrices of a linear layer; expected plain LoRA"
            )
        if target not in base:
            raise UsageError(f"the adapter has tensors for {target}, which the base model does not have")
        weight = base[target]
        merged[target] = (weight.float() + scaling * (up.float() @ down.float())).to(weight.dtype)
    return merged
