"""Products of two-digit numbers; no unordered pair of operands stands in two splits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from generators.rows import jsonl

__all__ = ["files"]

Pair = tuple[int, int]


def _row(pair: Pair) -> dict[str, Any]:
    a, b = pair
    return {"question": f"What is {a} * {b}?", "a": a, "b": b, "answer": a * b}


def _both_orders(pairs: Iterable[Pair], rng: random.Random) -> list[Pair]:
    ordered = sorted({order for a, b in pairs for order in ((a, b), (b, a))})
    rng.shuffle(ordered)
    return ordered


def files() -> dict[str, bytes]:
    """train (2000 rows: 1000 pairs in both orders), test (500 rows, each of another pair), warmup (all other pairs)."""
    rng = random.Random(20240615)
    pairs = [(a, b) for a in range(11, 100) for b in range(a + 1, 100)]
    rng.shuffle(pairs)
    test = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs[:500]]
    squares = [(a, a) for a in range(11, 100)]
    splits = {
        "test": test,
        "train": _both_orders(pairs[500:1500], rng),
        "warmup": _both_orders([*pairs[1500:], *squares], rng),
    }
    return {f"{split}.jsonl": jsonl(_row(pair) for pair in rows) for split, rows in splits.items()}
