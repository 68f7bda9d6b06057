"""Other weights for rewards that have been measured, and what of one spec's rewards another can take over.

Terms that have to come out as they were recorded, since nothing that they measure has changed.

State is made anew by taking the calls again. Where something that no call shows takes part (chance, the clock, what
other episodes did), such a term comes out differently, and then no term that reads state measures what was left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlenv._base.text import did_you_mean
from rlenv.endpoints.account import as_recorded
from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import may_read_state
from rlenv.errors import RlenvError, UsageError
from rlenv.language.expressions import compile_expression
from rlenv.rewards.base import Term
from rlenv.rewards.group import score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.runs.locks.files import canonical
from rlenv.runs.locks.lock import Lock, lock_of
from rlenv.runs.rescore import same, termination
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["Weights", "gate_names", "held_to_record", "shared", "varied", "weighed", "witnesses"]

_NOT_MEASURED = frozenset({"weight", "required", "on_invalid"})
_NOT_PLAYED = {"rewards", "success", "name", "version", "description", "oracle"}


@dataclass(frozen=True, slots=True)
class Weights:
    """What is left out of a spec's rewards, and what is paid for the others. With `only` all others are left out."""

    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    weight: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.drop or self.only or self.weight)

    def __str__(self) -> str:
        said = [f"without {', '.join(self.drop)}"] if self.drop else []
        said += [f"only {', '.join(self.only)}"] if self.only else []
        said += [f"{name} × {value:g}" for name, value in self.weight.items()]
        return "; ".join(said)


def varied(
    environment: Environment,
    trajectories: Sequence[Trajectory],
    weights: Weights,
    *,
    groups: Sequence[Hashable] | None = None,
) -> list[Trajectory]:
    """The trajectories as their environment would have scored them with these weights, from the values that they have.

    Nothing is run or asked, and `usage` is all as recorded. Gates, `success`, bounds and required terms are the
    scorer's own. Terms over all answers to a task are measured again, over the answers that count then; those that
    asked a model keep what was recorded.

    Raises:
        UsageError: a term is not one of the spec's or was not recorded, a weight is no finite number, nothing is left,
            or what is left out is read by a gate, by `success` or by a group's term.
    """
    terms = _chosen(environment.parts.terms, weights, environment.spec.success)
    found = weighed(environment, trajectories, Scorer(terms, success=environment.spec.success), groups=groups)
    return [dataclasses.replace(one, usage=as_recorded(one.usage)) for one in found]


def weighed(
    environment: Environment,
    trajectories: Sequence[Trajectory],
    scorer: Scorer,
    *,
    groups: Sequence[Hashable] | None = None,
) -> list[Trajectory]:
    """The trajectories with the rewards of `scorer`, whose terms they hold measured.

    Raises:
        UsageError: a term was not recorded.
    """
    found = [_weighed(environment, one, scorer) for one in trajectories]
    return score_groups(scorer, found, groups=groups, keeps_asked=True)


def _weighed(environment: Environment, one: Trajectory, scorer: Scorer) -> Trajectory:
    turns = len(one.turns)
    if one.failure is not None and one.failure.reason != "reward":
        return dataclasses.replace(one, reward=scorer.failed(one.failure, turns=turns))
    late = "it is measured once all answers to the task are there"
    waiting = {
        name: TermResult.skipped(name, why=late, weight=0.0)
        for name in scorer.group_names
        if name not in scorer.asked_names
    }
    results = {**one.reward.terms, **waiting}
    for name in scorer.names:
        if name not in results:
            there = ", ".join(one.reward.terms) or "none"
            raise UsageError(
                f"the term '{name}' was not recorded, and a weight alone does not measure it",
                hint=f"--spec measures it; the episodes have {there}",
            )
    if one.failure is not None:
        cut = one.cut_by
        one = dataclasses.replace(
            one,
            failure=None,
            terminated=not cut,
            truncated=bool(cut),
            reason=cut or termination(environment, one),
        )
    return one.rescored(*scorer.weighed(results, turns=turns))


def _chosen(terms: Sequence[Term], weights: Weights, success: str | None) -> list[Term]:
    known = {term.name: term for term in terms}
    for option, names in (("--drop", weights.drop), ("--only", weights.only), ("--weight", tuple(weights.weight))):
        for name in names:
            if name not in known:
                raise UsageError(
                    f"{option} {name}: no term is called that", hint=did_you_mean(name, known, "there are")
                )
    for name, value in weights.weight.items():
        if not math.isfinite(value):
            raise UsageError(f"--weight {name}={value}: expected a finite number")
    kept = [name for name in known if name not in weights.drop and (not weights.only or name in weights.only)]
    for name in weights.weight:
        if name not in kept:
            raise UsageError(f"--weight {name} is for a term that is left out", hint="leave one of them out")
    if not kept:
        raise UsageError("no term is left", hint="drop fewer")
    _check_readers(known, kept, success)
    return [_with_weight(known[name], weights.weight.get(name)) for name in kept]


