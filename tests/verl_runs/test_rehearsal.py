"""Rehearsals with real veRL at a small batch, in order and with a fault planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.verl_runs.driving import train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]

# The preset's own lengths, and of its 128 prompts four.
SMALL = ("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "--validation-tasks", "8")


def rehearsed(out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    log = out.with_suffix(".log")
    code = train(["--rehearse", "arithmetic", "--preset", "gpu", "-o", str(out), *SMALL, *more], log, seconds=900)
    assert (out / "rehearsal.json").is_file(), log.read_text()[-4000:]
    return code, json.loads((out / "rehearsal.json").read_text())


def failed(report: dict[str, Any]) -> list[str]:
    return [check["name"] for check in report["checks"] if not check["is_ok"]]


def test_a_preset_is_rehearsed_from_the_files_to_the_resume(tmp_path: Path) -> None:
    code, report = rehearsed(tmp_path / "run")
    assert failed(report) == []
    assert (code, report["is_ok"]) == (0, True)
    assert len(report["checks"]) == 15
    assert report["peak_bytes"] > 1e9
    # What a rehearsal may change: where and how it runs, and nothing of the data, the algorithm or the limits.
    changed = {one["key"] for one in report["replaced"]}
    assert "actor_rollout_ref.rollout.name" in changed
    assert not [key for key in changed if key.startswith(("data.", "algorithm."))]
    # No length and no batch of the preset's is another here.
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "max_response_length: 4096" in config
    assert "ppo_max_token_len_per_gpu: 16384" in config


def test_a_sampler_that_unmasks_failed_episodes_is_found(tmp_path: Path) -> None:
    broken = [
        "trainer.v1.sampler.custom_sampler.path=pkg://broken_buffer",
        "trainer.v1.sampler.custom_sampler.name=UnmaskingBuffer",
    ]
    code, report = rehearsed(tmp_path / "run", *broken)
    assert code == 1
    assert failed(report) == ["shipping"]


def test_a_checkpoint_that_cannot_be_written_fails_the_rehearsal(tmp_path: Path) -> None:
    code, report = rehearsed(tmp_path / "run", "trainer.default_local_dir=/dev/full/checkpoints")
    assert code == 1
    assert {"checkpoints", "weights", "resume", "steps"} <= set(failed(report))


@pytest.mark.parametrize("more", [("--algorithm", "ppo"), ("--lora", "8")], ids=["ppo", "lora"])
def test_a_critic_and_an_adapter_are_rehearsed_too(tmp_path: Path, more: tuple[str, ...]) -> None:
    code, report = rehearsed(tmp_path / "run", *more)
    assert failed(report) == []
    assert code == 0
    assert ("update_critic" in report["phases"]) is ("ppo" in more)
