"""A run is looked at before Ray starts: what would make it fail or useless ends it there, with the cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.models import template_text
from rlenv.preflight import Devices, Pass
from rlenv_verl.run.preflight import config_of, is_to_be_made, laid_out
from rlenv_verl.run.train import main
from rlenv_verl.settings import UNMEASURED
from rlenv_verl.settings.machine import machine_of
from rlenv_verl.settings.machine import tokens_a_pass as passes_of
from rlenv_verl.settings.presets import load_preset, override
from tests.support.lengths import FORGETS, model, spec
from tests.support.model_table import table_lines

__all__ = ["model", "spec"]
pytestmark = pytest.mark.filterwarnings("ignore")
GPU = ["--preset", "gpu", "--dry-run"]
REPLIES = 'user: {kind: scripted, replies: ["fox fox"]}\n'

FIRST_HOUR = Path(__file__).resolve().parents[3] / "docs" / "training" / "first-hour.md"


@pytest.mark.slow
def test_a_run_that_can_start_is_shown_and_a_dry_run_ends_well(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(spec()), *GPU, "--model", str(model()), "-o", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "lengths, train: 4 tasks measured" in said
    assert "lengths, test: 1 task measured" in said
    assert "error" not in said


@pytest.mark.slow
@pytest.mark.parametrize("is_dry", [True, False])
def test_prompts_that_never_fit_end_a_run_before_anything_starts(
    spec: Callable[..., Path],
    model: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_dry: bool,
) -> None:
    out = tmp_path / "run"
    argv = [str(spec()), "--preset", "gpu", "--model", str(model()), "-o", str(out), "data.max_prompt_length=20"]
    assert main([*argv, *(["--dry-run"] if is_dry else [])]) == 1
    said = capsys.readouterr().out
    assert "error: lengths, train: all 4 of 4 prompts are longer than the 20 tokens" in said
    assert "nothing was started" in said
    assert not (out / "verl.log").exists()
    assert not (out / "metrics.jsonl").exists()  # so that the folder takes the next try
    assert main([*argv[:-1], "--dry-run"]) == 0


@pytest.mark.slow
def test_a_template_that_cannot_be_trained_with_ends_a_run_with_the_choice(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec(more=REPLIES)), "--preset", "gpu", "--model", str(model(template=FORGETS))]
    assert main([*argv, "-o", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().out
    assert "choose run.history: rows" in said
    assert not (tmp_path / "run" / "verl.log").exists()


@pytest.mark.slow
def test_a_policy_that_does_not_exist_yet_has_no_lengths_and_no_placeholder_of_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["arithmetic", "--dry-run", "-o", str(out)]) == 0
    assert "not measured: the policy" in capsys.readouterr().out
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["data"]["max_prompt_length"] == UNMEASURED
    assert config["actor_rollout_ref"]["rollout"]["prompt_length"] == UNMEASURED
    lengths = [line for line in (out / "overrides.txt").read_text().splitlines() if "prompt_length" in line]
    assert len(lengths) == 2
    assert not any("512" in line for line in lengths)


@pytest.mark.slow
def test_a_measured_limit_holds_every_prompt(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = [str(spec()), "--dry-run", "--model", str(model()), "-o", str(out), "run.turn_tokens=64"]
    assert main([*argv, "data.max_response_length=200"]) == 0
    limit = yaml.safe_load((out / "config.yaml").read_text())["data"]["max_prompt_length"]
    assert f"limit {limit:>7,}: 0 of 4 over it" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_several_specs_names_the_one_that_does_not_fit(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = spec(train=(1,), test=(1,))
    large = small.with_name("large.yaml")
    (small.parent / "large.jsonl").write_text((small.parent / "train.jsonl").read_text().replace("fox", "fox " * 300))
    large.write_text(small.read_text().replace("name: lengths", "name: large").replace("train.jsonl", "large.jsonl"))
    argv = [str(small), str(large), *GPU, "--model", str(model()), "-o", str(tmp_path / "run")]
    assert main([*argv, "data.max_prompt_length=300"]) == 1
    said = capsys.readouterr().out
    assert "error: large, train: the only prompt is longer" in said
    assert "error: lengths" not in said


@pytest.mark.slow
def test_validation_alone_looks_at_what_is_validated(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec(train=(1,), test=(90,))), *GPU, "--model", str(model()), "-o"]
    assert main([*argv, str(tmp_path / "a"), "data.max_prompt_length=200"]) == 0
    assert "warning: lengths, test: the only prompt is longer" in capsys.readouterr().out
    assert main([*argv, str(tmp_path / "b"), "data.max_prompt_length=200", "--eval"]) == 1
    assert "lengths, train" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_presets_say_what_a_machine_holds() -> None:
    config, is_checked = config_of(load_preset("node"), "/model", ["actor_rollout_ref.actor.use_kl_loss=true"])
    assert is_checked
    machine = machine_of(config, 80 * 10**9)
    passing = Pass(update_tokens=24576, forward_tokens=49152)
    assert machine == Devices(80 * 10**9, devices=8, sampler_share=0.6, passing=passing, longest=4096 + 8192)
    assert passes_of(config) == {
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 24576,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 49152,
    }
    more = [
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        "actor_rollout_ref.ref.fsdp_config.param_offload=false",
    ]
    config, _ = config_of(load_preset("gpu", algorithm="ppo"), "/model", more)
    machine = machine_of(config, None)
    assert (machine.copies, machine.offloads_moments, machine.offloads_weights) == (1, True, False)
    assert machine_of(config_of(load_preset("cpu"), "/model", [])[0], None).sampler_share == 0.0


def test_a_policy_that_is_to_be_made_is_a_folder_and_no_models_name(tmp_path: Path) -> None:
    assert is_to_be_made(str(tmp_path / "model"))
    assert not is_to_be_made(str(tmp_path))
    assert not is_to_be_made("org/model")


@pytest.mark.slow
def test_a_model_without_a_template_is_told_so_and_one_that_is_given_lies_in_the_runs_folder(
    spec: Callable[..., Path], model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = [str(spec()), "--preset", "gpu", "--model", str(model(template="")), "-o", str(out), "--dry-run"]
    argv.append("data.max_prompt_length=600")
    assert main(argv) == 1
    said = capsys.readouterr().out
    assert "error: the model's chat template: the model has none; --chat-template FILE gives one" in said
    assert "nothing was started" in said
    assert not (out / "run.json").exists()
    assert main([*argv, "--chat-template", "chatml"]) == 0
    assert (out / "model" / "chat_template.jinja").read_text() == template_text("chatml")
    assert (out / "model" / "config.json").is_symlink()
    kept = json.loads((out / "run.json").read_text())
    assert kept["model"] == str(out / "model")
    assert f"actor_rollout_ref.model.path={out / 'model'}" in kept["overrides"]
    assert main([str(spec()), "--chat-template", "chatml", "-o", str(tmp_path / "tiny"), "--dry-run"]) == 2


def test_the_page_has_the_table_as_it_is_computed() -> None:
    shown = re.search(r"<!-- table: .*? -->\n(.*?)\n<!--", FIRST_HOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == "\n".join(table_lines()), "python tests/support/model_table.py writes the lines anew"


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "algorithm"), [("gpu", None), ("search-r1", "ppo")])
def test_memory_reads_the_same_with_verls_configuration_and_without(
    preset: str, algorithm: str | None, verl: Any
) -> None:
    chosen = load_preset(preset, algorithm=algorithm)
    prompt = override("data.max_prompt_length", chosen.run["max_prompt_length"])
    config, is_checked = config_of(chosen, "model", [])
    assert is_checked
    assert machine_of(config, 1) == machine_of(laid_out([*chosen.overrides(), prompt]), 1)
