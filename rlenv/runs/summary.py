"""The summary of a set of trajectories: the figures of `rlenv eval`; and the difference of two scorings of one set."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlenv._base.bounded import grouped
from rlenv.runs.figures import PassAtK, clustered_interval, mean_interval, mean_of_parts, pass_curve
from rlenv.runs.usage import Prices, Spending, spending_of
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["Difference", "GroupSummary", "Latency", "PassAtK", "RewardChange", "Summary", "compare", "is_same", "mean"]
__all__ += ["success_width", "summarise", "task_of", "value_of"]

_T = TypeVar("_T")
_Task = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall seconds of a tool's calls at the 50th, 90th and 99th percentile (nearest rank), without what they waited."""

    calls: int
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The figures of `Summary` that are also made over the episodes of one value of a split's `report_by`.

    `reward_valid` and `success_valid` are the episodes that a mean is over. `success_bounds` are the success rates over
    all episodes if each invalid one were no success, and if each were one (Manski 1989): no reading of the invalid ones
    leads out of them. `reward_bounds` are the mean rewards if each invalid one were as low as the lowest valid one of
    these episodes, and as high as the highest.
    """

    episodes: int
    reward_mean: float | None
    reward_interval: tuple[float, float] | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    invalid: int
    reward_valid: int
    success_valid: int
    success_bounds: tuple[float, float] | None
    reward_bounds: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Summary(GroupSummary):
    """Figures over episodes. Means leave out invalid rewards; None where nothing valid is left.

    All intervals are of 95 % and clustered by task: samples of one task are not independent (`clustered_interval`,
    `mean_interval`). `pass_at_k` and `pass_hat_k` (that all of k succeed) have an entry for each k up to the samples of
    a task (`pass_curve`); they are empty where each task was played once. `terms_valid` counts the episodes that a
    term's mean is over. `calls_lenient` counts the uses of each leniency that the dialect allows. `groups` are the
    values of the column that was asked for, in the order in which they were played, and `groups_success_mean` is the
    mean of their success rates, each group counted alike, with its interval over tasks like these in the same groups.
    """

    terms: Mapping[str, float | None]
    terms_interval: Mapping[str, tuple[float, float] | None]
    terms_valid: Mapping[str, int]
    terms_invalid: Mapping[str, int]
    terms_skipped: Mapping[str, int]
    pass_at_k: Mapping[int, PassAtK]
    pass_hat_k: Mapping[int, PassAtK]
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
    groups_success_interval: tuple[float, float] | None = None
    usage: Spending = field(default_factory=Spending)


def summarise(
    trajectories: Sequence[Trajectory], *, seconds: float, by: str | None = None, prices: Prices | None = None
) -> Summary:
    """The figures of a set of episodes.

    Args:
        seconds: the wall time of the whole set.
        by: a column of the tasks; figures are also given for each of its values.
        prices: what tokens cost; without them no cost is said.
    """
    groups = {} if by is None else _group_summaries(trajectories, by)
    known = [(g.success_rate, g.success_interval) for g in groups.values()]
    parts = [(rate, interval) for rate, interval in known if rate is not None and interval is not None]
    return Summary(
        **_shared_figures(trajectories),
        **_term_figures(trajectories),
        **_turn_figures(trajectories),
        **_pass_figures(trajectories),
        truncated=sum(trajectory.truncated for trajectory in trajectories),
        reasons=dict(Counter(trajectory.reason for trajectory in trajectories).most_common()),
        failures=dict(Counter(t.failure.reason for t in trajectories if t.failure is not None).most_common()),
        seconds=seconds,
        groups=groups,
        groups_success_mean=mean([rate for rate, _ in parts]),
        groups_success_interval=mean_of_parts(parts),
        usage=spending_of(trajectories, prices=prices),
    )


def success_width(trajectories: Sequence[Trajectory]) -> float:
    """The width of the 95 % interval of the success rate; 1 where nothing is valid."""
    low, high = clustered_interval(list(_values_by_task(trajectories, lambda one: one.success).values()))
    return high - low


def _group_summaries(trajectories: Sequence[Trajectory], column: str) -> dict[str, GroupSummary]:
    parts = grouped((str(trajectory.task.get(column)), trajectory) for trajectory in trajectories)
    return {name: GroupSummary(**_shared_figures(part)) for name, part in parts.items()}


def _shared_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The figures that a `Summary` and a `GroupSummary` share."""
    totals = _values_by_task(trajectories, lambda one: one.reward.total)
    successes = _values_by_task(trajectories, lambda one: one.success)
    all_totals = [total for samples in totals.values() for total in samples]
    flat = [float(success) for samples in successes.values() for success in samples]
    count = len(trajectories)
    unknown = count - len(all_totals)
    reward_bounds = [mean([*all_totals, *[end(all_totals)] * unknown]) for end in (min, max) if all_totals]
    return {
        "episodes": count,
        "reward_mean": mean(all_totals),
        "reward_interval": mean_interval(list(totals.values())),
        "success_rate": mean(flat),
        "success_interval": clustered_interval(list(successes.values())) if flat else None,
        "invalid": unknown,
        "reward_valid": len(all_totals),
        "success_valid": len(flat),
        "success_bounds": (sum(flat) / count, (sum(flat) + count - len(flat)) / count) if count else None,
        "reward_bounds": tuple(reward_bounds) or None,
    }


def _pass_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    played = Counter(task_of(one) for one in trajectories)
    most = max(played.values(), default=1)
    if most < 2:
        return {"pass_at_k": {}, "pass_hat_k": {}}
    valid = _values_by_task(trajectories, lambda one: one.success)
    tasks = [(sum(won), len(won)) for won in (valid.get(task, []) for task in played)]
    return {f"pass_{kind}_k": pass_curve(kind, tasks, samples=most) for kind in ("at", "hat")}


