"""How the commands show a verdict on a chat template, and the checks behind it."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from rlenv.cli.console import Console
from rlenv.tokens.check import CheckReport, Finding
from rlenv.tokens.verdict import Verdict

__all__ = ["show_report", "show_verdict"]

_COLOURS = {"ok": "green", "refused": "red", "failed": "red", "skipped": "dim"}
_STATUS = {"grows": "green", "rewritten": "yellow", "refused": "red"}


def show_report(report: CheckReport, console: Console) -> None:
    """Findings, situations and what follows for training; the last line is the verdict."""
    table = Table(title=escape(report.name), title_justify="left")
    for heading in ("check", "status", "exact", "rewritten", "without need", "not taken"):
        table.add_column(heading)
    for finding in report.findings:
        counts = (finding.rewritten, finding.needless + finding.refused, finding.taken_out)
        colour = _COLOURS[finding.status]
        table.add_row(
            escape(finding.name),
            f"[{colour}]{finding.status}[/{colour}]",
            str(finding.cases),
            *("" if not count else str(count) for count in counts),
        )
    console.print(table)
    for finding in report.findings:
        console.print(f"[dim]{escape(finding.name)}: {escape(finding.detail)}[/dim]")
        if finding.difference is not None:
            _show_difference(finding, console)
    show_situations(report.verdict, console)
    for finding in report.failed:
        console.print(f"[red]not exact: {escape(finding.name)}: {escape(finding.detail)}[/red]")
    if not report.failed:
        show_verdict(report.verdict, console)
    if report.with_user is not None:
        console.print("with a simulated user (--user judges for that):")
        show_verdict(report.with_user, console)


def show_situations(verdict: Verdict, console: Console) -> None:
    """What the template does in each situation that is played."""
    table = Table(title="what answers a turn", title_justify="left")
    table.add_column("situation")
    table.add_column("the template")
    for one in verdict.situations:
        colour = _STATUS[one.status]
        rare = " [dim](rare)[/dim]" if one.is_rare else ""
        table.add_row(escape(one.name), f"[{colour}]{one.status}[/{colour}]{rare}")
    console.print(table)
    for detail in dict.fromkeys(one.detail for one in verdict.situations if one.status != "grows" and one.detail):
        console.print(f"[dim]{escape(detail)}[/dim]")


def show_verdict(verdict: Verdict, console: Console) -> None:
    """One line: whether training with this history will run and be exact, and what to do where not."""
    head = f"history {verdict.history}: "
    if verdict.is_exact:
        console.print(f"[green]{head}training will run and be exact[/green]")
    elif verdict.will_run:
        console.print(f"[yellow]{head}training will run and not be exact: {escape(verdict.message)}[/yellow]")
    else:
        console.print(f"[red]{head}training will not run: {escape(verdict.message)}[/red]")


def _show_difference(finding: Finding, console: Console) -> None:
    difference = finding.difference
    assert difference is not None
    table = Table(title=f"{finding.name}: first difference at id {difference.at}", title_justify="left")
    for heading in ("expected id", "expected text", "found id", "found text"):
        table.add_column(heading)
    for row in range(max(len(difference.expected), len(difference.found))):
        cells: list[str] = []
        for side in (difference.expected, difference.found):
            cells += [str(side[row][0]), escape(repr(side[row][1]))] if row < len(side) else ["", ""]
        is_equal = cells[:2] == cells[2:]
        table.add_row(*cells, style="dim" if is_equal else "bold")
    console.print(table)
