"""The usage of models by a set of episodes, and its cost, by role and model.

What tokens cost: a user's own list of prices by model. None is shipped, since prices change.

currency: EUR
models:
  small-model: {input: 0.15, cached_input: 0.075, output: 0.6}    # of a million tokens
  "vendor/*": {input: 1, output: 4}
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from rlenv._base.bounded import plain
from rlenv._base.text import figure
from rlenv.endpoints.account import Account, counted, merge_usage
from rlenv.errors import SpecError, UsageError
from rlenv.language.dialect import Float, Spec, Text
from rlenv.language.document import read_source
from rlenv.language.loader import in_order
from rlenv.language.type_faults import from_pydantic
from rlenv.trajectory import ModelUsage, Trajectory

__all__ = ["Budget", "PriceSpec", "Prices", "PricesSpec", "RoleSpending", "Spending", "as_prices", "asked_tokens"]
__all__ += ["cost_of", "count_spending", "money", "notes_of", "prices_in", "read_prices", "spending_line"]
__all__ += ["spending_of", "spending_of_usage", "spending_page", "tokens_text"]


_MILLION = 1_000_000
_Price = Annotated[Float, Field(ge=0, le=1e12)]  # an endless one would make a cost of no tokens no number


class PriceSpec(Spec):
    """The price of a million tokens of one model."""

    input: _Price
    """Of the prompt."""
    cached_input: _Price | None = None
    """Of the part of the prompt that the server says it had kept; by default as `input`."""
    output: _Price
    """Of the completion, its reasoning included."""


class PricesSpec(Spec):
    """A list of prices."""

    currency: Text
    """What the prices are in, such as EUR; shown beside sums."""
    models: Mapping[Text, PriceSpec]
    """By the name that requests give the model. A name may hold `*`, `?` and `[…]`: a model that is named in full goes
    first, then the first pattern that fits it; those of a list that is extended stand before the own ones."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by model; see the module."""

    currency: str
    models: Mapping[str, PriceSpec]

    def of(self, model: str) -> PriceSpec | None:
        """The price of a model, None where the list has none."""
        if (named := self.models.get(model)) is not None:
            return named
        return next((price for name, price in self.models.items() if fnmatchcase(model, name)), None)

    def as_fact(self) -> dict[str, Any]:
        """The prices as a run keeps them, to sum its rows later; `prices_in` reads them."""
        kept = {name: price.model_dump(exclude_none=True) for name, price in self.models.items()}
        return {"currency": self.currency, "models": kept}

    def cost(self, usage: ModelUsage) -> float | None:
        """The cost of the known tokens; None where the model has no price, or no token is known of.

        (prompt - cached) · input + cached · cached_input + completion · output, in `currency`. Nothing is paid now for
        what a record answered.
        """
        price = self.of(usage.model)
        if price is None or usage.is_recorded:
            return None
        if usage.unknown and not usage.prompt_tokens + usage.completion_tokens:
            return None
        cached = price.input if price.cached_input is None else price.cached_input
        paid = (usage.prompt_tokens - usage.cached_tokens) * price.input + usage.cached_tokens * cached
        return (paid + usage.completion_tokens * price.output) / _MILLION


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """The prices in a YAML or JSON file, which may extend another one.

    Raises:
        SpecError: with every fault of the file, each at its line and column.
    """
    document = read_source(path)
    held = {key: value for key, value in document.data.items() if key != "extends"}
    try:
        spec = PricesSpec.model_validate(held)
    except ValidationError as error:
        raise SpecError(in_order(from_pydantic(error, document, (), PricesSpec), document)) from error
    return Prices(spec.currency, spec.models)


def as_prices(prices: str | os.PathLike[str] | Prices | None) -> Prices | None:
    """Prices as they are given, or those of a file.

    Raises:
        SpecError: the file has faults.
    """
    return prices if prices is None or isinstance(prices, Prices) else read_prices(prices)


def prices_in(facts: Mapping[str, Any]) -> Prices | None:
    """The prices that a run was made with, out of its facts; None where it has none, or none that can be read."""
    try:
        spec = PricesSpec.model_validate(facts.get("prices"))
    except ValidationError:
        return None
    return Prices(spec.currency, spec.models)


_SMALL: Final = 0.1


