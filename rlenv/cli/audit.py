"""`rlenv audit SPEC`: attacks the reward and prints a report card."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

from rich.markup import escape
from rich.table import Table

from rlenv._base.figures import figure
from rlenv._base.jsonable import plain
from rlenv.audit.report import Report, Thresholds
from rlenv.audit.run import Progress, audit
from rlenv.cli.audit_judge import judged, written
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.spending import add_prices, prices_of, show_spending_line
from rlenv.cli.terminal import write_error
from rlenv.endpoints.account import Account, counted
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.runs.usage import spent_by

__all__ = ["add_arguments", "run", "said_every"]

_SAY_EVERY_S = 5.0


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


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a fault was found, 0 otherwise."""
    if args.time_limit <= 0 or args.attacked < 1 or (args.n is not None and args.n < 1):
        raise UsageError("--time-limit, --attacked and -n are above 0")
    environment = load(args.spec, set=overrides(args.set))
    if args.judge:
        return judged(args, environment)
    if args.run is not None or args.against is not None:
        raise UsageError("--run and --against go with --judge")
    thresholds = Thresholds(args.max_adversary, args.max_alike)

    async def main() -> Report:
        async with environment:
            return await audit(
                environment,
                tasks=args.attacked,
                oracle_tasks=args.n,
                splits=args.split,
                thresholds=thresholds,
                seed=args.seed,
                limit_s=args.time_limit,
                on_progress=said_every(_SAY_EVERY_S),
            )

    account, prices = Account(), prices_of(args)
    with counted(account):
        report = asyncio.run(main())
    spending = spent_by(account.entries(), episodes=0, prices=prices)
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
            line = f"rlenv audit: {what}, {done} of {total} tasks done ({now - begun:.0f} s)\n"
            write_error(line)

    return say


def _show(console: Console, report: Report) -> None:
    tasks = ", ".join(f"{count} of {split}" for split, count in report.tasks.items())
    title = f"{report.environment} · the oracle on {tasks}: {figure(report.oracle_reward)}"
    console.print(escape(title), soft_wrap=True)
    table = Table("a policy that", "reward", "of the oracle", "at most")
    for attack in report.attacks:
        worst = "–" if attack.worst is None else f"{figure(attack.worst)} (task {attack.worst_task})"
        table.add_row(escape(attack.does), figure(attack.reward), figure(attack.share), worst)
    console.print(table)
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
        console.print(f"[red]{escape(finding.hole)}[/red]: {escape(finding.message)}")
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")