def _check_readers(known: Mapping[str, Term], kept: Sequence[str], success: str | None) -> None:
    readers: dict[str, Sequence[str]] = {}
    for name in kept:
        gate = known[name].spec.gate
        if gate is not None:
            readers[f"the gate of '{name}'"] = compile_expression(gate).names
        readers[f"the term '{name}'"] = known[name].reads
    if success is not None:
        readers["success"] = compile_expression(success).names
    for reader, names in readers.items():
        for name in names:
            if name not in kept:
                hint = f"--weight {name}=0 pays nothing for it and keeps it"
                raise UsageError(f"'{name}' is left out, and {reader} reads it", hint=hint)


def _with_weight(term: Term, weight: float | None) -> Term:
    if weight is None:
        return term
    return dataclasses.replace(term, spec=term.spec.model_copy(update={"weight": weight}))


def shared(first: Environment, second: Environment) -> frozenset[str]:
    """The terms of `second` that give what those of `first` give on the same episodes: they need not be measured again.

    Those are equal but for what is paid for them, behind equal gates, in environments that differ in rewards alone.
    Terms over all answers to a task are none of them.
    """
    if _played(first) != _played(second):
        return frozenset()
    before = {term.name: term for term in first.parts.terms}
    equal = {
        term.name: term
        for term in second.parts.terms
        if not term.is_of_group and term.name in before and _measured(before[term.name]) == _measured(term)
    }
    while True:
        left = {name: term for name, term in equal.items() if all(one in equal for one in gate_names(term))}
        if len(left) == len(equal):
            return frozenset(left)
        equal = left


def _played(environment: Environment) -> tuple[Any, ...]:
    spec = environment.spec
    return environment.loaded.path.parent.resolve(), type(spec), spec.model_dump(exclude=_NOT_PLAYED)


def _measured(term: Term) -> tuple[Any, ...]:
    return type(term.spec), term.spec.model_dump(exclude=set(_NOT_MEASURED))


def gate_names(term: Term) -> tuple[str, ...]:
    """The terms that the gate of a term looks at."""
    return () if term.spec.gate is None else compile_expression(term.spec.gate).names


_MADE_BY: Final = ("rlenv", "tools", "resources", "user", "packages")
"""The sections of a lock that say what the state of an episode comes from, beside its calls."""


def witnesses(environment: Environment, locks: Iterable[Lock]) -> frozenset[str]:
    """The terms that read state and are, with all that makes this state, what they were in each of a run's locks.

    Empty for a run without a lock, and where what the environment is made of now cannot be read.
    """
    locks = tuple(locks)
    read = {term.name for term in environment.parts.terms if may_read_state(term.spec)}
    if not locks or not read:
        return frozenset()
    splits = [name for name in locks[-1].data if name in environment.spec.tasks]
    try:
        now = lock_of(environment, splits=splits)
    except (RlenvError, OSError):
        return frozenset()
    if any(canonical(getattr(one, name)) != canonical(getattr(now, name)) for one in locks for name in _MADE_BY):
        return frozenset()
    return frozenset(name for name in read if all(_equal(one.rewards, now.rewards, name) for one in locks))


def _equal(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return name in one and name in other and canonical(one[name]) == canonical(other[name])


def held_to_record(
    environment: Environment,
    recorded: Sequence[Trajectory],
    rescored: Sequence[Trajectory],
    names: frozenset[str],
    *,
    groups: Sequence[Hashable] | None = None,
) -> list[Trajectory]:
    """The rescored episodes, in which each term that reads state, or has a gate that does, is invalid where one of
    `names` gave another value than it was recorded with; its error says so."""
    lost = [_lost(old, new, names) for old, new in zip(recorded, rescored, strict=True)]
    if not any(lost):
        return list(rescored)
    readers = _readers(environment)
    refused = [_refused(one, readers, why) if why else one for one, why in zip(rescored, lost, strict=True)]
    return weighed(environment, refused, environment.parts.scorer, groups=groups)


def _lost(recorded: Trajectory, rescored: Trajectory, names: frozenset[str]) -> str:
    for name in sorted(names):
        then, now = (one.reward.terms.get(name) for one in (recorded, rescored))
        if then is None or now is None or then.value is None or now.value is None or same(then.value, now.value):
            continue
        return (
            f"the state that the episode left cannot be had again: '{name}' gave {then.value:g} when it was recorded "
            f"and {now.value:g} now, with nothing changed; chance, the clock or other episodes take part in it"
        )
    return ""


def _readers(environment: Environment) -> frozenset[str]:
    """The terms that read state, and those behind a gate that looks at one of them."""
    terms = environment.parts.terms
    found = {term.name for term in terms if may_read_state(term.spec)}
    while more := {term.name for term in terms if term.name not in found and not found.isdisjoint(gate_names(term))}:
        found |= more
    return frozenset(found)


def _refused(one: Trajectory, readers: frozenset[str], why: str) -> Trajectory:
    terms = {
        name: TermResult.invalid(name, error=why, weight=term.weight, seconds=term.seconds)
        if name in readers and term.status != "invalid"
        else term
        for name, term in one.reward.terms.items()
    }
    return dataclasses.replace(one, reward=dataclasses.replace(one.reward, terms=terms))
