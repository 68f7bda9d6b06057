"""`rlenv tools SPEC check`: each tool's example is called, and every server looked at."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict, dataclass

from rich.markup import escape

from rlenv._base.bounded import cut_end
from rlenv.checks.diagnose import diagnose
from rlenv.cli.call_tool import called
from rlenv.cli.console import Console
from rlenv.cli.options import overrides
from rlenv.cli.spending import counting, show_spending_line
from rlenv.cli.terminal import write_json
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.messages import ToolCall

__all__ = ["check"]

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class _Checked:
    """One line of the report; `is_right` is None where there was nothing to call."""

    what: str
    is_right: bool | None
    note: str
    seconds: float = 0.0


def check(args: argparse.Namespace, environment: Environment) -> int:
    """Prints a line for each tool and each requirement; 1 where one of them is not right."""
    with counting() as so_far:
        checked = asyncio.run(_check(args, environment))
    wrong = any(one.is_right is False for one in checked)
    if args.json:
        write_json([asdict(one) for one in checked], indent=2)
        return 1 if wrong else 0
    console = Console(soft_wrap=True)
    for one in checked:
        mark = {True: "[green]ok   [/green]", False: "[red]wrong[/red]", None: "[yellow]-    [/yellow]"}[one.is_right]
        spent = f" [dim]{one.seconds * 1000:.1f} ms[/dim]" if one.seconds else ""
        console.print(f"{mark} {escape(one.what)}{spent}  {escape(one.note)}")
    show_spending_line(console, so_far())
    return 1 if wrong else 0


async def _check(args: argparse.Namespace, environment: Environment) -> list[_Checked]:
    found = await diagnose(environment.loaded.path, set=overrides(args.set))
    checked = [_Checked(one.what, one.is_met, one.lacks) for one in found]
    async with environment, environment.start(task=args.task, split=args.split) as episode:
        if episode.failure is not None:
            raise UsageError(episode.failure.message)
        for name, tool in environment.parts.tools.items():
            if tool.example is None:
                checked.append(_Checked(name, None, "has no example; add 'example: {…}' with arguments"))
                continue
            result = await called(environment, episode, ToolCall(name, tool.example))
            first = result.text.strip().partition("\n")[0]
            shown = cut_end(first, _SHOWN)
            note = shown if not result.is_error else f"{result.outcome}: {shown}"
            checked.append(_Checked(name, not result.is_error, note, result.seconds))
    return checked
