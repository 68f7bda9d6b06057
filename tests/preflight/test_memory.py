"""What a model takes of memory, from its files alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.preflight import Devices, Model, RunLimits, SplitLengths, TaskLengths, judge_memory, memory_of, model_of
from rlenv.preflight.memory import (
    KNOWN,
    Decoder,
    Pass,
    known_config,
    known_model,
    layer_bytes,
    model_of_config,
    passes_of,
)
from rlenv.preflight.report import judge_sequences
from tests.support.lengths import SMALL

# The sizes that Qwen publishes; both are rounded there, to 0.6 and 1.7 billion.
QWEN3_0_6B = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
              "max_position_embeddings": 40960}  # fmt: skip
QWEN3_30B_A3B = {**QWEN3_0_6B, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
                 "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768,
                 "tie_word_embeddings": False, "decoder_sparse_step": 1}  # fmt: skip
LLAMA3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}  # fmt: skip


def folder(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(QWEN3_0_6B, 596_049_920), (QWEN3_30B_A3B, 30_532_122_624), (LLAMA3_8B, 8_030_261_248)],
)
def test_parameters_are_counted_from_the_configuration(tmp_path: Path, config: dict[str, Any], parameters: int) -> None:
    model = model_of(folder(tmp_path, config))
    assert model is not None
    assert model.source == "config.json"
    # The norms of queries and keys are left out: 256 numbers a layer.
    assert model.parameters == pytest.approx(parameters, rel=2e-5)


def test_headers_of_the_weights_win_over_the_configuration(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}, "__metadata__": {}}).encode()
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "consolidated.safetensors").write_bytes(b"of another program")
    model = model_of(folder(tmp_path, SMALL))
    assert model is not None
    assert (model.parameters, model.source) == (30, "the weights' headers")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"cut")
    model = model_of(tmp_path)
    assert model is not None
    assert model.source == "config.json"


@pytest.mark.parametrize("strange", [{"kv_lora_rank": 512}, {"mamba_num_heads": 8}, {"hidden_size": None},
                                     {"n_shared_experts": 1, "n_routed_experts": 8}])  # fmt: skip
def test_a_family_that_is_not_known_is_not_estimated(tmp_path: Path, strange: dict[str, Any]) -> None:
    model = model_of(folder(tmp_path, {**SMALL, **strange}))
    assert model is not None
    assert model.parameters is None
    memory, (finding,) = judge_memory(model, Devices(10**9), context=None)
    assert memory is None
    assert finding.level == "unknown"


def test_a_folder_without_a_configuration_has_no_sizes(tmp_path: Path) -> None:
    assert model_of(tmp_path) is None
    (tmp_path / "config.json").write_text("[")
    assert model_of(tmp_path) is None
    assert judge_memory(None, Devices(1), context=None)[1][0].level == "unknown"


def test_the_text_model_of_one_that_sees_is_counted_and_said(tmp_path: Path) -> None:
    model = model_of(folder(tmp_path, {"text_config": SMALL, "vision_config": {}}))
    assert model is not None
    assert model.source == "config.json, the text model alone"
    assert model.positions == 4096


MODEL = Model(1000, "config.json", 100, 8, ((10, 10, 2),))


def test_training_takes_four_times_the_weights_over_the_devices() -> None:
    whole = memory_of(MODEL, Devices(None))
    assert whole is not None
    assert (whole.training, whole.kept, whole.sampler, whole.cache_token) == (16_000, 12_000, 2_000, 16)
    shared = memory_of(MODEL, Devices(None, devices=4, tensor_parallel=2))
    assert shared is not None
    assert (shared.training, shared.kept, shared.sampler, shared.cache_token) == (4_000, 3_000, 1_000, 8)


def test_critic_reference_offload_and_adapters_are_counted() -> None:
    def training(**more: Any) -> tuple[int, int]:
        memory = memory_of(MODEL, Devices(None, **more))
        assert memory is not None
        return memory.training, memory.kept

    assert training(copies=1) == (32_000, 24_000)
    assert training(references=1) == (20_000, 12_000)
    assert training(offloads_weights=True) == (16_000, 8_000)
    assert training(offloads_weights=True, offloads_moments=True) == (16_000, 0)
    assert training(weight_bytes=2) == (8_000, 6_000)
    adapter = 2 * (10 + 10) * 2  # rank × (inputs + outputs) × layers
    assert training(lora_rank=2, references=1)[0] == 4 * (1000 + adapter) + 3 * 4 * adapter


def levels(machine: Devices, *, context: int | None = None) -> list[str]:
    return [one.level for one in judge_memory(MODEL, machine, context=context)[1]]


def test_what_cannot_fit_is_an_error() -> None:
    assert levels(Devices(16_000)) == []
    assert levels(Devices(15_999)) == ["error"]
    assert levels(Devices(None)) == []
    # Weights and one sequence of all that the model reads: 2,000 + 100 × 16.
    assert levels(Devices(36_000, sampler_share=0.1)) == []
    assert levels(Devices(35_000, sampler_share=0.1)) == ["error"]
    assert levels(Devices(35_000, sampler_share=0.1), context=50) == []
    assert levels(Devices(20_000, sampler_share=0.6)) == ["warning"]
    assert levels(Devices(20_000, sampler_share=0.6, offloads_weights=True)) == []


def sequences(
    prompt: int, response: int, limits: RunLimits, *, passes: int = 10**9, positions: int = 10**9
) -> list[str]:
    split = SplitLengths("e", "train", 1, limits, (TaskLengths(0, prompt, response),))
    model = Model(None, "", positions, None)
    return [one.level for one in judge_sequences([split], {"pass": passes}, model)]


def test_a_pass_and_the_models_positions_take_the_longest_sequences() -> None:
    limits = RunLimits(prompt=50, response=100)
    assert sequences(40, 60, limits, passes=140) == []
    assert sequences(40, 60, limits, passes=139) == ["warning"]
    assert sequences(40, 60, limits, passes=99) == ["error"]
    assert sequences(51, 60, limits, passes=1) == []  # a prompt that never starts
    assert sequences(40, 60, limits, positions=140) == []
    assert sequences(40, 60, limits, positions=139) == ["warning"]
    assert sequences(40, 60, limits, positions=40) == ["error"]


# Activations by formula, held against what autograd keeps of transformers' own layers; nothing is computed

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


@pytest.mark.slow(but=1)
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
ONE_LAYER = Decoder(1, 4, 8, 2, 1, 2, 100, 1, layer_weights=1000)


def test_bytes_by_hand() -> None:
    assert layer_bytes(ONE_LAYER) == 16 * 4 + 4 * 6 + 8 * 8 == 152
    gathered = 2 * (100 * 4 + 2 * 1000)
    # The backward pass of a layer is the peak: inputs of all layers, what this one keeps, gradients.
    found = passes_of(ONE_LAYER, Pass(update_tokens=10, forward_tokens=20))
    assert found.gathered == gathered
    assert found.update == gathered + 10 * 8 + 10 * 152 + 2 * 400 + 6 * 1000
    assert found.forward_logits == 20 * 100 * 2
    assert found.forward == 20 * 76 + 4000 + gathered
    # With more tokens it is the logits.
    found = passes_of(ONE_LAYER, Pass(update_tokens=1000))
    assert found.update_logits == 1000 * 100 * 4
    assert found.update == gathered + 1000 * 8 + 400_000 + 2 * 400
    # Without checkpointing everything is kept until then.
    found = passes_of(ONE_LAYER, Pass(update_tokens=1000, keeps_inputs_only=False))
    assert found.update == gathered + 1000 * 152 + 400_000 + 2 * 400
    # Hardly any tokens: the tables' gradients, reduced in float32.
    wide = dataclasses.replace(ONE_LAYER, vocabulary=10_000, tables=2)
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
    found = passes_of(ONE_LAYER, passing)
    assert (found.update_logits, found.forward_logits) == (100 * update, 100 * forward)


def test_experts_that_a_token_passes_through_are_counted_and_no_others() -> None:
    mixed = {**KNOWN["Qwen/Qwen3-0.6B"], "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8,
             "moe_intermediate_size": 768}  # fmt: skip
    decoder = model_of_config(mixed).decoder
    assert decoder is not None
    assert decoder.inner == 8 * 768
    assert math.isclose(decoder.layer_weights, 128 * 3 * 1024 * 768, rel_tol=0.1)
