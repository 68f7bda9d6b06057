"""`rlenv replay FILE`: recorded episodes once more, to see that the environment answers the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from rlenv._base.jsonable import plain
from rlenv._base.nearest import did_you_mean
from rlenv.cli.options import WithSet, argument, option
from rlenv.cli.scored import environment_of
from rlenv.cli.spending import WithPrices, counting
from rlenv.cli.terminal import write, write_error, write_json
from rlenv.concurrency.lanes import Lane, entered, offline
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.runs.cassettes import Player
from rlenv.runs.events import Reel, is_recorded
from rlenv.runs.folder import read_info
from rlenv.runs.locks.lock import FOLDER, changed_since, read_lock
from rlenv.runs.recorded import whole_groups, with_ids
from rlenv.runs.replay import Replayed, replay
from rlenv.runs.usage import as_prices, spending_line, spent
from rlenv.secrets import leave_open

__all__ = ["ReplayCommand"]

_LISTED = 20


@dataclass
class ReplayCommand(WithSet, WithPrices):
    """`rlenv replay`."""

    file: str = argument("a run's folder, or a .jsonl of trajectories")
    spec: str | None = option("the spec that recorded them; by default the shipped one of that name")
    n: int | None = option("the first N episodes; all by default", metavar="N")
    concurrency: int = option("episodes at once", default=64, metavar="C", least=1)
    json: bool = option("print what differs as one JSON object")
    live: list[str] = option("of a recorded run: call this tool all the same", default=[], metavar="TOOL")
    all_tools: bool = option("of a recorded run: run none of this process's tools")
    no_tape: bool = option("of a recorded run: ask everything again")
    timing: bool = option("of a recorded run: let each answer take as long as it did then")

    def execute(self) -> int:
        """Exit code 1 where an episode came out differently, or none could be played."""
        prices = as_prices(self.prices)
        episodes = with_ids(self.file, self.n)
        before = [trajectory for _, trajectory in episodes]
        player = _player(self)
        with contextlib.ExitStack() as stack:
            if player is not None:
                stack.enter_context(offline())
                stack.enter_context(entered(Lane(player, "")))
                if not self.live:  # nobody is asked, so that no key is needed
                    stack.enter_context(leave_open())
            environment = environment_of(before, run=self.file, spec=self.spec, set=self.overrides)
            _check_live(self.live, environment)
            _say_what_is_taken(self, environment)

            async def main() -> list[Replayed]:
                lane = None if player is None else lambda index: player.lane(episodes[index][0])
                async with environment:
                    groups = whole_groups(self.file, self.n) if environment.parts.scorer.has_group_terms else None
                    return await replay(environment, before, concurrency=self.concurrency, lane=lane, groups=groups)

            stack.enter_context(counting(prices))
            found = asyncio.run(main())
            if player is not None:
                found = _explained(found, player, self.file, [id for id, _ in episodes], environment)
        different = [(index, one) for index, one in enumerate(found) if one.differences]
        skipped = [one for one in found if one.skipped]
        spending = spent([one.again for one in found if one.again is not None], prices=prices)
        if self.json:
            report = {
                "episodes": len(found),
                "same": len(found) - len(different) - len(skipped),
                "skipped": len(skipped),
                "different": [
                    {
                        "line": index + 1,
                        "episode": episodes[index][0],
                        "task": one.recorded.task_index,
                        "differences": list(one.differences),
                    }
                    for index, one in different
                ],
                **({"usage": plain(spending)} if spending.roles else {}),
                **({"left_out": _left_out(found)} if _left_out(found) else {}),
            }
            write_json(report)
        else:
            _show(found, different, skipped, [id for id, _ in episodes])
            if line := spending_line(spending):
                write(f"{line}\n")
        return 1 if different or len(skipped) == len(found) else 0


def _player(args: ReplayCommand) -> Player | None:
    """What answers in the place of servers; None where nothing was recorded."""
    is_taped = is_recorded(args.file)
    if is_taped and not args.no_tape:
        sleep = asyncio.sleep if args.timing else None
        return Player(Reel.of(args.file), live=frozenset(args.live), all_tools=args.all_tools, sleep=sleep)
    given = [name for name in ("live", "all_tools", "timing", "no_tape") if getattr(args, name)]
    if given and not is_taped:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for a recorded run, and {args.file} has no tape", hint="leave it out")
    if len(given) > 1:
        raise UsageError("with --no-tape everything is asked again", hint="leave the other options out")
    return None


def _explained(
    found: list[Replayed], player: Player, run: str, ids: list[str], environment: Environment
) -> list[Replayed]:
    """What came out differently, with what has changed since the entry was recorded that is nearest to a miss."""
    locks = {id: player.missed_locks[id] for id in ids if player.missed_locks.get(id)}
    said = {lock: changed_since(run, lock, environment) for lock in dict.fromkeys(locks.values())}
    why = {player.missed(id): said[lock] for id, lock in locks.items() if said[lock]}
    told = [tuple(f"{one}; {why[one]}" if one in why else one for one in each.differences) for each in found]
    return [replace(each, differences=differences) for each, differences in zip(found, told, strict=True)]


def _say_what_is_taken(args: ReplayCommand, environment: Environment) -> None:
    """Says where the spec that is taken is not the one that the run's lock knows."""
    info = read_info(args.file)
    if info is None or not info.attempts:
        return
    taken = environment.loaded.path
    path = Path(args.file) / FOLDER / f"{info.attempts[-1].lock}.json"
    if path.is_file() and read_lock(path).spec.get("digest") != environment.loaded.digest:
        write_error(f"rlenv: {taken} is not what the run was made of: rlenv runs lock diff {args.file} {taken}\n")


def _check_live(names: list[str], environment: Environment) -> None:
    tools = environment.parts.tools
    for name in names:
        if name not in tools:
            raise UsageError(f"--live: there is no tool '{name}'", hint=did_you_mean(name, tools, "tools:"))


def _left_out(found: list[Replayed]) -> dict[str, int]:
    """In how many episodes a term of a group was not compared."""
    return dict(Counter(name for one in found for name in one.left_out))


def _show(
    found: list[Replayed], different: list[tuple[int, Replayed]], skipped: list[Replayed], ids: list[str]
) -> None:
    for index, one in different[:_LISTED]:
        recorded = one.recorded
        which = f"episode {ids[index]}" if ids[index] else f"line {index + 1}"
        write(f"{which}, {recorded.split}/{recorded.task_index} seed {recorded.seed}:\n")
        for difference in one.differences:
            write(f"  {difference}\n")
    if len(different) > _LISTED:
        write(f"… and {len(different) - _LISTED} more\n")
    same = len(found) - len(different) - len(skipped)
    write(f"{same} of {len(found)} episodes came out the same, {len(different)} differently")
    write(f", {len(skipped)} had failed and were not played\n" if skipped else "\n")
    for name, count in _left_out(found).items():
        write(f"{name} and the reward with it are not compared in {count}: only a part of their group was replayed\n")
