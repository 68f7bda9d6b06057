"""All answers to one task compared with each other: who meets whom, and what each has won.

Each pair is compared as two answers always are (`rlenv.rewards.judges.pairs`), in both orders. An answer's value is the
mean of its shares, its win rate. Where all meet all, that is the order of a Bradley-Terry fit and of Elo; where each
meets as many others, drawn at random, it estimates it without bias, and needs no fit that a few comparisons do not
settle.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.endpoints.account import Account, counted
from rlenv.errors import RewardError
from rlenv.rewards.base import Measured

__all__ = ["Met", "drawn", "play", "won"]

_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Met:
    """One comparison: the first one's share of the win, and why; how many of the judges saw only the place."""

    share: float
    reason: str
    biased: int
    judges: Sequence[dict[str, Any]]


def drawn(count: int, *, opponents: int | None, seed: str) -> list[tuple[int, int]]:
    """Who of `count` answers meets whom: each pair once, or each answer with `opponents` of the others.

    The answers are put on a ring in an order drawn by `seed`, and each meets those next to it, so that all meet equally
    many. An odd number of opponents of an odd number of answers cannot be had: it is one more.
    """
    if opponents is None or opponents >= count - 1:
        return [(first, second) for first in range(count) for second in range(first + 1, count)]
    ring = list(range(count))
    random.Random(seed).shuffle(ring)
    steps = list(range(1, opponents // 2 + 1))
    is_odd = opponents % 2 == 1
    if is_odd and count % 2 == 1:
        steps.append(steps[-1] + 1 if steps else 1)
    pairs = [(ring[at], ring[(at + step) % count]) for step in steps for at in range(count)]
    if is_odd and count % 2 == 0:
        pairs += [(ring[at], ring[at + count // 2]) for at in range(count // 2)]
    return pairs


async def play(
    pairs: Sequence[tuple[int, int]],
    compare: Callable[[int, int], Awaitable[Met]],
    *,
    accounts: Sequence[Account],
    role: str,
) -> list[Met | RewardError]:
    """What each comparison gave, or why it gave nothing, in order; all are asked at once.

    What a comparison asks for is counted in the account of its first answer.
    """

    async def one(first: int, second: int) -> Met | RewardError:
        with counted(accounts[first], role):
            try:
                return await compare(first, second)
            except RewardError as error:
                return error

    asking = [asyncio.ensure_future(one(*pair)) for pair in pairs]
    try:
        return list(await asyncio.gather(*asking))
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def won(
    pairs: Sequence[tuple[int, int]], found: Sequence[Met | RewardError], *, seeds: Sequence[int], least: float
) -> list[Measured | RewardError]:
    """The value of each answer: the mean of its shares over its comparisons that gave one.

    Args:
        seeds: of the answers' episodes, by which details name them.
        least: the share of an answer's comparisons that have to give something; with fewer it has no value.
    """
    met: list[list[tuple[int, float, Met | RewardError]]] = [[] for _ in seeds]
    for (first, second), one in zip(pairs, found, strict=True):
        share = one.share if isinstance(one, Met) else math.nan
        met[first].append((second, share, one))
        met[second].append((first, 1 - share, one))
    return [_won(own, seeds, least) for own in met]


def _won(
    met: Sequence[tuple[int, float, Met | RewardError]], seeds: Sequence[int], least: float
) -> Measured | RewardError:
    if not met:
        return Measured(None, "no other answer to compare with")
    shares = [share for _, share, one in met if isinstance(one, Met)]
    errors = [str(one) for _, _, one in met if isinstance(one, RewardError)]
    needed = max(1, math.ceil(least * len(met) - _CLOSE))
    if len(shares) < needed:
        return RewardError(f"{len(shares)} of {len(met)} comparisons gave a verdict, {needed} have to ({errors[0]})")
    value = math.fsum(shares) / len(shares)
    comparisons = [
        {"with_seed": seeds[other], "score": share, "judges": list(one.judges)}
        if isinstance(one, Met)
        else {"with_seed": seeds[other], "score": None, "error": str(one)}
        for other, share, one in met
    ]
    details = {
        "raw": value,
        "scale": [0.0, 1.0],
        "comparisons": comparisons,
        "position_bias": sum(one.biased for _, _, one in met if isinstance(one, Met)),
    }
    reason = next(one.reason for _, _, one in met if isinstance(one, Met))
    return Measured(value, f"won {math.fsum(shares):g} of {len(shares)} comparisons; of the first: {reason}", details)
