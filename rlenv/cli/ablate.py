"""`rlenv ablate RUN`: what each reward term of recorded episodes is worth, alone, by kind, together and left out."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any, Final

from rlenv._base.jsonable import plain
from rlenv.cli.console import Console
from rlenv.cli.options import add_set
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
from rlenv.cli.spending import add_prices, counting, show_spending_line
from rlenv.cli.terminal import write, write_json
from rlenv.errors import UsageError
from rlenv.runs.ablation import Ablation, ablation
from rlenv.runs.figures.agreement import Agreement
from rlenv.runs.figures.charts import Row, interval_chart
from rlenv.runs.prices import as_prices

__all__ = ["add_arguments", "run"]

_COLUMNS: Final = ("", "reward", "success", "invalid", "kappa", "Spearman", "Kendall", "seconds", "tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv ablate`."""
    parser.add_argument("run", help="a run's folder, or a .jsonl of trajectories")
    parser.add_argument("--spec", help="measure the terms of this spec; by default those that were recorded")
    parser.add_argument("--reference", metavar="TERM", help="hold the others against this term, not the whole reward")
    parser.add_argument("--concurrency", type=int, default=64, metavar="C", help="episodes at once")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("-o", "--out", metavar="DIR", help="write ablation.json, ablation.md and ablation.svg there")
    parser.add_argument("--overwrite", action="store_true", help="replace such files in the folder of -o")
    add_prices(parser)
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 where the figures could be made."""
    if args.concurrency < 1:
        raise UsageError("--concurrency is at least 1")
    prices, files = as_prices(args.prices), _files(args)
    source = Source.of(args.run)
    args.spec = [args.spec] if args.spec else []
    environments = environments_of(args, source, measures=bool(args.spec))
    ((name, environment),) = environments.items()
    scored = {name: Scored(environment, source.before)}
    if args.spec:
        with counting(prices):
            scored = asyncio.run(scored_again(environments, source, concurrency=args.concurrency))
    found = ablation(environment, scored[name].episodes, reference=args.reference, groups=source.apart)
    agreement = agreement_table(scored)
    spending = spending_of(source, scored if args.spec else {}, prices)
    whole = {"environment": environment.id, **plain(found), "agreement": plain(agreement), "usage": plain(spending)}
    text = _markdown(environment.id, found, agreement)
    if args.json:
        write_json(whole)
    else:
        write(text)
        show_spending_line(Console(highlight=False), spending)
    if files:
        files["json"].write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        files["md"].write_text(text, encoding="utf-8")
        files["svg"].write_text(_chart(environment.id, found), encoding="utf-8")
        if not args.json:
            write(f"{', '.join(str(path) for path in files.values())}\n")
    return 0


def _files(args: argparse.Namespace) -> dict[str, Path]:
    if not args.out:
        if args.overwrite:
            raise UsageError("--overwrite is about files in the folder of -o, and none is named", hint="add -o DIR")
        return {}
    folder = Path(args.out)
    files = {end: folder / f"ablation.{end}" for end in ("json", "md", "svg")}
    there = [path for path in files.values() if path.exists()]
    if there and not args.overwrite:
        raise UsageError(f"{there[0]} is there already", hint="name another folder, or --overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return files


def _rows(found: Ablation) -> list[tuple[str, ...]]:
    return [
        (
            part.name,
            within(part.figures.reward_mean, part.figures.reward_interval),
            within(part.figures.success_rate, part.figures.success_interval),
            str(part.figures.invalid),
            bounded(part.success.kappa),
            bounded(part.reward.spearman),
            bounded(part.reward.kendall),
            _seconds(part.seconds),
            "–" if part.tokens is None else f"{part.tokens:.0f}",
        )
        for part in found.parts
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.6f}".rstrip("0").rstrip(".") if value < 0.1 else f"{value:.2f}"


def _head(name: str, found: Ablation) -> str:
    return f"{name} · {found.episodes} episodes, agreement with: {found.reference}"


def _markdown(name: str, found: Ablation, agreement: list[Agreement]) -> str:
    lines = [_head(name, found), "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    if agreement:
        lines += ["", "| terms | episodes | kappa | Spearman | Kendall |", "|---|---|---|---|---|"]
        for one in agreement:
            figures: list[Any] = [one.kappa, one.spearman, one.kendall]
            lines.append(f"| {one.a}, {one.b} | {one.episodes} | {' | '.join(map(bounded, figures))} |")
    return "\n".join([*lines, ""])


def _chart(name: str, found: Ablation) -> str:
    rows = []
    for part in found.parts:
        low, high = part.figures.success_interval or (None, None)
        rows.append(Row(part.name, part.figures.success_rate, low, high))
    return interval_chart(f"Success by {name}, where only some of its terms decide", rows)
