"""What is known about the terms of a spec before any episode, and what of it cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlenv.errors import UsageError
from rlenv.language.expressions import Expression, compile_expression
from rlenv.language.weighing import flaws
from rlenv.rewards.base import Term
from rlenv.rewards.shaping import shaped

__all__ = ["Plan", "Planned", "plan"]


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
class Plan:
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


def plan(terms: Sequence[Term], *, success: str | None) -> Plan:
    """How `terms` are scored, in the order of the spec.

    Raises:
        UsageError: two terms share a name, what one measures does not fit how, or their keys have one of the `flaws`
            (rlenv.language.weighing); it names the key.
    """
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise UsageError(f"two reward terms share a name: {', '.join(names)}")
    for flaw in flaws({term.name: term.spec for term in terms}, success):
        raise UsageError(flaw.message, key=flaw.path, hint=flaw.hint)
    planned = tuple(_planned(shaped(term)) for term in terms)
    ordered = _by_dependency(planned)
    _check_group_terms(planned)
    return Plan(
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
        float(spec.weight),
        None if spec.gate is None else compile_expression(spec.gate),
        is_per_turn=spec.when == "turn",
        is_mean=spec.over_turns == "mean",
        # What earns nothing decides nothing, unless the spec says that it has to be there.
        is_required=spec.required and (spec.weight != 0 or "required" in spec.model_fields_set),
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
