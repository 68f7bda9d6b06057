"""Weights of a checkpoint, LoRA adapters and models of transformers; a proof that an export is its checkpoint.

A linear layer with an adapter computes `W x + s B A x` (Hu et al. 2021, arXiv:2106.09685, equation 3), so its merged
weight is `W + s B A`. The names are those of peft: `base_model.model.` before every name, `.base_layer` in the names
of wrapped layers, `.lora_A` and `.lora_B` (with `.default` where an adapter's name is kept) for A and B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlenv.errors import UsageError, told_as
from rlenv.models import quiet
from rlenv_verl.export import Checkpoint

_A, _B = ".lora_A.weight", ".lora_B.weight"
_PLAIN_ONLY = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication")


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The part of an adapter's configuration that its merged weights depend on. `scaling` is the factor s."""

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
    """True if a tensor of that name belongs to an adapter."""
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


def plain_weights(checkpoint: Checkpoint, *, base: str) -> tuple[dict[str, torch.Tensor], str]:
    """The model's weights under its own names, a LoRA adapter merged in, and what they were made from.

    Args:
        checkpoint: one with shards.
        base: the model that was trained; read where the checkpoint holds an adapter alone (`save_lora_only`).
    """
    state = checkpoint.state()
    source = f"shards of {len(checkpoint.shards)} rank{'s' if len(checkpoint.shards) > 1 else ''}"
    weights, adapter = split(state)
    if not adapter:
        return weights, source
    if all(is_adapter_name(name) for name in state):
        weights = dict(load_model(base).state_dict())
    config = lora_config(checkpoint)
    return merge(weights, adapter, scaling=config["lora_alpha"] / config["r"]), f"{source}, LoRA merged"


def lora_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`r` and `lora_alpha` of the checkpoint's adapter.

    Raises:
        UsageError: the checkpoint does not say, or it is not LoRA.
    """
    meta = checkpoint.lora or {}
    if not meta.get("r") or not meta.get("lora_alpha"):
        raise UsageError(f"{checkpoint.folder} has no lora_train_meta.json that says r and lora_alpha of an adapter")
    return meta


def load_model(folder: str | Path, *, dtype: torch.dtype | None = None) -> Any:
    """The model in a folder or on the hub, in eval mode, in the dtype of its tensors unless one is given.

    The configuration is not asked for the dtype: beside the weights that veRL saves it says bfloat16, whatever they
    are, and transformers would round them while loading.

    Raises:
        UsageError: there is no model that transformers can load, or its tensors are not the architecture's.
    """
    import transformers

    library: Any = transformers
    with told_as(UsageError, f"no model could be loaded from {folder}:", OSError, ValueError), quiet():
        config = library.AutoConfig.from_pretrained(folder)
        model, report = _class_of(config).from_pretrained(
            folder, dtype=dtype or _stored_dtype(Path(folder)) or "auto", output_loading_info=True
        )
    # transformers draws tensors that it does not find at random, with no more than a warning.
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise UsageError(f"{folder} lacks {len(report['missing_keys'])} tensors of {type(model).__name__}: {missing}")
    return model.eval()


def build_model(checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor]) -> Any:
    """The checkpoint's architecture with exactly these weights, in eval mode, in their dtype.

    Raises:
        UsageError: a tensor that the architecture does not have, or one that is missing and tied to no other.
    """
    import transformers

    library: Any = transformers
    with quiet():
        config = library.AutoConfig.from_pretrained(checkpoint.huggingface)
        dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
        # Not on the meta device: buffers that no checkpoint holds (rotary frequencies) have to be computed.
        model = _class_of(config)(config).to(dtype)
        found = model.load_state_dict(dict(weights), strict=False, assign=True)
        model.tie_weights()
    missing = sorted(set(found.missing_keys) - set(model.all_tied_weights_keys))
    if found.unexpected_keys or missing:
        raise UsageError(
            f"the weights of step {checkpoint.step} do not fit {type(model).__name__}: "
            f"missing {', '.join(missing[:3]) or 'none'}; unexpected {', '.join(found.unexpected_keys[:3]) or 'none'}"
        )
    return model.eval()


def _class_of(config: Any) -> Any:
    import transformers

    name = (config.architectures or ["?"])[0]
    found = getattr(transformers, name, None)
    if found is None:
        raise UsageError(
            f"the architecture {name} is not part of transformers {transformers.__version__}",
            hint="a model that brings code of its own is exported with veRL's merger "
            "(python -m verl.model_merger merge --trust-remote-code)",
        )
    return found


def _stored_dtype(folder: Path) -> torch.dtype | None:
    """The dtype of the first tensor in a folder of safetensors; None where it has none."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        opened: Any = safe_open(path, "pt")
        with opened as file:
            for name in list(file.keys()):
                stored: torch.dtype = file.get_tensor(name).dtype
                return stored
    return None
