"""`rlenv validate`: the faults of a spec with their places; with `--machine` what this machine lacks for it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.markup import escape

from rlenv.checks.diagnose import Need, diagnose, judge_environment
from rlenv.checks.validate import Report, validate
from rlenv.cli.console import Console
from rlenv.cli.options import WithSet, WithSpec, argument, keywords, option
from rlenv.cli.terminal import write_json
from rlenv.cli.tokens import said_of
from rlenv.episodes.environment import load
from rlenv.errors import Finding, UsageError
from rlenv.language.shipped import find
from rlenv.models import Looked, first_prompts, local_tokenizer, looked_at
from rlenv.tokens.bound import bind
from rlenv.tokens.encoder import History
from rlenv.tokens.verdict import Verdict

__all__ = ["MachineCommand", "ValidateCommand"]


@dataclass
class ValidateCommand(WithSet):
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
        with contextlib.redirect_stdout(sys.stderr):  # what files print that are imported is no part of the report
            report = validate(found, set=self.overrides)
        report = replace(report, files=len(self.files), faults=(*lacking, *report.faults))
        verdicts = _verdicts(self, report)
        is_fine = all(one.will_run and (one.is_exact or one.history == "keep") for one in verdicts.values())
        is_good = report.is_valid and not (self.strict and report.warnings)
        if self.json:
            more = (
                {"verdicts": {name: one.as_dict() for name, one in verdicts.items()}} if self.model is not None else {}
            )
            write_json({**report.as_dict(), **more}, indent=2)
            return 0 if is_good and is_fine else 1
        console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
        for fault in (*report.faults, *report.warnings):
            console.print(_shown(fault))
        for note in report.not_checked:
            console.print(f"[dim]not checked: {escape(note)}[/dim]")
        files = "1 file" if report.files == 1 else f"{report.files} files"
        count, odd = len(report.faults), len(report.warnings)
        warned = f", {odd} warning{'s' if odd != 1 else ''}" if odd else ""
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


def _verdicts(args: ValidateCommand, report: Report) -> dict[str, Verdict]:
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


def _shown(fault: Finding) -> str:
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
        model,
        environment,
        chat_template=args.chat_template,
        template_kwargs=keywords(args.kwarg),
        prompts=prompts,
    )
    if environment is not None and not prompts and why:
        said = f"no episode of the spec opens, so that the model's template was tried on made-up prompts alone: {why}"
        looked.append(Looked("prompts", said, f"mend what `rlenv play {args.spec}` meets"))
    return [Need(one.what, model, one.said) for one in looked]
