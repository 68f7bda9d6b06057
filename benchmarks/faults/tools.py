"""The tasks and the Python tool of the fault campaign."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def rows() -> Iterator[dict[str, Any]]:
    """10,000 tasks, each a number."""
    for n in range(10_000):
        yield {"n": n, "answer": answer(n)}


def answer(n: int) -> int:
    """What the tools' results sum to: 2n + 3n + (n + 7), and (n + 1) of the MCP server and n² of the code if there."""
    return 6 * n + 7


def answer_of(n: int, *, has_mcp: bool, has_code: bool) -> int:
    """The answer with the optional tools."""
    return answer(n) + (n + 1 if has_mcp else 0) + (n * n if has_code else 0)


def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: the number
    """
    return 2 * n
