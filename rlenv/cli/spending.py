"""What was asked of models, as commands show it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from rlenv._base.figures import figure
from rlenv.cli.console import Console
from rlenv.cli.terminal import write_error
from rlenv.errors import UsageError
from rlenv.runs.prices import Prices, read_prices
from rlenv.runs.usage import RoleSpending, Spending, spent, spent_by
from rlenv.trajectory import ModelUsage, Trajectory

__all__ = [
    "Budget",
    "add_max_cost",
    "add_prices",
    "money",
    "prices_of",
    "show_spending",
    "show_spending_line",
    "spending_line",
]

_CENT = 0.01


def add_prices(parser: argparse.ArgumentParser) -> None:
    """The option that names what tokens cost."""
    parser.add_argument("--prices", metavar="FILE", help="YAML of what a million tokens cost by model: cost is shown")


def add_max_cost(parser: argparse.ArgumentParser) -> None:
    """The option that bounds what a run costs."""
    parser.add_argument("--max-cost", type=float, metavar="X", help="end the run once it has cost more; by --prices")


class Budget:
    """Adds up what episodes have cost, and says when that is more than a run may cost.

    Models without a price, and answers that say no tokens, are in no sum: it says so once, since a run of which nothing
    can be counted never ends by it.

    Raises:
        UsageError: `--max-cost` without `--prices`, or below 0.
    """

    def __init__(self, args: argparse.Namespace, prices: Prices | None) -> None:
        self._most: float | None = args.max_cost
        self._prices = prices
        self._cost, self._left = 0.0, 0
        self._uncounted: set[str] = set()
        self.is_spent = asyncio.Event()
        """Set once the run has cost more."""
        if self._most is not None and prices is None:
            raise UsageError("--max-cost needs to know what tokens cost", hint="add --prices FILE")
        if self._most is not None and not self._most >= 0:
            raise UsageError(f"--max-cost {self._most:g}: expected 0 or more")

    def ended(self, trajectory: Trajectory, *, left: int) -> None:
        """Takes what an episode has cost, and how many are left to be played."""
        self._left = left
        self._add(spent([trajectory], prices=self._prices), is_last=not left)

    def asked(self, usage: Sequence[ModelUsage], left: int) -> None:
        """Takes what asking about a group of episodes has cost, and how many groups are left."""
        self._add(spent_by(usage, prices=self._prices), is_last=not left)

    def _add(self, found: Spending, *, is_last: bool) -> None:
        if self._most is not None:
            missing = {f"{model}, which has no price" for model in found.unpriced}
            missing |= {"answers whose server says no tokens"} if found.unknown else set()
            for what in sorted(missing - self._uncounted):
                write_error(f"rlenv: --max-cost leaves out {what}\n")
            self._uncounted |= missing
            self._cost += found.cost or 0.0
            if self._cost > self._most and not is_last:
                self.is_spent.set()

    def said(self) -> str:
        """Why the run ends, once it is spent."""
        assert self._prices is not None
        currency = self._prices.currency
        passed = f"the episodes have cost {money(self._cost)} {currency}, more than --max-cost {money(self._most)}"
        if not self._left:
            return f"{passed}; not all answers to a task are compared: --resume with a higher one does that (with -o)"
        return (
            f"{passed}; {self._left:,} are not played: --resume with a higher one plays them where the run is kept (-o)"
        )


def prices_of(args: argparse.Namespace) -> Prices | None:
    """The prices of `--prices`, None where it is not given.

    Raises:
        SpecError: the file has faults.
    """
    return None if args.prices is None else read_prices(args.prices)


def show_spending(console: Console, spending: Spending) -> None:
    """A table by role and model with a line of sums below it; nothing where nothing was asked."""
    if not spending.roles:
        return
    table = Table("asked by", "model", "requests", "failed", "prompt", "completion", "seconds", "cost", "")
    for one in spending.roles:
        counts = [f"{one.requests:,}", f"{one.failed:,}", _tokens(one.prompt_tokens), _tokens(one.completion_tokens)]
        name, model = escape(one.role), escape(one.model)
        table.add_row(name, model, *counts, f"{one.seconds:.1f}", money(one.cost), ", ".join(_notes(one)))
    console.print(table)
    show_spending_line(console, spending)


def show_spending_line(console: Console, spending: Spending) -> None:
    """The sums alone; nothing where nothing was asked."""
    if line := spending_line(spending):
        console.print(line, markup=False, soft_wrap=True)


def spending_line(spending: Spending) -> str:
    """The sums in one line, and what is missing in them; "" where nothing was asked."""
    if not spending.roles:
        return ""
    kept = sum(one.requests for one in spending.roles if one.is_recorded)
    recorded = f"{kept:,} requests are from the record and cost nothing now" if kept else ""
    if not spending.requests:  # kept answers of others, if any, have asked for nothing either
        return "models: none was asked" + (f"; {recorded}" if recorded else "")
    tokens = f"{_tokens(spending.prompt_tokens)} prompt and {_tokens(spending.completion_tokens)} completion tokens"
    said = f"models: {spending.requests:,} requests ({spending.failed:,} failed), {tokens}"
    if spending.unknown:
        said += f", without {spending.unknown:,} answers whose server says no tokens"
    if spending.currency:
        said += f"; cost {money(spending.cost)} {spending.currency}"
    if spending.unpriced:
        said += f", without {', '.join(spending.unpriced)}: no price"
    return f"{said}; {recorded}" if recorded else said


def money(value: float | None) -> str:
    """An amount, with as many digits as a small one needs; "–" for none."""
    return f"{value:.3g}" if value is not None and 0 < abs(value) < _CENT else figure(value)


def _tokens(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _notes(one: RoleSpending) -> list[str]:
    return [
        *(["recorded: costs nothing now"] if one.is_recorded else []),
        *([f"{one.cached:,} answers kept from another"] if one.cached else []),
        *([f"{one.unknown:,} answers say no tokens"] if one.unknown else []),
        *([f"{one.cached_tokens:,} prompt tokens kept by the server"] if one.cached_tokens else []),
        *([f"{one.reasoning_tokens:,} of reasoning"] if one.reasoning_tokens else []),
    ]
