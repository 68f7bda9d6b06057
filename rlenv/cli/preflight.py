"""`rlenv preflight SPEC --model FOLDER`: what a training run would meet, before it is started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from rlenv.cli.console import Console
from rlenv.cli.options import given, parsed
from rlenv.cli.spending import counting, show_spending_line
from rlenv.cli.terminal import write_json
from rlenv.models.place import adapter
from rlenv.preflight import Preflight, lines_of

__all__ = ["add_arguments", "run_argv"]

_EPILOG: Final = """key=value are overrides as `rlenv train` takes them: of the trainer's configuration
(data.max_response_length=8192), or of the preset's own part (run.max_prompt_length=8192)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command reads its own arguments, which may stand in any order; `rlenv preflight --help` shows them."""


def _parser() -> argparse.ArgumentParser:
    reads = argparse.ArgumentParser(
        prog="rlenv preflight",
        usage="rlenv preflight SPEC [SPEC ...] --model FOLDER [options] [key=value ...]",
        description=(
            "Say before a run whether prompts, the oracle's responses and memory fit, and whether training is exact."
        ),
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    reads.add_argument("items", nargs="*", metavar="SPEC | key=value", help="YAML files, or names of specs that ship")
    reads.add_argument(
        "--model", required=True, help="as for `rlenv train`; its tokenizer, config.json and headers are read"
    )
    reads.add_argument("--chat-template", metavar="FILE|NAME", help="as for `rlenv train`")
    reads.add_argument("--preset", metavar="NAME|FILE", help="machine and sizes; cpu by default, as for `rlenv train`")
    reads.add_argument("--algorithm", help="the preset's own by default")
    reads.add_argument("--mode", help="the preset's own by default")
    reads.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of every spec; NAME:KEY=VALUE of one",
    )
    reads.add_argument("--lora", type=int, metavar="RANK", help="as for `rlenv train`")
    reads.add_argument("--sample", type=int, metavar="N", help="measure at most N tasks of each split (256)")
    reads.add_argument(
        "--card",
        "--device-gb",
        dest="device_gb",
        type=float,
        metavar="GB",
        help="the memory of one GPU; this machine's own by default, 80 where it has none",
    )
    reads.add_argument("--json", action="store_true", help="write the report as one JSON object")
    return reads


def run_argv(argv: Sequence[str]) -> int:
    """0 where the run can start, 1 where something would make it fail or useless.

    Raises:
        MissingExtra: the adapter or what it stands on is not installed.
    """
    args = parsed(_parser(), argv)
    look = adapter("run.preflight_command", wanted_by="rlenv preflight").look
    with counting() as so_far:
        report: Preflight = look(
            args.items,
            needs_weights=True,
            **given(args, "model", "preset", "algorithm", "mode", "set", "lora", "chat_template", "device_gb"),
            **({} if args.sample is None else {"sample": args.sample}),
        )
    if args.json:
        write_json(report.as_dict(), indent=2)
        return 0 if report.is_ready else 1
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines_of(report):
        console.print(line, markup=False)
    show_spending_line(console, so_far())
    console.print(f"[{'green' if report.is_ready else 'red'}]{report.outcome}[/]")
    return 0 if report.is_ready else 1
