"""What a set of trajectories says: the figures of `rlenv eval`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlenv.trajectory import Trajectory

__all__ = ["GroupSummary", "Latency", "Summary", "summarise", "wilson"]

_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution: a two-sided interval of 95 %


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall seconds of a tool's calls at the 50th, 90th and 99th percentile (nearest rank)."""

    calls: int
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Figures over the episodes of one value of a split's `report_by`; as in `Summary`."""

    episodes: int
    reward_mean: float | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    invalid: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures over episodes. Means leave out invalid rewards; None where nothing valid is left.

    `success_interval` is the 95 % Wilson interval of the success rate over valid episodes. `pass_at_k` is the share
    of tasks with at least one success among their samples; None where each task was played once. `calls_lenient`
    counts the uses of each leniency that the dialect allows. `groups` are the values of the column that was asked for,
    in the order in which they were played, and `groups_success_mean` is the mean of their success rates, each group
    counted alike.
    """

    episodes: int
    reward_mean: float | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    invalid: int
    terms: Mapping[str, float | None]
    terms_invalid: Mapping[str, int]
    terms_skipped: Mapping[str, int]
    pass_at_k: float | None
    turns_mean: float
    calls_mean: float
    calls_failed: int
    calls_malformed: int
    calls_lenient: Mapping[str, int]
    truncated: int
    reasons: Mapping[str, int]
    failures: Mapping[str, int]
    latency: Mapping[str, Latency]
    seconds: float
    groups: Mapping[str, GroupSummary] = field(default_factory=dict)
    groups_success_mean: float | None = None


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927, equation for unequal bounds); (0, 1) for no trials."""
    if trials == 0:
        return (0.0, 1.0)
    rate, z2 = successes / trials, _Z * _Z
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return (max(0.0, centre - half), min(1.0, centre + half))


def summarise(trajectories: Sequence[Trajectory], *, seconds: float, by: str | None = None) -> Summary:
    """The figures of a set of episodes.

    Args:
        seconds: the wall time of the whole set.
        by: a column of the tasks; figures are also given for each of its values.
    """
    values: dict[str, list[float]] = defaultdict(list)
    invalid_terms: Counter[str] = Counter()
    skipped_terms: Counter[str] = Counter()
    totals: list[float] = []
    successes: list[bool] = []
    by_task: dict[tuple[str, int], list[bool]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    failed = malformed = turns = calls = 0
    lenient: Counter[str] = Counter()
    names: dict[str, None] = {}
    for trajectory in trajectories:
        for name, term in trajectory.reward.terms.items():
            names[name] = None
            if term.value is not None:
                values[name].append(term.value)
            elif term.status == "invalid":
                invalid_terms[name] += 1
            else:
                skipped_terms[name] += 1
        if trajectory.reward.total is not None:
            totals.append(trajectory.reward.total)
        if trajectory.success is not None:
            successes.append(trajectory.success)
            by_task[trajectory.split, trajectory.task_index].append(trajectory.success)
        turns += len(trajectory.turns)
        for turn in trajectory.turns:
            malformed += turn.calls_malformed
            lenient.update(turn.parsed.leniencies)
            for result in turn.results:
                calls += 1
                failed += result.outcome in ("failed", "timeout")
                if result.outcome in ("ok", "failed", "timeout"):
                    waits[result.name].append(result.seconds)
    count = len(trajectories)
    groups = {} if by is None else _grouped(trajectories, by)
    is_repeated = any(len(samples) > 1 for samples in by_task.values())
    return Summary(
        episodes=count,
        reward_mean=_mean(totals),
        success_rate=_mean([float(success) for success in successes]),
        success_interval=wilson(sum(successes), len(successes)) if successes else None,
        invalid=count - len(totals),
        terms={name: _mean(values[name]) for name in names},
        terms_invalid={name: invalid_terms[name] for name in names},
        terms_skipped={name: skipped_terms[name] for name in names},
        pass_at_k=_mean([float(any(samples)) for samples in by_task.values()]) if is_repeated else None,
        turns_mean=turns / count if count else 0.0,
        calls_mean=calls / count if count else 0.0,
        calls_failed=failed,
        calls_malformed=malformed,
        calls_lenient=dict(sorted(lenient.items())),
        truncated=sum(trajectory.truncated for trajectory in trajectories),
        reasons=dict(Counter(trajectory.reason for trajectory in trajectories).most_common()),
        failures=dict(Counter(t.failure.reason for t in trajectories if t.failure is not None).most_common()),
        latency={name: _latency(sorted(times)) for name, times in sorted(waits.items())},
        seconds=seconds,
        groups=groups,
        groups_success_mean=_mean([one.success_rate for one in groups.values() if one.success_rate is not None]),
    )


def _grouped(trajectories: Sequence[Trajectory], column: str) -> dict[str, GroupSummary]:
    parts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        parts.setdefault(str(trajectory.task.get(column)), []).append(trajectory)
    return {name: _group(part) for name, part in parts.items()}


def _group(trajectories: Sequence[Trajectory]) -> GroupSummary:
    totals = [one.reward.total for one in trajectories if one.reward.total is not None]
    successes = [one.success for one in trajectories if one.success is not None]
    return GroupSummary(
        episodes=len(trajectories),
        reward_mean=_mean(totals),
        success_rate=_mean([float(success) for success in successes]),
        success_interval=wilson(sum(successes), len(successes)) if successes else None,
        invalid=len(trajectories) - len(totals),
    )


def _mean(numbers: Sequence[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


def _latency(ordered: Sequence[float]) -> Latency:
    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Latency(len(ordered), rank(0.5), rank(0.9), rank(0.99))
