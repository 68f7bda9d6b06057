"""Shared by the tests of the shipped environments: how to play them, and where the public data sets are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.base import Policy
from rlenv.policies.scripted import RandomPolicy
from rlenv.trajectory import Trajectory
from tests.support import data

ROOT = Path(__file__).resolve().parents[2]

Play = Callable[[Environment, str], Sequence[Trajectory]]


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def public() -> Callable[[str], Path]:
    """Gives a file or folder of the public data sets, for tests that are marked so."""
    return data.find


def _play(environment: Environment, policy: Policy, split: str) -> Sequence[Trajectory]:
    async def run() -> Sequence[Trajectory]:
        async with environment:
            jobs = [Job(split, index, seed=index) for index in range(len(environment.tasks(split)))]
            return await rollout(environment, policy, jobs, concurrency=16)

    return asyncio.run(run())


@pytest.fixture
def play_oracle() -> Play:
    """Plays the oracle on every task of a split, once."""
    return lambda env, split: _play(env, env.oracle(), split)


@pytest.fixture
def play_random() -> Play:
    """Plays random actions on every task of a split, once."""
    return lambda env, split: _play(env, RandomPolicy(env.parts.dialect, env.spec.answer), split)


@pytest.fixture
def assert_all_earn_maximum() -> Callable[[Environment, Sequence[Trajectory]], None]:
    """Asserts that each episode succeeded, with the highest reward that the spec's weights allow and no failed call.

    A term that its gate lets count for some rows only is left out on the others.
    """

    def check(environment: Environment, trajectories: Sequence[Trajectory]) -> None:
        rewards = environment.spec.rewards
        by_row = {name for name, term in rewards.items() if "task." in (term.gate or "")}
        below = []
        for trajectory in trajectories:
            left_out = {name for name in by_row if trajectory.reward.terms[name].status == "skipped"}
            most = sum(max(term.usual_weight, 0) for name, term in rewards.items() if name not in left_out)
            if not trajectory.success or trajectory.reward.total != pytest.approx(most):
                said = (trajectory.reason, trajectory.failure, trajectory.answer)
                below.append((trajectory.task_index, trajectory.reward.total, most, *said))
        failed = [
            (trajectory.task_index, result.name, result.text)
            for trajectory in trajectories
            for turn in trajectory.turns
            for result in turn.results
            if result.outcome != "ok"
        ]
        assert trajectories
        assert not below, f"{len(below)} of {len(trajectories)} below the maximum, such as {below[:3]}"
        assert not failed, f"{len(failed)} failed calls, such as {failed[:3]}"

    return check
