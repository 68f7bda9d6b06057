"""Variants of measured rewards: other weights, values that another spec can take over, and each part alone.

Some terms have to come out as they were recorded, since nothing that they measure has changed. State is made anew by
taking the calls again. Where something that no call shows takes part (chance, the clock, what other episodes did), such
a term comes out differently, and then no term that reads state measures what was left.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlenv._base.bounded import grouped
from rlenv._base.text import did_you_mean
from rlenv.endpoints.account import as_recorded
from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import may_read_state
from rlenv.errors import RlenvError, UsageError
from rlenv.language.expressions import compile_expression
from rlenv.rewards.base import Term, weighing
from rlenv.rewards.group import score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.runs.figures.rewards import Agreement, agreement_of
from rlenv.runs.locks.files import json_bytes
from rlenv.runs.locks.lock import Lock, lock_of
from rlenv.runs.replay import termination
from rlenv.runs.summary import GroupSummary, is_same, mean, summarise, task_of
from rlenv.trajectory import ModelUsage, TermResult, Trajectory

_NOT_MEASURED = frozenset({"weight", "required", "on_invalid"})
_NOT_PLAYED = {"rewards", "success", "name", "version", "description", "oracle"}


@dataclass(frozen=True, slots=True)
class Weights:
    """The terms that are left out of a spec's rewards (with `only` all others), and the weights of the rest."""

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


