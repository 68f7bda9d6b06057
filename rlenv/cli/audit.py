"""`rlenv audit SPEC`: attacks the reward and prints a report card."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import time
from collections.abc import Callable

from rich.markup import escape
from rich.table import Table

from rlenv._base.bounded import cut_middle
from rlenv._base.figures import figure
from rlenv._base.jsonable import plain
from rlenv.audit.attacker_report import AttackerLimits, AttackerReport
from rlenv.audit.models import Attacker, asked_of_models, attacker_at
from rlenv.audit.report import Finding, Report, Thresholds
from rlenv.audit.run import Progress, audit
from rlenv.cli.audit_judge import judged, written
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.spending import add_prices, counting, show_spending_line
from rlenv.cli.terminal import write_error
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.trajectory import Trajectory

__all__ = ["add_arguments", "run", "said_every"]

_SAY_EVERY_S = 5.0
_MOST_SHOWN = 160
_STRATEGIES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv audit`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument("--split", action="append", help="which tasks; all splits by default")
    parser.add_argument("-n", type=int, metavar="N", help="how many tasks of a split the oracle plays; all by default")
    parser.add_argument("--attacked", type=int, default=20, metavar="N", help="how many tasks of a split are attacked")
    parser.add_argument("--max-adversary", type=float, default=0.2, metavar="SHARE", help="of the oracle's reward")
    parser.add_argument("--max-alike", type=float, default=0.2, metavar="SHARE", help="of tasks without any signal")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="SECONDS", help="of the whole audit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--judged", type=int, default=6, metavar="N", help="on how many tasks each judge is attacked; 0 for none"
    )
    _add_attacker(parser)
    judge = parser.add_argument_group("--judge: hold a judge to labels in place of attacking the reward")
    judge.add_argument("--judge", action="store_true", help="agreement, bias and drift of a judge")
    judge.add_argument("--anchors", metavar="FILE", help=".jsonl of {task, message, label}")
    judge.add_argument("--term", help="which judge, where there are several")
    judge.add_argument("--before", metavar="FILE", help="an earlier report of --judge, to see drift")
    judge.add_argument("--run", metavar="RUN", help="in place of --anchors: a recorded run, judge against verifiers")
    judge.add_argument("--against", action="append", metavar="TERM", help="with --run; the verify terms by default")
    judge.add_argument("--min-kappa", type=float, default=0.4, metavar="K", help="exit 1 below it")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the report as JSON there")
    add_prices(parser)
    add_set(parser)


def _add_attacker(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("--attacker: let a model try to earn without doing")
    group.add_argument("--attacker", metavar="ENDPOINT", help="an entry under endpoints:, or an address ending in /v1")
    group.add_argument("--attacker-model", metavar="NAME", help="the model at that address")
    group.add_argument(
        "--attacker-api-key-env", metavar="NAME", help="the variable of that address's key; by default OPENAI_API_KEY"
    )
    group.add_argument("--attacker-rounds", type=int, metavar="N", help="replies that are asked for; 4 by default")
    group.add_argument("--attacker-tasks", type=int, metavar="N", help="tasks that each strategy plays; 6 by default")
    group.add_argument("--attacker-requests", type=int, metavar="N", help="the most requests; 100 by default")
    group.add_argument("--attacker-tokens", type=int, metavar="N", help="the most tokens; 200,000 by default")
    group.add_argument("--attacker-seconds", type=float, metavar="SECONDS", help="the most time; 600 by default")
    group.add_argument("--attacker-episode", metavar="FILE", help="write the least episode there, as .jsonl to view")


_ATTACKER = ("model", "api_key_env", "rounds", "tasks", "requests", "tokens", "seconds", "episode")


def _attacker(args: argparse.Namespace, environment: Environment) -> Attacker | None:
    """The attacker that the options name.

    Raises:
        UsageError: an option of it without `--attacker`, a limit of nothing, or no such endpoint.
    """
    given = {name: value for name in _ATTACKER if (value := getattr(args, f"attacker_{name}")) is not None}
    if args.attacker is None:
        if given:
            option = f"--attacker-{next(iter(given)).replace('_', '-')}"
            raise UsageError(f"{option} is for --attacker ENDPOINT", hint="give --attacker too, or leave it out")
        return None
    if any(given[name] <= 0 for name in ("rounds", "tasks", "requests", "tokens", "seconds") if name in given):
        raise UsageError("the limits of --attacker are above 0")
    key = os.environ.get(given.pop("api_key_env", "OPENAI_API_KEY"))
    endpoint = attacker_at(environment, args.attacker, model=given.pop("model", None), api_key=key)
    path = given.pop("episode", None)

    def record(episode: Trajectory) -> None:
        files.write(path, [episode])

    return Attacker(endpoint, AttackerLimits(**given), record if path else None)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a fault was found, 0 otherwise."""
    if args.time_limit <= 0 or args.attacked < 1 or (args.n is not None and args.n < 1):
        raise UsageError("--time-limit, --attacked and -n are above 0")
    if args.judged < 0:
        raise UsageError("--judged is 0 or more")
    environment = load(args.spec, set=overrides(args.set))
    if args.judge:
        return judged(args, environment)
    if args.run is not None or args.against is not None:
        raise UsageError("--run and --against go with --judge")
    thresholds = Thresholds(args.max_adversary, args.max_alike)
    attacker = _attacker(args, environment)

    async def main() -> Report:
        async with environment:
            splits = args.split or list(environment.spec.tasks)
            most = asked_of_models(environment, splits=splits, tasks=args.attacked, played=args.n, judged=args.judged)
            if most:
                write_error(
                    f"rlenv audit: asks models up to about {most} times; fewer by --attacked, -n and --judged\n"
                )
            return await audit(
                environment,
                tasks=args.attacked,
                oracle_tasks=args.n,
                splits=args.split,
                thresholds=thresholds,
                seed=args.seed,
                limit_s=args.time_limit,
                on_progress=said_every(_SAY_EVERY_S),
                judged=args.judged,
                attacker=attacker,
            )

    with counting(args.prices) as so_far:
        report = asyncio.run(main())
    spending = so_far()
    if not written(args, {**report.as_dict(), "usage": plain(spending)}):
        _show(Console(highlight=False), report)
        show_spending_line(Console(highlight=False), spending)
    return 0 if report.passes else 1


