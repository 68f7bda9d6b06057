"""What every term may ask for beside its own measure: `range`, `clip`, and trying again where it is invalid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite

from rlenv.errors import RewardError
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term
from rlenv.trajectory import Trajectory

__all__ = ["RETRIES", "shaped"]

RETRIES = 2
"""How often a term with `on_invalid: retry` is measured again."""


def shaped(term: Term) -> Term:
    """The term with its spec's `range`, `clip` and `on_invalid: retry` around its measure."""
    spec = term.spec
    shape = _shape(spec)
    again = RETRIES if spec.on_invalid == "retry" else 0
    if shape is None and not again:
        return term
    finish = shape if shape is not None else _as_it_is
    measure, measure_async = term.measure, term.measure_async
    if measure is not None:

        def quick(context: RewardContext) -> Measured:
            for _ in range(again):
                with suppress(Exception):  # whatever an author's function raises; the last try may raise it
                    if _is_usable(measured := measure(context)):
                        return finish(measured)
            return finish(measure(context))

        return dataclasses.replace(term, measure=quick)
    if measure_async is not None:

        async def slow(context: RewardContext) -> Measured:
            for _ in range(again):
                with suppress(Exception):  # as above
                    if _is_usable(measured := await measure_async(context)):
                        return finish(measured)
            return finish(await measure_async(context))

        return dataclasses.replace(term, measure_async=slow)
    return _of_group(term, finish, again)


def _of_group(term: Term, finish: Callable[[Measured], Measured], again: int) -> Term:
    measure_group, ask_group = term.measure_group, term.ask_group

    def each(found: Sequence[Measured | RewardError]) -> list[Measured | RewardError]:
        return [finish(one) if isinstance(one, Measured) else one for one in found]

    def is_whole(found: Sequence[Measured | RewardError]) -> bool:
        return all(isinstance(one, Measured) and _is_usable(one) for one in found)

    if measure_group is not None:

        def quick(trajectories: Sequence[Trajectory]) -> list[Measured]:
            for _ in range(again):
                with suppress(Exception):  # as above
                    if is_whole(found := measure_group(trajectories)):
                        return [finish(one) for one in found]
            return [finish(one) for one in measure_group(trajectories)]

        return dataclasses.replace(term, measure_group=quick)
    if ask_group is not None:

        async def asking(trajectories: Sequence[Trajectory], context: GroupContext) -> list[Measured | RewardError]:
            for _ in range(again):
                with suppress(Exception):  # as above
                    if is_whole(found := await ask_group(trajectories, context)):
                        return each(found)
            return each(await ask_group(trajectories, context))

        return dataclasses.replace(term, ask_group=asking)
    return term


def _as_it_is(measured: Measured) -> Measured:
    return measured


def _is_usable(measured: Measured) -> bool:
    value = measured.value
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value))


def _shape(spec: RewardSpec) -> Callable[[Measured], Measured] | None:
    if spec.range is None and spec.clip is None:
        return None
    low, high = spec.range or (0.0, 1.0)
    least, most = spec.clip or (float("-inf"), float("inf"))

    def shape(measured: Measured) -> Measured:
        value = measured.value
        if value is None or not _is_usable(measured):
            return measured  # nothing to measure, or what scoring will refuse
        # The raw value stays in the trajectory, so that a change of range can be told from a change of behaviour.
        found = min(most, max(least, (value - low) / (high - low)))
        return dataclasses.replace(measured, value=found, details={**measured.details, "unshaped": value})

    return shape
