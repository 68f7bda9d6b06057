"""`rlenv validate`: the faults of a spec with their places; with `--machine` what this machine lacks for it.

`rlenv tokens check` and `rlenv tokens explain`: token exactness, proven and shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlenv.checks.diagnose import Need, check_environment, diagnose, judge_environment
from rlenv.checks.validate import Report, validate
from rlenv.cli.console import Console, WithReader, counting, show_spending_line
from rlenv.cli.options import WithSet, WithSpec, argument, keywords, option
from rlenv.cli.terminal import write_json
from rlenv.episodes.environment import Environment, load
from rlenv.errors import Finding, RlenvError, UsageError
from rlenv.language.shipped import find
from rlenv.models import Looked, first_prompts, local_tokenizer, looked_at
from rlenv.runs.recorded import recorded
from rlenv.runs.usage import Spending
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind
from rlenv.tokens.check import CheckReport, Explained, IdDifference, check, explain
from rlenv.tokens.encoder import History
from rlenv.tokens.verdict import Verdict
from rlenv.trajectory import Trajectory

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
            explained = explain(encoder, trajectory, tools=environment.toolsets.of(trajectory.task).schemas)
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        console.print(_colour_pieces(encoder, explained, with_ids=self.ids))
        for line in _footer_lines(explained, environment):
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


def _colour_pieces(encoder: TokenEncoder, explained: Explained, *, with_ids: bool) -> Text:
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
            shown.append(_piece_text(encoder, number, with_ids), style=style)
    return shown


def _footer_lines(explained: Explained, environment: Environment | None) -> Iterator[str]:
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


def _piece_text(encoder: TokenEncoder, number: int, with_id: bool) -> str:
    text = encoder.decode([number])
    return f"{text}⟨{number}⟩" if with_id else text


_COLOURS = {"ok": "green", "refused": "red", "failed": "red", "skipped": "dim"}
_STATUS = {"grows": "green", "rewritten": "yellow", "refused": "red"}


def show_report(report: CheckReport, console: Console) -> None:
    """Findings, situations and what follows for training; the last line is the verdict."""
    headings = ("check", "status", "exact", "rewritten", "without need", "not taken")
    table = Table(*headings, title=escape(report.name), title_justify="left")
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
            _show_difference(finding.name, finding.difference, console)
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
    table = Table("situation", "the template", title="what answers a turn", title_justify="left")
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


def _show_difference(name: str, difference: IdDifference, console: Console) -> None:
    title = f"{name}: first difference at id {difference.at}"
    table = Table("expected id", "expected text", "found id", "found text", title=title, title_justify="left")
    for row in range(max(len(difference.expected), len(difference.found))):
        cells: list[str] = []
        for side in (difference.expected, difference.found):
            cells += [str(side[row][0]), escape(repr(side[row][1]))] if row < len(side) else ["", ""]
        is_equal = cells[:2] == cells[2:]
        table.add_row(*cells, style="dim" if is_equal else "bold")
    console.print(table)


@dataclass
class ValidateCommand(WithSet, WithReader):
    """`rlenv validate`."""

    files: list[str] = argument("a spec, or the name of one that ships with rlenv", metavar="FILE")
    json: bool = option("write the report as one JSON object")
    strict: bool = option("exit with 1 where there are warnings too, as for CI")
    model: str | None = option("also judge whether training with this model will be exact")
    chat_template: str | None = option(
        "with --model: a template instead of its own (a file, or chatml)", metavar="FILE|NAME"
    )
    history: History = option("with --model: what training does with rewritten history", default="grow")
    kwarg: list[str] = option(
        "with --model: a name for its chat template, such as enable_thinking=false", default=[], metavar="KEY=VALUE"
    )

    def execute(self) -> int:
        """0 where no fault was found and training will run and be exact with `--model`, 1 otherwise.

        Warnings count with `--strict` alone.
        """
        if self.model is None and (self.kwarg or self.history != "grow" or self.chat_template is not None):
            raise UsageError("--history, --chat-template and --kwarg are for --model", hint="name the model's folder")
        found, lacking = [], []
        for file in self.files:
            try:
                found.append(find(file))
            except UsageError as error:  # the others are checked all the same
                lacking.append(Finding("fault", error.message, error.hint, file=file))
        with (
            counting() as so_far,
            contextlib.redirect_stdout(io.StringIO()),
        ):  # what imported files and tools print is no part of the report
            report = validate(found, set=self.overrides, reader=self.reader_of)
        report = replace(report, files=len(self.files), faults=(*lacking, *report.faults))
        verdicts = _verdicts_of(self, report)
        is_fine = all(one.will_run and (one.is_exact or one.history == "keep") for one in verdicts.values())
        is_good = report.is_valid and not (self.strict and report.warnings)
        if self.json:
            told = {name: one.as_dict() for name, one in verdicts.items()}
            more = {"verdicts": told} if self.model is not None else {}
            write_json({**report.as_dict(), **more}, indent=2)
            return 0 if is_good and is_fine else 1
        console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
        for fault in (*report.faults, *report.warnings):
            console.print(_fault_text(fault))
        for note in report.not_checked:
            console.print(f"[dim]not checked: {escape(note)}[/dim]")
        files = "1 file" if report.files == 1 else f"{report.files} files"
        count, odd = len(report.faults), len(report.warnings)
        warned = f", {odd} warning{'s' if odd != 1 else ''}" if odd else ""
        show_spending_line(console, so_far())
        if count == 0:
            console.print(f"[{'yellow' if odd else 'green'}]{files}: no faults{warned}[/]")
            for name, verdict in verdicts.items():
                console.print(f"{escape(name)} with {escape(self.model or '')}:")
                for remark in verdict.remarks:
                    console.print(f"[yellow]note: {escape(remark)}[/yellow]")
                console.print(said_of(verdict))
            return 0 if is_good and is_fine else 1
        console.print(f"[red]{files}: {count} fault{'s' if count != 1 else ''}{warned}[/red]")
        return 1


def _verdicts_of(args: ValidateCommand, report: Report) -> dict[str, Verdict]:
    """For each file, whether training with the model will run and be exact; nothing where a file has faults."""
    if args.model is None or not report.is_valid:
        return {}
    tokenizer = local_tokenizer(args.model, chat_template=args.chat_template)
    found = {}
    for file in args.files:
        environment = load(file, set=args.overrides)
        options: dict[str, Any] = {"template_kwargs": keywords(args.kwarg), "history": args.history}
        make = partial(bind, tokenizer, environment, **options)
        found[file] = judge_environment(environment, make)
    return found


def _fault_text(fault: Finding) -> str:
    head, *quoted = str(fault).split("\n")
    place = f"{fault.file}:{fault.line}:{fault.column}" if fault.line else fault.file
    rest = head.removeprefix(place)
    return "\n".join(
        [f"[bold]{escape(place)}[/bold]{escape(rest)}", *(f"[dim]{escape(line)}[/dim]" for line in quoted)]
    )


@dataclass
class MachineCommand(WithSpec):
    """`rlenv validate --machine`."""

    model: str | None = option("also look at a model as `rlenv train --model` takes it")
    chat_template: str | None = option("look at the model with this chat template", metavar="FILE|NAME")
    kwarg: list[str] = option(
        "a name for the model's chat template, such as enable_thinking=false", default=[], metavar="KEY=VALUE"
    )
    json: bool = option("print what was found as JSON")

    def execute(self) -> int:
        """Lists what the spec needs and the model lacks; exit code 1 where something is lacking."""
        if self.model is None and (self.chat_template is not None or self.kwarg):
            raise UsageError("--chat-template and --kwarg are for a model", hint="name it with --model")
        found = [*asyncio.run(diagnose(find(self.spec), set=self.overrides))]
        if self.model is not None:
            found += _model(self, self.model, is_whole=all(finding.is_met for finding in found))
        lacking = [finding for finding in found if not finding.is_met]
        if self.json:
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


def _model(args: MachineCommand, model: str, *, is_whole: bool) -> list[Need]:
    """The needs that the model lacks; for the spec where this machine has all that it needs, else by itself."""
    environment = load(args.spec, set=args.overrides) if is_whole else None
    prompts, why = first_prompts(environment) if environment is not None else ((), "")
    looked = looked_at(
        model, environment, chat_template=args.chat_template, template_kwargs=keywords(args.kwarg), prompts=prompts
    )
    if environment is not None and not prompts and why:
        said = f"no episode of the spec opens, so that the model's template was tried on made-up prompts alone: {why}"
        looked.append(Looked("prompts", said, f"mend what `rlenv play {args.spec}` meets"))
    return [Need(one.what, model, one.said) for one in looked]
