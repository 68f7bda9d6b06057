"""The folder that a command keeps its run in."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlenv.cli.options import overrides
from rlenv.episodes.environment import Environment
from rlenv.runs.folder import KeptRun, RunInfo

__all__ = ["add_overwrite", "add_resume", "kept_run"]


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """The option that lets a run take the place of another."""
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder of -o")


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The option that lets a run go on."""
    parser.add_argument("--resume", action="store_true", help="play what the run in the folder of -o lacks")


def kept_run(args: argparse.Namespace, environment: Environment, **facts: Any) -> KeptRun:
    """The run that `-o` names.

    Raises:
        UsageError: see `KeptRun`.
    """
    info = RunInfo(
        kind=args.command,
        command=tuple(sys.argv),
        spec=str(environment.loaded.path),
        environment=environment.id,
        policy=getattr(args, "policy", ""),
        facts={**facts, "set": overrides(getattr(args, "set", []))},
    )
    return KeptRun(args.out, info, resume=getattr(args, "resume", False), overwrite=args.overwrite)
