"""`rlenv replay FILE`: recorded episodes once more, to see that the environment answers the same.

`rlenv rescore RUN`: new rewards over recorded episodes, of other specs or by other weights, and what they change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from rlenv._base.bounded import plain
from rlenv._base.text import did_you_mean, figure
from rlenv.cli import scored
from rlenv.cli.console import Console, WithPrices, counting, show_spending
from rlenv.cli.eval import invalid_lines
from rlenv.cli.options import WithOut, WithSet, argument, given, option
from rlenv.cli.terminal import say, write, write_error, write_json
from rlenv.concurrency.lanes import Lane, entered, offline
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.language.spec import Spec
from rlenv.runs.cassettes import Player
from rlenv.runs.events import Reel, is_recorded
from rlenv.runs.folder import KeptRun, read_info
from rlenv.runs.locks.lock import FOLDER, changed_since, lock_of, read_lock
from rlenv.runs.recorded import episodes_with_ids, whole_groups
from rlenv.runs.replay import Replayed, replay
from rlenv.runs.schema import Facts
from rlenv.runs.stage import Stage
from rlenv.runs.summary import Difference, GroupSummary, compare, summarise
from rlenv.runs.usage import Spending, as_prices, cost_of, spending_line, spending_of
from rlenv.runs.variants import Weights, reweigh
from rlenv.secrets import leave_open


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
        episodes = episodes_with_ids(self.file, self.n)
        before = [trajectory for _, trajectory in episodes]
        player = _player_of(self)
        with contextlib.ExitStack() as stack:
            if player is not None:
                stack.enter_context(offline())
                stack.enter_context(entered(Lane(player, "")))
                if not self.live:  # nobody is asked, so that no key is needed
                    stack.enter_context(leave_open())
            environment = scored.environment_of(before, run=self.file, spec=self.spec, set=self.overrides)
            _check_live(self.live, environment)
            if self.all_tools and (reader := _reads_what_tools_do(environment)):
                message = f"--all-tools runs no tools, and {reader} depends on what they do"
                raise UsageError(message, hint="leave it out")
            _say_what_is_taken(self, environment)

            async def main() -> list[Replayed]:
                lane = None if player is None else lambda index: player.lane(episodes[index][0])
                async with environment:
                    groups = whole_groups(self.file, self.n) if environment.parts.scorer.has_group_terms else None
                    return await replay(environment, before, concurrency=self.concurrency, lane=lane, groups=groups)

            stack.enter_context(counting(prices))
            found = asyncio.run(main())
            if player is not None:
                found = _explain(found, player, self.file, [id for id, _ in episodes], environment)
        different = [(index, one) for index, one in enumerate(found) if one.differences]
        skipped = [one for one in found if one.skipped]
        spending = spending_of([one.again for one in found if one.again is not None], prices=prices)
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
            _show_replayed(found, different, skipped, [id for id, _ in episodes])
            if line := spending_line(spending):
                write(f"{line}\n")
        return 1 if different or len(skipped) == len(found) else 0


def _player_of(args: ReplayCommand) -> Player | None:
    """The player of recorded answers, in the place of servers; None where nothing was recorded."""
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


def _explain(
    found: list[Replayed], player: Player, run: str, ids: list[str], environment: Environment
) -> list[Replayed]:
    """The episodes that came out differently, each with the change since its recording that is nearest to a miss."""
    locks = {id: player.missed_locks[id] for id in ids if player.missed_locks.get(id)}
    said = {lock: changed_since(run, lock, environment) for lock in dict.fromkeys(locks.values())}
    why = {player.missed_request(id): said[lock] for id, lock in locks.items() if said[lock]}
    told = [tuple(f"{one}; {why[one]}" if one in why else one for one in each.differences) for each in found]
    return [replace(each, differences=differences) for each, differences in zip(found, told, strict=True)]


def _say_what_is_taken(args: ReplayCommand, environment: Environment) -> None:
    """Says where the spec that is taken is not the one that the run's lock knows."""
    info = read_info(args.file)
    if info is None or not info.attempts:
        return
    taken = environment.loaded.path
    path = Path(args.file) / FOLDER / f"{info.lock}.json"
    if path.is_file() and read_lock(path).spec.get("digest") != environment.loaded.digest:
        write_error(f"rlenv: {taken} is not what the run was made of: rlenv runs lock diff {args.file} {taken}\n")


