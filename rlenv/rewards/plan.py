"""Weights of terms over training, and the order in which the terms of a reward are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

from rlenv.errors import RewardError, UsageError
from rlenv.language.expressions import Expression, compile_expression, flaws
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term
from rlenv.trajectory import Trajectory

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


@dataclass(frozen=True, slots=True)
class Planned:
    """One term. `is_mean`: its turns count by their mean, else by their sum."""

    term: Term
    name: str
    weight: float
    gate: Expression | None
    is_per_turn: bool
    is_mean: bool
    is_required: bool


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """All terms: in the order of the spec, in one in which each stands behind those that its gate reads, and by kind.

    `waits` says whether one of an episode's terms has to be awaited.
    """

    terms: tuple[Planned, ...]
    ordered: tuple[Planned, ...]
    per_turn: tuple[Planned, ...]
    group: tuple[Planned, ...]
    raising: tuple[str, ...]
    waits: bool
    success: Expression | None


def plan(terms: Sequence[Term], *, success: str | None) -> ScoringPlan:
    """The plan for scoring `terms`, in the order of the spec.

    Raises:
        UsageError: two terms share a name, what one measures does not fit how, or their keys have one of the `flaws`
            (rlenv.language.expressions); it names the key.
    """
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise UsageError(f"two reward terms share a name: {', '.join(names)}")
    for flaw in flaws({term.name: term.spec for term in terms}, success):
        raise UsageError(flaw.message, key=flaw.path, hint=flaw.hint)
    planned = tuple(_planned(shaped(term)) for term in terms)
    ordered = _by_dependency(planned)
    _check_group_terms(planned)
    return ScoringPlan(
        terms=planned,
        ordered=ordered,
        per_turn=tuple(one for one in planned if one.is_per_turn),
        group=tuple(one for one in planned if one.term.is_of_group),
        raising=tuple(one.name for one in planned if one.term.spec.on_invalid == "raise"),
        waits=any(one.term.measure_async is not None and not one.is_per_turn for one in planned),
        success=None if success is None else compile_expression(success),
    )


def _planned(term: Term) -> Planned:
    spec, where = term.spec, f"rewards.{term.name}"
    measures = (term.measure, term.measure_async, term.measure_group, term.ask_group)
    if sum(measure is not None for measure in measures) != 1:
        raise UsageError("exactly one of its measures must be set", key=where)
    if term.is_of_group and spec.when == "turn":
        raise UsageError("a term over all answers to a task is measured once", key=f"{where}.when")
    return Planned(
        term,
        term.name,
        float(spec.usual_weight),
        None if spec.gate is None else compile_expression(spec.gate, by_row=True),
        is_per_turn=spec.when == "turn",
        is_mean=spec.over_turns == "mean",
        # What earns nothing decides nothing, unless the spec says that it has to be there.
        is_required=spec.required and (spec.usual_weight != 0 or "required" in spec.model_fields_set),
    )


def _by_dependency(planned: Sequence[Planned]) -> tuple[Planned, ...]:
    ordered: dict[str, Planned] = {}
    left = {one.name: one for one in planned}
    while left:
        # One at a time, so that the order stays as near to the spec's as the gates allow. They form no circle.
        first = next(one for one in left.values() if one.gate is None or ordered.keys() >= set(one.gate.names))
        ordered[first.name] = left.pop(first.name)
    return tuple(ordered.values())


def _check_group_terms(planned: Sequence[Planned]) -> None:
    grouped = {one.name for one in planned if one.term.is_of_group}
    known = [one.name for one in planned if one.name not in grouped]
    for one in planned:
        if one.name in grouped and (unknown := [name for name in one.term.reads if name not in known]):
            there = ", ".join(known)
            raise UsageError(
                f"no term '{unknown[0]}' to compare", key=f"rewards.{one.name}.of", hint=f"there are: {there}"
            )
    for one in planned:
        if one.gate is not None and (late := sorted(grouped.intersection(one.gate.names))):
            raise UsageError(
                f"'{late[0]}' is known only once all answers are", key=f"rewards.{one.name}.gate", hint="drop it"
            )