def said_every(seconds: float, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Writes how far an audit is to standard error, at most once in so many seconds; a quick one says nothing."""
    begun = said = clock()

    def say(what: str, done: int, total: int) -> None:
        nonlocal said
        now = clock()
        if now - said >= seconds:
            said = now
            line = f"rlenv audit: {what}, {done} of {total} done ({now - begun:.0f} s)\n"
            write_error(line)

    return say


def _show_finding(console: Console, finding: Finding) -> None:
    """A finding with the least episode that shows it, and what to change."""
    console.print(f"[red]{escape(finding.hole)}[/red]: {escape(finding.message)}", soft_wrap=True)
    if (shown := finding.episode) is not None:
        actions = " ⏎ ".join(cut_middle(" ".join(repr(action)[1:-1].split()), _MOST_SHOWN) for action in shown.actions)
        earned = f"{figure(shown.reward)} of {figure(shown.oracle)}"
        console.print(escape(f"  {shown.split}/{shown.task} earned {earned}: {actions}"), soft_wrap=True)
    if finding.also:
        console.print(escape(f"  the same pays {', '.join(finding.also)}"), soft_wrap=True)
    if finding.hint:
        console.print(escape(f"  change: {finding.hint}"), soft_wrap=True)


def _show_attacker(console: Console, attacker: AttackerReport | None) -> None:
    if attacker is None or not attacker.strategies:
        return
    table = Table(f"a strategy of {escape(attacker.model)}", "of the oracle", "without doing")
    best = sorted(attacker.strategies, key=lambda one: -math.inf if one.undone is None else one.undone, reverse=True)[
        :_STRATEGIES
    ]
    for strategy in best:
        table.add_row(escape(strategy.name), figure(strategy.share), figure(strategy.undone))
    console.print(table)


def _show(console: Console, report: Report) -> None:
    tasks = ", ".join(f"{count} of {split}" for split, count in report.tasks.items())
    title = f"{report.environment} · the oracle on {tasks}: {figure(report.oracle_reward)}"
    console.print(escape(title), soft_wrap=True)
    table = Table("a policy that", "reward", "of the oracle", "at most")
    for attack in report.attacks:
        worst = "–" if attack.worst is None else f"{figure(attack.worst)} (task {attack.worst_task})"
        table.add_row(escape(attack.does), figure(attack.reward), figure(attack.share), worst)
    console.print(table)
    _show_attacker(console, report.attacker)
    if report.no_signal is not None:
        console.print(f"all answers alike on {report.no_signal:.0%} of tasks")
    if (faults := report.faults) is not None:
        console.print(
            f"oracle with {faults.share:.0%} of calls failing: reward {figure(faults.reward)}, "
            f"success {figure(faults.success)}, invalid {faults.invalid} of {faults.episodes}"
            + (f", given up {faults.gave_up}" if faults.gave_up else "")
        )
    for note in report.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    for finding in report.findings:
        _show_finding(console, finding)
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")
