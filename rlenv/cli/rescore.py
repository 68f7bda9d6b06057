"""`rlenv rescore RUN --spec NEW.yaml`: new rewards over recorded episodes, with what they change."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from rlenv._base.figures import figure
from rlenv.cli.console import Console
from rlenv.cli.eval import SEEDS
from rlenv.cli.invalid import invalid_lines
from rlenv.cli.options import add_set, overrides
from rlenv.cli.run_folder import add_overwrite, check_folder_options, kept_run, stoppable, told
from rlenv.cli.spending import add_prices, prices_of, show_spending
from rlenv.cli.terminal import write_error, write_json
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.runs import files as record
from rlenv.runs.locks.lock import lock_of
from rlenv.runs.recorded import with_facts
from rlenv.runs.rescore import Difference, compare, rescore
from rlenv.runs.schema import Facts
from rlenv.runs.usage import cost_of, spent
from rlenv.trajectory import Trajectory

__all__ = ["add_arguments", "run"]

_LISTED = 20
_SHOWN_CHARS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv rescore`."""
    parser.add_argument("run", help="a run's folder, or a .jsonl of trajectories")
    parser.add_argument("--spec", required=True, help="the spec with the new rewards")
    parser.add_argument("--concurrency", type=int, default=64, metavar="C", help="episodes at once")
    parser.add_argument("--max-invalid", type=float, default=0.0, metavar="SHARE", help="exit 1 above this share")
    parser.add_argument("--json", action="store_true", help="print the difference as one JSON object")
    parser.add_argument("-o", "--out", metavar="DIR", help="keep the rescored episodes there, as a run")
    add_overwrite(parser)
    add_prices(parser)
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where more rewards are invalid than asked for, 0 otherwise."""
    if args.concurrency < 1:
        raise UsageError("--concurrency is at least 1")
    check_folder_options(args)
    prices = prices_of(args)
    if args.out and Path(args.out).resolve() in (Path(args.run).resolve(), Path(args.run).resolve().parent):
        raise UsageError(f"-o {args.out} would overwrite the recorded run", hint="name another folder")
    source = with_facts(args.run)
    before = [trajectory for _, trajectory in source]
    environment = load(args.spec, set=overrides(args.set))

    async def main() -> list[Trajectory]:
        async with environment:
            return await rescore(environment, before, concurrency=args.concurrency)

    # The rows are the recorded episodes' own, so no split is read.
    lock = lock_of(environment, splits=(), policy={"kind": "recorded"}, say=told) if args.out else None
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(kept_run(args, environment, lock=lock)) if args.out else None
        after = asyncio.run(stoppable(main(), out))
        if out is not None:
            for (facts, _), one in zip(source, after, strict=True):
                facts = facts or Facts(sample=one.seed % SEEDS)
                out.append(one, replace(facts, cost=cost_of(one.usage, prices)))
    found = compare(before, after)
    spending = spent(after, prices=prices)
    if args.json:
        write_json({**record.plain(found), "usage": record.plain(spending)})
    else:
        _show(Console(highlight=False), environment.id, found)
        show_spending(Console(highlight=False), spending)
    share = found.invalid[1] / found.episodes if found.episodes else 0.0
    if share > args.max_invalid:
        write_error(f"rlenv rescore: {found.invalid[1]} of {found.episodes} rewards are invalid\n")
        for line in invalid_lines(after):
            write_error(f"  {line}\n")
        return 1
    return 1 if out is not None and out.lost else 0


def _show(console: Console, name: str, found: Difference) -> None:
    changed = f"{len(found.changes)} changed" if found.changes else "none changed"
    console.print(escape(f"{name} · {found.episodes} episodes, {changed}"), soft_wrap=True)
    table = Table("", "before", "after")
    table.add_row("reward", *map(figure, found.reward))
    for term, pair in found.terms.items():
        table.add_row(f"  {escape(term)}", *map(figure, pair))
    table.add_row("success", *map(figure, found.success))
    table.add_row("invalid", *map(str, found.invalid))
    console.print(table)
    console.print(f"success gained {found.gained}, lost {found.lost}, not known any more {found.unknown}")
    for change in found.changes[:_LISTED]:
        terms = ", ".join(f"{escape(term)} {figure(old)} → {figure(new)}" for term, (old, new) in change.terms.items())
        place = escape(f"{change.split}/{change.task_index} seed {change.seed}")
        totals = f"{figure(change.before)} → {figure(change.after)}"
        console.print(f"{place}: {totals}  [dim]{terms}[/dim]", soft_wrap=True)
        if change.after is None and change.error:
            console.print(f"  [dim]{escape(change.error[:_SHOWN_CHARS])}[/dim]", soft_wrap=True)
    if len(found.changes) > _LISTED:
        console.print(f"[dim]… and {len(found.changes) - _LISTED} more[/dim]")