@dataclass(frozen=True, slots=True)
class RoleSpending:
    """The spending of one role on one model; see `ModelUsage` for what is counted.

    Tokens are sums over the answers that say them, None where there were answers and none does. `cost` is
    that of the tokens known of, None where it cannot be said (`Prices.cost`).
    """

    role: str
    model: str
    requests: int
    failed: int
    unknown: int
    cached: int
    prompt_tokens: int | None
    cached_tokens: int
    completion_tokens: int | None
    reasoning_tokens: int
    seconds: float
    is_recorded: bool
    cost: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """Sums over the roles that asked now; what a record answered (`is_recorded`) stands in `roles` alone.

    `cost` is in `currency` and holds the models whose price is known ("" and None without prices, None also where no
    price is known of anything that was asked); `unpriced` are the others. `unknown` requests say no tokens, and are in
    no sum.
    """

    roles: tuple[RoleSpending, ...] = ()
    requests: int = 0
    failed: int = 0
    unknown: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    currency: str = ""
    unpriced: tuple[str, ...] = ()


def spending_of(trajectories: Sequence[Trajectory], *, prices: Prices | None = None) -> Spending:
    """The spending of episodes.

    Args:
        prices: without them no cost is said.
    """
    return spending_of_usage((one for each in trajectories for one in each.usage), prices=prices)


def spending_of_usage(usage: Iterable[ModelUsage], *, prices: Prices | None = None) -> Spending:
    """The sums of what was asked for; see `spending_of`."""
    entries = merge_usage(usage)
    if not entries:
        return Spending()
    roles = tuple(_role_spending(one, prices) for one in entries)
    now = [one for one in roles if not one.is_recorded]
    known = [one.cost for one in now if one.cost is not None]
    return Spending(
        roles,
        requests=sum(one.requests for one in now),
        failed=sum(one.failed for one in now),
        unknown=sum(one.unknown for one in now),
        prompt_tokens=_sum_known([one.prompt_tokens for one in now]),
        completion_tokens=_sum_known([one.completion_tokens for one in now]),
        cost=math.fsum(known) if known else None,
        currency="" if prices is None else prices.currency,
        unpriced=() if prices is None else tuple(dict.fromkeys(o.model for o in now if prices.of(o.model) is None)),
    )


class Budget:
    """Adds up what episodes have cost, and says when that is more than a run may cost.

    Models without a price, and answers that say no tokens, are in no sum: it says so once, since a run of which nothing
    can be counted never ends by it.

    Args:
        most: the bound, None for none.
        say: is told what is in no sum.

    Raises:
        UsageError: a bound without prices, or below 0.
    """

    def __init__(self, most: float | None, prices: Prices | None, say: Callable[[str], None]) -> None:
        self._most, self._prices, self._say = most, prices, say
        self._cost, self._left = 0.0, 0
        self._uncounted: set[str] = set()
        self.is_spent = asyncio.Event()
        """Set once the run has cost more."""
        if self._most is not None and prices is None:
            raise UsageError("--max-cost needs to know what tokens cost", hint="add --prices FILE")
        if self._most is not None and not self._most >= 0:
            raise UsageError(f"--max-cost {self._most:g}: expected 0 or more")

    def add_episode(self, trajectory: Trajectory, *, left: int) -> None:
        """Takes what an episode has cost, and how many are left to be played."""
        self._left = left
        self._add_spending(spending_of([trajectory], prices=self._prices), is_last=not left)

    def add_usage(self, usage: Sequence[ModelUsage], left: int) -> None:
        """Takes what asking about a group of episodes has cost, and how many groups are left."""
        self._add_spending(spending_of_usage(usage, prices=self._prices), is_last=not left)

    def _add_spending(self, found: Spending, *, is_last: bool) -> None:
        if self._most is not None:
            missing = {f"{model}, which has no price" for model in found.unpriced}
            missing |= {"answers whose server says no tokens"} if found.unknown else set()
            for what in sorted(missing - self._uncounted):
                self._say(f"--max-cost leaves out {what}")
            self._uncounted |= missing
            self._cost += found.cost or 0.0
            if self._cost > self._most and not is_last:
                self.is_spent.set()

    def stop_reason(self) -> str:
        """The reason why the run ends, once the budget is spent."""
        assert self._prices is not None
        currency = self._prices.currency
        passed = f"the episodes have cost {money(self._cost)} {currency}, more than --max-cost {money(self._most)}"
        if not self._left:
            return f"{passed}; not all answers to a task are compared: --resume with a higher one does that (with -o)"
        return (
            f"{passed}; {self._left:,} are not played: --resume with a higher one plays them where the run is kept (-o)"
        )


