"""What a model takes of a GPU's memory while it is trained and while it samples: a rough sum, from its files alone.

Parameters are counted in the headers of `model*.safetensors`, or where a folder has none, from `config.json` as the
decoders of the Llama family are built (transformers' `modeling_llama`, `modeling_qwen3`, `modeling_qwen3_moe`).

Training with Adam keeps weights, gradients and two moments, each of the size of the weights (Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, section 3.1, without mixed precision): 4 × bytes × parameters, divided by the GPUs that
share them. A token in the cache takes 2 × layers × key-value heads × head size × bytes (Kwon et al. 2023,
"PagedAttention", arXiv:2309.06180, section 3). Activations, the logits of a micro-batch and fragmentation are not
counted, so that what does not fit here does not fit at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Machine", "Memory", "Model", "memory_of", "model_of"]

_ROLLOUT_BYTES: Final = 2  # samplers hold weights and cache in bfloat16
_HEADER_MOST: Final = 100_000_000  # safetensors refuses a longer header


@dataclass(frozen=True, slots=True)
class Model:
    """A model's sizes. None where its files do not tell; `source` says what the parameters were counted from."""

    parameters: int | None
    source: str
    positions: int | None
    cache_values: int | None
    """Numbers that the cache holds for each token."""
    widths: tuple[tuple[int, int, int], ...] = ()
    """Inputs and outputs of each kind of linear layer, and how many there are: what LoRA adapts."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run has and how it uses it.

    `device_bytes` is the memory of one GPU, None where it is not known. `devices` share the training; `tensor_parallel`
    of them share one sampler, which takes `sampler_share` of each device while it samples. `weight_bytes` is the size
    of a trained parameter. `copies` are further models that are trained (a critic), `references` such that are only
    kept. `offloads_weights` and `offloads_moments`: these leave the device while samples are drawn.
    """

    device_bytes: int | None
    devices: int = 1
    tensor_parallel: int = 1
    sampler_share: float = 0.0
    weight_bytes: int = 4
    copies: int = 0
    references: int = 0
    offloads_weights: bool = False
    offloads_moments: bool = False
    lora_rank: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. `training` while it updates, `kept` of it while it samples, `sampler` for weights there.

    `cache_token` is what one token of one sequence takes in the cache of a device; None where it is not known.
    """

    training: int
    kept: int
    sampler: int
    cache_token: int | None


def model_of(folder: Path) -> Model | None:
    """The sizes of the model in a folder; None where there is no config.json."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, Mapping):
        return None
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    counted = _in_files(folder)
    source = "the weights' headers"
    if counted is None:
        counted, source = _by_config(text), "config.json"
        if counted is not None and text is not config:
            source = "config.json, the text model alone"
    layers, heads, size = _number(text, "num_hidden_layers"), _kv_heads(text), _head_size(text)
    # A latent cache (DeepSeek's kv_lora_rank) or layers without one are not of this form.
    is_plain = "kv_lora_rank" not in text and "linear_num_value_heads" not in text and "mamba_num_heads" not in text
    cache = 2 * layers * heads * size if layers and heads and size and is_plain else None
    return Model(counted, source, _number(text, "max_position_embeddings"), cache, tuple(_linear(text) or ()))


def memory_of(model: Model, machine: Machine) -> Memory | None:
    """The sum for a model on a machine; None where the parameters are not known."""
    if model.parameters is None:
        return None
    weights = model.parameters * machine.weight_bytes
    trained = model.parameters
    if machine.lora_rank:
        trained = sum(machine.lora_rank * (ins + outs) * count for ins, outs, count in model.widths)
        weights += trained * machine.weight_bytes
    grown = trained * machine.weight_bytes  # gradients, and each of the two moments
    models = 1 + machine.copies
    devices = max(machine.devices, 1)
    references = 0 if machine.lora_rank else machine.references  # an adapter that is off is the reference
    training = models * (weights + 3 * grown) + references * weights
    kept = models * ((0 if machine.offloads_weights else weights) + (0 if machine.offloads_moments else 2 * grown))
    tensor = max(machine.tensor_parallel, 1)
    cache = None
    if model.cache_values is not None:
        cache = math.ceil(model.cache_values * _ROLLOUT_BYTES / tensor)
    return Memory(
        math.ceil(training / devices),
        math.ceil(kept / devices),
        math.ceil(model.parameters * _ROLLOUT_BYTES / tensor),
        cache,
    )


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    return _number(config, "num_key_value_heads", "num_attention_heads")


def _head_size(config: Mapping[str, Any]) -> int | None:
    size = _number(config, "head_dim")
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    return size or (width // heads if width and heads else None)


def _linear(config: Mapping[str, Any]) -> list[tuple[int, int, int]] | None:
    """The linear layers of a decoder of the Llama family without its embeddings; None for another family."""
    width, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    heads, kv_heads, size = _number(config, "num_attention_heads"), _kv_heads(config), _head_size(config)
    inner = _number(config, "intermediate_size")
    other = ("kv_lora_rank", "linear_num_value_heads", "mamba_num_heads", "ssm_cfg", "layers_block_type")
    if not (width and layers and heads and kv_heads and size and inner) or any(name in config for name in other):
        return None
    experts = _number(config, "num_experts", "num_local_experts", "n_routed_experts")
    found = [(width, heads * size, layers), (width, kv_heads * size, 2 * layers), (heads * size, width, layers)]
    if experts is None:
        return [*found, (width, inner, 3 * layers)]
    mixed = ("n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace", "mlp_only_layers")
    if any(config.get(name) for name in mixed) or config.get("decoder_sparse_step") not in (None, 1):
        return None  # layers that differ, or experts that every token takes
    expert = (width, _number(config, "moe_intermediate_size") or inner, 3 * layers * experts)
    return [*found, expert, (width, experts, layers)]


def _by_config(config: Mapping[str, Any]) -> int | None:
    linear, words = _linear(config), _number(config, "vocab_size")
    if linear is None or words is None:
        return None
    width, layers = _number(config, "hidden_size") or 0, _number(config, "num_hidden_layers") or 0
    tables = 2 if config.get("tie_word_embeddings") is False else 1  # what is not said is counted once
    norms = (2 * layers + 1) * width
    return tables * words * width + sum(ins * outs * count for ins, outs, count in linear) + norms


def _in_files(folder: Path) -> int | None:
    """The numbers that the safetensors files of a folder hold; None where there are none, or one cannot be read."""
    files = sorted(folder.glob("model*.safetensors"))
    total = 0
    for file in files:
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if not 0 < length <= _HEADER_MOST:
                    return None
                header = json.loads(opened.read(length))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
    return total if files else None
