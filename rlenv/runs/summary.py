"""What a set of trajectories says: the figures of `rlenv eval`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlenv.runs.prices import Prices
from rlenv.runs.usage import Spending, spent
from rlenv.trajectory import TermResult, Trajectory

__all__ = [
    "GroupSummary",
    "Latency",
    "PassAtK",
    "Summary",
    "clustered",
    "clustered_counts",
    "mean",
    "mean_interval",
    "pass_at",
    "summarise",
    "wilson",
]

_T = TypeVar("_T")
_Task = tuple[str, int, str]
_SQUARED = 1e100  # numbers up to this have squares and sums of squares
_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution: a two-sided interval of 95 %


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall seconds of a tool's calls at the 50th, 90th and 99th percentile (nearest rank)."""

    calls: int
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class PassAtK:
    """The chance that at least one of k samples of a task succeeds, as `pass_at` estimates it; the mean over tasks.

    `tasks` are those with k valid samples or more. `left_out` had fewer, and are no part of `value`, which is None
    where no task is left.
    """

    value: float | None
    tasks: int
    left_out: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The figures of `Summary` that are also made over the episodes of one value of a split's `report_by`."""

    episodes: int
    reward_mean: float | None
    reward_interval: tuple[float, float] | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    invalid: int


@dataclass(frozen=True, slots=True)
class Summary(GroupSummary):
    """Figures over episodes. Means leave out invalid rewards; None where nothing valid is left.

    `success_interval` is a 95 % interval of the success rate over valid episodes, and `reward_interval` of the mean
    reward: samples of one task are no independent ones (see `clustered` and `mean_interval`). `pass_at_k` has an entry
    for k = 1, 2, 4, … and the samples of a task; it is empty where each task was played once. `calls_lenient` counts
    the uses of each leniency that the dialect allows. `groups` are the values of the column that was asked for, in the
    order in which they were played, and `groups_success_mean` is the mean of their success rates, each group counted
    alike.
    """

    terms: Mapping[str, float | None]
    terms_invalid: Mapping[str, int]
    terms_skipped: Mapping[str, int]
    pass_at_k: Mapping[int, PassAtK]
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
    usage: Spending = field(default_factory=Spending)


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927, equation for unequal bounds); (0, 1) for no trials."""
    if trials == 0:
        return (0.0, 1.0)
    rate, z2 = successes / trials, _Z * _Z
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    # Rounding leaves 2.8e-17 where the bound is none.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return (low, 1.0 if successes == trials else min(1.0, centre + half))


def clustered(groups: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """The 95 % interval of a share over samples of several tasks, one sequence a task; (0, 1) for none.

    Wilson's, for as many trials as would give the variance that the tasks show between them (Σ (n·(p - share))² / N²,
    Cochran 1977, 9A.2): as many as there are tasks where a task's samples all agree, and all samples where tasks do not
    differ. With one sample a task it is Wilson's interval of the samples.
    """
    return clustered_counts([(sum(group), len(group)) for group in groups])


def clustered_counts(groups: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The interval of `clustered`, of each task's successes and samples."""
    groups = [group for group in groups if group[1]]
    trials = sum(count for _, count in groups)
    if not trials:
        return (0.0, 1.0)
    share = sum(successes for successes, _ in groups) / trials
    spread = math.fsum((successes - count * share) ** 2 for successes, count in groups) / trials**2
    if share in (0.0, 1.0):
        worth = float(len(groups))  # nothing varies, so that nothing says how alike a task's samples are
    else:
        worth = min(share * (1 - share) / spread, float(trials)) if spread else float(trials)
    return wilson(share * worth, worth)


def mean_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The 95 % interval of a mean over samples of several tasks, one sequence a task; None for fewer than two tasks.

    None also where nothing varies, since nothing says then how much it may, and where a bound is no finite number. The
    mean's standard error between tasks (as in `clustered`, times G / (G - 1) for G tasks) times Student's t.
    """
    groups = [group for group in groups if group]
    count = len(groups)
    if count < 2:
        return None
    # The square of a large number is none that is finite; in units of the largest each one is.
    largest = max(abs(number) for group in groups for number in group)
    unit = largest if largest > _SQUARED else 1.0
    groups = [[number / unit for number in group] for group in groups]
    trials = sum(map(len, groups))
    middle = math.fsum(map(math.fsum, groups)) / trials
    spread = math.fsum((math.fsum(group) - len(group) * middle) ** 2 for group in groups) / trials**2
    if not spread:
        return None
    half = _student(count - 1) * math.sqrt(spread * count / (count - 1))
    low, high = (middle - half) * unit, (middle + half) * unit
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: known ones, and Cornish and Fisher's expansion beyond."""
    known = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    if freedom <= len(known):
        return known[freedom - 1]
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


def pass_at(k: int, *, samples: int, successes: int) -> float:
    """The chance that k of `samples`, drawn without replacement, hold a success: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1. `k` is at most `samples`.
    """
    return 1 - math.comb(samples - successes, k) / math.comb(samples, k)


