"""Rewards that need all answers to one task: filled in once a group of trajectories has ended."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rlenv.rewards.scorer import Scorer
from rlenv.trajectory import Trajectory

__all__ = ["score_groups"]


def score_groups(
    scorer: Scorer, trajectories: Sequence[Trajectory], *, groups: Sequence[Hashable] | None = None
) -> list[Trajectory]:
    """The trajectories with the group terms of their rewards filled in, in the same order.

    A group is what has the same split and task; a row that was given itself (`task_index` -1) is grouped by its
    content. Where a required group term is invalid, so is the reward. Without group terms nothing changes.

    Args:
        groups: what tells apart, for each of them, groups of one task: the step of a run, say.

    Raises:
        InvalidReward: a term with `on_invalid: raise` could not be measured.
    """
    found = list(trajectories)
    if not scorer.has_group_terms:
        return found
    of: dict[tuple[str, int, str, Hashable], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        own = repr(trajectory.task) if trajectory.task_index < 0 else ""
        apart = None if groups is None else groups[index]
        of.setdefault((trajectory.split, trajectory.task_index, own, apart), []).append(index)
    for places in of.values():
        scored = scorer.score_group([trajectories[place] for place in places])
        for place, trajectory in zip(places, scored, strict=True):
            found[place] = trajectory
    return found
