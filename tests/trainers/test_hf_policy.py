from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rlenv.environment import load
from rlenv.errors import PolicyError
from rlenv.rollout import Job, rollout
from rlenv.trajectory import Trajectory
from rlenv_verl import evaluate
from rlenv_verl.hf_policy import load_policy, make
from tests.trainers.conftest import quiet


def play(folder: Path, *, count: int, concurrency: int) -> list[Trajectory]:
    environment = load("arithmetic")

    async def run() -> list[Trajectory]:
        policy = make(folder, environment)
        try:
            jobs = [Job("test", task) for task in range(count)]
            return await rollout(environment, policy, jobs, concurrency=concurrency)
        finally:
            await policy.aclose()
            await policy.aclose()

    with quiet():
        return asyncio.run(run())


def test_greedy_episodes_do_not_depend_on_what_runs_beside_them(tiny_folder: Path) -> None:
    together = play(tiny_folder, count=8, concurrency=8)
    apart = play(tiny_folder, count=8, concurrency=1)
    assert [[turn.action for turn in entry.turns] for entry in together] == [
        [turn.action for turn in entry.turns] for entry in apart
    ]
    assert all(entry.failure is None for entry in together)


def test_a_response_budget_that_is_spent_ends_the_episode_without_a_failure(tiny_folder: Path) -> None:
    environment = load("arithmetic")

    async def run() -> Trajectory:
        policy = load_policy(tiny_folder, response_tokens=2, turn_tokens=1)
        try:
            return (await rollout(environment, policy, [Job("test", 0)]))[0]
        finally:
            await policy.aclose()

    with quiet():
        trajectory = asyncio.run(run())
    assert trajectory.failure is None
    assert trajectory.success is False


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_a_model_is_a_policy_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no model could be loaded"):
        load_policy(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_the_evaluator_prints_one_line_of_json(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["arithmetic", str(tiny_folder), "--tasks", "5"]) == 0
    figures = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert figures["episodes"] == 5
    assert 0.0 <= figures["success"] <= 1.0