def reweigh(
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
    terms = _chosen_terms(environment.parts.terms, weights, environment.spec.success)
    found = weigh(environment, trajectories, Scorer(terms, success=environment.spec.success), groups=groups)
    return [dataclasses.replace(one, usage=as_recorded(one.usage)) for one in found]


def weigh(
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
    found = [_weigh(environment, one, scorer) for one in trajectories]
    return score_groups(scorer, found, groups=groups, keeps_asked=True)


def _weigh(environment: Environment, one: Trajectory, scorer: Scorer) -> Trajectory:
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
            one, failure=None, terminated=not cut, truncated=bool(cut), reason=cut or termination(environment, one)
        )
    return one.rescored(*scorer.of(one.task).weighed(results, turns=turns))


def _chosen_terms(terms: Sequence[Term], weights: Weights, success: str | None) -> list[Term]:
    known = {term.name: term for term in terms}
    for option, names in (("--drop", weights.drop), ("--only", weights.only), ("--weight", tuple(weights.weight))):
        for name in names:
            if name not in known:
                message = f"{option} {name}: no term is called that"
                raise UsageError(message, hint=did_you_mean(name, known, "there are"))
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
    return [weighing(known[name], weights.weight.get(name)) for name in kept]


def _check_readers(known: Mapping[str, Term], kept: Sequence[str], success: str | None) -> None:
    readers: dict[str, Sequence[str]] = {}
    for name in kept:
        readers[f"the gate of '{name}'"] = gate_names(known[name])
        readers[f"the term '{name}'"] = known[name].reads
    if success is not None:
        readers["success"] = compile_expression(success).names
    for reader, name in ((reader, name) for reader, names in readers.items() for name in names if name not in kept):
        hint = f"--weight {name}=0 pays nothing for it and keeps it"
        raise UsageError(f"'{name}' is left out, and {reader} reads it", hint=hint)


def shared_terms(first: Environment, second: Environment) -> frozenset[str]:
    """The terms of `second` that give what those of `first` give on the same episodes: they need not be measured again.

    Those are equal but for what is paid for them, behind equal gates, in environments that differ in rewards alone.
    Terms over all answers to a task are none of them.
    """
    if _played_fields(first) != _played_fields(second):
        return frozenset()
    before = {term.name: term for term in first.parts.terms}
    equal = {
        term.name: term
        for term in second.parts.terms
        if not term.is_of_group and term.name in before and _measurement(before[term.name]) == _measurement(term)
    }
    while True:
        left = {name: term for name, term in equal.items() if all(one in equal for one in gate_names(term))}
        if len(left) == len(equal):
            return frozenset(left)
        equal = left


def _played_fields(environment: Environment) -> tuple[Any, ...]:
    spec = environment.spec
    return environment.loaded.path.parent.resolve(), type(spec), spec.model_dump(exclude=_NOT_PLAYED)


def _measurement(term: Term) -> tuple[Any, ...]:
    return type(term.spec), term.spec.model_dump(exclude=set(_NOT_MEASURED))


def gate_names(term: Term) -> tuple[str, ...]:
    """The terms that the gate of a term looks at."""
    return () if term.spec.gate is None else compile_expression(term.spec.gate, by_row=True).names


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
    if any(json_bytes(getattr(one, name)) != json_bytes(getattr(now, name)) for one in locks for name in _MADE_BY):
        return frozenset()
    return frozenset(name for name in read if all(_is_equal(one.rewards, now.rewards, name) for one in locks))


def _is_equal(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return name in one and name in other and json_bytes(one[name]) == json_bytes(other[name])


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
    lost = [_lost_reason(old, new, names) for old, new in zip(recorded, rescored, strict=True)]
    if not any(lost):
        return list(rescored)
    readers = _state_readers(environment)
    refused = [_refuse_readers(one, readers, why) if why else one for one, why in zip(rescored, lost, strict=True)]
    return weigh(environment, refused, environment.parts.scorer, groups=groups)


def _lost_reason(recorded: Trajectory, rescored: Trajectory, names: frozenset[str]) -> str:
    for name in sorted(names):
        then, now = (one.reward.terms.get(name) for one in (recorded, rescored))
        if then is None or now is None or then.value is None or now.value is None or is_same(then.value, now.value):
            continue
        return (
            f"the state that the episode left cannot be had again: '{name}' gave {then.value:g} when it was recorded "
            f"and {now.value:g} now, with nothing changed; chance, the clock or other episodes take part in it"
        )
    return ""


def _state_readers(environment: Environment) -> frozenset[str]:
    """The terms that read state, and those behind a gate that looks at one of them."""
    terms = environment.parts.terms
    found = {term.name for term in terms if may_read_state(term.spec)}
    while more := {term.name for term in terms if term.name not in found and not found.isdisjoint(gate_names(term))}:
        found |= more
    return frozenset(found)


def _refuse_readers(one: Trajectory, readers: frozenset[str], why: str) -> Trajectory:
    terms = {
        name: TermResult.invalid(name, error=why, weight=term.weight, seconds=term.seconds)
        if name in readers and term.status != "invalid"
        else term
        for name, term in one.reward.terms.items()
    }
    return dataclasses.replace(one, reward=dataclasses.replace(one.reward, terms=terms))


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of the episodes by some of the terms alone.

    `reward` is the agreement of the episodes' rewards with those of the reference (rank correlations), `success` that
    of the successes (kappa). `seconds` and `tokens` are what measuring the terms took, for an episode: as they were
    recorded, those of a cached answer left out; None where no term says, `tokens` also where a part is not known.
    Episodes that failed before they were scored are no part of either.
    """

    name: str
    terms: tuple[str, ...]
    gate: str
    """What counts as success, as a comparison; "" for the default, required terms with a positive weight at 1."""
    figures: GroupSummary
    reward: Agreement
    success: Agreement
    seconds: float | None
    tokens: float | None


@dataclass(frozen=True, slots=True)
class Ablation:
    """The parts of one environment's reward over the same episodes."""

    episodes: int
    reference: str
    parts: tuple[Part, ...]


def ablation(
    environment: Environment,
    trajectories: Sequence[Trajectory],
    *,
    reference: str | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Ablation:
    """The figures of the environment's terms, whose values the trajectories hold, alone, by kind, together and less
    one.

    Args:
        reference: the term that the others are held against; by default the whole reward, and its success.

    Raises:
        UsageError: no term is called `reference`, or one was not recorded.
    """
    terms = {term.name: term for term in environment.parts.terms}
    if reference is not None and reference not in terms:
        raise UsageError(f"no term is called '{reference}'", hint=did_you_mean(reference, terms, "there are"))
    chosen = {"all together": tuple(terms)} if len(terms) == 1 else _term_sets(terms)
    scored = {
        name: weigh(environment, trajectories, _part_scorer(environment, names, alone=len(names) == 1), groups=groups)
        for name, names in chosen.items()
    }
    against = scored["all together" if reference is None or len(terms) == 1 else f"only {reference}"]
    parts = tuple(_make_part(environment, name, chosen[name], scored[name], against) for name in chosen)
    return Ablation(len(trajectories), reference or "all together", parts)


def _term_sets(terms: Mapping[str, Term]) -> dict[str, tuple[str, ...]]:
    """The sets of terms by name; a set that stands there already is not listed again."""
    kinds = grouped((term.spec.kind, name) for name, term in terms.items())
    listed = {"all together": list(terms)}
    listed |= {f"only {name}": [name] for name in terms}
    listed |= {f"all of kind {kind}": names for kind, names in kinds.items()}
    listed |= {f"without {name}": [one for one in terms if one != name] for name in terms}
    listed |= {f"none of kind {kind}": [one for one in terms if one not in names] for kind, names in kinds.items()}
    found: dict[str, tuple[str, ...]] = {}
    for name, names in listed.items():
        if names and tuple(names) not in found.values():
            found[name] = tuple(names)
    return found


def _part_scorer(environment: Environment, names: Sequence[str], *, alone: bool) -> Scorer:
    """Pays for some terms; what their gates and measures read is there too, and is paid nothing."""
    terms = {term.name: term for term in environment.parts.terms}
    read = list(names)
    for name in read:  # which grows meanwhile
        read += [one for one in (*gate_names(terms[name]), *terms[name].reads) if one not in read]
    return Scorer(
        [_weighted_term(term, name in names, alone=alone) for name, term in terms.items() if name in read],
        success=_success_part(environment.spec.success, names) or None,
    )


def _weighted_term(term: Term, is_paid: bool, *, alone: bool) -> Term:
    if not is_paid:
        update: dict[str, object] = {"weight": 0.0, "required": False}
    elif alone and term.spec.usual_weight == 0:
        update = {"weight": 1.0}
    else:
        return term
    return dataclasses.replace(term, spec=term.spec.model_copy(update=update))


def _success_part(success: str | None, names: Sequence[str]) -> str:
    """The part of `success` that is left where only these terms are: of comparisons joined by `and`, those that read no
    other.

    The whole, or nothing, where it is joined in another way.
    """
    if success is None or set(compile_expression(success).names) <= set(names):
        return success or ""
    if re.search(r"\b(or|not)\b|[()]", success):
        return ""
    parts = [one.strip() for one in re.split(r"\band\b", success)]
    return " and ".join(part for part in parts if set(compile_expression(part).names) <= set(names))


def _make_part(
    environment: Environment,
    name: str,
    names: tuple[str, ...],
    scored: Sequence[Trajectory],
    against: Sequence[Trajectory],
) -> Part:
    tasks = [task_of(one) for one in scored]
    summary = summarise(scored, seconds=0.0)
    rewards = ([one.reward.total for one in scored], [one.reward.total for one in against])
    successes = ([_to_number(one.success) for one in scored], [_to_number(one.success) for one in against])
    ended = [one for one in scored if one.failure is None or one.failure.reason == "reward"]
    measured = [[one.reward.terms[term] for term in names if term in one.reward.terms] for one in ended]
    return Part(
        name,
        names,
        _success_part(environment.spec.success, names),
        GroupSummary(**{field.name: getattr(summary, field.name) for field in dataclasses.fields(GroupSummary)}),
        agreement_of(name, rewards[0], "reference", rewards[1], tasks),
        agreement_of(name, successes[0], "reference", successes[1], tasks),
        mean([sum(term.seconds for term in terms) for terms in measured]),
        _asked_tokens(ended, names),
    )


def _to_number(success: bool | None) -> float | None:
    return None if success is None else float(success)


def _asked_tokens(scored: Sequence[Trajectory], names: Sequence[str]) -> float | None:
    """The tokens that measuring the terms asked of models for an episode, when they were measured last."""
    found = [entry for one in scored for name in names for entry in _term_usage(one.usage, name)]
    if not found or any(entry.unknown for entry in found):
        return None
    return sum(entry.prompt_tokens + entry.completion_tokens for entry in found) / len(scored)


def _term_usage(usage: Sequence[ModelUsage], term: str) -> list[ModelUsage]:
    own = [one for one in usage if one.role.split(" > ")[0] in (f"judge {term}", f"term {term}")]
    return [one for one in own if not one.is_recorded] or own
