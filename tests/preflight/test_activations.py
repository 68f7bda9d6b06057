"""Activations by formula, held against what autograd keeps of transformers' own layers; nothing is computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest

from rlenv.preflight.activations import Decoder, Pass, layer_bytes, passes_of
from rlenv.preflight.memory import KNOWN, known_config, known_model, model_of_config

pytest.importorskip("transformers", reason="the verl extra is not installed")

CONFIGS = {"qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "llama": "LlamaConfig"}


def on_meta(facts: Mapping[str, Any], dtype: Any, **changed: Any) -> Any:
    """transformers' own model of these facts, on a device that holds nothing."""
    import torch
    import transformers

    facts = {**facts, **changed}
    library: Any = transformers
    config = getattr(library, CONFIGS[facts["model_type"]])(**{k: v for k, v in facts.items() if k != "model_type"})
    with torch.device("meta"):
        return library.AutoModelForCausalLM.from_config(config, attn_implementation=as_flash_attention()).to(dtype)


def as_flash_attention() -> str:
    """An attention that keeps what flash attention keeps: queries, keys, values and its output."""
    import torch
    import transformers

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, query: Any, key: Any, value: Any) -> Any:
            out = torch.empty_like(query)
            context.save_for_backward(query, key, value, out)
            return out

    def attention(_layer: Any, query: Any, key: Any, value: Any, *_given: Any, **_more: Any) -> tuple[Any, None]:
        return Kept.apply(query, key, value).transpose(1, 2), None

    interface: Any = transformers.AttentionInterface
    interface.register("keeps_four", attention)
    return "keeps_four"


def kept_by(layer: Any, width: int, size: int, dtype: Any, *, tokens: int) -> int:
    """Bytes that autograd keeps of one layer's forward pass, weights left out."""
    import torch

    own = {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and tensor.numel() > tokens * size:  # not the angles that all layers share
            seen[storage._cdata] = storage  # kept alive: its address is not given to another
        return tensor

    with torch.device("meta"):
        hidden = torch.zeros((1, tokens, width), dtype=dtype, requires_grad=True)
        angles = torch.zeros((1, tokens, size), dtype=dtype)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer.train()(hidden, position_embeddings=(angles, angles), attention_mask=None)
    return sum(storage.nbytes() for storage in seen.values())


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.2-1B"])
@pytest.mark.parametrize("value_bytes", [2, 4])
def test_a_layer_keeps_what_the_formula_says(name: str, value_bytes: int) -> None:
    import torch

    dtype = torch.bfloat16 if value_bytes == 2 else torch.float32
    model = known_model(name)
    assert model is not None
    decoder = model.decoder
    assert decoder is not None
    layer = on_meta(KNOWN[name], dtype, num_hidden_layers=1, vocab_size=64).model.layers[0]
    kept = kept_by(layer, decoder.width, decoder.head_size, dtype, tokens=64)
    assert kept / 64 == pytest.approx(layer_bytes(decoder, value_bytes=value_bytes), rel=0.03)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_parameters_of_known_models_are_those_of_transformers(name: str) -> None:
    import torch

    model = known_model(name)
    assert model is not None
    counted = on_meta(KNOWN[name], torch.bfloat16)
    assert model.parameters == sum(parameter.numel() for parameter in counted.parameters())


def test_a_known_model_is_found_by_the_names_of_its_variants() -> None:
    plain = known_config("Qwen/Qwen2.5-7B")
    assert plain is not None
    assert known_config("Qwen/Qwen2.5-7B-Instruct") is plain
    assert known_config("somebody/qwen3-4b-instruct-2507") is KNOWN["Qwen/Qwen3-4B"]
    assert known_config("Qwen/Qwen2.5-72B") is None
    assert known_model("nobody/nothing") is None


# One layer of width 4: a gated network of 8, 2 heads of 2 over 1 head of keys, 100 words, tied.
SMALL = Decoder(1, 4, 8, 2, 1, 2, 100, 1, layer_weights=1000)


def test_bytes_by_hand() -> None:
    assert layer_bytes(SMALL) == 16 * 4 + 4 * 6 + 8 * 8 == 152
    gathered = 2 * (100 * 4 + 2 * 1000)
    # The backward pass of a layer is the peak: inputs of all layers, what this one keeps, gradients.
    found = passes_of(SMALL, Pass(update_tokens=10, forward_tokens=20))
    assert found.gathered == gathered
    assert found.update == gathered + 10 * 8 + 10 * 152 + 2 * 400 + 6 * 1000
    assert found.forward_logits == 20 * 100 * 2
    assert found.forward == 20 * 76 + 4000 + gathered
    # With more tokens it is the logits.
    found = passes_of(SMALL, Pass(update_tokens=1000))
    assert found.update_logits == 1000 * 100 * 4
    assert found.update == gathered + 1000 * 8 + 400_000 + 2 * 400
    # Without checkpointing everything is kept until then.
    found = passes_of(SMALL, Pass(update_tokens=1000, keeps_inputs_only=False))
    assert found.update == gathered + 1000 * 152 + 400_000 + 2 * 400
    # Hardly any tokens: the tables' gradients, reduced in float32.
    wide = dataclasses.replace(SMALL, vocabulary=10_000, tables=2)
    assert passes_of(wide, Pass(update_tokens=1)).update == 2 * (80_000 + 2000) + 6 * 80_000


@pytest.mark.parametrize(
    ("passing", "update", "forward"),
    [
        (Pass(1, 1, temperature=0.7), 8, 4),
        (Pass(1, 1, has_entropy_loss=True), 6, 2),
        (Pass(1, 1, is_compiled=False), 4, 14),
        (Pass(1, 1, is_compiled=False, has_entropy_chunks=True), 4, 2),
        (Pass(1, 1, is_compiled=False, has_entropy_loss=True), 20, 14),
        (Pass(1, 1, value_bytes=4, is_compiled=False), 8, 16),
    ],
)
def test_a_large_vocabulary_is_counted_once_a_copy(passing: Pass, update: int, forward: int) -> None:
    found = passes_of(SMALL, passing)
    assert (found.update_logits, found.forward_logits) == (100 * update, 100 * forward)


def test_experts_that_a_token_passes_through_are_counted_and_no_others() -> None:
    mixed = {**KNOWN["Qwen/Qwen3-0.6B"], "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8,
             "moe_intermediate_size": 768}  # fmt: skip
    decoder = model_of_config(mixed).decoder
    assert decoder is not None
    assert decoder.inner == 8 * 768
    assert math.isclose(decoder.layer_weights, 128 * 3 * 1024 * 768, rel_tol=0.1)
