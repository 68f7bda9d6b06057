"""`rlenv rescore --ablate`: what each reward term of recorded episodes is worth, alone, together and left out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.jsonable import plain
from rlenv.cli.console import Console
from rlenv.cli.options import WithSet, argument, option
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
from rlenv.cli.spending import WithPrices, counting, show_spending_line
from rlenv.cli.terminal import write, write_json
from rlenv.errors import UsageError
from rlenv.runs.ablation import Ablation, ablation
from rlenv.runs.figures.agreement import Agreement
from rlenv.runs.figures.charts import Row, interval_chart
from rlenv.runs.prices import as_prices

__all__ = ["AblateCommand"]

_COLUMNS: Final = ("", "reward", "success", "invalid", "kappa", "Spearman", "Kendall", "seconds", "tokens")


@dataclass
class AblateCommand(WithSet, WithPrices):
    """`rlenv rescore --ablate`."""

    run: str = argument("a run's folder, or a .jsonl of trajectories")
    spec: str | None = option("measure the terms of this spec; by default those that were recorded")
    reference: str | None = option("hold the others against this term, not the whole reward", metavar="TERM")
    concurrency: int = option("episodes at once", default=64, metavar="C", least=1)
    json: bool = option("print the figures as one JSON object")
    out: str | None = option(
        "write ablation.json, ablation.md and ablation.svg there", "-o", "--out", metavar="DIR", writes=True
    )
    overwrite: bool = option("replace such files in the folder of -o")

    def execute(self) -> int:
        """Exit code 0 where the figures could be made."""
        prices, files = as_prices(self.prices), _files(self)
        source = Source.of(self.run)
        environments = environments_of([self.spec] if self.spec else [], source, set=self.overrides)
        ((name, environment),) = environments.items()
        scored = {name: Scored(environment, source.before)}
        if self.spec:
            with counting(prices):
                scored = asyncio.run(scored_again(environments, source, concurrency=self.concurrency))
        found = ablation(environment, scored[name].episodes, reference=self.reference, groups=source.apart)
        agreement = agreement_table(scored)
        spending = spending_of(source, scored if self.spec else {}, prices)
        whole = {"environment": environment.id, **plain(found), "agreement": plain(agreement), "usage": plain(spending)}
        text = _markdown(environment.id, found, agreement)
        if self.json:
            write_json(whole)
        else:
            write(text)
            show_spending_line(Console(highlight=False), spending)
        if files:
            files["json"].write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            files["md"].write_text(text, encoding="utf-8")
            files["svg"].write_text(_chart(environment.id, found), encoding="utf-8")
            if not self.json:
                write(f"{', '.join(str(path) for path in files.values())}\n")
        return 0


def _files(args: AblateCommand) -> dict[str, Path]:
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
