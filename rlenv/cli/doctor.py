"""`rlenv doctor`: what this machine lacks for a spec."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict

from rich.markup import escape

from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.terminal import write_json
from rlenv.diagnose import diagnose
from rlenv.shipped import find

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv doctor`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Lists what the spec needs; exit code 1 where something is lacking."""
    found = asyncio.run(diagnose(find(args.spec), set=overrides(args.set)))
    lacking = [finding for finding in found if not finding.is_met]
    if args.json:
        write_json([asdict(finding) for finding in found], indent=2)
        return 1 if lacking else 0
    console = Console(soft_wrap=True)
    for finding in found:
        mark = "[green]ok   [/green]" if finding.is_met else "[red]lacks[/red]"
        why = "" if finding.is_met else f" {finding.lacks}"
        console.print(f"{mark} {escape(finding.what)}{escape(why)}  [dim]({escape(finding.needed_by)})[/dim]")
    console.print(
        f"{len(found) - len(lacking)} of {len(found)} requirements are met" if found else "nothing is lacking"
    )
    return 1 if lacking else 0
