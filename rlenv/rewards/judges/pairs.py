"""Judges that compare two answers at a time: the comparison, and the tournament of a group."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rlenv.endpoints.account import Account, counted
from rlenv.endpoints.wire import Usage
from rlenv.errors import RewardError
from rlenv.language.spec import Float, Int, Spec, Text
from rlenv.rewards.base import Measured
from rlenv.rewards.judges.asking import Asked, Asker, Failed, Member, Question
from rlenv.rewards.verdict import Material, Verdict

__all__ = [
    "CHOICES",
    "KEY",
    "NAMES",
    "SAYS",
    "Compared",
    "Met",
    "PairwiseSpec",
    "compare",
    "drawn",
    "paired",
    "play",
    "won",
]

NAMES: Final = ("first", "second")
"""The material of a prompt that compares."""
KEY: Final = "better"
CHOICES: Final[Mapping[str, float]] = {"first": 1.0, "second": 0.0, "tie": 0.5}
SAYS: Final = "'better' is which of the two answers is better: first, second, or tie. Their order says nothing."


class PairwiseSpec(Spec):
    """Compares the policy's answer with another one: that of `with`, or those of the whole group."""

    with_: Annotated[Text | None, Field(alias="with")] = None
    """The other answer, as a template over `task` and `vars`; or give `among`."""
    among: Literal["group"] | None = None
    """`group`: with the other answers to the same task, once all of them are there."""
    opponents: Annotated[Int, Field(ge=1)] | None = None
    """With how many of the others each answer of a group is compared, drawn by the term's seed; by default all."""
    least: Annotated[Float, Field(gt=0, le=1)] = 0.5
    """The share of an answer's comparisons within its group that have to give a verdict; the others are left out."""
    of: Literal["message", "answer"] = "message"
    """What of the episode is compared."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What one judge makes of a pair: the first one's share of the win, by order, and whether it contradicts itself."""

    shares: tuple[float, float]
    reason: str
    attempts: int
    usage: Mapping[str, int]
    is_cached: bool

    @property
    def score(self) -> float:
        """1 for a win of the first one, 0 for its loss, between them for a tie."""
        return sum(self.shares) / 2

    @property
    def is_contradicted(self) -> bool:
        """Whether another one won in each order: the place decided."""
        return abs(self.shares[0] - self.shares[1]) == 1.0

    def as_details(self) -> dict[str, Any]:
        """What the details of a term say of this judge."""
        found = {"score": self.score, "orders": list(self.shares), "position_bias": self.is_contradicted}
        return {**found, "attempts": self.attempts, "is_cached": self.is_cached, **self.usage}


def paired(question: Question, first: Material, second: Material, *, parties: tuple[frozenset[str], ...]) -> Question:
    """A question about two answers; `parties` says which of `NAMES` policies wrote."""
    return replace(question, material=dict(zip(NAMES, (first, second), strict=True)), parties=parties)


async def compare(asker: Asker, place: str, member: Member, question: Question) -> Compared | Failed:
    """One judge's verdict about the pair of `question`, asked in both orders at once.

    Who writes what the judge's server refuses loses; where two policies both do, it is a tie.
    """
    first, second = (question.material[name] for name in NAMES)
    if first == second:
        return Compared((0.5, 0.5), "the two are equal", 0, {}, is_cached=False)
    other = {NAMES[0]: NAMES[1], NAMES[1]: NAMES[0]}
    turned = tuple(frozenset(other[name] for name in party) for party in question.parties)
    orders = (question, paired(question, second, first, parties=turned))
    asking = [
        asyncio.ensure_future(asker.ask(f"{place} order {number}", member, order))
        for number, order in enumerate(orders)
    ]
    try:
        (one, one_known), (two, two_known) = await asyncio.gather(*asking)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    if isinstance(one, Failed):
        return one
    if isinstance(two, Failed):
        return two
    shares = (_share(one, orders[0]), 1 - _share(two, orders[1]))
    made = [asked.usage for asked, is_known in ((one, one_known), (two, two_known)) if not is_known]
    told = [usage for usage in made if usage is not None]
    usage = sum(told, Usage()).as_dict() if made and len(told) == len(made) else {}
    verdict = one.verdict or two.verdict or Verdict(0.0, "the judge's server refuses what was written")
    return Compared(shares, verdict.reason, one.attempts + two.attempts, usage, is_cached=one_known and two_known)


def _share(asked: Asked, question: Question) -> float:
    """The share of the win of the one that stands first."""
    if asked.verdict is not None:
        return asked.verdict.score
    blamed = frozenset[str]().union(*(question.parties[index] for index in asked.blamed))
    if len(blamed) == len(NAMES):
        return 0.5
    return 0.0 if NAMES[0] in blamed else 1.0


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
