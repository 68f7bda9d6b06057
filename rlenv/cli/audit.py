"""`rlenv audit SPEC`: attacks the reward and prints a report card."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlenv.audit.report import Report, Thresholds
from rlenv.audit.run import audit
from rlenv.cli.options import add_set, overrides
from rlenv.environment import load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv audit`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument("--split", action="append", help="which tasks; all splits by default")
    parser.add_argument("-n", type=int, metavar="N", help="how many tasks of a split the oracle plays; all by default")
    parser.add_argument("--attacked", type=int, default=20, metavar="N", help="how many tasks of a split are attacked")
    parser.add_argument("--max-adversary", type=float, default=0.2, metavar="SHARE", help="of the oracle's reward")
    parser.add_argument("--max-alike", type=float, default=0.2, metavar="SHARE", help="of tasks without any signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the report as JSON there")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a fault was found, 0 otherwise."""
    environment = load(args.spec, set=overrides(args.set))
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
            )

    report = asyncio.run(main())
    written = json.dumps(report.as_dict(), indent=2)
    if args.out:
        Path(args.out).write_text(written + "\n", encoding="utf-8")
    if args.json:
        sys.stdout.write(written + "\n")
    else:
        _show(Console(highlight=False), report)
    return 0 if report.passes else 1


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _show(console: Console, report: Report) -> None:
    tasks = ", ".join(f"{count} of {split}" for split, count in report.tasks.items())
    title = f"{report.environment} · the oracle on {tasks}: {_number(report.oracle_reward)}"
    table = Table("a policy that", "reward", "of the oracle", "at most", title=title, title_justify="left")
    for attack in report.attacks:
        worst = "–" if attack.worst is None else f"{attack.worst:.3f} (task {attack.worst_task})"
        table.add_row(attack.does, _number(attack.reward), _number(attack.share), worst)
    console.print(table)
    if report.no_signal is not None:
        console.print(f"all answers alike on {report.no_signal:.0%} of tasks")
    if (faults := report.faults) is not None:
        console.print(
            f"oracle with {faults.share:.0%} of calls failing: reward {_number(faults.reward)}, "
            f"success {_number(faults.success)}, invalid {faults.invalid} of {faults.episodes}"
        )
    for note in report.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    for finding in report.findings:
        console.print(f"[red]{escape(finding.hole)}[/red]: {escape(finding.message)}")
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")
