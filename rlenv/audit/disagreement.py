"""Where a judge and a verifier say different things about the same recorded episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlenv.runs.figures.agreement import Estimate, between
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["Differing", "Disagreement", "disagreement"]

_LISTED = 50
_HIGH = 0.5


@dataclass(frozen=True, slots=True)
class Differing:
    """One episode on which the two differ; `value` is the judge's share of its scale."""

    split: str
    task_index: int
    seed: int
    value: float
    verified: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A judge's term beside another one, over the episodes where both were measured.

    The judge is high at or above the middle of its scale, the other term passes at 1 or more. `unmeasured` are episodes
    where one of the two was invalid or skipped; they are part of no other figure. `kappa` is Cohen's, of the two yes or
    no, with its bootstrap interval over tasks. `high_but_failed` and `low_but_passed` list the episodes, the judge's
    surest first, 50 at most; `failed` and `passed` count what the other term says, `high` and `low` how many of them
    the judge takes for the opposite.
    """

    judge: str
    against: str
    episodes: int
    unmeasured: int
    failed: int
    high: int
    passed: int
    low: int
    kappa: Estimate
    high_but_failed: tuple[Differing, ...]
    low_but_passed: tuple[Differing, ...]


def disagreement(trajectories: Iterable[Trajectory], *, judge: str, against: Sequence[str]) -> tuple[Disagreement, ...]:
    """The judge's term beside each of the terms of `against`, in order."""
    episodes = list(trajectories)
    return tuple(_beside(episodes, judge, other) for other in against)


def _beside(episodes: Sequence[Trajectory], judge: str, other: str) -> Disagreement:
    found = []
    for one in episodes:
        terms = one.reward.terms
        value, verified = _share(terms.get(judge)), getattr(terms.get(other), "value", None)
        if value is not None and verified is not None:
            found.append(Differing(one.split, one.task_index, one.seed, value, verified))
    failed = [one for one in found if one.verified < 1]
    passed = [one for one in found if one.verified >= 1]
    high = sorted((one for one in failed if one.value >= _HIGH), key=lambda one: -one.value)
    low = sorted((one for one in passed if one.value < _HIGH), key=lambda one: one.value)
    passes, is_high = [float(one.verified >= 1) for one in found], [float(one.value >= _HIGH) for one in found]
    agreed = between(other, passes, judge, is_high, [(one.split, one.task_index) for one in found])
    return Disagreement(
        judge=judge,
        against=other,
        episodes=len(found),
        unmeasured=len(episodes) - len(found),
        failed=len(failed),
        high=len(high),
        passed=len(passed),
        low=len(low),
        kappa=agreed.kappa or Estimate(None),
        high_but_failed=tuple(high[:_LISTED]),
        low_but_passed=tuple(low[:_LISTED]),
    )


def _share(term: TermResult | None) -> float | None:
    """The judge's score as a share of its scale, before `range` and `clip`; None where it was not measured."""
    if term is None or term.value is None:
        return None
    raw, scale = term.details.get("raw"), term.details.get("scale")
    if raw is None or not isinstance(scale, (list, tuple)) or len(scale) != 2:
        return None
    return float((raw - scale[0]) / (scale[1] - scale[0]))
