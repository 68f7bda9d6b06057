"""What a model takes of memory, from its files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.preflight import Limits, Machine, Model, SplitLengths, TaskLengths, judge_memory, memory_of, model_of
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
    memory, (finding,) = judge_memory(model, Machine(10**9), context=None)
    assert memory is None
    assert finding.level == "unknown"


def test_a_folder_without_a_configuration_has_no_sizes(tmp_path: Path) -> None:
    assert model_of(tmp_path) is None
    (tmp_path / "config.json").write_text("[")
    assert model_of(tmp_path) is None
    assert judge_memory(None, Machine(1), context=None)[1][0].level == "unknown"


def test_the_text_model_of_one_that_sees_is_counted_and_said(tmp_path: Path) -> None:
    model = model_of(folder(tmp_path, {"text_config": SMALL, "vision_config": {}}))
    assert model is not None
    assert model.source == "config.json, the text model alone"
    assert model.positions == 4096


MODEL = Model(1000, "config.json", 100, 8, ((10, 10, 2),))


def test_training_takes_four_times_the_weights_over_the_devices() -> None:
    whole = memory_of(MODEL, Machine(None))
    assert whole is not None
    assert (whole.training, whole.kept, whole.sampler, whole.cache_token) == (16_000, 12_000, 2_000, 16)
    shared = memory_of(MODEL, Machine(None, devices=4, tensor_parallel=2))
    assert shared is not None
    assert (shared.training, shared.kept, shared.sampler, shared.cache_token) == (4_000, 3_000, 1_000, 8)


def test_critic_reference_offload_and_adapters_are_counted() -> None:
    def training(**more: Any) -> tuple[int, int]:
        memory = memory_of(MODEL, Machine(None, **more))
        assert memory is not None
        return memory.training, memory.kept

    assert training(copies=1) == (32_000, 24_000)
    assert training(references=1) == (20_000, 12_000)
    assert training(offloads_weights=True) == (16_000, 8_000)
    assert training(offloads_weights=True, offloads_moments=True) == (16_000, 0)
    assert training(weight_bytes=2) == (8_000, 6_000)
    adapter = 2 * (10 + 10) * 2  # rank × (inputs + outputs) × layers
    assert training(lora_rank=2, references=1)[0] == 4 * (1000 + adapter) + 3 * 4 * adapter


def levels(machine: Machine, *, context: int | None = None) -> list[str]:
    return [one.level for one in judge_memory(MODEL, machine, context=context)[1]]


def test_what_cannot_fit_is_an_error() -> None:
    assert levels(Machine(16_000)) == []
    assert levels(Machine(15_999)) == ["error"]
    assert levels(Machine(None)) == []
    # Weights and one sequence of all that the model reads: 2,000 + 100 × 16.
    assert levels(Machine(36_000, sampler_share=0.1)) == []
    assert levels(Machine(35_000, sampler_share=0.1)) == ["error"]
    assert levels(Machine(35_000, sampler_share=0.1), context=50) == []
    assert levels(Machine(20_000, sampler_share=0.6)) == ["warning"]
    assert levels(Machine(20_000, sampler_share=0.6, offloads_weights=True)) == []


def sequences(prompt: int, response: int, limits: Limits, *, passes: int = 10**9, positions: int = 10**9) -> list[str]:
    split = SplitLengths("e", "train", 1, limits, (TaskLengths(0, prompt, response),))
    model = Model(None, "", positions, None)
    return [one.level for one in judge_sequences([split], {"pass": passes}, model)]


def test_a_pass_and_the_models_positions_take_the_longest_sequences() -> None:
    limits = Limits(prompt=50, response=100)
    assert sequences(40, 60, limits, passes=140) == []
    assert sequences(40, 60, limits, passes=139) == ["warning"]
    assert sequences(40, 60, limits, passes=99) == ["error"]
    assert sequences(51, 60, limits, passes=1) == []  # a prompt that never starts
    assert sequences(40, 60, limits, positions=140) == []
    assert sequences(40, 60, limits, positions=139) == ["warning"]
    assert sequences(40, 60, limits, positions=40) == ["error"]
