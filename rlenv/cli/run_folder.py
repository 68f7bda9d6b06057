"""The folder that a command keeps its run in."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from rlenv.cli.options import overrides
from rlenv.cli.terminal import write_error
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.runs.command import kept_command, kept_settings
from rlenv.runs.folder import KeptRun, RunInfo, read_info
from rlenv.runs.locks.lock import FOLDER, Lock

__all__ = ["add_overwrite", "add_resume", "check_folder_options", "kept_run", "told"]


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """The option that lets a run take the place of another."""
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder of -o")


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The option that lets a run go on."""
    parser.add_argument("--resume", action="store_true", help="play what the run in the folder of -o lacks")


def check_folder_options(args: argparse.Namespace) -> None:
    """Refuses what is about the run in a folder where no folder is named.

    Raises:
        UsageError: with such an option and without -o.
    """
    for name in ("overwrite", "resume"):
        if getattr(args, name, False) and not args.out:
            raise UsageError(f"--{name} is about the run in the folder of -o, and none is named", hint="add -o DIR")


def told(line: str) -> None:
    """Says on standard error what takes long."""
    write_error(f"{line} …\n")


def kept_run(args: argparse.Namespace, environment: Environment, *, lock: Lock | None = None, **facts: Any) -> KeptRun:
    """The run that `-o` names; where it goes on with another lock than before, that is said.

    Raises:
        UsageError: see `KeptRun`.
    """
    info = RunInfo(
        kind=args.command,
        command=kept_command(("rlenv", *sys.argv[1:])),
        spec=os.path.abspath(environment.loaded.path),
        environment=environment.id,
        policy=getattr(args, "policy", ""),
        facts={**facts, "set": kept_settings(overrides(getattr(args, "set", [])))},
    )
    is_resumed = getattr(args, "resume", False)
    before = read_info(args.out) if is_resumed else None
    kept = KeptRun(args.out, info, lock=lock, resume=is_resumed, overwrite=args.overwrite)
    old = before.attempts[-1].lock if before is not None and before.attempts else ""
    if lock is not None and old not in ("", lock.hash12):
        files = [str(kept.path / FOLDER / f"{one}.json") for one in (old, lock.hash12)]
        write_error(f"the run goes on, but not with what it began with: rlenv lock diff {' '.join(files)}\n")
    return kept
