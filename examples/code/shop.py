"""What things cost."""

from __future__ import annotations

from rlenv.errors import ToolFailed

PRICES = {"kite": 9.5, "ball": 4.5}


def price(thing: str) -> float:
    """The price of one thing.

    Args:
        thing: What is bought, such as kite.
    """
    if thing not in PRICES:
        raise ToolFailed(f"no {thing} is sold; known: {', '.join(PRICES)}")
    return PRICES[thing]
