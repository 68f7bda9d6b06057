from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import yaml

from rlenv.errors import UsageError
from rlenv_verl.export.weights import LoraShape, base_name, merge, split
from rlenv_verl.run.train import main
from tests.trainers.conftest import quiet

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def tiny_model() -> Any:
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = transformers.Qwen3ForCausalLM
    return model(config).float().eval()


def with_adapter(**config: Any) -> Any:
    """The tiny model with an adapter whose B is not zero, as after some steps of training."""
    with quiet():
        import peft

        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **config}
        model: Any = peft.get_peft_model(tiny_model(), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def shape_of(model: Any) -> LoraShape:
    return LoraShape.of(model.peft_config["default"].to_dict())


@pytest.mark.parametrize("config", [{}, {"r": 2, "lora_alpha": 32}, {"use_rslora": True}])
def test_merged_weights_compute_what_base_and_adapter_compute_together(config: dict[str, Any]) -> None:
    model = with_adapter(**config)
    base, adapter = split(model.state_dict())
    merged = merge(base, adapter, scaling=shape_of(model).scaling)
    plain = tiny_model()
    plain.load_state_dict(merged)
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        together, apart = model(tokens).logits, plain(tokens).logits
        without = tiny_model()(tokens).logits
    assert (together - without).abs().max() > 0.1
    torch.testing.assert_close(apart, together, atol=1e-5, rtol=1e-5)


def test_names_are_those_of_the_model_without_adapters() -> None:
    base, adapter = split(with_adapter().state_dict())
    assert set(base) == set(tiny_model().state_dict())
    assert f"{LAYER}.lora_A.weight" in adapter
    assert not any("default" in name for name in adapter)
    assert base_name(f"{LAYER}.base_layer.weight") == "model.layers.0.self_attn.q_proj.weight"


def test_tensors_without_an_adapter_are_left_as_they_are() -> None:
    base, adapter = split(with_adapter(target_modules=["q_proj"]).state_dict())
    merged = merge(base, adapter, scaling=2.0)
    changed = {name for name in base if merged[name] is not base[name]}
    assert changed == {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{LAYER}.lora_A.weight": None}, "no .lora_A.weight beside it"),
        ({f"{LAYER}.lora_B.weight": None}, "no pair of matrices"),
        ({f"{LAYER}.lora_embedding_A": torch.ones(2, 2)}, "no pair of matrices"),
        ({f"{LAYER}x.lora_A.weight": torch.ones(4, 2), f"{LAYER}x.lora_B.weight": torch.ones(2, 4)}, "does not have"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(change: dict[str, torch.Tensor | None], message: str) -> None:
    base, adapter = split(with_adapter().state_dict())
    changed = {name: tensor for name, tensor in {**adapter, **change}.items() if tensor is not None}
    with pytest.raises(UsageError, match=message):
        merge(base, changed, scaling=1.0)


@pytest.mark.parametrize("config", [{"use_dora": True}, {"bias": "all"}, {"alpha_pattern": {"q_proj": 2}}])
def test_other_variants_of_lora_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(config))) as refused:
        LoraShape.of({"r": 8, "lora_alpha": 16, **config})
    assert "merge_and_unload" in refused.value.hint


class Server:
    """Takes weights as the rollout server's actor does."""

    def __init__(self) -> None:
        self.versions: list[dict[str, torch.Tensor]] = [{}]
        self.update_weights = SimpleNamespace(remote=self._update)

    async def _update(self, named: list[tuple[str, torch.Tensor]], is_last: bool, _version: int | None) -> None:
        self.versions[-1].update(named)
        if is_last:
            self.versions.append({})


def test_rollout_gets_base_and_adapter_as_plain_weights(verl: Any) -> None:
    from rlenv_verl.cpu.rollout import CpuServerAdapter

    model = with_adapter()
    base, lora = split(model.state_dict())
    config = model.peft_config["default"].to_dict()
    adapter = CpuServerAdapter.__new__(CpuServerAdapter)
    adapter.config = SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1))
    adapter._base, adapter._found = {}, (server := Server())
    # veRL names wrapped layers `.base_layer` for the servers that keep adapters apart.
    wrapped = {name.replace("q_proj.weight", "q_proj.base_layer.weight"): tensor for name, tensor in base.items()}

    async def sync() -> None:
        with pytest.raises(ValueError, match="load_format"):
            await adapter.update_weights(iter(lora.items()), peft_config=config, base_sync_done=True)
        await adapter.update_weights(iter(wrapped.items()), peft_config=config, base_sync_done=False)
        for step in (0, 1):
            await adapter.update_weights(iter(lora.items()), peft_config=config, base_sync_done=True, global_steps=step)

    asyncio.run(sync())
    first, second, rest = server.versions
    assert rest == {}
    expected = merge(base, lora, scaling=2.0)
    for sent in (first, second):
        assert set(sent) == set(expected)
        assert all(torch.equal(sent[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_rank_on_the_command_line_sets_what_verl_needs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["arithmetic", "--dry-run", "--lora", "16", "-o", str(out)]) == 0
    config = yaml.safe_load((out / "config.yaml").read_text())["actor_rollout_ref"]
    assert (config["model"]["lora_rank"], config["model"]["lora_alpha"]) == (16, 32)
    assert config["model"]["target_modules"] == "all-linear"
    assert "hf_model" not in config["actor"]["checkpoint"]["save_contents"]
    assert "model" in config["actor"]["checkpoint"]["save_contents"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_override_wins_over_what_the_rank_sets(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ["actor_rollout_ref.model.lora_alpha=7"]
    assert main(["arithmetic", "--dry-run", "--lora", "16", "-o", str(out), *more]) == 0
    assert yaml.safe_load((out / "config.yaml").read_text())["actor_rollout_ref"]["model"]["lora_alpha"] == 7


def test_a_rank_below_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arithmetic", "--dry-run", "--lora", "0", "-o", str(tmp_path / "run")]) == 2
    assert "a rank is at least 1" in capsys.readouterr().err
