"""`rlenv bench`: how fast an environment steps on this machine, without a model."""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice

from rich.table import Table

import rlenv
from rlenv._base.jsonable import plain
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.policies import add_policy, choice_of
from rlenv.cli.spending import add_prices, counting, show_spending_line
from rlenv.cli.terminal import write_json
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import UsageError
from rlenv.policies.base import Policy
from rlenv.runs.summary import Latency, summarise
from rlenv.tasks.rows import seed_of
from rlenv.trajectory import Trajectory

__all__ = ["Figures", "add_arguments", "run"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement. The policy's own time counts too; that of `oracle` and `random` is small.

    `cpu_us_a_turn` is this process's CPU time, user and system; what a tool spends in another process is not in it.
    `overlap` is the seconds that calls took, added up, over the wall seconds: 1.0 is one call after the other, higher
    is calls at once. `slowest_s` is the longest episode.
    """

    concurrency: int
    episodes: int
    turns: int
    calls: int
    invalid: int
    wall_s: float
    turns_per_s: float
    calls_per_s: float
    cpu_us_a_turn: float
    overlap: float
    slowest_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv bench`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    add_policy(parser)
    parser.add_argument("--split", help="which tasks; by default the first split")
    parser.add_argument("--episodes", type=int, default=512, metavar="N", help="episodes of one measurement")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 64], metavar="C", help="episodes at once; one row each"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    add_prices(parser)
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a reward was invalid: figures of failing episodes say little."""
    if args.episodes < 1 or min(args.concurrency) < 1:
        raise UsageError("--episodes and --concurrency are at least 1")
    environment = load(args.spec, set=overrides(args.set))
    split = args.split or next(iter(environment.spec.tasks))
    with counting(args.prices) as so_far:
        rows, latency = asyncio.run(_measure(environment, args, split))
    spending = so_far()
    machine = {"rlenv": rlenv.__version__, "python": platform.python_version(), "machine": platform.platform()}
    if args.json:
        figures = {"environment": environment.id, "policy": args.policy, "split": split, **machine}
        measured = {"rows": [asdict(row) for row in rows], "latency": {name: asdict(t) for name, t in latency.items()}}
        write_json(figures | measured | ({"usage": plain(spending)} if spending.roles else {}))
    else:
        _show(environment, args.policy, rows, latency, machine)
        show_spending_line(Console(highlight=False), spending)
    return 1 if any(row.invalid for row in rows) else 0


async def _measure(
    environment: Environment, args: argparse.Namespace, split: str
) -> tuple[list[Figures], dict[str, Latency]]:
    policy = choice_of(args).make(environment, concurrency=max(args.concurrency))
    tasks = range(len(environment.tasks(split)))
    drawn = enumerate(islice(cycle(tasks), args.episodes))
    jobs = [Job(split, task, seed_of(0, split, task, number // len(tasks))) for number, task in drawn]
    rows: list[Figures] = []
    latency: dict[str, Latency] = {}
    try:
        async with environment:
            await rollout(environment, policy, jobs[:4], concurrency=4)  # indexes and servers are up after this
            for concurrency in args.concurrency:
                figures, trajectories = await _once(environment, policy, jobs, concurrency)
                rows.append(figures)
                latency = dict(summarise(trajectories, seconds=figures.wall_s).latency)
    finally:
        await policy.aclose()
    return rows, latency


async def _once(
    environment: Environment, policy: Policy, jobs: Sequence[Job], concurrency: int
) -> tuple[Figures, list[Trajectory]]:
    cpu, wall = time.process_time(), time.perf_counter()
    played = await rollout(environment, policy, jobs, concurrency=concurrency)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    turns = sum(len(trajectory.turns) for trajectory in played)
    calls = sum(trajectory.calls for trajectory in played)
    spent = sum(result.seconds for one in played for turn in one.turns for result in turn.results)
    return (
        Figures(
            concurrency=concurrency,
            episodes=len(played),
            turns=turns,
            calls=calls,
            invalid=sum(trajectory.reward.total is None for trajectory in played),
            wall_s=wall,
            turns_per_s=turns / wall,
            calls_per_s=calls / wall,
            cpu_us_a_turn=cpu / max(1, turns) * 1e6,
            overlap=spent / wall,
            slowest_s=max(trajectory.seconds for trajectory in played),
        ),
        played,
    )


def _show(
    environment: Environment, policy: str, rows: Sequence[Figures], latency: dict[str, Latency], machine: dict[str, str]
) -> None:
    table = Table()
    for name in ("at once", "episodes", "turns/s", "calls/s", "CPU µs/turn", "overlap", "slowest", "invalid"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row.concurrency}", f"{row.episodes}", f"{row.turns_per_s:,.0f}", f"{row.calls_per_s:,.0f}"]
        cells += [f"{row.cpu_us_a_turn:,.0f}", f"{row.overlap:.2f}", f"{row.slowest_s * 1000:,.1f} ms"]
        table.add_row(*cells, f"{row.invalid}")
    console = Console(soft_wrap=True)
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    console.print(f"{environment.id} · {policy} · {about}", markup=False, highlight=False)
    console.print(table)
    for name, times in latency.items():
        marks = " / ".join(f"{value * 1000:.2f}" for value in (times.p50_s, times.p90_s, times.p99_s))
        console.print(f"{name}: {marks} ms at p50 / p90 / p99, {rows[-1].concurrency} episodes at once", markup=False)
