"""What was asked of models, as commands show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from rlenv.cli.console import Console
from rlenv.cli.options import Options, option
from rlenv.cli.terminal import say
from rlenv.runs import usage
from rlenv.runs.usage import Prices, Spending, as_prices, money, notes_of, spending_line, tokens_said

__all__ = ["WithPrices", "counting", "show_spending", "show_spending_line"]


@dataclass
class WithPrices(Options):
    """A command that says what tokens cost."""

    prices: str | None = option("YAML of what a million tokens cost by model: cost is shown", metavar="FILE")


def counting(prices: str | Prices | None = None) -> AbstractContextManager[Callable[[], Spending]]:
    """Counts what the block asks of models (`rlenv.runs.usage.counting`), and says it where the block raises."""
    return usage.counting(as_prices(prices), say)


def show_spending(console: Console, spending: Spending) -> None:
    """A table by role and model with a line of sums below it; nothing where nothing was asked."""
    if not spending.roles:
        return
    table = Table("asked by", "model", "requests", "failed", "prompt", "completion", "seconds", "cost", "")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for one in spending.roles:
        tokens = [tokens_said(count) for count in (one.prompt_tokens, one.completion_tokens)]
        counts = [f"{one.requests:,}", f"{one.failed:,}", *tokens]
        name, model = escape(one.role), escape(one.model)
        table.add_row(name, model, *counts, f"{one.seconds:.1f}", money(one.cost), ", ".join(notes_of(one)))
    console.show(table, spare=("seconds", "failed"))
    show_spending_line(console, spending)


def show_spending_line(console: Console, spending: Spending) -> None:
    """The sums alone; nothing where nothing was asked."""
    if line := spending_line(spending):
        console.print(line, markup=False, soft_wrap=True)