@contextmanager
def count_spending(prices: Prices | None, say: Callable[[str], None]) -> Iterator[Callable[[], Spending]]:
    """Counts what the block asks of models, and gives what that is so far, episodes that came to no end included.

    Where the block raises, `say` is told what it had asked for: nobody else says it any more.
    """
    account = Account()

    def so_far() -> Spending:
        return spending_of_usage(account.entries(), prices=prices)

    try:
        with counted(account):
            yield so_far
    except BaseException:
        if line := spending_line(so_far()):
            say(line)
        raise


def asked_tokens(usage: Sequence[ModelUsage]) -> tuple[int | None, int | None]:
    """The tokens of all prompts and of all completions that were asked for now; None where some are not known."""
    now = [one for one in usage if not one.is_recorded]
    if not now or any(one.unknown for one in now):
        return None, None
    return sum(one.prompt_tokens for one in now), sum(one.completion_tokens for one in now)


def cost_of(usage: Sequence[ModelUsage], prices: Prices | None) -> float | None:
    """The cost of the usage; None where a part of it cannot be said, or nothing was asked."""
    now = [one for one in usage if not one.is_recorded]
    if prices is None or not now or any(one.unknown for one in now):
        return None
    costs = [prices.cost(one) for one in now]
    known = [one for one in costs if one is not None]
    return math.fsum(known) if len(known) == len(costs) else None


def _role_spending(one: ModelUsage, prices: Prices | None) -> RoleSpending:
    has_none = bool(one.unknown) and not one.prompt_tokens + one.completion_tokens
    held = asdict(one) | ({"prompt_tokens": None, "completion_tokens": None} if has_none else {})
    return RoleSpending(**held, cost=None if prices is None else prices.cost(one))


def _sum_known(numbers: Sequence[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None


def spending_line(spending: Spending) -> str:
    """The sums in one line, and what is missing in them; "" where nothing was asked."""
    if not spending.roles:
        return ""
    kept = sum(one.requests for one in spending.roles if one.is_recorded)
    recorded = f"{kept:,} requests are from the record and cost nothing now" if kept else ""
    if not spending.requests:  # kept answers of others, if any, have asked for nothing either
        return "models: none was asked" + (f"; {recorded}" if recorded else "")
    prompt, completion = tokens_text(spending.prompt_tokens), tokens_text(spending.completion_tokens)
    said = f"models: {spending.requests:,} requests ({spending.failed:,} failed), "
    said += f"{prompt} prompt and {completion} completion tokens"
    if spending.unknown:
        said += f", without {spending.unknown:,} answers whose server says no tokens"
    if spending.currency:
        said += f"; cost {money(spending.cost)} {spending.currency}"
    if spending.unpriced:
        said += f", without {', '.join(spending.unpriced)}: no price"
    return f"{said}; {recorded}" if recorded else said


def money(value: float | None) -> str:
    """An amount, with as many digits as a small one needs; "–" for none."""
    return f"{value:.3g}" if value is not None and 0 < abs(value) < _SMALL else figure(value)


def tokens_text(count: int | None) -> str:
    """A count of tokens; "–" where none is known."""
    return "–" if count is None else f"{count:,}"


def notes_of(one: RoleSpending) -> list[str]:
    """The notes in a table behind the figures of a role."""
    return [
        *(["recorded: costs nothing now"] if one.is_recorded else []),
        *([f"{one.cached:,} answers kept from another"] if one.cached else []),
        *([f"{one.unknown:,} answers say no tokens"] if one.unknown else []),
        *([f"{one.cached_tokens:,} prompt tokens kept by the server"] if one.cached_tokens else []),
        *([f"{one.reasoning_tokens:,} of reasoning"] if one.reasoning_tokens else []),
    ]


def spending_page(spending: Spending) -> dict[str, Any]:
    """The sums for a page: as `spending`, with the words of the tables beside."""
    roles = [{**plain(one), "notes": notes_of(one)} for one in spending.roles]
    return {**plain(spending), "roles": roles, "said": spending_line(spending)}
