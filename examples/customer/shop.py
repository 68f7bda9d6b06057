"""The shop: its orders, the tools on them, and the check of its books."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rlenv.errors import ToolFailed

ORDERS = {
    "A17": ("a mirror", "delivered 4 days ago"),
    "B42": ("a teapot", "delivered 61 days ago"),
    "C03": ("two cups", "never delivered"),
    "D88": ("a lamp", "delivered 45 days ago"),
}


@dataclass
class Shop:
    """One episode's shop."""

    orders: dict[str, tuple[str, str]]
    refunded: list[str] = field(default_factory=list)

    def find(self, order: str) -> tuple[str, str]:
        """What was ordered and what became of it."""
        if order not in self.orders:
            raise ToolFailed(f"there is no order '{order}'; ask the customer for the number")
        return self.orders[order]


def open_shop() -> Iterator[Shop]:
    """A shop with all its orders and an empty list of refunds."""
    yield Shop(dict(ORDERS))


def look_up(order: str, shop: Shop) -> str:
    """Shows an order: what it was and when it was delivered.

    Args:
        order: the order's number, such as A17.
    """
    item, state = shop.find(order)
    return f"{order}: {item}, {state}"


def refund(order: str, shop: Shop) -> str:
    """Pays an order back. This cannot be undone.

    Args:
        order: the order's number, such as A17.
    """
    shop.find(order)
    shop.refunded.append(order)
    return f"{order} is refunded"


def books_are_right(context: Any) -> float:
    """1 where exactly what should be refunded was, once; 0 otherwise."""
    wanted = [context.task["order"]] if context.task["outcome"] == "refunded" else []
    return 1.0 if context.resources["shop"].refunded == wanted else 0.0
