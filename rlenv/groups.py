"""Rewards that need all answers to one task: filled in once a group of trajectories has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlenv.scoring import Scorer, clean
from rlenv.secrets import redact
from rlenv.trajectory import Failure, Trajectory

__all__ = ["score_groups"]


def score_groups(scorer: Scorer, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the group terms of their rewards filled in, in the same order.

    A group is what has the same split and task; a row that was given itself (`task_index` -1) is grouped by its
    content. Where a required group term is invalid, so is the reward. Without group terms nothing changes.

    Raises:
        InvalidReward: a term with `on_invalid: raise` could not be measured.
    """
    if not scorer.has_group_terms:
        return list(trajectories)
    groups: dict[tuple[str, int, str], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        own = repr(trajectory.task) if trajectory.task_index < 0 else ""
        groups.setdefault((trajectory.split, trajectory.task_index, own), []).append(index)
    found = list(trajectories)
    for places in groups.values():
        scored = scorer.score_group([trajectories[place] for place in places])
        for place, (reward, success) in zip(places, scored, strict=True):
            trajectory = trajectories[place]
            failure = trajectory.failure
            reason = trajectory.reason
            if failure is None and reward.total is None:
                bad = [term for term in reward.terms.values() if term.status == "invalid"]
                failure = Failure("reward", redact("; ".join(f"{term.name}: {term.error}" for term in bad)))
                # As an episode ends whose own terms are invalid: that it was cut before stays said.
                reason = "reward" if trajectory.terminated else reason
            found[place] = dataclasses.replace(
                trajectory,
                reward=clean(reward),
                success=success,
                failure=failure,
                terminated=trajectory.terminated and failure is None,
                truncated=trajectory.truncated or failure is not None,
                reason=reason,
            )
    return found
