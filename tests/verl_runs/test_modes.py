"""The asynchronous modes, and two training workers: what each does to the figures that veRL reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.verl_runs.driving import ROOT, SMALL, lines, train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(700)]

SPANS = "training/off_policy/trajectory_spans"
STALENESS = "training/off_policy/trajectory_staleness"
GATE = '''"""Waits until more tasks are sampled than a step takes: one of them is certain to be trained a step late."""

import asyncio
from pathlib import Path

SEEN = Path({seen!r})


async def late(context):
    (SEEN / str(context.task["question"])).touch()
    async with asyncio.timeout(300):
        while len(list(SEEN.iterdir())) < 5:
            await asyncio.sleep(0.05)
    return 0.0
'''


def run(out: Path, policy: Path, *arguments: str, steps: int, spec: str = "arithmetic") -> dict[int, dict[str, Any]]:
    """A run of `steps` steps that validates at its end; the figures of each step."""
    given = [spec, "--model", str(policy), "--steps", str(steps), "--time-limit", "500", "-o", str(out)]
    given += [*SMALL, f"trainer.test_freq={steps}", "trainer.val_before_train=false", *arguments]
    log = out.with_suffix(".log")
    assert train(given, log, seconds=600) == 0, log.read_text()[-3000:]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ending"]["how"] == "finished"
    assert summary["failed_episodes"] == 0
    assert weights(Path(summary["trained"])) != weights(policy)
    figures = {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}
    assert sorted(step for step in figures if step > 0) == list(range(1, steps + 1))
    # A batch whose groups each earn the same has no gradient, which a policy that can do nothing yet may well meet.
    assert any(figures[step]["actor/grad_norm"] > 0.0 for step in range(1, steps + 1))
    # 16 episodes a step, whatever was cut, thrown away or generated ahead.
    assert all(figures[step]["rlenv/arithmetic/episodes"] == 16 for step in range(1, steps + 1))
    return figures


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_rollout_of_its_own_generates_while_the_trainer_updates(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "--mode", "separate_async", steps=3)
    # The first batch is on policy; what follows was begun before the weights of the step before it arrived.
    assert figures[1][f"{STALENESS}/max"] == 0
    assert max(figures[step][f"{STALENESS}/max"] for step in (2, 3)) >= 1
    assert figures[1]["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-3)
    for step in (1, 2, 3):
        assert 1 <= figures[step][f"{SPANS}/min"] <= figures[step][f"{SPANS}/max"] <= 4


def test_a_rollout_that_takes_turns_goes_on_with_what_was_cut(tmp_path: Path, policy: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "gate.py").write_text(GATE.format(seen=str(tmp_path / "seen")))
    spec = tmp_path / "late.yaml"
    spec.write_text(
        f"rlenv: 1\nextends: {ROOT}/specs/arithmetic.yaml\nlimits: {{reward_s: 400}}\n"
        'rewards: {late: {kind: rule, rule: python, function: "gate.py:late", weight: 0}}\n'
    )
    figures = run(tmp_path / "run", policy, "--mode", "colocate_async", steps=3, spec=str(spec))
    assert figures[1][f"{STALENESS}/max"] == 0
    assert max(figures[step][f"{STALENESS}/max"] for step in (2, 3)) >= 1
    for step in (1, 2, 3):
        assert 1 <= figures[step][f"{SPANS}/min"] <= figures[step][f"{SPANS}/max"] <= 4


def test_two_workers_share_a_batch_and_serve_the_same_weights(tmp_path: Path, policy: Path) -> None:
    figures = run(tmp_path / "run", policy, "trainer.n_gpus_per_node=2", steps=2)
    for step in (1, 2):
        data = figures[step]
        # Each worker has half of the batch's tokens, as nearly as whole episodes allow.
        tokens = 16 * (data["prompt_length/mean"] + data["response_length/mean"])
        assert data["global_seqlen/mean"] * 2 == pytest.approx(tokens, rel=1e-3)
        assert 0.8 < data["global_seqlen/balanced_min"] / data["global_seqlen/balanced_max"] <= 1.0
        # Old log-probabilities are the servers' own: were one of the two servers behind by an update, the policy would
        # be off its own samples (0.07 where all are one update old).
        assert data["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-3)
    shards = {file.name for file in (tmp_path / "run/checkpoints/global_step_2/actor").glob("model_world_size_*")}
    assert shards == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}
    log = (tmp_path / "run/verl.log").read_text(errors="replace")
    assert "LLMServerManager: ['rlenv_transformers_cpu_0', 'rlenv_transformers_cpu_1']" in log
