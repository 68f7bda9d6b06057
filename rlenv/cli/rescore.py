"""`rlenv rescore RUN`: new rewards over recorded episodes, of other specs or by other weights, and what they change."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from rlenv._base.figures import figure
from rlenv._base.jsonable import plain
from rlenv.cli.console import Console
from rlenv.cli.eval import invalid_lines
from rlenv.cli.options import WithOut, WithSet, argument, given, option
from rlenv.cli.scored import (
    Scored,
    Source,
    agreement_table,
    bounded,
    environments_of,
    scored_again,
    spending_of,
    within,
)
from rlenv.cli.spending import WithPrices, counting, show_spending
from rlenv.cli.terminal import say, write_error, write_json
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.runs.folder import KeptRun, read_info
from rlenv.runs.locks.lock import lock_of
from rlenv.runs.rescore import Difference, compare
from rlenv.runs.schema import Facts
from rlenv.runs.stage import Stage
from rlenv.runs.summary import GroupSummary, summarise
from rlenv.runs.usage import Spending, as_prices, cost_of
from rlenv.runs.variants import Weights, varied

__all__ = ["RescoreCommand"]

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
        weights, prices = _checked(self), as_prices(self.prices)
        source = Source.of(self.run)
        environments = environments_of(self.spec, source, set=self.overrides)
        with contextlib.ExitStack() as stack:
            stages, outs = _outs(self, environments, weights, stack)
            stack.enter_context(counting(prices))
            first = stages[0] if stages else Stage(kind="rescore")
            measured = {name: Scored(environment, source.before) for name, environment in environments.items()}
            if self.spec:
                again = scored_again(environments, source, concurrency=self.concurrency, only_invalid=self.only_invalid)
                measured = asyncio.run(first.stoppable(again))
            found = _variants(measured, weights, source, keeps_measured=bool(self.spec))
            for name, out in outs.items():
                samples: dict[tuple[str, int], Iterator[int]] = defaultdict(count)
                for (facts, _), one in zip(source.episodes, found[name].episodes, strict=True):
                    facts = facts or Facts(sample=next(samples[one.split, one.task_index]))
                    out.append(one, replace(facts, cost=cost_of(one.usage, prices)))
        differences = {name: compare(source.before, one.episodes) for name, one in found.items()}
        spending = spending_of(source, measured if self.spec else {}, prices)
        _say(self, source, measured, found, differences, spending)
        lost = any(out.lost for out in outs.values())
        return 1 if _too_many_invalid(self, found, differences) or lost else 0


def _checked(args: RescoreCommand) -> Weights:
    _stage(args, args.out)
    if args.only_invalid and not args.spec:
        info = read_info(args.run)
        if info is None or not info.spec:
            raise UsageError(f"{args.run} names no spec", hint="add --spec SPEC")
        args.spec = [info.spec]
        args.set = [*(f"{key}={json.dumps(value)}" for key, value in info.facts.get("set", {}).items()), *args.set]
    if args.out and Path(args.out).resolve() in (Path(args.run).resolve(), Path(args.run).resolve().parent):
        raise UsageError(f"-o {args.out} would overwrite the recorded run", hint="name another folder")
    only = tuple(name.strip() for names in args.only for name in names.split(","))
    paid = [_weight(item) for item in args.weight]
    weights = Weights(tuple(args.drop), only, dict(paid))
    if len(weights.weight) < len(paid):
        raise UsageError("--weight names one term twice", hint="leave one of them out")
    if not args.spec and not weights:
        raise UsageError(
            "nothing is to change", hint="add --spec NEW.yaml, --drop TERM, --only TERM or --weight TERM=W"
        )
    return weights


def _weight(item: str) -> tuple[str, float]:
    name, sign, value = item.partition("=")
    try:
        if name and sign:
            return name, float(value)
    except ValueError:
        pass
    raise UsageError(f"--weight {item}: expected TERM=NUMBER, such as correct=0.5")


def _variants(
    measured: Mapping[str, Scored], weights: Weights, source: Source, *, keeps_measured: bool
) -> dict[str, Scored]:
    found = dict(measured) if keeps_measured else {}
    if weights:
        for name, one in measured.items():
            again = varied(one.environment, one.episodes, weights, groups=source.apart)
            found[_named(name, weights)] = Scored(one.environment, again)
    return found


def _named(name: str, weights: Weights) -> str:
    return f"{name} {weights}"


def _stage(args: RescoreCommand, out: str | None) -> Stage:
    keep = given(args, "overwrite", "prices")
    return Stage(kind="rescore", out=out, set=args.overrides, say=say, **keep)


def _outs(
    args: RescoreCommand, environments: Mapping[str, Environment], weights: Weights, stack: contextlib.ExitStack
) -> tuple[list[Stage], dict[str, KeptRun]]:
    """The runs that the variants are kept in: the folder of -o for a single one, else folders in it."""
    names = {name: environment for name, environment in environments.items() if args.spec and args.out}
    if weights and args.out:
        names |= {_named(name, weights): environment for name, environment in environments.items()}
    stages, outs = [], {}
    for name, environment in names.items():
        # The rows are the recorded episodes' own, so no split is read.
        lock = lock_of(environment, splits=(), policy={"kind": "recorded"}, say=say)
        stages.append(_stage(args, str(Path(args.out or "") / _folder(name)) if len(names) > 1 else args.out))
        variant = str(weights) if weights and name not in environments else ""
        outs[name] = stack.enter_context(stages[-1].kept(environment, lock=lock, variant=variant))
    return stages, {name: out for name, out in outs.items() if out is not None}


def _folder(name: str) -> str:
    kept = "".join(sign if sign.isalnum() or sign in "-._=" else "-" for sign in name.replace(" × ", "="))
    return "-".join(part for part in kept.split("-") if part)


def _say(
    args: RescoreCommand,
    source: Source,
    measured: Mapping[str, Scored],
    found: Mapping[str, Scored],
    differences: Mapping[str, Difference],
    spending: Spending,
) -> None:
    agreement = agreement_table(measured)
    summaries = {name: summarise(one.episodes, seconds=0.0) for name, one in found.items()}
    if args.json:
        whole = {name: {**plain(differences[name]), **_intervals(summaries[name])} for name in found}
        shown = next(iter(whole.values())) if len(whole) == 1 else {"variants": whole}
        write_json({**shown, "agreement": [asdict(one) for one in agreement], "usage": plain(spending)})
        return
    console = Console(highlight=False)
    if len(found) == 1:
        ((name, only),) = found.items()
        said = only.environment.id if args.spec and name in measured else f"{only.environment.id} {name}"
        _show(console, said, differences[name])
    else:
        before = summarise(source.before, seconds=0.0)
        console.print(_variant_table(before, summaries, differences))
        for name, difference in differences.items():
            console.print(escape(f"{name}:"), soft_wrap=True)
            _list_changes(console, difference)
    if agreement:
        table = Table("terms", "episodes", "kappa", "Spearman", "Kendall", title="agreement", title_justify="left")
        for one in agreement:
            figures = [bounded(one.kappa), bounded(one.spearman), bounded(one.kendall)]
            table.add_row(escape(f"{one.a}, {one.b}"), str(one.episodes), *map(escape, figures))
        console.print(table)
    show_spending(console, spending)


def _intervals(summary: GroupSummary) -> dict[str, Any]:
    return {"reward_interval": summary.reward_interval, "success_interval": summary.success_interval}


def _variant_table(
    before: GroupSummary, summaries: Mapping[str, GroupSummary], differences: Mapping[str, Difference]
) -> Table:
    table = Table("", "reward", "success", "invalid", "changed")
    rows = {"as recorded": before, **summaries}
    for name, one in rows.items():
        changed = str(len(differences[name].changes)) if name in differences else ""
        rewards = within(one.reward_mean, one.reward_interval)
        successes = within(one.success_rate, one.success_interval)
        table.add_row(escape(name), escape(rewards), escape(successes), str(one.invalid), changed)
    return table


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


def _too_many_invalid(args: RescoreCommand, found: Mapping[str, Scored], differences: Mapping[str, Difference]) -> bool:
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
