"""`rlenv schema [--check] [DIR]`: the JSON Schema that editors complete specs with."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlenv.cli.terminal import write, write_error
from rlenv.language.schema import FILE_NAME, is_fresh
from rlenv.language.schema import write as write_schema

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("folder", nargs="?", default="schemas", metavar="DIR", help="where it is written (schemas)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the file is stale")


def run(args: argparse.Namespace) -> int:
    """0 where the schema was written or is fresh, 1 where `--check` finds it stale."""
    folder = Path(args.folder)
    if not args.check:
        write(f"wrote {write_schema(folder)}\n")
        return 0
    if is_fresh(folder):
        write(f"{folder / FILE_NAME} is fresh\n")
        return 0
    write_error(f"{folder / FILE_NAME} is stale; run: rlenv schema {folder}\n")
    return 1
