"""Rewards that need all answers to one task: filled in once a group of trajectories has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Account, merged
from rlenv.errors import UsageError
from rlenv.rewards.base import GroupContext
from rlenv.rewards.scorer import Scorer
from rlenv.trajectory import ModelUsage, Trajectory

__all__ = ["OnAsked", "ask_groups", "score_groups"]

_AT_ONCE: Final = 4
"""Groups that are asked about at once. Each has its own limit of time, which it should not spend in a queue behind
all others; an endpoint bounds its requests itself."""

OnAsked = Callable[[Sequence[ModelUsage], int], None]
"""Told what one group has asked models for, and how many groups have still to be asked about."""


def score_groups(
    scorer: Scorer,
    trajectories: Sequence[Trajectory],
    *,
    groups: Sequence[Hashable] | None = None,
    keeps_asked: bool = False,
) -> list[Trajectory]:
    """The trajectories with the group terms of their rewards filled in, in the same order.

    A group is what has the same split and task; a row that was given itself (`task_index` -1) is grouped by its
    content. Where a required group term is invalid, so is the reward. Without group terms nothing changes.

    Args:
        groups: what tells apart, for each of them, groups of one task: the step of a run, say.
        keeps_asked: leave terms that ask models as they are.

    Raises:
        UsageError: a group term asks models, which `Environment.score_groups` does.
        InvalidReward: a term with `on_invalid: raise` could not be measured.
    """
    found = list(trajectories)
    if scorer.asked_names and not keeps_asked:
        raise UsageError(
            f"the term '{scorer.asked_names[0]}' asks models about a group", hint="await environment.score_groups"
        )
    if not scorer.has_group_terms:
        return found
    for places in _places(trajectories, groups):
        scored = scorer.score_group([trajectories[place] for place in places])
        for place, trajectory in zip(places, scored, strict=True):
            found[place] = trajectory
    return found


async def ask_groups(
    scorer: Scorer,
    trajectories: Sequence[Trajectory],
    *,
    vars: Mapping[str, Any],
    shared: Callable[[], Scope],
    limit_s: float | None,
    groups: Sequence[Hashable] | None = None,
    on_asked: OnAsked | None = None,
) -> list[Trajectory]:
    """As `score_groups`, with the terms that ask models too; what they ask for is added to the `usage` of the answers.

    A group is not asked about again where each answer has a value of these terms, has failed or has a shut gate.

    Args:
        limit_s: seconds for each term of a group; None for no limit.
        on_asked: told of each group's usage, as soon as it is known.

    Raises:
        InvalidReward: a term with `on_invalid: raise` could not be measured.
    """
    if not scorer.asked_names:
        return score_groups(scorer, trajectories, groups=groups)
    found = list(trajectories)

    async def one(places: Sequence[int]) -> None:
        own = [trajectories[place] for place in places]
        if places[0] not in waiting:
            scored = scorer.score_group(own)
        else:
            accounts = [Account() for _ in own]
            try:
                context = GroupContext(vars=vars, shared=shared, accounts=accounts)
                scored = await scorer.ask_group(own, context, limit_s=limit_s)
            finally:
                waiting.discard(places[0])
                if on_asked is not None:
                    on_asked(merged(entry for account in accounts for entry in account.entries()), len(waiting))
            scored = [_charged(each, account) for each, account in zip(scored, accounts, strict=True)]
        for place, trajectory in zip(places, scored, strict=True):
            found[place] = trajectory

    todo = _places(trajectories, groups)
    waiting = {places[0] for places in todo if scorer.has_to_ask([trajectories[at] for at in places])}
    left = iter(todo)

    async def work() -> None:
        for places in left:
            await one(places)

    working = [asyncio.ensure_future(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return found


def _charged(one: Trajectory, account: Account) -> Trajectory:
    asked = account.entries()
    return replace(one, usage=merged((*one.usage, *asked))) if asked else one


def _places(trajectories: Sequence[Trajectory], groups: Sequence[Hashable] | None) -> list[list[int]]:
    of: dict[tuple[str, int, str, Hashable], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        own = repr(trajectory.task) if trajectory.task_index < 0 else ""
        apart = None if groups is None else groups[index]
        of.setdefault((trajectory.split, trajectory.task_index, own, apart), []).append(index)
    return list(of.values())
