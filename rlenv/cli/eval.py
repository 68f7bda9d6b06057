"""`rlenv eval`: many episodes and their figures; with `--bench` how fast the environment steps."""

from __future__ import annotations

import asyncio
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Final

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

import rlenv
from rlenv._base.bounded import cut_end, plain
from rlenv._base.text import figure
from rlenv.cli.console import Console, WithPrices, counting, show_spending, show_spending_line
from rlenv.cli.options import WithOut, WithRecord, WithSpec, given, option
from rlenv.cli.play import WithPolicy
from rlenv.cli.terminal import say, write_error, write_json
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import UsageError
from rlenv.policies.base import Policy
from rlenv.runs.evaluate import Evaluation, evaluate
from rlenv.runs.summary import GroupSummary, Latency, PassAtK, Summary, summarise
from rlenv.tasks.rows import seed_of
from rlenv.trajectory import Trajectory

_WORST: Final = 5
"""The most episodes that are named to look at."""
_OPTIONS: Final = (
    *("split", "n", "k", "concurrency", "seed", "until_width"),
    *("out", "resume", "overwrite", "record", "tape", "prices", "max_cost"),
)


@dataclass
class EvalCommand(WithSpec, WithPolicy, WithOut, WithRecord, WithPrices):
    """`rlenv eval`."""

    split: str | None = option("which tasks; by default test where there is one, else the first split")
    n: int | None = option("how many tasks; all by default", metavar="N")
    k: int = option("samples of each task", default=1, metavar="K")
    concurrency: int = option("episodes at once", default=64, metavar="C")
    seed: int = option("of the run; each sample has its own, made of it", default=0)
    max_invalid: float = option("exit 1 above this share", default=0.0, metavar="SHARE")
    min_success: float | None = option("exit 1 below this success rate", metavar="RATE")
    max_success: float | None = option("exit 1 above it (for a random policy)", metavar="RATE")
    until_width: float | None = option(
        "play tasks in an order drawn by --seed, and end once the 95 %% interval of success is so narrow", metavar="W"
    )
    json: bool = option("print the figures as one JSON object")
    out: str | None = option(
        "keep the run there: its episodes and summary.json", "-o", "--out", metavar="DIR", writes=True
    )
    resume: bool = option("play what the run of -o lacks, and again what is invalid")
    tape: str | None = option(
        "answer tools and models, but not the policy, from a recorded run; with --record ask for what it lacks",
        metavar="RUN",
    )
    max_cost: float | None = option("end the run once it has cost more; by --prices", metavar="X")

    def execute(self) -> int:
        """Exit code 1 where a share that was asked for is missed, 0 otherwise."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=self.json or not console.is_terminal) as progress:
            bar = progress.add_task(f"{self.spec} · {self.policy}", total=None)

            def on_end(_: Trajectory, done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            options = given(self, *_OPTIONS)
            done = evaluate(_source_of(self), self.choice, set=self.overrides, on_end=on_end, say=say, **options)
        if self.json:
            write_json(done.figures)
        else:
            _show_summary(Console(), done, self.policy)
            _show_worst(Console(highlight=False), done, self.out)
        code = _exit_code(self, done.summary, done.trajectories)
        return 1 if done.figures.get("not_kept") else code


def _source_of(args: EvalCommand) -> str | Environment:
    """The spec, or the environment of the server whose address it is."""
    if not args.spec.startswith(("http://", "https://")):
        return args.spec
    if args.overrides:
        raise UsageError("--set changes no spec of a server's", hint="give it to rlenv serve")
    from rlenv.hosts.remote import RemoteEnvironment

    return RemoteEnvironment(args.spec)


def _exit_code(args: EvalCommand, summary: Summary, trajectories: Sequence[Trajectory]) -> int:
    problems = []
    why: list[str] = []
    share = summary.invalid / summary.episodes if summary.episodes else 0.0
    if share > args.max_invalid:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.failures.items())
        problems.append(f"{summary.invalid} of {summary.episodes} rewards are invalid ({reasons})")
        why = invalid_lines(trajectories)
    rate = summary.success_rate
    if args.min_success is not None and (rate is None or rate < args.min_success):
        problems.append(f"success {figure(rate)} is below {args.min_success}")
    if args.max_success is not None and rate is not None and rate > args.max_success:
        problems.append(f"success {figure(rate)} is above {args.max_success}")
    for problem in problems:
        write_error(f"rlenv eval: {problem}\n")
    for line in why:
        write_error(f"  {line}\n")
    return 1 if problems else 0


def _interval_text(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"95 % interval {figure(found[0])} to {figure(found[1])}"


def _show_summary(console: Console, done: Evaluation, policy: str) -> None:
    environment, summary = done.environment, done.summary
    title = f"{environment.id} · {policy} · {done.split} · {summary.episodes} episodes in {summary.seconds:.1f} s"
    console.print(escape(title), soft_wrap=True, highlight=False)
    table = Table("", Column(justify="right", no_wrap=True), Column(style="dim"), show_header=False)
    _show_figures(table, environment, summary)
    table.add_row("turns", f"{summary.turns_mean:.2f}", "an episode")
    calls = f"an episode; {summary.calls_failed} failed, {summary.calls_malformed} malformed"
    table.add_row("calls", f"{summary.calls_mean:.2f}", calls)
    reasons = ", ".join(f"{reason} {count}" for reason, count in summary.reasons.items())
    table.add_row("truncated", str(summary.truncated))
    table.add_row("ended by", "", reasons)
    failures = ", ".join(f"{reason} {count}" for reason, count in summary.failures.items())
    table.add_row("invalid", str(summary.invalid), failures)
    for name, latency in summary.latency.items():
        times = " / ".join(f"{value * 1000:.2f}" for value in (latency.p50_s, latency.p90_s, latency.p99_s))
        table.add_row(escape(name), times, f"ms at p50 / p90 / p99 of {latency.calls} calls")
    console.print(table)
    show_spending(console, summary.usage)


def _show_figures(table: Table, environment: Environment, summary: Summary) -> None:
    table.add_row("reward", figure(summary.reward_mean), _notes(summary.reward_interval, _base(summary, "reward")))
    for name, mean in summary.terms.items():
        weight = environment.spec.rewards[name].weight
        notes = ["weight by row" if isinstance(weight, str) else f"weight {weight:g}"]
        notes += [_interval_text(summary.terms_interval[name])]
        notes += [f"invalid {summary.terms_invalid[name]}"] if summary.terms_invalid[name] else []
        notes += [f"skipped {summary.terms_skipped[name]}"] if summary.terms_skipped[name] else []
        table.add_row(f"  {escape(name)}", figure(mean), _notes(None, *notes))
    table.add_row("success", figure(summary.success_rate), _notes(summary.success_interval, _base(summary, "success")))
    for name, group in summary.groups.items():
        over = f"{group.episodes} episodes" + (f", invalid {group.invalid}" if group.invalid else "")
        table.add_row(f"  {escape(name)}", figure(group.success_rate), _notes(group.success_interval, over))
    if len(summary.groups) > 1:
        note = f"each of {len(summary.groups)} groups counts alike"
        notes = [note, _interval_text(summary.groups_success_interval)]
        table.add_row("  mean of these", figure(summary.groups_success_mean), _notes(None, *notes))
    _show_passes(table, "pass@", summary.pass_at_k)
    _show_passes(table, "pass^", summary.pass_hat_k)


def _show_passes(table: Table, name: str, passes: Mapping[int, PassAtK]) -> None:
    """The rows of pass@k: for k of powers of two, and of all samples."""
    for k, passed in passes.items():
        if k & (k - 1) and k != max(passes):
            continue
        note = f"{passed.tasks} tasks"
        note += f"; {passed.left_out} with fewer than {k} valid samples left out" if passed.left_out else ""
        table.add_row(f"{name}{k}", figure(passed.value), _notes(passed.interval, note))


def _notes(interval: tuple[float, float] | None, *notes: str) -> str:
    """The notes, and behind them an interval, which says nothing of what is not known."""
    return ", ".join(note for note in (*notes, _interval_text(interval)) if note)


def _base(summary: GroupSummary, name: str) -> str:
    """The base of a mean, where it leaves episodes out, and the bounds that it would have over all."""
    valid, bounds = getattr(summary, f"{name}_valid"), getattr(summary, f"{name}_bounds")
    if valid == summary.episodes:
        return ""
    said = f"over {valid} valid of {summary.episodes}"
    return f"{figure(bounds[0])} to {figure(bounds[1])} over all {summary.episodes}; {said}" if valid else said


def _show_worst(console: Console, done: Evaluation, out: str | None) -> None:
    """Prints the episodes to look at first: failures with the lowest rewards, then invalid ones."""
    looked = [(id, one) for id, one in zip(done.ids, done.trajectories, strict=False) if id and one.success is not True]
    looked.sort(key=lambda pair: (pair[1].reward.total is None, pair[1].reward.total or 0.0))
    command = f"rlenv view {shlex.quote(out or '')}"
    for id, one in looked[:_WORST]:
        total = one.reward.total
        what = f"reward {figure(total)}" if total is not None else "invalid"
        place = f"{one.split}/{one.task_index} seed {one.seed}"
        console.say(f"{what}  {place}  {command} {id}")
    if out:
        console.say(f"episodes and summary in {out}: {command}")


@dataclass(frozen=True, slots=True)
class BenchFigures:
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


@dataclass
class BenchCommand(WithSpec, WithPolicy, WithPrices):
    """`rlenv eval --bench`."""

    split: str | None = option("which tasks; by default the first split")
    episodes: int = option("episodes of one measurement", default=512, metavar="N", least=1)
    concurrency: list[int] = option("episodes at once; one row each", default=[1, 64], metavar="C", nargs="+", least=1)
    json: bool = option("print the figures as one JSON object")

    def execute(self) -> int:
        """Exit code 1 where a reward was invalid: figures of failing episodes say little."""
        environment = load(self.spec, set=self.overrides)
        split = self.split or next(iter(environment.spec.tasks))
        with counting(self.prices) as so_far:
            rows, latency = asyncio.run(_measure_bench(environment, self, split))
        spending = so_far()
        machine = {"rlenv": rlenv.__version__, "python": platform.python_version(), "machine": platform.platform()}
        if self.json:
            figures = {"environment": environment.id, "policy": self.policy, "split": split, **machine}
            measured = {
                "rows": [asdict(row) for row in rows],
                "latency": {name: asdict(t) for name, t in latency.items()},
            }
            write_json(figures | measured | ({"usage": plain(spending)} if spending.roles else {}))
        else:
            heads = ("at once", "episodes", "turns/s", "calls/s", "CPU µs/turn", "overlap", "slowest", "invalid")
            table = Table(*(Column(head, justify="right") for head in heads))
            for row in rows:
                cells = [f"{row.concurrency}", f"{row.episodes}", f"{row.turns_per_s:,.0f}", f"{row.calls_per_s:,.0f}"]
                cells += [f"{row.cpu_us_a_turn:,.0f}", f"{row.overlap:.2f}", f"{row.slowest_s * 1000:,.1f} ms"]
                table.add_row(*cells, f"{row.invalid}")
            console = Console(soft_wrap=True)
            about = ", ".join(f"{name} {value}" for name, value in machine.items())
            console.print(f"{environment.id} · {self.policy} · {about}", markup=False, highlight=False)
            console.print(table)
            for name, times in latency.items():
                marks = " / ".join(f"{value * 1000:.2f}" for value in (times.p50_s, times.p90_s, times.p99_s))
                console.say(f"{name}: {marks} ms at p50 / p90 / p99, {rows[-1].concurrency} episodes at once")
            show_spending_line(Console(highlight=False), spending)
        return 1 if any(row.invalid for row in rows) else 0


async def _measure_bench(
    environment: Environment, args: BenchCommand, split: str
) -> tuple[list[BenchFigures], dict[str, Latency]]:
    policy = args.choice.make(environment, concurrency=max(args.concurrency))
    tasks = range(len(environment.tasks(split)))
    drawn = enumerate(islice(cycle(tasks), args.episodes))
    jobs = [Job(split, task, seed_of(0, split, task, number // len(tasks))) for number, task in drawn]
    rows: list[BenchFigures] = []
    latency: dict[str, Latency] = {}
    async with aclosing(policy), environment:
        await rollout(environment, policy, jobs[:4], concurrency=4)  # indexes and servers are up after this
        for concurrency in args.concurrency:
            figures, trajectories = await _bench_once(environment, policy, jobs, concurrency)
            rows.append(figures)
            latency = dict(summarise(trajectories, seconds=figures.wall_s).latency)
    return rows, latency


async def _bench_once(
    environment: Environment, policy: Policy, jobs: Sequence[Job], concurrency: int
) -> tuple[BenchFigures, list[Trajectory]]:
    cpu, wall = time.process_time(), time.perf_counter()
    played = await rollout(environment, policy, jobs, concurrency=concurrency)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    turns = sum(len(trajectory.turns) for trajectory in played)
    calls = sum(trajectory.calls for trajectory in played)
    spent = sum(result.seconds for one in played for turn in one.turns for result in turn.results)
    return (
        BenchFigures(
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


_LISTED = 5
_SHOWN_CHARS = 400


def invalid_lines(trajectories: Sequence[Trajectory]) -> list[str]:
    """A line for each of the commonest reasons, with the first episode that has it and how many more there are."""
    found: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.reward.total is None:
            failure = trajectory.failure
            why = ("reward", _term_errors(trajectory)) if failure is None else (failure.reason, failure.message)
            found.setdefault(why, []).append(trajectory)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [_failure_line(reason, message, one) for (reason, message), one in ordered[:_LISTED]]
    if len(ordered) > _LISTED:
        lines.append(f"… and {len(ordered) - _LISTED} more reasons")
    return lines


def _failure_line(reason: str, message: str, trajectories: Sequence[Trajectory]) -> str:
    first = trajectories[0]
    more = f" and {len(trajectories) - 1} more" if len(trajectories) > 1 else ""
    text = cut_end(message, _SHOWN_CHARS)
    line = f"{first.split}/{first.task_index} seed {first.seed}{more}: {reason}: {text}"
    return line.replace("\n", " ")


def _term_errors(trajectory: Trajectory) -> str:
    bad = [f"{term.name}: {term.error}" for term in trajectory.reward.terms.values() if term.status == "invalid"]
    return "; ".join(bad)
