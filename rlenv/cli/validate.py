"""`rlenv validate FILE...`: every fault of a spec with its place."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace

from rich.markup import escape

from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.terminal import write_json
from rlenv.errors import Fault, UsageError
from rlenv.shipped import find
from rlenv.validate import validate

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a spec, or the name of one that ships with rlenv")
    parser.add_argument("--json", action="store_true", help="write the report as one JSON object")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """0 where no fault was found, 1 otherwise."""
    found, lacking = [], []
    for file in args.files:
        try:
            found.append(find(file))
        except UsageError as error:  # the others are checked all the same
            message, _, hint = str(error).partition("; ")
            lacking.append(Fault(file, 0, 0, "", message, hint))
    with contextlib.redirect_stdout(sys.stderr):  # what files print that are imported is no part of the report
        report = validate(found, set=overrides(args.set))
    report = replace(report, files=len(args.files), faults=(*lacking, *report.faults))
    if args.json:
        write_json(report.as_dict(), indent=2)
        return 0 if report.is_valid else 1
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    for fault in report.faults:
        console.print(_shown(fault))
    for note in report.not_checked:
        console.print(f"[dim]not checked: {escape(note)}[/dim]")
    files = "1 file" if report.files == 1 else f"{report.files} files"
    count = len(report.faults)
    if count == 0:
        console.print(f"[green]{files}: no faults[/green]")
        return 0
    console.print(f"[red]{files}: {count} fault{'s' if count != 1 else ''}[/red]")
    return 1


def _shown(fault: Fault) -> str:
    head, *quoted = str(fault).split("\n")
    place = f"{fault.file}:{fault.line}:{fault.column}" if fault.line else fault.file
    rest = head.removeprefix(place)
    return "\n".join(
        [f"[bold]{escape(place)}[/bold]{escape(rest)}", *(f"[dim]{escape(line)}[/dim]" for line in quoted)]
    )
