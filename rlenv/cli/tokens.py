"""`rlenv tokens check` and `rlenv tokens explain`: token exactness, proven and shown."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import orjson
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlenv import record
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.terminal import write_json
from rlenv.environment import load
from rlenv.errors import UsageError
from rlenv.messages import Message
from rlenv.policies.oracle import OraclePolicy
from rlenv.rollout import Job, rollout
from rlenv.tokens import TokenEncoder
from rlenv.tokens.check import CheckReport, Finding, check
from rlenv.tokens.dialogues import Dialogue
from rlenv.tokens.load import load_tokenizer
from rlenv.trajectory import Trajectory

__all__ = ["add_arguments", "run"]

_COLOURS = {"ok": "green", "split": "yellow", "refused": "red", "failed": "red", "skipped": "dim"}
_SHADES = ("green", "cyan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two commands with their options."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    checks = commands.add_parser("check", help="prove that ids, masks and stop marks are right for a model")
    checks.add_argument("tokenizer", metavar="MODEL_OR_TOKENIZER", help="a folder, a tokenizer.json(.gz), or a model")
    checks.add_argument("spec", nargs="?", help="also check dialogues of this environment, played by its oracle")
    checks.add_argument("--dialogues", type=int, default=200, metavar="N", help="generated dialogues (200)")
    checks.add_argument("--seed", type=int, default=0)
    checks.add_argument("--json", action="store_true", help="write the report as one JSON object")
    add_set(checks)
    explains = commands.add_parser("explain", help="show a trajectory's tokens by mask and turn")
    explains.add_argument("trajectories", metavar="TRAJECTORY.jsonl", help="what `rlenv eval -o` writes")
    explains.add_argument("--tokenizer", required=True, metavar="MODEL_OR_TOKENIZER")
    explains.add_argument("--index", type=int, default=0, metavar="I", help="which line, from 0")
    explains.add_argument("--ids", action="store_true", help="show the id behind each token")
    for command in (checks, explains):
        command.add_argument("--template", metavar="FILE", help="the chat template, instead of the tokenizer's own")
        command.add_argument("--stop", metavar="TOKEN", help="the token that ends an assistant's turn")
        command.add_argument("--kwarg", action="append", default=[], metavar="KEY=VALUE",
                             help="a name for the template, such as enable_thinking=false")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 where ids are exact, 1 where a check failed or refused, 2 for wrong usage."""
    return _check(args) if args.action == "check" else _explain(args)


def _kwargs(args: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in args.kwarg:
        key, sign, value = item.partition("=")
        if not sign:
            raise UsageError(f"--kwarg {item}: expected KEY=VALUE, such as enable_thinking=false")
        try:
            values[key] = orjson.loads(value)
        except orjson.JSONDecodeError:
            values[key] = value
    return values


def _encoder(args: argparse.Namespace, **options: Any) -> TokenEncoder:
    tokenizer = load_tokenizer(args.tokenizer, template=args.template)
    return TokenEncoder(tokenizer, template_kwargs=_kwargs(args), stop=args.stop, **options)


def _check(args: argparse.Namespace) -> int:
    if args.dialogues < 1:
        raise UsageError(f"--dialogues {args.dialogues}: expected at least 1")
    tokenizer = load_tokenizer(args.tokenizer, template=args.template)
    kwargs = _kwargs(args)
    real = list(_played(args)) if args.spec else []
    report = check(
        lambda: TokenEncoder(tokenizer, template_kwargs=kwargs, stop=args.stop),
        name=args.template or args.tokenizer,
        dialogues=args.dialogues,
        seed=args.seed,
        real=real,
    )
    if args.json:
        write_json(report.as_dict(), indent=2)
    else:
        _show(report, Console(file=sys.stdout, highlight=False))
    return 0 if report.is_exact else 1


def _played(args: argparse.Namespace) -> Iterator[Dialogue]:
    """Dialogues of an environment: up to 20 tasks of its first split, played by its oracle."""
    environment = load(args.spec, set=overrides(args.set))
    if environment.spec.oracle is None:
        raise UsageError(f"{args.spec} has no oracle to play dialogues with; leave the spec out or add one")
    split = next(iter(environment.spec.tasks))

    async def play() -> list[Trajectory]:
        async with environment:
            count = min(len(environment.tasks(split)), 20)
            policy = OraclePolicy(environment.spec, environment.parts.dialect)
            return await rollout(environment, policy, [Job(split, task) for task in range(count)])

    for trajectory in asyncio.run(play()):
        turns = []
        for turn in trajectory.turns:
            if turn.observation is None or any(message.role != "tool" for message in turn.observation.messages):
                break
            calls = tuple(call for call in turn.parsed.calls if hasattr(call, "arguments"))
            said = Message("assistant", turn.parsed.content, calls).as_dict()
            if not calls:
                break
            turns.append((said, tuple(message.as_dict() for message in turn.observation.messages)))
        yield Dialogue(
            tuple(message.as_dict() for message in trajectory.messages),
            tuple(dict(schema) for schema in environment.tool_schemas),
            tuple(turns),
            trajectory.messages,
        )


def _show(report: CheckReport, console: Console) -> None:
    table = Table(title=report.name, title_justify="left", show_lines=False)
    for heading in ("check", "result", "cases", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        colour = _COLOURS[finding.status]
        table.add_row(
            finding.name, f"[{colour}]{finding.status}[/{colour}]", str(finding.cases), escape(finding.detail)
        )
    console.print(table)
    for finding in report.findings:
        if finding.difference is not None:
            _show_difference(finding, console)
    console.print("[green]exact[/green]" if report.is_exact else "[red]not exact[/red]")


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


def _explain(args: argparse.Namespace) -> int:
    encoder = _encoder(args, history="keep")
    trajectory = next((item for index, item in enumerate(record.read(args.trajectories)) if index == args.index), None)
    if trajectory is None:
        raise UsageError(f"{args.trajectories} has no trajectory {args.index}; lines are counted from 0")
    tokens = encoder.start(trajectory.messages)
    for turn in trajectory.turns:
        end = [encoder.stop_id] if turn.observation is not None or not turn.parsed.is_cut else []
        tokens.add_sampled([*encoder.encode_text(turn.action), *end])
        if turn.observation is not None and turn.observation.messages:
            tokens.add_observation(turn.observation)
    shown = Text()
    for number in tokens.prompt_ids:
        shown.append(_piece(encoder, number, args.ids), style="dim")
    starts = {start: index for index, (start, _) in enumerate(tokens.turn_spans)}
    style = "dim"
    for place, (number, mask) in enumerate(zip(tokens.response_ids, tokens.mask, strict=True)):
        if place in starts:
            style = f"bold {_SHADES[starts[place] % 2]}"
            shown.append(f"\n[turn {starts[place] + 1}] ", style="reverse")
        shown.append(_piece(encoder, number, args.ids), style=style if mask else "yellow")
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.print(shown)
    sampled = sum(tokens.mask)
    console.print(
        f"\n[dim]prompt {len(tokens.prompt_ids)}[/dim] · [green]sampled {sampled}[/green] (mask 1) · "
        f"[yellow]observed {len(tokens) - sampled}[/yellow] (mask 0) · {len(tokens.turn_spans)} turns; texts were "
        "encoded anew: what was sampled may have been other ids"
    )
    return 0


def _piece(encoder: TokenEncoder, number: int, with_id: bool) -> str:
    text = encoder.decode([number])
    return f"{text}⟨{number}⟩" if with_id else text
