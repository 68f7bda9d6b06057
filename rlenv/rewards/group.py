"""Terms that compare the episodes of a task: the kind `group`, and the place where siblings wait for each other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Literal

from rlenv.concurrency.scope import Scope, at_once
from rlenv.endpoints.account import Account, merge_usage
from rlenv.errors import EpisodeError, RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.rewards.base import GroupContext, Measured, Term, TermCompileContext
from rlenv.rewards.rule import is_async, load_function, raised
from rlenv.rewards.scorer import Scorer
from rlenv.trajectory import ModelUsage, Trajectory

__all__ = ["KIND", "GroupSpec", "OnAsked", "ask_groups", "relative", "score_groups"]

By = Literal["centred", "deviation", "rank", "best"]


class GroupSpec(RewardSpec):
    """Compares an answer with the others to the same task; measured once the whole group has ended.

    Give `of`, the name of another term, or `function`, one of your own. A single answer has nothing to compare
    with and is skipped.
    """

    kind: Literal["group"]
    of: Text | None = None
    """The term whose values are compared."""
    by: By = "rank"
    """`centred`: value minus the mean; `deviation`: that by the standard deviation; `rank`: the share of the others
    that are below, ties by half; `best`: 1 for the highest value, 0 otherwise."""
    function: Text | None = None
    """`file.py:function`: takes the trajectories of the group and returns a number for each, in order."""


def relative(values: Sequence[float], *, by: By) -> list[float]:
    """Each value compared with the others of its group; `len(result) == len(values)`, at least two."""
    if by == "best":
        top = max(values)
        return [float(value == top) for value in values]
    if by == "rank":
        return [
            sum((other < value) + 0.5 * (other == value) for place, other in enumerate(values) if place != index)
            / (len(values) - 1)
            for index, value in enumerate(values)
        ]
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if by == "centred":
        return centred
    spread = math.sqrt(math.fsum(value * value for value in centred) / (len(values) - 1))
    return [value / spread if spread else 0.0 for value in centred]


def _compile(name: str, spec: GroupSpec, context: TermCompileContext) -> Term:
    if (spec.of is None) == (spec.function is None):
        raise UsageError("give either of or function", hint="name one of them")
    if spec.of == name:
        raise UsageError(f"'{name}' cannot be compared with itself", key="of", hint="name another term")
    if spec.function is not None:
        target = spec.function
        function = load_function(target, key="function", gives=["trajectories"], context=context)
        if is_async(function):
            message = f"{spec.function} is a coroutine function; a plain one was expected"
            raise UsageError(message, key="function", hint="write def")

        def measure_own(trajectories: Sequence[Trajectory]) -> list[Measured]:
            try:
                found: list[Any] = list(islice(function(trajectories), len(trajectories) + 1))
            except EpisodeError:
                raise
            except (Exception, SystemExit) as error:
                raise raised(target, error) from error
            return [value if isinstance(value, Measured) else Measured(value) for value in found]

        return Term(name=name, spec=spec, measure_group=measure_own)

    def compare(trajectories: Sequence[Trajectory]) -> list[Measured]:
        assert spec.of is not None
        values: list[float | None] = []
        for trajectory in trajectories:
            term = trajectory.reward.terms.get(spec.of)
            if term is None:
                raise RewardError(f"of: there is no term '{spec.of}'; there are: {', '.join(trajectory.reward.terms)}")
            values.append(term.value)
        known = [value for value in values if value is not None]
        if len(known) < 2:
            return [Measured(None, "no other answer to compare with")] * len(values)
        compared = iter(relative(known, by=spec.by))
        return [
            Measured(None, f"'{spec.of}' has no value")
            if value is None
            else Measured(next(compared), f"{value:g} among {len(known)}", {"value": value, "answers": len(known)})
            for value in values
        ]

    return Term(name=name, spec=spec, measure_group=compare, reads=(spec.of or "",))


KIND = Kind(GroupSpec, _compile)


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
        message = f"the term '{scorer.asked_names[0]}' asks models about a group"
        raise UsageError(message, hint="await environment.score_groups")
    if not scorer.has_group_terms:
        return found
    for places in _group_places(trajectories, groups):
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
    limit_s: Callable[[Mapping[str, Any]], float],
    groups: Sequence[Hashable] | None = None,
    on_asked: OnAsked | None = None,
) -> list[Trajectory]:
    """As `score_groups`, with the terms that ask models too; what they ask for is added to the `usage` of the answers.

    A group is not asked about again where each answer has a value of these terms, has failed or has a shut gate.

    Args:
        limit_s: seconds for each term of the group of a row.
        on_asked: told of each group's usage, as soon as it is known.

    Raises:
        InvalidReward: a term with `on_invalid: raise` could not be measured.
    """
    if not scorer.asked_names:
        return score_groups(scorer, trajectories, groups=groups)
    found = list(trajectories)

    async def score_one(places: Sequence[int]) -> None:
        siblings = [trajectories[place] for place in places]
        if places[0] not in waiting:
            scored = scorer.score_group(siblings)
        else:
            accounts = [Account() for _ in siblings]
            try:
                context = GroupContext(vars=vars, shared=shared, accounts=accounts)
                scored = await scorer.ask_group(siblings, context, limit_s=limit_s(siblings[0].task))
            finally:
                waiting.discard(places[0])
                if on_asked is not None:
                    on_asked(merge_usage(entry for account in accounts for entry in account.entries()), len(waiting))
            scored = [_add_usage(each, account) for each, account in zip(scored, accounts, strict=True)]
        for place, trajectory in zip(places, scored, strict=True):
            found[place] = trajectory

    all_places = _group_places(trajectories, groups)
    waiting = {places[0] for places in all_places if scorer.has_to_ask([trajectories[at] for at in places])}
    left = iter(all_places)

    async def work() -> None:
        for places in left:
            await score_one(places)

    async with at_once(work() for _ in range(_AT_ONCE)) as working:
        await asyncio.gather(*working)
    return found


def _add_usage(one: Trajectory, account: Account) -> Trajectory:
    usage = account.entries()
    return replace(one, usage=merge_usage((*one.usage, *usage))) if usage else one


def _group_places(trajectories: Sequence[Trajectory], groups: Sequence[Hashable] | None) -> list[list[int]]:
    by_group: dict[tuple[str, int, str, Hashable], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        row = repr(trajectory.task) if trajectory.task_index < 0 else ""
        given_group = None if groups is None else groups[index]
        by_group.setdefault((trajectory.split, trajectory.task_index, row, given_group), []).append(index)
    return list(by_group.values())