def _term_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    found: dict[str, list[TermResult]] = defaultdict(list)
    values: dict[str, dict[_Task, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        for name, term in trajectory.reward.terms.items():
            found[name].append(term)
            if term.value is not None:
                values[name][task_of(trajectory)].append(term.value)
    return {
        "terms": {name: mean([one.value for one in all_]) for name, all_ in found.items()},
        "terms_interval": {name: mean_interval(list(values[name].values())) for name in found},
        "terms_valid": {name: sum(map(len, values[name].values())) for name in found},
        "terms_invalid": {name: sum(one.status == "invalid" for one in all_) for name, all_ in found.items()},
        "terms_skipped": {name: sum(one.status == "skipped" for one in all_) for name, all_ in found.items()},
    }


def _turn_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    results = [result for turn in turns for result in turn.results]
    took: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.outcome in ("ok", "failed", "timeout"):
            took[result.name].append(max(0.0, result.seconds - result.waited))
    count = max(len(trajectories), 1)
    return {
        "turns_mean": len(turns) / count,
        "calls_mean": len(results) / count,
        "calls_failed": sum(result.outcome in ("failed", "timeout") for result in results),
        "calls_malformed": sum(turn.calls_malformed for turn in turns),
        "calls_lenient": dict(sorted(Counter(use for turn in turns for use in turn.parsed.leniencies).items())),
        "latency": {name: _latency(sorted(times)) for name, times in sorted(took.items())},
    }


def _values_by_task(trajectories: Sequence[Trajectory], of: Callable[[Trajectory], _T | None]) -> dict[_Task, list[_T]]:
    """A figure of each task's samples; those without it are left out."""
    return grouped((task_of(one), value) for one in trajectories if (value := of(one)) is not None)


def task_of(trajectory: Trajectory) -> _Task:
    """The identity of its task: the row's own content where it has no place in a split."""
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


@dataclass(frozen=True, slots=True)
class RewardChange:
    """One trajectory whose reward changed; None stands for invalid."""

    index: int
    split: str
    task_index: int
    seed: int
    before: float | None
    after: float | None
    terms: Mapping[str, tuple[float | None, float | None]]
    """Terms that changed, with their values before and after; None where there was none."""
    error: str = ""
    """Why the reward cannot be said now, "" where it can."""
    moved: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """What each term paid before and after, its weight times its value, where that changed: the largest change first.

    None where it had no value; terms that lost or gained one come before others that changed by as much.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """Two versions of the rewards over the same episodes. Means leave out invalid rewards."""

    episodes: int
    reward: tuple[float | None, float | None]
    success: tuple[float | None, float | None]
    invalid: tuple[int, int]
    gained: int
    """Episodes that are a success only now."""
    lost: int
    """Episodes that were a success before and are none now."""
    unknown: int
    """Episodes of which success was known before and cannot be said now."""
    terms: Mapping[str, tuple[float | None, float | None]]
    changes: tuple[RewardChange, ...]


def compare(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> Difference:
    """The difference between two scorings of the same episodes, in the same order."""
    names = dict.fromkeys(name for found in (*before, *after) for name in found.reward.terms)
    changes = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        terms = {}
        for name in names:
            pair = (value_of(old, name), value_of(new, name))
            if not is_same(*pair):
                terms[name] = pair
        moved = _term_diffs(old, new, names)
        if terms or moved or not is_same(old.reward.total, new.reward.total):
            error = new.failure.message if new.failure is not None else ""
            totals = (old.reward.total, new.reward.total)
            changes.append(RewardChange(index, old.split, old.task_index, old.seed, *totals, terms, error, moved))
    return Difference(
        len(before),
        (mean([one.reward.total for one in before]), mean([one.reward.total for one in after])),
        (_success_rate(before), _success_rate(after)),
        (sum(one.reward.total is None for one in before), sum(one.reward.total is None for one in after)),
        sum(new.success is True and not old.success for old, new in zip(before, after, strict=True)),
        sum(old.success is True and new.success is False for old, new in zip(before, after, strict=True)),
        sum(old.success is not None and new.success is None for old, new in zip(before, after, strict=True)),
        {
            name: (mean([value_of(one, name) for one in before]), mean([value_of(one, name) for one in after]))
            for name in names
        },
        tuple(changes),
    )


def _term_diffs(old: Trajectory, new: Trajectory, names: Iterable[str]) -> dict[str, tuple[float | None, float | None]]:
    """The values of the terms that changed, before and now."""
    pairs = {name: (_weighted_value(old, name), _weighted_value(new, name)) for name in names}
    moved = {name: pair for name, pair in pairs.items() if not is_same(*pair)}
    return dict(
        sorted(moved.items(), key=lambda one: (-abs((one[1][1] or 0.0) - (one[1][0] or 0.0)), None not in one[1]))
    )


def _weighted_value(trajectory: Trajectory, name: str) -> float | None:
    term = trajectory.reward.terms.get(name)
    return None if term is None or term.value is None else term.weight * term.value


def value_of(trajectory: Trajectory, name: str) -> float | None:
    """The value of a term, None where it has none."""
    term = trajectory.reward.terms.get(name)
    return None if term is None else term.value


def is_same(one: float | None, other: float | None) -> bool:
    """True if two values are equal but for rounding; None is what has no value."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _success_rate(trajectories: Sequence[Trajectory]) -> float | None:
    return mean([None if one.success is None else float(one.success) for one in trajectories])
