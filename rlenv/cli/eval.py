"""`rlenv eval`: plays many episodes and reports."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rlenv._base.figures import figure
from rlenv.cli.console import Console
from rlenv.cli.invalid import invalid_lines
from rlenv.cli.options import add_out, add_record, add_set, given, overrides
from rlenv.cli.policies import add_policy, choice_of
from rlenv.cli.spending import add_prices, show_spending
from rlenv.cli.terminal import say, write_error, write_json
from rlenv.episodes.environment import Environment
from rlenv.runs.evaluate import Evaluation, evaluate
from rlenv.runs.summary import GroupSummary, PassAtK, Summary
from rlenv.trajectory import Trajectory

__all__ = ["add_arguments", "run"]

_WORST: Final = 5
"""So many episodes are named to look at."""
_OPTIONS: Final = (
    *("split", "n", "k", "concurrency", "seed", "until_width"),
    *("out", "resume", "overwrite", "record", "tape", "prices", "max_cost"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv eval`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    add_policy(parser)
    parser.add_argument("--split", help="which tasks; by default test where there is one, else the first split")
    parser.add_argument("-n", type=int, metavar="N", help="how many tasks; all by default")
    parser.add_argument("-k", type=int, default=1, metavar="K", help="samples of each task")
    parser.add_argument("--concurrency", type=int, default=64, metavar="C", help="episodes at once")
    parser.add_argument("--seed", type=int, default=0, help="of the run; each sample has its own, made of it")
    parser.add_argument("--max-invalid", type=float, default=0.0, metavar="SHARE", help="exit 1 above this share")
    parser.add_argument("--min-success", type=float, metavar="RATE", help="exit 1 below this success rate")
    parser.add_argument("--max-success", type=float, metavar="RATE", help="exit 1 above it (for a random policy)")
    parser.add_argument(
        "--until-width",
        type=float,
        metavar="W",
        help="play tasks in an order drawn by --seed, and end once the 95 %% interval of success is so narrow",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    add_out(parser, help="keep the run there: its episodes and summary.json")
    parser.add_argument(
        "--resume", action="store_true", help="play what the run of -o lacks, and again what is invalid"
    )
    add_record(parser)
    parser.add_argument(
        "--tape",
        metavar="RUN",
        help="answer tools and models, but not the policy, from a recorded run; with --record ask for what it lacks",
    )
    add_prices(parser)
    parser.add_argument("--max-cost", type=float, metavar="X", help="end the run once it has cost more; by --prices")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a share that was asked for is missed, 0 otherwise."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=args.json or not console.is_terminal) as progress:
        bar = progress.add_task(f"{args.spec} · {args.policy}", total=None)

        def ended(_: Trajectory, done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        options = given(args, *_OPTIONS)
        done = evaluate(args.spec, choice_of(args), set=overrides(args.set), on_end=ended, say=say, **options)
    if args.json:
        write_json(done.figures)
    else:
        _show(Console(), done, args.policy)
        _show_worst(Console(highlight=False), done, args.out)
    code = _verdict(args, done.summary, done.trajectories)
    return 1 if done.figures.get("not_kept") else code


def _verdict(args: argparse.Namespace, summary: Summary, trajectories: Sequence[Trajectory]) -> int:
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


def _interval(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"95 % interval {figure(found[0])} to {figure(found[1])}"


def _show(console: Console, done: Evaluation, policy: str) -> None:
    environment, summary = done.environment, done.summary
    title = f"{environment.id} · {policy} · {done.split} · {summary.episodes} episodes in {summary.seconds:.1f} s"
    console.print(escape(title), soft_wrap=True, highlight=False)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
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
    table.add_row("reward", figure(summary.reward_mean), _notes(summary.reward_interval, _over(summary, "reward")))
    for name, mean in summary.terms.items():
        notes = [f"weight {environment.spec.rewards[name].weight:g}", _interval(summary.terms_interval[name])]
        notes += [f"invalid {summary.terms_invalid[name]}"] if summary.terms_invalid[name] else []
        notes += [f"skipped {summary.terms_skipped[name]}"] if summary.terms_skipped[name] else []
        table.add_row(f"  {escape(name)}", figure(mean), _notes(None, *notes))
    table.add_row("success", figure(summary.success_rate), _notes(summary.success_interval, _over(summary, "success")))
    for name, group in summary.groups.items():
        over = f"{group.episodes} episodes" + (f", invalid {group.invalid}" if group.invalid else "")
        table.add_row(f"  {escape(name)}", figure(group.success_rate), _notes(group.success_interval, over))
    if len(summary.groups) > 1:
        note = f"each of {len(summary.groups)} groups counts alike"
        notes = [note, _interval(summary.groups_success_interval)]
        table.add_row("  mean of these", figure(summary.groups_success_mean), _notes(None, *notes))
    _show_passes(table, "pass@", summary.pass_at_k)
    _show_passes(table, "pass^", summary.pass_hat_k)


def _show_passes(table: Table, name: str, passes: Mapping[int, PassAtK]) -> None:
    """Of powers of two, and of all samples."""
    for k, passed in passes.items():
        if k & (k - 1) and k != max(passes):
            continue
        note = f"{passed.tasks} tasks"
        note += f"; {passed.left_out} with fewer than {k} valid samples left out" if passed.left_out else ""
        table.add_row(f"{name}{k}", figure(passed.value), _notes(passed.interval, note))


def _notes(interval: tuple[float, float] | None, *notes: str) -> str:
    """The notes, and behind them an interval, which says nothing of what is not known."""
    return ", ".join(note for note in (*notes, _interval(interval)) if note)


def _over(summary: GroupSummary, name: str) -> str:
    """What a mean is over, where that is not all, and what it may be over all."""
    valid, bounds = getattr(summary, f"{name}_valid"), getattr(summary, f"{name}_bounds")
    if valid == summary.episodes:
        return ""
    said = f"over {valid} valid of {summary.episodes}"
    return f"{figure(bounds[0])} to {figure(bounds[1])} over all {summary.episodes}; {said}" if valid else said


def _show_worst(console: Console, done: Evaluation, out: str | None) -> None:
    """Where to look first: the episodes that are no success with the lowest rewards, behind them invalid ones."""
    looked = [(id, one) for id, one in zip(done.ids, done.trajectories, strict=False) if id and one.success is not True]
    looked.sort(key=lambda pair: (pair[1].reward.total is None, pair[1].reward.total or 0.0))
    command = f"rlenv view {shlex.quote(out or '')}"
    for id, one in looked[:_WORST]:
        total = one.reward.total
        what = f"reward {figure(total)}" if total is not None else "invalid"
        place = f"{one.split}/{one.task_index} seed {one.seed}"
        console.print(f"{what}  {place}  {command} {id}", markup=False, soft_wrap=True)
    if out:
        console.print(f"episodes and summary in {out}: {command}", markup=False)