def _pass_at_k(by_task: Mapping[Any, Sequence[bool]], played: Mapping[Any, int]) -> dict[int, PassAtK]:
    most = max(played.values(), default=1)
    if most < 2:
        return {}
    found = {}
    for k in sorted({*(2**power for power in range(most.bit_length())), most}):
        known = [samples for samples in by_task.values() if len(samples) >= k]
        value = mean([pass_at(k, samples=len(samples), successes=sum(samples)) for samples in known])
        found[k] = PassAtK(value, len(known), len(played) - len(known))
    return found


def summarise(
    trajectories: Sequence[Trajectory], *, seconds: float, by: str | None = None, prices: Prices | None = None
) -> Summary:
    """The figures of a set of episodes.

    Args:
        seconds: the wall time of the whole set.
        by: a column of the tasks; figures are also given for each of its values.
        prices: what tokens cost; without them no cost is said.
    """
    groups = {} if by is None else _grouped(trajectories, by)
    return Summary(
        **_figures(trajectories),
        **_of_terms(trajectories),
        **_of_turns(trajectories),
        pass_at_k=_pass_at_k(
            _by_task(trajectories, lambda one: one.success), Counter(_task(one) for one in trajectories)
        ),
        truncated=sum(trajectory.truncated for trajectory in trajectories),
        reasons=dict(Counter(trajectory.reason for trajectory in trajectories).most_common()),
        failures=dict(Counter(t.failure.reason for t in trajectories if t.failure is not None).most_common()),
        seconds=seconds,
        groups=groups,
        groups_success_mean=mean([one.success_rate for one in groups.values()]),
        usage=spent(trajectories, prices=prices),
    )


def _grouped(trajectories: Sequence[Trajectory], column: str) -> dict[str, GroupSummary]:
    parts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        parts.setdefault(str(trajectory.task.get(column)), []).append(trajectory)
    return {name: GroupSummary(**_figures(part)) for name, part in parts.items()}


def _figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What a `Summary` and a `GroupSummary` have in common."""
    totals = _by_task(trajectories, lambda one: one.reward.total)
    successes = _by_task(trajectories, lambda one: one.success)
    all_totals = [total for samples in totals.values() for total in samples]
    flat = [float(success) for samples in successes.values() for success in samples]
    return {
        "episodes": len(trajectories),
        "reward_mean": mean(all_totals),
        "reward_interval": mean_interval(list(totals.values())),
        "success_rate": mean(flat),
        "success_interval": clustered(list(successes.values())) if flat else None,
        "invalid": len(trajectories) - len(all_totals),
    }


def _of_terms(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    found: dict[str, list[TermResult]] = defaultdict(list)
    for trajectory in trajectories:
        for name, term in trajectory.reward.terms.items():
            found[name].append(term)
    return {
        "terms": {name: mean([one.value for one in all_]) for name, all_ in found.items()},
        "terms_invalid": {name: sum(one.status == "invalid" for one in all_) for name, all_ in found.items()},
        "terms_skipped": {name: sum(one.status == "skipped" for one in all_) for name, all_ in found.items()},
    }


def _of_turns(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    results = [result for turn in turns for result in turn.results]
    waits: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.outcome in ("ok", "failed", "timeout"):
            waits[result.name].append(result.seconds)
    count = max(len(trajectories), 1)
    return {
        "turns_mean": len(turns) / count,
        "calls_mean": len(results) / count,
        "calls_failed": sum(result.outcome in ("failed", "timeout") for result in results),
        "calls_malformed": sum(turn.calls_malformed for turn in turns),
        "calls_lenient": dict(sorted(Counter(use for turn in turns for use in turn.parsed.leniencies).items())),
        "latency": {name: _latency(sorted(times)) for name, times in sorted(waits.items())},
    }


def _by_task(trajectories: Sequence[Trajectory], of: Callable[[Trajectory], _T | None]) -> dict[_Task, list[_T]]:
    """A figure of each task's samples; those without it are left out."""
    found: dict[_Task, list[_T]] = defaultdict(list)
    for trajectory in trajectories:
        if (value := of(trajectory)) is not None:
            found[_task(trajectory)].append(value)
    return found


def _task(trajectory: Trajectory) -> _Task:
    # A row that was given itself has no index; its content says which task it is.
    own = repr(trajectory.task) if trajectory.task_index < 0 else ""
    return trajectory.split, trajectory.task_index, own


def mean(numbers: Sequence[float | None]) -> float | None:
    """The mean of the finite numbers among some, which is finite itself; None where all are None."""
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    try:
        return math.fsum(known) / len(known)
    except OverflowError:  # the sum is no finite number, though the mean of finite ones always is
        unit = max(map(abs, known))
        return max(-1.0, min(1.0, math.fsum(number / unit for number in known) / len(known))) * unit


def _latency(ordered: Sequence[float]) -> Latency:
    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Latency(len(ordered), rank(0.5), rank(0.9), rank(0.99))
