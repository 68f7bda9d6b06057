"""Terms that have to come out as they were recorded, since nothing that they measure has changed.

State is made anew by taking the calls again. Where something that no call shows takes part (chance, the clock, what
other episodes did), such a term comes out differently, and then no term that reads state measures what was left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import may_read_state
from rlenv.errors import RlenvError
from rlenv.runs.locks.files import canonical
from rlenv.runs.locks.lock import Lock, lock_of
from rlenv.runs.rescore import same
from rlenv.runs.variants import gate_names, weighed
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["held_to_record", "witnesses"]

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
