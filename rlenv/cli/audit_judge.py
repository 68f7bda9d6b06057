"""`rlenv audit SPEC --judge`: a judge held to labels, or put beside the verifiers of a recorded run."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from rlenv._base.figures import figure
from rlenv.audit.disagreement import Differing, Disagreement, disagreement
from rlenv.audit.judge import JudgeReport, audit_judge, judge_of, read_anchors
from rlenv.cli.console import Console
from rlenv.cli.spending import counting, show_spending_line
from rlenv.cli.terminal import write
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.runs.files import plain
from rlenv.runs.recorded import with_facts

__all__ = ["judged", "written"]


def written(args: argparse.Namespace, report: Mapping[str, Any]) -> bool:
    """Writes the report where it was asked for; True where it went to standard output."""
    text = json.dumps(report, indent=2) + "\n"
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    if args.json:
        write(text)
    return bool(args.json)


def judged(args: argparse.Namespace, environment: Environment) -> int:
    """Exit code 1 where holding a judge to labels found a fault, 0 otherwise.

    Raises:
        UsageError: the options name neither labels nor a run, or both, or what they name does not fit.
    """
    if (args.anchors is None) == (args.run is None):
        raise UsageError(
            "--judge needs --anchors FILE, a .jsonl of objects with task, message and label, or --run RUN",
            hint="give one of the two",
        )
    if args.run is not None:
        return _beside_verifiers(args, environment)
    if args.against is not None:
        raise UsageError("--against goes with --run")
    anchors = read_anchors(args.anchors)
    before = None
    if args.before is not None:
        try:
            before = json.loads(Path(args.before).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"--before {args.before}: not a report: {error}") from error
        if not isinstance(before, dict):
            raise UsageError(f"--before {args.before}: not a report: expected an object, as --judge -o writes it")

    async def main() -> JudgeReport:
        async with environment:
            return await audit_judge(
                environment, anchors, term=args.term, before=before, min_kappa=args.min_kappa, seed=args.seed
            )

    try:
        with counting(args.prices) as so_far:
            report = asyncio.run(asyncio.wait_for(main(), args.time_limit))
    except TimeoutError:
        message = f"the judge has not scored all anchors within {args.time_limit:g} s"
        raise UsageError(message, hint="raise --time-limit or give fewer anchors") from None
    spending = so_far()
    if not written(args, {**report.as_dict(), "usage": plain(spending)}):
        _show_judge(Console(highlight=False), report)
        show_spending_line(Console(highlight=False), spending)
    return 0 if report.passes else 1


def _show_judge(console: Console, report: JudgeReport) -> None:
    title = f"judge '{report.term}' · {report.anchors} anchors, {report.invalid} invalid"
    console.print(escape(title), soft_wrap=True)
    table = Table("", "value", "95 % interval")
    rows = {"accuracy": report.accuracy, "mean error": report.error, "kappa": report.kappa, "alpha": report.alpha}
    rows |= {"rank correlation": report.spearman}
    rows |= {f"bias by {name}": estimate for name, estimate in report.bias.items()}
    for place, member in enumerate(report.members):
        who = f"judges.{place} ({member.endpoint})"
        rows |= {f"{who}: kappa": member.kappa}
        rows |= {f"{who}: bias by {name}": estimate for name, estimate in member.bias.items()}
    rows |= {"drift": report.drift} if report.drift is not None else {}
    for name, estimate in rows.items():
        interval = f"{figure(estimate.low)} to {figure(estimate.high)}"
        table.add_row(escape(name), figure(estimate.value), interval)
    console.print(table)
    if report.members:
        console.print(f"agreement within the panel (alpha): {figure(report.members_alpha)}")
    curve = Table("scores from", "to", "anchors", "mean score", "mean label")
    for one in report.calibration.bins:
        curve.add_row(*map(figure, (one.low, one.high)), str(one.count), figure(one.score), figure(one.label))
    console.print(curve)
    if (line := report.calibration.line) is not None:
        console.print(f"label = {figure(line[0])} + {figure(line[1])} x score, by least squares; applied nowhere")
    for finding in report.findings:
        console.print(f"[red]{escape(finding)}[/red]")
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")


def _beside_verifiers(args: argparse.Namespace, environment: Environment) -> int:
    judge = judge_of(environment, args.term).name
    rewards = environment.spec.rewards
    against = args.against or [name for name, term in rewards.items() if term.kind == "verify"]
    if not against:
        raise UsageError("there is no verify term to put the judge beside", hint="name a term by --against")
    for name in against:
        if name not in rewards:
            raise UsageError(f"no term is called '{name}'; there are: {', '.join(rewards)}")
    episodes = [trajectory for _, trajectory in with_facts(args.run)]
    found = disagreement(episodes, judge=judge, against=against)
    if not written(args, {"disagreements": plain(found)}):
        console = Console(highlight=False)
        for one in found:
            _show_disagreement(console, one)
    return 0


def _show_disagreement(console: Console, found: Disagreement) -> None:
    counted = f"{found.episodes} episodes, {found.unmeasured} more where one of the two has no value"
    console.print(escape(f"judge '{found.judge}' beside '{found.against}' · {counted}"), soft_wrap=True)
    kappa = found.kappa
    console.print(f"kappa {figure(kappa.value)} ({figure(kappa.low)} to {figure(kappa.high)})")
    for what, count, of, listed in (
        (f"high where '{found.against}' fails", found.high, found.failed, found.high_but_failed),
        (f"low where '{found.against}' passes", found.low, found.passed, found.low_but_passed),
    ):
        console.print(escape(f"{what}: {count} of {of}"), soft_wrap=True)
        for one in listed:
            console.print(escape(f"  {_said(one)}"), soft_wrap=True)


def _said(one: Differing) -> str:
    return f"{one.split}/{one.task_index} seed {one.seed}: judge {figure(one.value)}, term {figure(one.verified)}"
