"""How often the 95 % intervals of `rlenv eval` hold the truth, over simulated evaluations.

    python benchmarks/coverage.py [--sims 2000] [--tasks 100 50 20] [--until-width 0.2]

Tasks are drawn anew in each simulated evaluation, as a test set is drawn from the tasks there might be: each has a rate
of its own, and k samples. Tasks differ not at all, by a beta distribution with a correlation of 1/3 between samples of
a task, or by all or nothing. The reward of a sample is 0.7 for a success and 0.3 for a format that nine of ten keep; a
second one is that of a judge, who adds what varies with the sample to what varies with the task.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.statistics.intervals import clustered_counts, mean_interval

RATES = (0.5, 0.2, 0.8, 0.95)
SAMPLES = (1, 4, 16)
KINDS = ("none", "beta", "all")
FIGURES = ("success", "reward", "judged")
_JUDGE = 0.4  # the mean of a judge's score: of the task beta(2, 3), and of the sample as much again to both sides


def rates(kind: str, rate: float, tasks: int, random: np.random.Generator) -> NDArray[np.float64]:
    """The rates of success of some tasks, whose mean is `rate`."""
    if kind == "none":
        return np.full(tasks, rate)
    if kind == "beta":  # a correlation of 1 / (1 + a + b)
        return random.beta(2 * rate, 2 * (1 - rate), tasks)
    return (random.random(tasks) < rate).astype(float)


def evaluation(
    kind: str, rate: float, tasks: int, samples: int, random: np.random.Generator
) -> tuple[list[tuple[int, int]], list[list[float]], list[list[float]]]:
    """Each task's successes and samples, and the two rewards of each sample."""
    won = random.random((tasks, samples)) < rates(kind, rate, tasks, random)[:, None]
    reward = 0.7 * won + 0.3 * (random.random((tasks, samples)) < 0.9)
    judge = random.beta(2, 3, tasks)[:, None] * random.uniform(0.5, 1.5, (tasks, samples))
    counts = [(int(one), samples) for one in won.sum(axis=1)]
    return counts, reward.tolist(), judge.tolist()


def coverage(kind: str, rate: float, tasks: int, samples: int, *, sims: int, seed: int = 0) -> dict[str, float]:
    """The share of simulated evaluations whose interval holds the truth, of each figure."""
    random = np.random.default_rng([seed, tasks, samples, int(rate * 100), KINDS.index(kind)])
    truths = (rate, 0.7 * rate + 0.27, _JUDGE)
    held = [0, 0, 0]
    for _ in range(sims):
        counts, reward, judged = evaluation(kind, rate, tasks, samples, random)
        found = (clustered_counts(counts), mean_interval(reward), mean_interval(judged))
        for at, (interval, truth) in enumerate(zip(found, truths, strict=True)):
            held[at] += interval is not None and interval[0] <= truth <= interval[1]
    return {name: one / sims for name, one in zip(FIGURES, held, strict=True)}


def stopped(kind: str, rate: float, samples: int, width: float, *, sims: int, most: int = 1_000) -> tuple[float, float]:
    """Coverage for success, and the mean number of tasks, of evaluations that end once it is narrow enough."""
    random = np.random.default_rng([7, samples, int(rate * 100), KINDS.index(kind)])
    held, played = 0, 0
    for _ in range(sims):
        counts, _, _ = evaluation(kind, rate, most, samples, random)
        at = next(at for at in (*range(20, most, 20), most) if at == most or _width(counts[:at]) <= width)
        low, high = clustered_counts(counts[:at])
        held += low <= rate <= high
        played += at
    return held / sims, played / sims


def _width(counts: Sequence[tuple[int, int]]) -> float:
    low, high = clustered_counts(counts)
    return high - low


def _cells() -> Iterator[tuple[float, str, int]]:
    return ((rate, kind, samples) for rate in RATES for kind in KINDS for samples in SAMPLES)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sims", type=int, default=2_000)
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 50, 20])
    parser.add_argument("--until-width", type=float, default=0.2)
    args = parser.parse_args()
    for tasks in args.tasks:
        print(f"\n{tasks} tasks, {args.sims} simulated evaluations a cell\n")
        print("| rate | tasks differ | k | success | reward | judged |\n|---|---|---|---|---|---|")
        for rate, kind, samples in _cells():
            found = coverage(kind, rate, tasks, samples, sims=args.sims)
            shares = " | ".join(f"{100 * found[name]:.1f}" for name in FIGURES)
            print(f"| {rate} | {kind} | {samples} | {shares} |", flush=True)
    print(f"\nended at a width of {args.until_width} (looked every 20 tasks, of 1,000)\n")
    print("| rate | tasks differ | k | success | tasks |\n|---|---|---|---|---|")
    for rate, kind, samples in _cells():
        share, played = stopped(kind, rate, samples, args.until_width, sims=max(1, args.sims // 4))
        print(f"| {rate} | {kind} | {samples} | {100 * share:.1f} | {played:.0f} |", flush=True)


if __name__ == "__main__":
    main()
