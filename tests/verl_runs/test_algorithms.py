"""PPO with a critic, RLOO, REINFORCE++ and DAPO: two steps each. GRPO's run is part of `make test`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.verl_runs.driving import SMALL, lines, train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(700)]


def run(out: Path, policy: Path, *arguments: str) -> dict[int, dict[str, Any]]:
    """A run of two steps without validation; the figures of each step."""
    given = ["arithmetic", "--model", str(policy), "--steps", "2", "--time-limit", "500", "-o", str(out), *SMALL]
    given += ["trainer.test_freq=-1", "trainer.val_before_train=false", *arguments]
    log = out.with_suffix(".log")
    assert train(given, log, seconds=600) == 0, log.read_text()[-3000:]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ending"]["how"] == "finished"
    trained = Path(summary["trained"]) / "model.safetensors"
    assert trained.read_bytes() != (policy / "model.safetensors").read_bytes()
    figures = {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}
    assert [step for step in sorted(figures) if step > 0] == [1, 2]
    assert any(figures[step]["actor/grad_norm"] > 0.0 for step in (1, 2))
    for step in (1, 2):
        data = figures[step]
        assert all(math.isfinite(value) for value in data.values() if isinstance(value, float))
        assert data["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-3)
    return figures


def estimator(out: Path) -> str:
    return str(yaml.safe_load((out / "config.yaml").read_text())["algorithm"]["adv_estimator"])


def test_a_critic_learns_beside_the_policy(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "--algorithm", "ppo")
    assert estimator(tmp_path / "run") == "gae"
    for step in (1, 2):
        assert figures[step]["critic/vf_loss"] > 0.0
        assert figures[step]["critic/grad_norm"] > 0.0
    # A new head says anything at first, but rewards are between 0 and 1.1: no step of it may lead far away from them.
    assert all(figures[step]["critic/vf_loss"] < 1.5 for step in (1, 2))
    assert figures[1]["critic/values/mean"] != figures[2]["critic/values/mean"]
    # Whitened over the batch's sampled tokens.
    assert figures[1]["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-3)
    assert list((tmp_path / "run/checkpoints/global_step_2/critic").glob("model_world_size_1_rank_0.pt"))


def test_a_baseline_of_the_group_is_whitened_over_the_batch(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "--algorithm", "reinforce")
    assert estimator(tmp_path / "run") == "rlenv_reinforce_plus_plus_baseline"
    for step in (1, 2):
        assert figures[step]["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-3)
        assert figures[step]["critic/advantages/min"] < 0.0 < figures[step]["critic/advantages/max"]


def test_groups_without_a_signal_are_replaced(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "--algorithm", "dapo")
    # What stays has a better and a worse episode in each group.
    for step in (1, 2):
        assert figures[step]["rlenv/arithmetic/episodes"] == 16
        assert figures[step]["critic/advantages/min"] < 0.0 < figures[step]["critic/advantages/max"]
    groups = lines(tmp_path / "run/trained.jsonl")
    assert len(groups) == 8
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["trainer"]["v1"]["sampler"]["sampler_kwargs"]["train_batch_size"] == 4


def test_siblings_are_the_baseline_of_rewards_that_hold_a_kl_term(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "--algorithm", "rloo", "algorithm.use_kl_in_reward=true")
    assert estimator(tmp_path / "run") == "rlenv_rloo"
    # The reference policy is the policy of the start, and then is not.
    assert figures[1]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-3)
    assert abs(figures[2]["actor/reward_kl_penalty"]) > abs(figures[1]["actor/reward_kl_penalty"])
    assert figures[1]["timing_s/ref"] > 0.0
