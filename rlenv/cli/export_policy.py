"""`rlenv export-policy RUN`: a trained policy as a folder for transformers and vLLM."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlenv.cli.options import given
from rlenv.cli.terminal import write, write_json
from rlenv.models.place import adapter

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv export-policy`."""
    parser.add_argument("run", type=Path, help="the folder of a run of `rlenv train`")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="N", help="the checkpoint's step; the last one by default")
    which.add_argument("--best", action="store_true", help="the step with the highest held-out success")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="by default RUN/exported/step-N")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="by default the one that was trained in"
    )
    parser.add_argument("--adapter", action="store_true", help="write the LoRA adapter alone, as a folder of peft")
    parser.add_argument("--check", action="store_true", help="load the folder and compare its logits with the run's")
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where `--check` finds another policy in the folder, 0 otherwise.

    Raises:
        MissingExtra: the adapter or what it stands on is not installed.
    """
    exporting = adapter("export.command", wanted_by="rlenv export-policy")
    options = given(args, "step", "best", "dtype", "adapter", "check")
    report: dict[str, Any] = exporting.export(args.run, args.output, **options)
    if args.json:
        write_json(report)
    else:
        write(exporting.text(report))
    return 1 if report["check"] is not None and not report["check"]["holds"] else 0
