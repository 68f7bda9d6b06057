"""What tokens cost: a user's own list of prices by model. None is shipped, since prices change.

currency: EUR
models:
  small-model: {input: 0.15, cached_input: 0.075, output: 0.6}    # of a million tokens
  "vendor/*": {input: 1, output: 4}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rlenv.errors import SpecError
from rlenv.language.document import read_source
from rlenv.language.loader import in_order
from rlenv.language.type_faults import from_pydantic
from rlenv.language.types import Float, Spec, Text
from rlenv.trajectory import ModelUsage

__all__ = ["PriceSpec", "Prices", "PricesSpec", "as_prices", "prices_in", "read_prices"]

_MILLION = 1_000_000
_Price = Annotated[Float, Field(ge=0, le=1e12)]  # an endless one would make a cost of no tokens no number


class PriceSpec(Spec):
    """What a million tokens of one model cost."""

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
        """What a run keeps of them, for whoever sums its rows later; `prices_in` reads it."""
        kept = {name: price.model_dump(exclude_none=True) for name, price in self.models.items()}
        return {"currency": self.currency, "models": kept}

    def cost(self, usage: ModelUsage) -> float | None:
        """What the tokens cost that are known of; None where the model has no price, or no token is known of.

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
