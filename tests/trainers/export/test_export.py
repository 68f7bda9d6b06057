from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import rlenv
from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv_verl.export.export import PROVENANCE, agreement, export_policy
from rlenv_verl.export.weights import load_model
from rlenv_verl.hf import load_policy
from tests.trainers.runs import add_checkpoint, changed, load, make_run, with_adapter


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path) -> Path:
    return make_run(tmp_path / "run", base=tiny_folder, success={4: 0.5})


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        opened: Any = safe_open(path, "pt")
        with opened as file:
            found |= {name: file.get_tensor(name) for name in list(file.keys())}
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.float()(torch.arange(20).reshape(1, 20)).logits
    return found


@pytest.mark.parametrize("whole_weights", [True, False])
def test_weights_are_those_of_the_checkpoint_in_the_layout_of_the_base_model(
    run: Path, tiny_folder: Path, whole_weights: bool
) -> None:
    model = changed(tiny_folder, seed=4)
    add_checkpoint(run, 4, model, base=tiny_folder, whole_weights=whole_weights)
    exported = export_policy(run)
    assert exported.folder == run / "exported" / "step-4"
    assert exported.dtype == "float32"
    assert torch.equal(logits(load(exported.folder)), logits(model))
    # What a server reads without transformers: the names of the tensors, the architecture, the dtype, the tokenizer.
    assert set(tensors(exported.folder)) == set(tensors(tiny_folder))
    config = json.loads((exported.folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["Qwen3ForCausalLM"], "float32")
    assert "attn_implementation" not in config
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (exported.folder / name).read_bytes() == (tiny_folder / name).read_bytes()


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_base_weights(run: Path, tiny_folder: Path) -> None:
    model = with_adapter(tiny_folder)
    add_checkpoint(run, 4, model, base=tiny_folder)
    exported = export_policy(run)
    assert exported.source == "shards of 1 rank, LoRA merged"
    assert set(tensors(exported.folder)) == set(tensors(tiny_folder))
    difference = (logits(load(exported.folder)) - logits(model)).abs().max()
    assert difference < 1e-4
    assert (logits(load(tiny_folder)) - logits(model)).abs().max() > 100 * difference
    found = agreement(exported, base=str(tiny_folder))
    assert found.holds
    assert found.same_choice == 1.0


@pytest.mark.parametrize("targets", ["all-linear", ["layers.0.self_attn.q_proj"]])
def test_an_adapter_alone_is_a_folder_of_peft(run: Path, tiny_folder: Path, targets: Any) -> None:
    model = with_adapter(tiny_folder, targets=targets)
    add_checkpoint(run, 4, model, base=tiny_folder)
    exported = export_policy(run, adapter=True)
    assert agreement(exported, base=str(tiny_folder)).difference == 0.0
    config = json.loads((exported.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, str(tiny_folder))
    whole = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert set(config["target_modules"]) == (whole if targets == "all-linear" else {"model.layers.0.self_attn.q_proj"})
    assert all("lora_" in name and "default" not in name for name in tensors(exported.folder))


@pytest.mark.slow
def test_a_checkpoint_of_the_adapter_alone_takes_the_base_from_where_the_run_did(run: Path, tiny_folder: Path) -> None:
    model = with_adapter(tiny_folder)
    actor = add_checkpoint(run, 4, model, base=tiny_folder)
    only = {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}
    torch.save(only, actor / "model_world_size_1_rank_0.pt")
    exported = export_policy(run)
    assert (logits(load(exported.folder)) - logits(model)).abs().max() < 1e-4
    assert agreement(exported, base=str(tiny_folder)).holds


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_rounds_the_weights_once(run: Path, tiny_folder: Path, dtype: str) -> None:
    model = changed(tiny_folder, seed=4)
    add_checkpoint(run, 4, model, base=tiny_folder)
    exported = export_policy(run, dtype=dtype)
    state = model.state_dict()
    wanted = getattr(torch, dtype)
    assert all(torch.equal(tensor, state[name].to(wanted)) for name, tensor in tensors(exported.folder).items())
    assert json.loads((exported.folder / "config.json").read_text())["dtype"] == dtype
    assert agreement(exported, base=str(tiny_folder)).holds


@pytest.mark.slow
def test_the_check_tells_another_steps_weights_and_another_tokenizer(run: Path, tiny_folder: Path) -> None:
    add_checkpoint(run, 2, changed(tiny_folder, seed=2), base=tiny_folder)
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    exported = export_policy(run, step=4)
    other = export_policy(run, step=2)
    assert agreement(exported, base=str(tiny_folder)).holds
    (exported.folder / "model.safetensors").write_bytes((other.folder / "model.safetensors").read_bytes())
    assert not agreement(exported, base=str(tiny_folder)).holds
    (other.folder / "tokenizer_config.json").unlink()
    assert not agreement(other, base=str(tiny_folder)).same_tokenizer


def test_the_folder_says_where_it_comes_from(run: Path, tiny_folder: Path) -> None:
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    (run / "summary.json").write_text(json.dumps({"versions": {"verl": "0.9.1"}}))
    found = json.loads((export_policy(run).folder / PROVENANCE).read_text())
    assert (found["run"], found["step"], found["held_out_success"]) == ("run", 4, 0.5)
    assert found["trained_with"] == {"verl": "0.9.1"}
    (spec,) = found["specs"]
    assert (spec["name"], spec["version"], len(spec["digest"])) == ("arithmetic", 3, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": True}, "has no LoRA adapter; leave --adapter out"),
        ({"dtype": "int8"}, "no dtype 'int8'; expected one of float32"),
        ({"step": 1, "best": True}, "give one of them"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    run: Path, tiny_folder: Path, options: dict[str, Any], message: str
) -> None:
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    with pytest.raises(UsageError, match=message):
        export_policy(run, **options)
    assert not (run / "exported").exists()


def test_a_folder_in_use_is_left_alone_and_a_failure_leaves_none(run: Path, tiny_folder: Path) -> None:
    actor = add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    (run / "mine").mkdir()
    (run / "mine" / "notes.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        export_policy(run, run / "mine")
    torch.save({"model.norm.weight": torch.ones(3)}, actor / "model_world_size_1_rank_0.pt")
    with pytest.raises((UsageError, RuntimeError)):
        export_policy(run)
    assert not any((run / "exported").iterdir())


def test_an_architecture_with_code_of_its_own_is_refused_by_name(run: Path, tiny_folder: Path) -> None:
    actor = add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    path = actor / "huggingface" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["MyOwnForCausalLM"]}))
    with pytest.raises(UsageError, match=r"MyOwnForCausalLM is not part of transformers.*verl\.model_merger"):
        export_policy(run)


def test_weights_under_other_names_are_refused_where_transformers_would_draw_new_ones(
    run: Path, tiny_folder: Path
) -> None:
    # What veRL 0.9.1 leaves in `huggingface` where LoRA is trained and `hf_model` is saved.
    actor = add_checkpoint(run, 4, with_adapter(tiny_folder), base=tiny_folder, whole_weights=True)
    with pytest.raises(UsageError, match=r"lacks .* tensors of Qwen3ForCausalLM: "):
        load_model(actor / "huggingface")


def test_a_policy_acts_with_the_weights_as_they_are_whatever_the_configuration_says(
    run: Path, tiny_folder: Path
) -> None:
    model = changed(tiny_folder, seed=4)
    actor = add_checkpoint(run, 4, model, base=tiny_folder, whole_weights=True)
    policy = load_policy(actor / "huggingface", rlenv.load("arithmetic"))
    assert json.loads((actor / "huggingface" / "config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(logits(policy.server.model), logits(model))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_exports_checks_and_evaluates(
    run: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    assert main(["runs", "export-policy", str(run), "--best", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["check"]["holds"]
    assert report["check"]["difference"] == 0.0
    assert main(["eval", "arithmetic", "--policy", f"hf:{report['folder']}", "--split", "test", "-n", "2"]) == 0
    assert main(["runs", "export-policy", str(run), "--step", "7"]) == 2
    assert "whole ones: 4" in capsys.readouterr().err


def test_the_report_for_people_names_the_next_commands(
    run: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_checkpoint(run, 4, with_adapter(tiny_folder), base=tiny_folder)
    assert main(["runs", "export-policy", str(run), "--adapter"]) == 0
    assert "--enable-lora" in capsys.readouterr().out
    assert main(["runs", "export-policy", str(run)]) == 0
    assert f"vllm serve {run}/exported/step-4" in capsys.readouterr().out
