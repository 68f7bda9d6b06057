"""Many episodes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rlenv.concurrency.lanes import Lane, entered, here
from rlenv.dialects.observation import Cut
from rlenv.episodes.drive import drive
from rlenv.policies.base import Policy
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["Job", "play", "rollout", "together"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play; without a seed that of its task (`Environment.start`)."""

    split: str
    task: int
    seed: int | None = None


async def play(environment: Environment, policy: Policy, job: Job, *, cut: Cut | None = None) -> Trajectory:
    """Plays one episode to its end. A policy that fails gives a trajectory with an invalid reward.

    Args:
        cut: how results are cut; None: by the spec's characters.
    """
    async with environment.start(task=job.task, split=job.split, seed=job.seed, cut=cut) as episode:
        return await drive(episode, policy, limit_s=environment.spec.limits.episode_s)


async def rollout(
    environment: Environment,
    policy: Policy,
    jobs: Sequence[Job],
    *,
    concurrency: int = 64,
    on_end: Callable[[int, Trajectory], None] | None = None,
    lane: Callable[[int], Lane] | None = None,
) -> list[Trajectory]:
    """Plays all jobs, at most `concurrency` at once.

    Args:
        on_end: called with the job's index and its trajectory as soon as an episode ends.
        lane: the lane of a job's episode on a tape; `on_end` is called in it.

    Raises:
        RlenvError: what an episode raised (a policy without a script, a row that no template can fill); the others
            are given up.

    Returns:
        The trajectories in the order of `jobs`; `len(result) == len(jobs)`.
    """
    ended: list[Trajectory | None] = [None] * len(jobs)
    queue = iter(range(len(jobs)))

    async def work() -> None:
        for index in queue:
            with entered(lane(index) if lane is not None else here()):
                trajectory = await play(environment, policy, jobs[index])
                ended[index] = trajectory
                if on_end is not None:
                    on_end(index, trajectory)

    await together([work() for _ in range(min(concurrency, len(jobs)))])
    return [trajectory for trajectory in ended if trajectory is not None]


async def together(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """What each of them gives, in order. What one raises is raised as it is, once the others are cancelled and over."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in running]
