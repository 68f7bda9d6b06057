"""A rough sum of the GPU memory that a model takes while it is trained and while it samples, from its files alone.

Parameters are counted in the headers of `model*.safetensors`, or where a folder has none, from `config.json` as the
decoders of the Llama family are built (transformers' `modeling_llama`, `modeling_qwen3`, `modeling_qwen3_moe`).

Training with Adam keeps weights, gradients and two moments, each of the size of the weights (Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, section 3.1, without mixed precision): 4 × bytes × parameters, divided by the GPUs that
share them. A token in the cache takes 2 × layers × key-value heads × head size × bytes (Kwon et al. 2023,
"PagedAttention", arXiv:2309.06180, section 3). Fragmentation is not counted; `CONTEXT_BYTES` stands for what CUDA, NCCL
and the libraries take of a device before anything of the model is on it.

What a pass of the trainer takes beside weights: activations, logits, and weights that are gathered for it.

One decoder layer of the Llama family keeps for its gradient, a token, in bfloat16 (transformers' `modeling_qwen3`,
with flash attention, which keeps queries, keys, values and its output; Dao et al. 2022, arXiv:2205.14135):

    two norms, whose input is kept in float32 beside its rounded values and the result     2 x 8 x width
    queries, keys, values, the attention's output                                         2 x 2 x (heads + kv) x size
    the gated network: gate, up, the activated gate, their product                        8 x inner width
    norms of queries and keys, where a family has them (Qwen3)                            6 x (heads + kv) x size

In float32, as on a CPU, what is 2 bytes there is 4.

With gradient checkpointing (Chen et al. 2016, arXiv:1604.06174) only a layer's input is kept, 2 x width a token, and
one layer at a time is computed again. A test compares both with what autograd keeps of transformers' own layers.

Logits are tokens x vocabulary: 2 bytes each, as much again for their gradient, as much for each of both where the
temperature is not 1 (`_scale_logits_by_temperature` in verl/workers/engine/fsdp/transformer_impl.py divides a copy),
and for the gradient of an entropy bonus. veRL computes the entropy of old log-probabilities too
(`calculate_entropy` in verl/trainer/ppo/v1/trainer_base.py): compiled that takes no memory of its own, otherwise
softmax, logarithms and their product in float32. flash-attn's cross entropy is taken for granted: without it veRL goes
through the tokens one by one.

FSDP2 gathers the embeddings and the output layer in bfloat16 for the whole pass and one layer beside the next
(Zhao et al. 2023, arXiv:2304.11277, section 4); gradients are reduced in float32, those of the tables at the end of
the backward pass, when logits and layers are gone. So an update's peak is the largest of three moments, not their sum.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlenv.models.architecture import number_in

_FULL: Final = 4  # bytes of float32


@dataclass(frozen=True, slots=True)
class Decoder:
    """The sizes of a decoder of the Llama family. `inner` is what one token passes through: its experts, of several."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tables: int
    """1 where the output layer is the embeddings, else 2."""
    layer_weights: int
    """Parameters of one layer."""
    has_head_norms: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """The passes of tokens through the model by the trainer.

    `update_tokens` and `forward_tokens` are what one device takes at once; the latter for log-probabilities. None
    where a run does not bound them.
    """

    update_tokens: int | None = None
    forward_tokens: int | None = None
    keeps_inputs_only: bool = True
    """Gradient checkpointing."""
    temperature: float = 1.0
    has_entropy_loss: bool = False
    is_compiled: bool = True
    """The entropy is compiled (`use_torch_compile`), and keeps no copies of the logits."""
    has_entropy_chunks: bool = False
    value_bytes: int = 2
    """Of what is computed: 2 for bfloat16, 4 for float32."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Bytes of one device, beside what it always holds. `logits` are in both passes."""

    update: int
    update_logits: int
    forward: int
    forward_logits: int
    gathered: int


def layer_bytes(decoder: Decoder, *, value_bytes: int = 2) -> int:
    """The bytes that one layer keeps of one token for its gradient."""
    attention = (decoder.heads + decoder.kv_heads) * decoder.head_size
    kept = 2 * (_FULL + 2 * value_bytes) * decoder.width + 2 * value_bytes * attention + 4 * value_bytes * decoder.inner
    return kept + ((_FULL + value_bytes) * attention if decoder.has_head_norms else 0)


