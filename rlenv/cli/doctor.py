"""`rlenv doctor`: what this machine, and a model, lack for a spec."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict

from rich.markup import escape

from rlenv.checks.diagnose import Finding, diagnose
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, keywords, overrides
from rlenv.cli.terminal import write_json
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.language.shipped import find
from rlenv.models import Looked, first_prompts, looked_at

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv doctor`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument("--model", help="also look at a model as `rlenv train --model` takes it")
    parser.add_argument("--chat-template", metavar="FILE|NAME", help="look at the model with this chat template")
    parser.add_argument("--kwarg", action="append", default=[], metavar="KEY=VALUE",
                        help="a name for the model's chat template, such as enable_thinking=false")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Lists what the spec needs and the model lacks; exit code 1 where something is lacking."""
    if args.model is None and (args.chat_template is not None or args.kwarg):
        raise UsageError("--chat-template and --kwarg are for a model", hint="name it with --model")
    found = [*asyncio.run(diagnose(find(args.spec), set=overrides(args.set)))]
    if args.model is not None:
        found += _model(args, is_whole=all(finding.is_met for finding in found))
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


def _model(args: argparse.Namespace, *, is_whole: bool) -> list[Finding]:
    """What the model lacks; for the spec where this machine has all that it needs, else by itself."""
    environment = load(args.spec, set=overrides(args.set)) if is_whole else None
    prompts, why = first_prompts(environment) if environment is not None else ((), "")
    looked = looked_at(
        args.model,
        environment,
        chat_template=args.chat_template,
        template_kwargs=keywords(args.kwarg),
        prompts=prompts,
    )
    if environment is not None and not prompts and why:
        said = f"no episode of the spec opens, so that the model's template was tried on made-up prompts alone: {why}"
        looked.append(Looked("prompts", said, f"mend what `rlenv play {args.spec}` meets"))
    return [Finding(one.what, args.model, one.said) for one in looked]
