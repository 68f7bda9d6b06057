"""`rlenv replay FILE`: recorded episodes once more, to see that the environment answers the same."""

from __future__ import annotations

import argparse
import asyncio

from rlenv.cli.options import add_set, overrides
from rlenv.cli.recorded import environment_of
from rlenv.cli.terminal import write, write_json
from rlenv.errors import UsageError
from rlenv.runs.recorded import recorded
from rlenv.runs.replay import Replayed, replay

__all__ = ["add_arguments", "run"]

_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv replay`."""
    parser.add_argument("file", help="a run's folder, or a .jsonl of trajectories")
    parser.add_argument("--spec", help="the spec that recorded them; by default the shipped one of that name")
    parser.add_argument("-n", type=int, metavar="N", help="the first N episodes; all by default")
    parser.add_argument("--concurrency", type=int, default=64, metavar="C", help="episodes at once")
    parser.add_argument("--json", action="store_true", help="print what differs as one JSON object")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where an episode came out differently, or none could be played."""
    if args.concurrency < 1:
        raise UsageError("--concurrency is at least 1")
    before = recorded(args.file)[: args.n]
    environment = environment_of(before, spec=args.spec, set=overrides(args.set))

    async def main() -> list[Replayed]:
        async with environment:
            return await replay(environment, before, concurrency=args.concurrency)

    found = asyncio.run(main())
    different = [(index, one) for index, one in enumerate(found) if one.differences]
    skipped = [one for one in found if one.skipped]
    if args.json:
        report = {
            "episodes": len(found),
            "same": len(found) - len(different) - len(skipped),
            "skipped": len(skipped),
            "different": [
                {"line": index + 1, "task": one.recorded.task_index, "differences": list(one.differences)}
                for index, one in different
            ],
        }
        write_json(report)
    else:
        _show(found, different, skipped)
    return 1 if different or len(skipped) == len(found) else 0


def _show(found: list[Replayed], different: list[tuple[int, Replayed]], skipped: list[Replayed]) -> None:
    for index, one in different[:_LISTED]:
        recorded = one.recorded
        write(f"line {index + 1}, {recorded.split}/{recorded.task_index} seed {recorded.seed}:\n")
        for difference in one.differences:
            write(f"  {difference}\n")
    if len(different) > _LISTED:
        write(f"… and {len(different) - _LISTED} more\n")
    same = len(found) - len(different) - len(skipped)
    write(f"{same} of {len(found)} episodes came out the same, {len(different)} differently")
    write(f", {len(skipped)} had failed and were not played\n" if skipped else "\n")
