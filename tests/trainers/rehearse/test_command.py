"""What a rehearsal writes before veRL starts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.cli.console import Console
from rlenv.errors import UsageError
from rlenv.runs.locks.lock import locks_of
from rlenv_train.launch import Ending
from rlenv_verl.rehearse.command import overlay, rehearse, replaced_keys
from rlenv_verl.run.inputs import parser
from rlenv_verl.run.train import main
from rlenv_verl.settings.presets import load_preset
from tests.trainers.conftest import quiet


@pytest.mark.slow
def test_a_preset_keeps_all_that_is_not_replaced(tmp_path: Path, verl: Any) -> None:
    """veRL does not start here: what it would be given is looked at."""
    seen: list[Any] = []

    def run_plan(plan: Any, console: Any, **_given: Any) -> tuple[Ending, list[Any]]:
        seen.append(plan)
        plan.run.folder.joinpath("verl.log").write_text("it would start here\n")
        return Ending("failed", 1, 0.0), []

    out = tmp_path / "run"
    arguments = parser().parse_intermixed_args(
        ["--rehearse", "arithmetic", "--preset", "node", "-o", str(out), "actor_rollout_ref.actor.optim.lr=3e-6"]
    )
    with quiet():
        assert rehearse(arguments, Console(quiet=True), run_plan=run_plan) == 1
    (plan,) = seen
    config = plan.config
    assert (config["data"]["train_batch_size"], config["data"]["max_response_length"]) == (256, 8192)
    assert config["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] == 24576
    assert config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-6
    assert config["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"] is True
    assert (config["trainer"]["device"], config["trainer"]["n_gpus_per_node"]) == ("cpu", 2)
    (loop,) = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert loop["_target_"] == "rlenv_verl.rehearse.loop.RehearsalLoop"
    assert loop["turn_tokens"] == 2048

    (attempt,) = plan.run.attempts
    assert locks_of(out)[attempt.lock].policy["model"] == "model"

    report = json.loads((out / "rehearsal.json").read_text())
    assert report["is_ok"] is False
    told = {one["key"]: (one["preset"], one["rehearsal"]) for one in report["replaced"]}
    assert told["trainer.n_gpus_per_node"] == (8, 2)
    assert told["actor_rollout_ref.rollout.name"] == ("vllm", "rlenv_rehearsal")
    assert told["trainer.total_training_steps"] == (None, 1)
    assert "actor_rollout_ref.actor.optim.lr" not in told
    assert not [key for key in told if key.startswith(("data.", "algorithm."))]
    # The longest prompt is at the limit, in the vocabulary of the rehearsal.
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(out / "model")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)["input_ids"]
    assert 3500 < len(ids) < 4096
    assert len(tokenizer) <= 330


@pytest.mark.parametrize("preset", ["gpu", "node", "cluster", "search-r1", "rl-factory", "cpu"])
@pytest.mark.parametrize(("algorithm", "gpus", "trainers"), [(None, 1, 1), ("ppo", 1, 1), (None, 8, 2)])
def test_every_preset_has_a_rehearsal_that_verl_takes(
    preset: str, algorithm: str | None, gpus: int, trainers: int
) -> None:
    chosen = load_preset(preset, algorithm=algorithm)
    config = {
        "actor_rollout_ref": {"rollout": {"agent": {"num_workers": 16}}},
        "trainer": {"n_gpus_per_node": gpus, "nnodes": 1},
    }
    rehearsed, overrides = overlay(chosen, config)
    assert rehearsed.environment["VERL_PLATFORM"] == "cpu"
    keys = [item.lstrip("+").partition("=")[0] for item in overrides]
    assert len(keys) == len(set(keys))
    assert f"trainer.n_gpus_per_node={trainers}" in overrides
    assert ("critic.fsdp.model_dtype" in keys) == (algorithm == "ppo")
    assert not [key for key in keys if key.startswith(("data.", "algorithm."))]


def test_what_is_replaced_is_what_differs() -> None:
    found = replaced_keys({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}, "e": None})
    assert [(one.key, one.preset, one.rehearsal) for one in found] == [("b.c", 2, 4), ("b.d", 3, None)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--dry-run"], "leave out --dry-run"),
        (["--eval"], "leave out --eval"),
        (["--ray-address", "here:1"], "leave out --ray-address"),
        (["--mode", "separate_async"], "cannot be rehearsed"),
    ],
)
def test_what_a_rehearsal_does_not_take_is_refused(more: list[str], words: str, capsys: Any, tmp_path: Path) -> None:
    assert main(["--rehearse", "arithmetic", "-o", str(tmp_path / "run"), *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_prompt_beyond_the_presets_limit_is_refused_with_the_number(tmp_path: Path) -> None:
    arguments = parser().parse_intermixed_args(
        ["--rehearse", "arithmetic", "--preset", "gpu", "-o", str(tmp_path / "run"), "run.max_prompt_length=64"]
    )
    with quiet(), pytest.raises(UsageError, match=r"run\.max_prompt_length=\d+"):
        rehearse(arguments, Console(quiet=True), run_plan=lambda *given: pytest.fail("it started"))
