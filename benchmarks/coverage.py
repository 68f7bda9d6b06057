"""How often the 95 % intervals of `rlenv eval` hold the truth, over simulated evaluations.

    python benchmarks/coverage.py [--sims 2000] [--tasks 100 50 20] [--until-width 0.2] [--processes 1]

Tasks are drawn anew in each simulated evaluation, as a test set is drawn from the tasks there might be: each has a rate
of its own, and k samples. Tasks differ not at all, by a beta distribution with a correlation of 1/3 between samples of
a task, or by all or nothing. The reward of a sample is 0.7 for a success and 0.3 for a format that nine of ten keep; a
second one is that of a judge, who adds what varies with the sample to what varies with the task. `pass@` and `pass^`
are those of half the samples (of one for one). `change` is that of success to a second evaluation of the same tasks,
whose policy succeeds for certain on every tenth of them.

A seeded world is one of which half comes out well, drawn by the seeds that `rlenv eval` gives: what is played there has
no chance but theirs. `held` is how often the interval of success holds the half, `significant` how often two runs of a
policy, of two seeds, differ with p < 0.05, and `apart` how often the interval of that change leaves out 0.
"""

from __future__ import annotations

import argparse
import itertools
import random as chance
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from rlenv.runs.figures import clustered_counts, mean_interval, pass_curve
from rlenv.runs.figures.change import fit_to_p, paired_change, sign_flips
from rlenv.tasks.rows import seed_of

RATES = (0.5, 0.2, 0.8, 0.95, 0.98)
SAMPLES = (1, 4, 16)
KINDS = ("none", "beta", "all")
FIGURES = ("success", "reward", "judged", "pass@", "pass^", "change")
_MENDED = 0.1  # the share of tasks on which the second policy succeeds for certain
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
) -> tuple[NDArray[np.bool_], list[list[float]], list[list[float]], NDArray[np.bool_]]:
    """Which samples of each task succeed, their two rewards, and which succeed with the second policy."""
    own = rates(kind, rate, tasks, random)
    won = random.random((tasks, samples)) < own[:, None]
    reward = 0.7 * won + 0.3 * (random.random((tasks, samples)) < 0.9)
    judge = random.beta(2, 3, tasks)[:, None] * random.uniform(0.5, 1.5, (tasks, samples))
    after = random.random((tasks, samples)) < np.where(random.random(tasks) < _MENDED, 1.0, own)[:, None]
    return won, reward.tolist(), judge.tolist(), after


def passed(kind: str, rate: float, k: int) -> float:
    """The chance that all of k samples of a task succeed, over the tasks there might be."""
    if kind == "none":
        return rate**k
    if kind == "all":
        return rate
    return float(np.prod([(2 * rate + at) / (2 + at) for at in range(k)]))


