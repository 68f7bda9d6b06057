"""`rlenv view FILE`: recorded episodes in the terminal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlenv._base.bounded import cut_end
from rlenv.cli.console import Console
from rlenv.errors import UsageError
from rlenv.messages import ToolCall
from rlenv.runs.recorded import recorded
from rlenv.trajectory import Trajectory, Turn

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv view`."""
    parser.add_argument("file", help="a run's folder, or a .jsonl of trajectories")
    parser.add_argument("--line", type=int, metavar="N", help="one episode by its line in the file, from 1")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--failed", action="store_true", help="only episodes whose reward is invalid")
    which.add_argument("--wrong", action="store_true", help="only episodes that are valid and no success")
    parser.add_argument("-n", type=int, default=5, metavar="N", help="at most N episodes (5)")
    parser.add_argument("--full", action="store_true", help="do not cut long texts")


def run(args: argparse.Namespace) -> int:
    """Shows episodes; exit code 1 where none is as asked."""
    found = list(enumerate(recorded(args.file), 1))
    if args.line is not None:
        if not 1 <= args.line <= len(found):
            raise UsageError(f"{args.file} has lines 1 to {len(found)}, not {args.line}")
        found = [found[args.line - 1]]
    if args.failed:
        found = [(line, one) for line, one in found if one.reward.total is None]
    if args.wrong:
        found = [(line, one) for line, one in found if one.success is False]
    console = Console(highlight=False)
    for line, trajectory in found[: args.n]:
        console.print(_episode(line, trajectory, most=None if args.full else 1500))
    shown = min(len(found), args.n)
    console.print(f"{shown} of {len(found)} episodes" + ("" if shown == len(found) else "; -n shows more"))
    return 0 if found else 1


def _episode(line: int, trajectory: Trajectory, *, most: int | None) -> RenderableType:
    parts: list[RenderableType] = []
    for message in trajectory.messages:
        if message.role not in ("system", "user"):
            break  # what follows the prompt stands with its turn
        parts.append(_box(message.content, title=message.role, style="dim", most=most))
    for turn in trajectory.turns:
        parts += _turn(turn, most=most)
    parts.append(_end(trajectory))
    title = f"{trajectory.environment} · {trajectory.split}/{trajectory.task_index} · line {line}"
    return Panel(Group(*parts), title=escape(title), title_align="left")


def _turn(turn: Turn, *, most: int | None) -> Iterator[RenderableType]:
    title = f"turn {turn.index + 1}" + (f", {turn.calls_malformed} malformed" if turn.calls_malformed else "")
    title += ", cut at its limit of tokens" if turn.was_cut else ""
    yield _box(turn.action, title=title, style="cyan", most=most)
    calls = list(turn.parsed.calls)
    for index, result in enumerate(turn.results):
        call = calls[index] if index < len(calls) else None
        arguments = json.dumps(call.arguments, ensure_ascii=False) if isinstance(call, ToolCall) else ""
        head = f"{result.name} {arguments} · {result.outcome} · {result.seconds * 1000:.1f} ms"
        style = "green" if result.outcome == "ok" else "red"
        yield _box(result.text, title=cut_end(head, 120), style=style, most=most)
    if turn.observation is not None and not turn.results:
        text = "\n".join(message.content for message in turn.observation.messages)
        yield _box(text, title="observation", style="yellow", most=most)


def _box(text: str, *, title: str, style: str, most: int | None) -> Panel:
    shown = Text(text if most is None else cut_end(text, most))
    return Panel(shown, title=escape(title), title_align="left", border_style=style)


def _end(trajectory: Trajectory) -> Table:
    how = "terminated" if trajectory.terminated else "truncated"
    table = Table(
        "term", "value", "", title=escape(f"{how}: {trajectory.reason}"), title_justify="left", show_header=False
    )
    for name, term in trajectory.reward.terms.items():
        value = "–" if term.value is None else f"{term.value:.3f}"
        note = term.error or term.evidence or ""
        table.add_row(escape(name), f"{term.status} {value}", escape(cut_end(note, 100)))
    total = trajectory.reward.total
    table.add_row("reward", "invalid" if total is None else f"{total:.3f}", f"success {trajectory.success}")
    table.add_row("answer", escape(cut_end(str(trajectory.answer), 100)), f"{trajectory.seconds:.2f} s")
    if trajectory.failure is not None:
        table.add_row("failure", escape(trajectory.failure.reason), escape(trajectory.failure.message[:300]))
    return table