def passes_of(decoder: Decoder, passing: Pass) -> Passes:
    """The bytes of an update and of a forward pass at their most tokens."""
    tokens, forward = passing.update_tokens or 0, passing.forward_tokens or 0
    size = passing.value_bytes
    layer, inputs = layer_bytes(decoder, value_bytes=size), size * decoder.width
    kept = tokens * decoder.layers * (inputs if passing.keeps_inputs_only else layer)
    again = tokens * layer if passing.keeps_inputs_only else 0
    update_logits = tokens * decoder.vocabulary * _update_bytes(passing)
    forward_logits = forward * decoder.vocabulary * _forward_bytes(passing)
    table = decoder.vocabulary * decoder.width
    gathered = size * (decoder.tables * table + 2 * decoder.layer_weights)
    # One after the other, each with the gradient of the output layer: the logits, a layer, and the tables' reduction.
    phases = (
        kept + update_logits + size * table,
        kept + again + size * table + (size + _FULL) * decoder.layer_weights,
        (size + _FULL) * decoder.tables * table,
    )
    return Passes(
        gathered + max(phases),
        update_logits,
        # Of a layer's own tensors only a few live at once; its widest and its inputs bound them.
        forward * (layer // 2) + forward_logits + gathered,
        forward_logits,
        gathered,
    )


def _update_bytes(passing: Pass) -> int:
    """Bytes of an update for each token and each word of the vocabulary."""
    copies = 2 if passing.temperature == 1.0 else 4
    total = passing.value_bytes * copies
    if passing.has_entropy_loss:
        total += passing.value_bytes if passing.is_compiled else 4 * _FULL
    return total


def _forward_bytes(passing: Pass) -> int:
    """Bytes of a pass for log-probabilities, for each token and each word."""
    total = passing.value_bytes * (1 if passing.temperature == 1.0 else 2)
    if not passing.is_compiled and not passing.has_entropy_chunks:
        total += 3 * _FULL
    return total


CONTEXT_BYTES: Final = 1_500_000_000
"""An assumption, and a common figure of one process on a device of 80 GB with CUDA's context and NCCL's buffers."""

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
    decoder: Decoder | None = None
    """What activations depend on; None for a family that is not known here."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run, and its use of them.

    `device_bytes` is the memory of one GPU, None where it is not known. `devices` share the training; `tensor_parallel`
    of them share one sampler, which takes `sampler_share` of each device while it samples. `weight_bytes` is the size
    of a trained parameter. `copies` are further models that are trained (a critic), `references` such that are only
    kept. `offloads_weights` and `offloads_moments`: these leave the device while samples are drawn. `passing` is how
    the trainer passes tokens through the model, None where activations are not to be counted; `longest` is the longest
    sequence of a run, prompt and response, 0 where it is not known. `is_assumed`: nobody has looked at the device.
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
    passing: Pass | None = None
    longest: int = 0
    is_assumed: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. `training` while it updates, `kept` of it while it samples, `sampler` for weights there.

    `training` is weights, gradients and moments alone; `update` and `forward` are the most that the device holds while
    it updates and while it computes log-probabilities, None where activations are not known. `host` is what offloading
    puts into the machine's own memory, of one device. `cache_token` is what one token of one sequence takes in the
    cache of a device; None where it is not known.
    """

    training: int
    kept: int
    sampler: int
    cache_token: int | None
    update: int | None = None
    forward: int | None = None
    host: int = 0
    passes: Passes | None = None


def model_of(folder: Path) -> Model | None:
    """The sizes of the model in a folder; None where there is no config.json."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, Mapping):
        return None
    return model_of_config(config, counted=_numbers_in_files(folder))


def known_model(name: str) -> Model | None:
    """The sizes of a model by its name on the hub, where they are known here (`KNOWN`)."""
    config = known_config(name)
    if config is None:
        return None
    return replace(model_of_config(config), source="the facts that rlenv keeps of it")


def model_of_config(config: Mapping[str, Any], *, counted: int | None = None) -> Model:
    """The sizes by a `config.json`; `counted` are its parameters where its weights tell them."""
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    source = "the weights' headers"
    if counted is None:
        counted, source = _by_config(text), "config.json"
        if counted is not None and text is not config:
            source = "config.json, the text model alone"
    layers, heads, size = number_in(text, "num_hidden_layers"), _kv_heads(text), _head_size(text)
    # A latent cache (DeepSeek's kv_lora_rank) or layers without one are not of this form.
    is_plain = "kv_lora_rank" not in text and "linear_num_value_heads" not in text and "mamba_num_heads" not in text
    cache = 2 * layers * heads * size if layers and heads and size and is_plain else None
    positions = number_in(text, "max_position_embeddings")
    return Model(counted, source, positions, cache, tuple(_linear_layers(text) or ()), _decoder(text))


def memory_of(model: Model, machine: Devices) -> Memory | None:
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
    passes = update = forward = None
    if model.decoder is not None and machine.passing is not None:
        passes = passes_of(model.decoder, machine.passing)
        update = CONTEXT_BYTES + math.ceil(training / devices) + passes.update
        # Gradients are gone by then, and moments too where they are offloaded.
        held = training - models * grown - (models * 2 * grown if machine.offloads_moments else 0)
        forward = CONTEXT_BYTES + math.ceil(held / devices) + passes.forward
    offloaded = models * ((weights if machine.offloads_weights else 0) + (2 * grown if machine.offloads_moments else 0))
    return Memory(
        math.ceil(training / devices),
        math.ceil(kept / devices),
        math.ceil(model.parameters * _ROLLOUT_BYTES / tensor),
        cache,
        update,
        forward,
        math.ceil(offloaded / devices),
        passes,
    )


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    return number_in(config, "num_key_value_heads", "num_attention_heads")


def _head_size(config: Mapping[str, Any]) -> int | None:
    size = number_in(config, "head_dim")
    width, heads = number_in(config, "hidden_size"), number_in(config, "num_attention_heads")
    return size or (width // heads if width and heads else None)


def _linear_layers(config: Mapping[str, Any]) -> list[tuple[int, int, int]] | None:
    """The linear layers of a decoder of the Llama family without its embeddings; None for another family."""
    width, layers = number_in(config, "hidden_size"), number_in(config, "num_hidden_layers")
    heads, kv_heads, size = number_in(config, "num_attention_heads"), _kv_heads(config), _head_size(config)
    inner = number_in(config, "intermediate_size")
    other = ("kv_lora_rank", "linear_num_value_heads", "mamba_num_heads", "ssm_cfg", "layers_block_type")
    if not (width and layers and heads and kv_heads and size and inner) or any(name in config for name in other):
        return None
    experts = number_in(config, "num_experts", "num_local_experts", "n_routed_experts")
    found = [(width, heads * size, layers), (width, kv_heads * size, 2 * layers), (heads * size, width, layers)]
    if experts is None:
        return [*found, (width, inner, 3 * layers)]
    mixed = ("n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace", "mlp_only_layers")
    if any(config.get(name) for name in mixed) or config.get("decoder_sparse_step") not in (None, 1):
        return None  # layers that differ, or experts that every token takes
    expert = (width, number_in(config, "moe_intermediate_size") or inner, 3 * layers * experts)
    return [*found, expert, (width, experts, layers)]


def _by_config(config: Mapping[str, Any]) -> int | None:
    linear, words = _linear_layers(config), number_in(config, "vocab_size")
    if linear is None or words is None:
        return None
    width, layers = number_in(config, "hidden_size") or 0, number_in(config, "num_hidden_layers") or 0
    tables = 2 if config.get("tie_word_embeddings") is False else 1  # what is not said is counted once
    others = (2 * layers + 1) * width + layers * _extra_parameters(config)
    return tables * words * width + sum(ins * outs * count for ins, outs, count in linear) + others


def _extra_parameters(config: Mapping[str, Any]) -> int:
    """The parameters of a layer beside its matrices and norms: norms of queries and keys, and biases of Qwen2."""
    heads, kv_heads, size = number_in(config, "num_attention_heads"), _kv_heads(config), _head_size(config)
    if heads is None or kv_heads is None or size is None:
        return 0
    if _has_head_norms(config):
        return 2 * size
    return (heads + 2 * kv_heads) * size if config.get("model_type") in ("qwen2", "qwen2_moe") else 0


def _has_head_norms(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in ("qwen3", "qwen3_moe")


def _decoder(config: Mapping[str, Any]) -> Decoder | None:
    linear, words = _linear_layers(config), number_in(config, "vocab_size")
    layers, width, inner = (number_in(config, name) for name in _SHAPE)
    heads, kv_heads, size = number_in(config, "num_attention_heads"), _kv_heads(config), _head_size(config)
    if not (linear and words and layers and width and inner and heads and kv_heads and size):
        return None
    if (experts := number_in(config, "num_experts_per_tok")) is not None:
        inner = experts * (number_in(config, "moe_intermediate_size") or inner)
    return Decoder(
        layers,
        width,
        inner,
        heads,
        kv_heads,
        size,
        words,
        tables=2 if config.get("tie_word_embeddings") is False else 1,
        layer_weights=sum(ins * outs * count for ins, outs, count in linear) // layers,
        has_head_norms=_has_head_norms(config),
    )


_SHAPE: Final = ("num_hidden_layers", "hidden_size", "intermediate_size")


def _numbers_in_files(folder: Path) -> int | None:
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


_MODELS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {
    name: dict(zip(_MODELS["keys"], row, strict=True)) for name, row in _MODELS["models"].items()
}
"""By the model's name on the hub, the keys of its `config.json` that memory depends on."""

_VARIANT: Final = re.compile(r"-(base|instruct|it|chat|instruct-2507|thinking-2507|bf16)$")


def known_config(name: str) -> Mapping[str, Any] | None:
    """The facts of the model of that name, or of a variant of it (`-Base`, `-Instruct`); None where it is not here."""
    wanted = _VARIANT.sub("", name.rsplit("/", 1)[-1].lower())
    return next((facts for known, facts in KNOWN.items() if known.rsplit("/", 1)[-1].lower() == wanted), None)
