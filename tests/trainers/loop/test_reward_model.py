from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.errors import UsageError
from rlenv_verl.loop import ask_for_router, check_reward_model, served_by_reward_model
from rlenv_verl.run.train import main
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import load_preset, override

SPEC = """
rlenv: 1
name: judged
tasks:
  train: {rows: [{question: "What is 6 * 7?", answer: 42}]}
  test: {rows: [{question: "What is 6 * 7?", answer: 42}]}
prompt: {user: "{{ task.question }}"}
endpoints:
  writer: {base_url: "http://127.0.0.1:9/v1", model: some-judge}
rewards:
  correct: {kind: rule, rule: numeric_match}
  clarity: {kind: judge, endpoint: writer, prompt: "Clear? {{ message }}"}
"""
OWN_DEVICES: dict[str, Any] = {
    "reward.reward_model.enable": True,
    "reward.reward_model.enable_resource_pool": True,
    "reward.reward_model.n_gpus_per_node": 1,
    "reward.reward_model.nnodes": 1,
    "reward.reward_model.model_path": "Qwen/Qwen3-8B",
    "reward.reward_model.rollout.name": "vllm",
    "reward.reward_model.rollout.tensor_model_parallel_size": 1,
    "reward.reward_model.rollout.free_cache_engine": False,
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "judged.yaml"
    path.write_text(SPEC)
    return path


def config(**changed: Any) -> dict[str, Any]:
    keys = OWN_DEVICES | {f"reward.reward_model.{key.replace('__', '.')}": value for key, value in changed.items()}
    return compose([*load_preset("gpu").overrides(), *(override(key, value) for key, value in keys.items())])


def arguments(spec: Path, folder: Path, tiny_folder: Path, endpoint: str, **changed: Any) -> list[str]:
    keys = OWN_DEVICES | {f"reward.reward_model.{key}": value for key, value in changed.items()}
    items = [override(key, value) for key, value in keys.items()]
    run = ["--dry-run", "--model", str(tiny_folder), "-o", str(folder)]
    return [str(spec), *run, f"run.reward_model={endpoint}", *items]


@pytest.mark.slow
def test_a_model_on_devices_of_its_own_can_judge() -> None:
    check_reward_model(config())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("enable", False, r"enable is false.*add reward.reward_model.enable=true"),
        ("enable_resource_pool", False, r"policy's own devices sleeps.*enable_resource_pool=true"),
        ("rollout__free_cache_engine", True, r"does not wake it; add .*free_cache_engine=false"),
        ("model_path", None, r"model_path names no model"),
    ],
)
def test_a_model_that_could_not_answer_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_reward_model(config(**{key: value}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_loop_of_a_spec_with_that_endpoint_is_told(spec: Path, tmp_path: Path, tiny_folder: Path) -> None:
    out = tmp_path / "run"
    assert main(arguments(spec, out, tiny_folder, "writer")) == 0
    (loop,) = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert loop["reward_model"] == "writer"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("endpoint", "changed", "message"),
    [
        ("writr", {}, "no endpoint 'writr' in the specs; did you mean 'writer'?"),
        ("writer", {"enable": False}, "reward.reward_model.enable is false"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_starts(
    spec: Path,
    tmp_path: Path,
    tiny_folder: Path,
    capsys: pytest.CaptureFixture[str],
    endpoint: str,
    changed: dict[str, Any],
    message: str,
) -> None:
    assert main(arguments(spec, tmp_path / "run", tiny_folder, endpoint, **changed)) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_outside_of_a_run_there_is_no_reward_loop_to_ask(verl: Any) -> None:
    with pytest.raises(UsageError, match="no actor 'reward_loop_worker_0' runs"):
        served_by_reward_model(config(), endpoint="writer", ask=ask_for_router)
