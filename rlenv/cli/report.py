"""`rlenv report RUN… -o FILE`: runs as one HTML file for papers and reviews."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from rlenv.cli.spending import add_prices
from rlenv.cli.terminal import write
from rlenv.errors import UsageError
from rlenv.runs.folder import is_run
from rlenv.runs.prices import as_prices

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv report`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; the others are compared with the first")
    parser.add_argument("-o", "--out", metavar="FILE", required=True, help="the file, such as report.html")
    parser.add_argument("--title", default="Runs", help="its title")
    parser.add_argument("--episodes", type=int, default=6, metavar="N", help="episodes of each run to show (6)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    add_prices(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the file; exit code 0."""
    from rlenv.runs.figures.report import report

    prices = as_prices(args.prices)
    if args.episodes < 0:
        raise UsageError("--episodes is at least 0")
    for name in args.runs:
        if not is_run(name):
            raise UsageError(f"there is no run at {name}", hint="`rlenv runs list` shows those below this folder")
    out = Path(args.out)
    if out.is_symlink() and not out.exists():  # it would be written through, to wherever it leads
        raise UsageError(f"{out} is a link that leads nowhere", hint="name another file, or remove the link")
    if out.exists() and not args.overwrite:
        raise UsageError(f"{out} exists already", hint="name another file, or add --overwrite")
    if out.exists() and not out.is_file():  # a device, say, whose name a file would take
        raise UsageError(f"{out} is no file", hint="name another")
    text = report([Path(name) for name in args.runs], title=args.title, episodes=args.episodes, prices=prices)
    place = out.resolve()  # a link stays what it is
    beside = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:  # the old one stays whole until the new one is
        beside.write_text(text, encoding="utf-8", errors="replace")
        os.replace(beside, place)
    except OSError as error:
        raise UsageError(f"{error.filename or out} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    write(f"{out}: {len(args.runs)} runs, {len(text) / 1e3:.0f} kB\n")
    return 0
