"""Each term alone, each kind alone, all together, and all but one: what a reward is worth by its parts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from rlenv._base.text import did_you_mean
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.language.expressions import compile_expression
from rlenv.rewards.base import Term
from rlenv.rewards.scorer import Scorer
from rlenv.runs.figures.rewards import Agreement, between
from rlenv.runs.summary import GroupSummary, mean, summarise, task_of
from rlenv.runs.variants import weighed
from rlenv.trajectory import ModelUsage, Trajectory

__all__ = ["Ablation", "Part", "ablation"]


@dataclass(frozen=True, slots=True)
class Part:
    """What some of the terms say of the episodes by themselves.

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
    """What the environment's terms, whose values the trajectories hold, say alone, by kind, together and less one.

    Args:
        reference: the term that the others are held against; by default the whole reward, and its success.

    Raises:
        UsageError: no term is called `reference`, or one was not recorded.
    """
    terms = {term.name: term for term in environment.parts.terms}
    if reference is not None and reference not in terms:
        raise UsageError(f"no term is called '{reference}'", hint=did_you_mean(reference, terms, "there are"))
    chosen = {"all together": tuple(terms)} if len(terms) == 1 else _subsets(terms)
    scored = {
        name: weighed(environment, trajectories, _scorer(environment, names, alone=len(names) == 1), groups=groups)
        for name, names in chosen.items()
    }
    against = scored["all together" if reference is None or len(terms) == 1 else f"only {reference}"]
    parts = tuple(_part(environment, name, chosen[name], scored[name], against) for name in chosen)
    return Ablation(len(trajectories), reference or "all together", parts)


def _subsets(terms: Mapping[str, Term]) -> dict[str, tuple[str, ...]]:
    """The sets of terms by name; a set that stands there already is not listed again."""
    kinds: dict[str, list[str]] = {}
    for name, term in terms.items():
        kinds.setdefault(term.spec.kind, []).append(name)
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


def _scorer(environment: Environment, names: Sequence[str], *, alone: bool) -> Scorer:
    """Pays for some terms; what their gates and measures read is there too, and is paid nothing."""
    terms = {term.name: term for term in environment.parts.terms}
    read = list(names)
    for name in read:  # which grows meanwhile
        gate = terms[name].spec.gate
        read += [one for one in (*_names(gate), *terms[name].reads) if one not in read]
    return Scorer(
        [_paid(term, name in names, alone=alone) for name, term in terms.items() if name in read],
        success=_gate(environment.spec.success, names) or None,
    )


def _paid(term: Term, is_paid: bool, *, alone: bool) -> Term:
    if not is_paid:
        update: dict[str, object] = {"weight": 0.0, "required": False}
    elif alone and term.spec.weight == 0:
        update = {"weight": 1.0}
    else:
        return term
    return dataclasses.replace(term, spec=term.spec.model_copy(update=update))


def _gate(success: str | None, names: Sequence[str]) -> str:
    """What is left of `success` where only these terms are: of comparisons joined by `and`, those that read no other.

    The whole, or nothing, where it is joined in another way.
    """
    if success is None:
        return ""
    if set(_names(success)) <= set(names):
        return success
    if re.search(r"\b(or|not)\b|[()]", success):
        return ""
    return " and ".join(part for one in re.split(r"\band\b", success) if set(_names(part := one.strip())) <= set(names))


def _names(expression: str | None) -> tuple[str, ...]:
    return () if expression is None else compile_expression(expression).names


def _part(
    environment: Environment,
    name: str,
    names: tuple[str, ...],
    scored: Sequence[Trajectory],
    against: Sequence[Trajectory],
) -> Part:
    tasks = [task_of(one) for one in scored]
    summary = summarise(scored, seconds=0.0)
    rewards = ([one.reward.total for one in scored], [one.reward.total for one in against])
    successes = ([_number(one.success) for one in scored], [_number(one.success) for one in against])
    ended = [one for one in scored if one.failure is None or one.failure.reason == "reward"]
    measured = [[one.reward.terms[term] for term in names if term in one.reward.terms] for one in ended]
    return Part(
        name,
        names,
        _gate(environment.spec.success, names),
        GroupSummary(**{field.name: getattr(summary, field.name) for field in dataclasses.fields(GroupSummary)}),
        between(name, rewards[0], "reference", rewards[1], tasks),
        between(name, successes[0], "reference", successes[1], tasks),
        mean([sum(term.seconds for term in terms) for terms in measured]),
        _tokens(ended, names),
    )


def _number(success: bool | None) -> float | None:
    return None if success is None else float(success)


def _tokens(scored: Sequence[Trajectory], names: Sequence[str]) -> float | None:
    """What measuring the terms asked of models, for an episode: when they were measured last."""
    found = [entry for one in scored for name in names for entry in _asked(one.usage, name)]
    if not found or any(entry.unknown for entry in found):
        return None
    return sum(entry.prompt_tokens + entry.completion_tokens for entry in found) / len(scored)


def _asked(usage: Sequence[ModelUsage], term: str) -> list[ModelUsage]:
    own = [one for one in usage if one.role.split(" > ")[0] in (f"judge {term}", f"term {term}")]
    return [one for one in own if not one.is_recorded] or own
