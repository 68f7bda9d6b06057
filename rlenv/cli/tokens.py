"""`rlenv tokens check` and `rlenv tokens explain`: token exactness, proven and shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlenv.checks.diagnose import check_environment
from rlenv.cli.console import Console, counting, show_spending_line
from rlenv.cli.options import WithSet, argument, keywords, option
from rlenv.cli.terminal import write_json
from rlenv.episodes.environment import Environment, load
from rlenv.errors import RlenvError, UsageError
from rlenv.models import local_tokenizer
from rlenv.runs.recorded import recorded
from rlenv.runs.usage import Spending
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind
from rlenv.tokens.check import CheckReport, Explained, TokenCheck, check, explain
from rlenv.tokens.encoder import History
from rlenv.tokens.verdict import Verdict
from rlenv.trajectory import Trajectory

__all__ = ["TokensCheckCommand", "TokensExplainCommand", "said_of"]


_SHADES = ("green", "cyan")


@dataclass
class _OfTokens(WithSet):
    """A command over a tokenizer with a chat template."""

    template: str | None = option(
        "a chat template instead of the tokenizer's own: a file, or chatml",
        "--chat-template",
        "--template",
        metavar="FILE|NAME",
    )
    stop: str | None = option("the token that ends an assistant's turn", metavar="TOKEN")
    kwarg: list[str] = option("a name for the template, such as enable_thinking=false", default=[], metavar="KEY=VALUE")


@dataclass
class TokensCheckCommand(_OfTokens):
    """`rlenv tokens check`."""

    tokenizer: str = argument(
        "a model as `rlenv train --model` takes it, or a tokenizer.json(.gz)", metavar="MODEL_OR_TOKENIZER"
    )
    spec: str | None = argument("judge what this environment plays: its prompts, tools, users and oracle")
    dialogues: int = option("generated dialogues (100)", default=100, metavar="N", least=1)
    seed: int = option("of the dialogues", default=0)
    json: bool = option("write the report as one JSON object")
    history: History = option("what training does where the template rewrites history", default="grow")
    user: bool = option("without a SPEC: judge for environments with a simulated user")

    def execute(self) -> int:
        """0 where training will run and be exact, 1 where not."""
        tokenizer = local_tokenizer(self.tokenizer, chat_template=self.template)
        options: dict[str, Any] = {"template_kwargs": keywords(self.kwarg), "stop": self.stop, "history": self.history}
        name, spending = self.template or self.tokenizer, Spending()
        if self.spec is None:
            made = partial(TokenEncoder, tokenizer, **options)
            report = check(made, name=name, dialogues=self.dialogues, seed=self.seed, with_users=True)
            if self.user and report.with_user is not None:
                report = replace(report, verdict=report.with_user, with_user=None)
        else:
            environment = load(self.spec, set=self.overrides)
            with counting() as so_far:
                report = check_environment(
                    environment,
                    lambda: bind(tokenizer, environment, **options),
                    name=name,
                    dialogues=self.dialogues,
                    seed=self.seed,
                )
            spending = so_far()
        if self.json:
            write_json(report.as_dict(), indent=2)
        else:
            console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
            show_spending_line(console, spending)
            show_report(report, console)
        return 0 if report.is_fine else 1


@dataclass
class TokensExplainCommand(_OfTokens):
    """`rlenv tokens explain`."""

    trajectories: str = argument("what `rlenv eval -o` writes", metavar="TRAJECTORY.jsonl")
    tokenizer: str = option("whose ids are shown", metavar="MODEL_OR_TOKENIZER", required=True)
    index: int = option("which line, from 0", default=0, metavar="I")
    spec: str | None = option("the spec that was played: its tools stand in the prompt", metavar="SPEC")
    history: str = option(
        "show one row, or a new one wherever the chat template rewrites history",
        default="keep",
        choices=("keep", "rows"),
    )
    ids: bool = option("show the id behind each token")

    def execute(self) -> int:
        """Exit code 0."""
        trajectory = next((item for index, item in enumerate(recorded(self.trajectories)) if index == self.index), None)
        if trajectory is None:
            raise UsageError(f"{self.trajectories} has no trajectory {self.index}", hint="lines are counted from 0")
        tokenizer = local_tokenizer(self.tokenizer, chat_template=self.template)
        environment = _environment_of(trajectory, self)
        options: dict[str, Any] = {"template_kwargs": keywords(self.kwarg), "stop": self.stop, "history": self.history}
        if environment is None:
            encoder = TokenEncoder(tokenizer, **options)
            explained = explain(encoder, trajectory)
        else:
            encoder = bind(tokenizer, environment, **options)
            explained = explain(encoder, trajectory, tools=environment.tool_schemas)
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        console.print(_coloured(encoder, explained, with_ids=self.ids))
        for line in _footer(explained, environment):
            console.print(line)
        return 0


def _environment_of(trajectory: Trajectory, args: TokensExplainCommand) -> Environment | None:
    """The spec that a record was played with: as it is named, or the one that ships under its id."""
    played = trajectory.environment.removeprefix("rlenv/")
    if args.spec is not None:
        environment = load(args.spec, set=args.overrides)
        if environment.id.removeprefix("rlenv/") != played:
            raise UsageError(
                f"the trajectory is one of {played}, and {args.spec} is {environment.id}", hint="give its spec"
            )
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
    for remark in report.verdict.remarks:
        console.print(f"[yellow]note: {escape(remark)}[/yellow]")
    if report.with_user is not None:
        console.print("with a simulated user (--user judges for that):")
        console.print(f"  {said_of(report.with_user)}")
    for finding in report.failed:
        console.print(f"[red]not exact: {escape(finding.name)}: {escape(finding.detail)}[/red]")
    if not report.failed:
        console.print(said_of(report.verdict))


def show_situations(verdict: Verdict, console: Console) -> None:
    """Prints the result of the template in each situation that is played."""
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


def said_of(verdict: Verdict) -> str:
    """One line of markup: whether training with this history will run and be exact, and what to do where not."""
    colour = "green" if verdict.is_exact else "yellow" if verdict.will_run else "red"
    return f"[{colour}]{escape(verdict.line)}[/{colour}]"


def _show_difference(finding: TokenCheck, console: Console) -> None:
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