def coverage(kind: str, rate: float, tasks: int, samples: int, *, sims: int, seed: int = 0) -> dict[str, float]:
    """The share of simulated evaluations whose interval holds the truth, of each figure."""
    random = np.random.default_rng([seed, tasks, samples, int(rate * 100), KINDS.index(kind)])
    half = max(1, samples // 2)
    one, every = 1 - passed(kind, 1 - rate, half), passed(kind, rate, half)
    truths = (rate, 0.7 * rate + 0.27, _JUDGE, one, every, _MENDED * (1 - rate))
    held, places = [0] * len(FIGURES), np.arange(tasks).repeat(samples)
    for _ in range(sims):
        won, reward, judged, after = evaluation(kind, rate, tasks, samples, random)
        counts = [(int(number), samples) for number in won.sum(axis=1)]
        change = paired_change(won.ravel().astype(float), after.ravel().astype(float), places, is_share=True)
        found = (
            clustered_counts(counts),
            mean_interval(reward),
            mean_interval(judged),
            pass_curve("at", counts, samples=samples)[half].interval,
            pass_curve("hat", counts, samples=samples)[half].interval,
            None if change.low is None or change.high is None else (change.low, change.high),
        )
        for at, (interval, truth) in enumerate(zip(found, truths, strict=True)):
            # Where nothing varies the mean's interval is none, and holds nothing.
            held[at] += interval is not None and interval[0] - 1e-12 <= truth <= interval[1] + 1e-12
    return {name: number / sims for name, number in zip(FIGURES, held, strict=True)}


def stopped(kind: str, rate: float, samples: int, width: float, *, sims: int, most: int = 1_000) -> tuple[float, float]:
    """Coverage for success, and the mean number of tasks, of evaluations that end once it is narrow enough."""
    random = np.random.default_rng([7, samples, int(rate * 100), KINDS.index(kind)])
    held, played = 0, 0
    for _ in range(sims):
        won, *_ = evaluation(kind, rate, most, samples, random)
        counts = [(int(number), samples) for number in won.sum(axis=1)]
        at = next(at for at in (*range(20, most, 20), most) if at == most or _width(counts[:at]) <= width)
        low, high = clustered_counts(counts[:at])
        held += low <= rate <= high
        played += at
    return held / sims, played / sims


WORLDS: dict[str, Callable[[int], bool]] = {
    "random.Random(seed).choice": lambda seed: chance.Random(seed).choice((False, True)),
    "seed % 2": lambda seed: bool(seed % 2),
    "seed < 2³⁰": lambda seed: seed < 1 << 30,
}


def seeded(world: str, tasks: int, samples: int, *, sims: int) -> tuple[float, float, float]:
    """Of runs of a seeded world: held, significant, apart. Run r is held against run r + 1."""
    draw, places = WORLDS[world], np.arange(tasks).repeat(samples)
    runs = np.array(
        [
            [[draw(seed_of(run, "test", task, sample)) for sample in range(samples)] for task in range(tasks)]
            for run in range(sims + 1)
        ],
        dtype=float,
    )
    held = significant = apart = 0
    for before, after in itertools.pairwise(runs):
        low, high = clustered_counts([(int(count), samples) for count in before.sum(axis=1)])
        held += low <= 0.5 <= high
        values = before.ravel(), after.ravel(), places
        p = sign_flips(*values).p
        change = fit_to_p(paired_change(*values, is_share=True), p)
        significant += p < 0.05
        apart += change.low is not None and change.high is not None and not change.low <= 0 <= change.high
    return held / sims, significant / sims, apart / sims


def _width(counts: Sequence[tuple[int, int]]) -> float:
    low, high = clustered_counts(counts)
    return high - low


def _cells() -> Iterator[tuple[float, str, int]]:
    return ((rate, kind, samples) for rate in RATES for kind in KINDS for samples in SAMPLES)


def _row(cell: tuple[float, str, int], tasks: int, sims: int) -> str:
    rate, kind, samples = cell
    found = coverage(kind, rate, tasks, samples, sims=sims)
    shares = " | ".join(f"{100 * found[name]:.1f}" for name in FIGURES)
    return f"| {rate} | {kind} | {samples} | {shares} |"


def _stopped_row(cell: tuple[float, str, int], width: float, sims: int) -> str:
    rate, kind, samples = cell
    share, played = stopped(kind, rate, samples, width, sims=sims)
    return f"| {rate} | {kind} | {samples} | {100 * share:.1f} | {played:.0f} |"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sims", type=int, default=2_000)
    parser.add_argument("--tasks", type=int, nargs="*", default=[100, 50, 20])
    parser.add_argument("--until-width", type=float, default=0.2)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    cells = list(_cells())
    with ProcessPoolExecutor(args.processes) as pool:
        for tasks in args.tasks:
            print(f"\n{tasks} tasks, {args.sims} simulated evaluations a cell\n")
            print(f"| rate | tasks differ | k | {' | '.join(FIGURES)} |\n|{'---|' * (3 + len(FIGURES))}")
            for row in pool.map(_row, cells, [tasks] * len(cells), [args.sims] * len(cells)):
                print(row, flush=True)
        print(f"\nended at a width of {args.until_width} (looked every 20 tasks, of 1,000)\n")
        print("| rate | tasks differ | k | success | tasks |\n|---|---|---|---|---|")
        sims = max(1, args.sims // 4)
        for row in pool.map(_stopped_row, cells, [args.until_width] * len(cells), [sims] * len(cells)):
            print(row, flush=True)
        print("\na seeded world, 1,000 runs\n")
        print("| world | tasks | k | held | significant | apart |\n|---|---|---|---|---|---|")
        for world in WORLDS:
            for tasks, samples in ((100, 1), (100, 4), (400, 1)):
                shares = " | ".join(f"{100 * share:.1f}" for share in seeded(world, tasks, samples, sims=1_000))
                print(f"| `{world}` | {tasks} | {samples} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
