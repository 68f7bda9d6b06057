"""`rlenv tokens check` and `rlenv tokens explain`: token exactness, proven and shown."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlenv import record
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.terminal import write_json
from rlenv.environment import Environment, load
from rlenv.errors import RlenvError, UsageError
from rlenv.messages import Message
from rlenv.policies.oracle import OraclePolicy
from rlenv.rollout import Job, rollout
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind
from rlenv.tokens.check import CheckReport, Finding, check
from rlenv.tokens.dialogues import Dialogue
from rlenv.tokens.explain import Explained, explain
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
    explains.add_argument("--spec", metavar="SPEC", help="the spec that was played: its tools stand in the prompt")
    explains.add_argument(
        "--history",
        choices=("keep", "rows"),
        default="keep",
        help="show one row, or a new one wherever the chat template rewrites history",
    )
    add_set(explains)
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
    trajectory = next((item for index, item in enumerate(record.read(args.trajectories)) if index == args.index), None)
    if trajectory is None:
        raise UsageError(f"{args.trajectories} has no trajectory {args.index}; lines are counted from 0")
    tokenizer = load_tokenizer(args.tokenizer, template=args.template)
    environment = _environment_of(trajectory, args)
    options: dict[str, Any] = {"template_kwargs": _kwargs(args), "stop": args.stop, "history": args.history}
    if environment is None:
        encoder = TokenEncoder(tokenizer, **options)
        explained = explain(encoder, trajectory)
    else:
        encoder = bind(tokenizer, environment, **options)
        explained = explain(encoder, trajectory, tools=environment.tool_schemas)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.print(_coloured(encoder, explained, with_ids=args.ids))
    for line in _footer(explained, environment):
        console.print(line)
    return 0


def _environment_of(trajectory: Trajectory, args: argparse.Namespace) -> Environment | None:
    """The spec that a record was played with: as it is named, or the one that ships under its id."""
    played = trajectory.environment.removeprefix("rlenv/")
    if args.spec is not None:
        environment = load(args.spec, set=overrides(args.set))
        if environment.id.removeprefix("rlenv/") != played:
            raise UsageError(f"the trajectory is one of {played}, and {args.spec} is {environment.id}; give its spec")
        return environment
    try:
        environment = load(played.rpartition("-v")[0])
    except RlenvError:
        return None
    return environment if environment.id.removeprefix("rlenv/") == played else None


def _coloured(encoder: TokenEncoder, explained: Explained, *, with_ids: bool) -> Text:
    shown = Text()
    begun = -1
    for piece in explained.pieces:
        if piece.kind == "prompt" and piece.row:
            shown.append(f"\n[row {piece.row + 1}] ", style="reverse")
        if piece.kind == "sampled" and piece.turn > begun:
            begun = piece.turn
            shown.append(f"\n[turn {begun + 1}] ", style="reverse")
        style = {
            "prompt": "dim",
            "sampled": f"bold {_SHADES[piece.turn % 2]}",
            "assumed": f"underline {_SHADES[piece.turn % 2]}",
            "observed": "yellow",
        }[piece.kind]
        for number in piece.ids:
            shown.append(_piece(encoder, number, with_ids), style=style)
    return shown


def _footer(explained: Explained, environment: Environment | None) -> Iterator[str]:
    prompt, sampled = explained.count("prompt"), explained.count("sampled", "assumed")
    turns = len({piece.turn for piece in explained.pieces if piece.kind in ("sampled", "assumed")})
    yield (
        f"\n[dim]prompt {prompt}[/dim] · [green]sampled {sampled}[/green] (mask 1) · "
        f"[yellow]observed {explained.count('observed')}[/yellow] (mask 0) · {turns} turns"
    )
    if environment is None:
        yield "the prompt is shown without its tools: name the spec with --spec"
    if not explained.anew:
        yield "the sampled ids are those of the record"
    else:
        which = "all turns" if len(explained.anew) == turns else f"turns {_numbers(explained.anew)}"
        yield f"{which}: texts were encoded anew, since the record has no ids: what was sampled may have been other ids"
    if assumed := explained.count("assumed"):
        yield f"{assumed} end tokens (underlined) are assumed: the record does not say how these turns ended"
    if explained.others:
        yield f"turns {_numbers(explained.others)}: their ids do not read as their text: another tokenizer sampled them"
    for difference in explained.differences:
        yield f"[red]the template would write otherwise:[/red] {escape(difference)}"


def _numbers(turns: Sequence[int]) -> str:
    return ", ".join(str(turn + 1) for turn in turns)


def _piece(encoder: TokenEncoder, number: int, with_id: bool) -> str:
    text = encoder.decode([number])
    return f"{text}⟨{number}⟩" if with_id else text