def _reads_what_tools_do(environment: Environment) -> str:
    """What of an environment looks at the state that its tools change; "" where nothing does."""
    if environment.players is not None:
        return "whose turn it is"
    spec = environment.spec
    if not any(tool.mutates for tool in environment.parts.tools.values()):
        return ""
    # A machine's files are on a tape that has its tools' answers.
    terms = [f"rewards.{name}" for name, term in spec.rewards.items() if term.kind == "state" or _in_text(term)]
    return next(iter([*terms, *(f"tools.{name}.ends" for name, tool in spec.tools.items() if _in_text(tool.ends))]), "")


def _in_text(value: Any) -> bool:
    text = value.model_dump_json() if isinstance(value, Spec) else str(value)
    return "resources." in text


def _check_live(names: list[str], environment: Environment) -> None:
    tools = environment.parts.tools
    for name in names:
        if name not in tools and not environment.parts.row_tools:  # rows name theirs
            raise UsageError(f"--live: there is no tool '{name}'", hint=did_you_mean(name, tools, "tools:"))


def _left_out(found: list[Replayed]) -> dict[str, int]:
    """In how many episodes a term of a group was not compared."""
    return dict(Counter(name for one in found for name in one.left_out))


def _show_replayed(
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
    if files := Counter(path for one in found for path in one.files):
        named = ", ".join(f"{path} ({number})" for path, number in files.most_common(_LISTED))
        write(f"files of machines that came out otherwise, and in how many episodes: {named}\n")
    for name, number in _left_out(found).items():
        write(f"{name} and the reward with it are not compared in {number}: only a part of their group was replayed\n")


_LISTED = 20
_SHOWN_CHARS = 400
_MOVERS = 3


@dataclass
class RescoreCommand(WithSet, WithOut, WithPrices):
    """`rlenv rescore`."""

    run: str = argument("a run's folder, or a .jsonl of trajectories")
    spec: list[str] = option("a spec with new rewards; may be given several times", default=[])
    only_invalid: bool = option(
        "score what is invalid alone (with terms of groups, those groups), by the run's own spec by default"
    )
    drop: list[str] = option("leave a term out", default=[], metavar="TERM")
    only: list[str] = option("leave all other terms out", default=[], metavar="TERM,TERM")
    weight: list[str] = option("pay this much for a term", default=[], metavar="TERM=W")
    concurrency: int = option("episodes at once", default=64, metavar="C", least=1)
    max_invalid: float = option("exit 1 above this share", default=0.0, metavar="SHARE")
    json: bool = option("print the difference as one JSON object")
    out: str | None = option(
        "keep the rescored episodes there, as a run; of several variants a run each",
        "-o",
        "--out",
        metavar="DIR",
        writes=True,
    )

    def execute(self) -> int:
        """Exit code 1 where more rewards are invalid than asked for, 0 otherwise."""
        weights, prices = _check_args(self), as_prices(self.prices)
        source = scored.Source.of(self.run)
        environments = scored.environments_of(self.spec, source, set=self.overrides)
        with contextlib.ExitStack() as stack:
            stages, outs = _open_outs(self, environments, weights, stack)
            stack.enter_context(counting(prices))
            first = stages[0] if stages else Stage(kind="rescore")
            measured = {name: scored.Scored(environment, source.before) for name, environment in environments.items()}
            if self.spec:
                again = scored.scored_again(
                    environments, source, concurrency=self.concurrency, only_invalid=self.only_invalid
                )
                measured = asyncio.run(first.run_stoppable(again))
            found = _add_variants(measured, weights, source, keeps_measured=bool(self.spec))
            for name, out in outs.items():
                samples: dict[tuple[str, int], Iterator[int]] = defaultdict(count)
                for (facts, _), one in zip(source.episodes, found[name].episodes, strict=True):
                    facts = facts or Facts(sample=next(samples[one.split, one.task_index]))
                    out.append(one, replace(facts, cost=cost_of(one.usage, prices)))
        differences = {name: compare(source.before, one.episodes) for name, one in found.items()}
        spending = scored.spending_of(source, measured if self.spec else {}, prices)
        _say_changes(self, source, measured, found, differences, spending)
        lost = any(out.lost for out in outs.values())
        return 1 if _too_many_invalid(self, found, differences) or lost else 0


def _check_args(args: RescoreCommand) -> Weights:
    _make_stage(args, args.out)
    if args.only_invalid and not args.spec:
        info = read_info(args.run)
        if info is None or not info.spec:
            raise UsageError(f"{args.run} names no spec", hint="add --spec SPEC")
        args.spec = [info.spec]
        args.set = [*(f"{key}={json.dumps(value)}" for key, value in info.facts.get("set", {}).items()), *args.set]
    if args.out and Path(args.out).resolve() in (Path(args.run).resolve(), Path(args.run).resolve().parent):
        raise UsageError(f"-o {args.out} would overwrite the recorded run", hint="name another folder")
    only = tuple(name.strip() for names in args.only for name in names.split(","))
    paid = [_parse_weight(item) for item in args.weight]
    weights = Weights(tuple(args.drop), only, dict(paid))
    if len(weights.weight) < len(paid):
        raise UsageError("--weight names one term twice", hint="leave one of them out")
    if not args.spec and not weights:
        message = "nothing is to change"
        raise UsageError(message, hint="add --spec NEW.yaml, --drop TERM, --only TERM or --weight TERM=W")
    return weights


def _parse_weight(item: str) -> tuple[str, float]:
    name, sign, value = item.partition("=")
    try:
        if name and sign:
            return name, float(value)
    except ValueError:
        pass
    raise UsageError(f"--weight {item}: expected TERM=NUMBER, such as correct=0.5")


def _add_variants(
    measured: Mapping[str, scored.Scored], weights: Weights, source: scored.Source, *, keeps_measured: bool
) -> dict[str, scored.Scored]:
    found = dict(measured) if keeps_measured else {}
    if weights:
        for name, one in measured.items():
            again = reweigh(one.environment, one.episodes, weights, groups=source.apart)
            found[_variant_name(name, weights)] = scored.Scored(one.environment, again)
    return found


def _variant_name(name: str, weights: Weights) -> str:
    return f"{name} {weights}"


def _make_stage(args: RescoreCommand, out: str | None) -> Stage:
    keep = given(args, "overwrite", "prices")
    return Stage(kind="rescore", out=out, set=args.overrides, say=say, **keep)


def _open_outs(
    args: RescoreCommand, environments: Mapping[str, Environment], weights: Weights, stack: contextlib.ExitStack
) -> tuple[list[Stage], dict[str, KeptRun]]:
    """The runs that the variants are kept in: the folder of -o for a single one, else folders in it."""
    names = {name: environment for name, environment in environments.items() if args.spec and args.out}
    if weights and args.out:
        names |= {_variant_name(name, weights): environment for name, environment in environments.items()}
    stages, outs = [], {}
    for name, environment in names.items():
        # The rows are the recorded episodes' own, so no split is read.
        lock = lock_of(environment, splits=(), policy={"kind": "recorded"}, say=say)
        stages.append(_make_stage(args, str(Path(args.out or "") / _folder_name(name)) if len(names) > 1 else args.out))
        variant = str(weights) if weights and name not in environments else ""
        outs[name] = stack.enter_context(stages[-1].keep_run(environment, lock=lock, variant=variant))
    return stages, {name: out for name, out in outs.items() if out is not None}


def _folder_name(name: str) -> str:
    kept = "".join(sign if sign.isalnum() or sign in "-._=" else "-" for sign in name.replace(" × ", "="))
    return "-".join(part for part in kept.split("-") if part)


def _say_changes(
    args: RescoreCommand,
    source: scored.Source,
    measured: Mapping[str, scored.Scored],
    found: Mapping[str, scored.Scored],
    differences: Mapping[str, Difference],
    spending: Spending,
) -> None:
    agreement = scored.agreement_table(measured)
    summaries = {name: summarise(one.episodes, seconds=0.0) for name, one in found.items()}
    if args.json:
        whole = {name: {**plain(differences[name]), **_intervals_of(summaries[name])} for name in found}
        shown = next(iter(whole.values())) if len(whole) == 1 else {"variants": whole}
        write_json({**shown, "agreement": [asdict(one) for one in agreement], "usage": plain(spending)})
        return
    console = Console(highlight=False)
    if len(found) == 1:
        ((name, only),) = found.items()
        said = only.environment.id if args.spec and name in measured else f"{only.environment.id} {name}"
        _show_rescored(console, said, differences[name])
    else:
        table = Table("", "reward", "success", "invalid", "changed")
        for name, summary in {"as recorded": summarise(source.before, seconds=0.0), **summaries}.items():
            changed = str(len(differences[name].changes)) if name in differences else ""
            rewards = scored.within(summary.reward_mean, summary.reward_interval)
            successes = scored.within(summary.success_rate, summary.success_interval)
            table.add_row(escape(name), escape(rewards), escape(successes), str(summary.invalid), changed)
        console.print(table)
        for name, difference in differences.items():
            console.print(escape(f"{name}:"), soft_wrap=True)
            _list_changes(console, difference)
    if agreement:
        table = Table("terms", "episodes", "kappa", "Spearman", "Kendall", title="agreement", title_justify="left")
        for one in agreement:
            figures = [scored.bounded(one.kappa), scored.bounded(one.spearman), scored.bounded(one.kendall)]
            table.add_row(escape(f"{one.a}, {one.b}"), str(one.episodes), *map(escape, figures))
        console.print(table)
    show_spending(console, spending)


def _intervals_of(summary: GroupSummary) -> dict[str, Any]:
    return {"reward_interval": summary.reward_interval, "success_interval": summary.success_interval}


def _show_rescored(console: Console, name: str, found: Difference) -> None:
    changed = f"{len(found.changes)} changed" if found.changes else "none changed"
    console.print(escape(f"{name} · {found.episodes} episodes, {changed}"), soft_wrap=True)
    table = Table("", "before", "after")
    table.add_row("reward", *map(figure, found.reward))
    for term, pair in found.terms.items():
        table.add_row(f"  {escape(term)}", *map(figure, pair))
    table.add_row("success", *map(figure, found.success))
    table.add_row("invalid", *map(str, found.invalid))
    console.print(table)
    _list_changes(console, found)


def _list_changes(console: Console, found: Difference) -> None:
    console.print(f"success gained {found.gained}, lost {found.lost}, not known any more {found.unknown}")
    for change in found.changes[:_LISTED]:
        moved = dict(list(change.moved.items())[:_MOVERS])
        moved |= {term: pair for term, pair in change.terms.items() if term not in change.moved}
        terms = ", ".join(f"{escape(term)} {figure(old)} → {figure(new)}" for term, (old, new) in moved.items())
        place = escape(f"{change.split}/{change.task_index} seed {change.seed}")
        totals = f"{figure(change.before)} → {figure(change.after)}"
        console.print(f"{place}: {totals}  [dim]{terms}[/dim]", soft_wrap=True)
        if change.after is None and change.error:
            console.print(f"  [dim]{escape(change.error[:_SHOWN_CHARS])}[/dim]", soft_wrap=True)
    if len(found.changes) > _LISTED:
        console.print(f"[dim]… and {len(found.changes) - _LISTED} more[/dim]")


def _too_many_invalid(
    args: RescoreCommand, found: Mapping[str, scored.Scored], differences: Mapping[str, Difference]
) -> bool:
    bad = False
    for name, difference in differences.items():
        invalid, episodes = difference.invalid[1], difference.episodes
        if episodes and invalid / episodes > args.max_invalid:
            bad = True
            said = f" ({name})" if len(found) > 1 else ""
            write_error(f"rlenv rescore: {invalid} of {episodes} rewards are invalid{said}\n")
            for line in invalid_lines(found[name].episodes):
                write_error(f"  {line}\n")
    return bad
