"""What a pass of the trainer takes beside weights: activations, logits, and weights that are gathered for it.

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

from dataclasses import dataclass
from typing import Final

__all__ = ["Decoder", "Pass", "Passes", "layer_bytes", "passes_of"]

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
    """How the trainer passes tokens through the model.

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
    """What one layer keeps of one token for its gradient."""
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
