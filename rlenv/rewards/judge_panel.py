"""Judges that compare two answers at a time: the comparison, and the tournament of a group.

Several judges' scores as one number, and how many of them have to give one.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rlenv.concurrency.scope import at_once
from rlenv.endpoints.account import Account, Usage, counted
from rlenv.errors import RewardError, UsageError
from rlenv.language.spec import Float, Int, Spec, Text
from rlenv.rewards.base import Measured
from rlenv.rewards.judge_asking import Asker, Failed, JudgeReply, Member
from rlenv.rewards.verdict import JudgeVerdict, Material, Question

NAMES: Final = ("first", "second")
"""The material of a prompt that compares."""
KEY: Final = "better"
CHOICES: Final[Mapping[str, float]] = {"first": 1.0, "second": 0.0, "tie": 0.5}
SAYS: Final = "'better' is which of the two answers is better: first, second, or tie. Their order says nothing."


class PairwiseSpec(Spec):
    """Compares the policy's answer with another one: that of `with`, or those of the whole group."""

    with_: Annotated[Text, Field(alias="with")]
    """The other answer, as a template over `task` and `vars`; or `group`: the other answers to the same task, once
    all of them are there."""
    limit: Annotated[Int, Field(ge=1)] | None = None
    """With how many of the others each answer of a group is compared, drawn by the term's seed; by default all."""
    quorum: Annotated[Float, Field(gt=0, le=1)] = 0.5
    """The share of an answer's comparisons within its group that have to give a verdict; the others are left out."""
    of: Literal["message", "answer"] = "message"
    """What of the episode is compared."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One judge's comparison of a pair: the first one's share of the win, by order, and whether it contradicts
    itself.
    """

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
        """True if another one won in each order: the place decided."""
        return abs(self.shares[0] - self.shares[1]) == 1.0

    def as_details(self) -> dict[str, Any]:
        """The details of a term for this judge."""
        found = {"score": self.score, "orders": list(self.shares), "position_bias": self.is_contradicted}
        return {**found, "attempts": self.attempts, "is_cached": self.is_cached, **self.usage}


def paired(question: Question, first: Material, second: Material, *, parties: tuple[frozenset[str], ...]) -> Question:
    """A question about two answers; `parties` says which of `NAMES` policies wrote."""
    return replace(question, material=dict(zip(NAMES, (first, second), strict=True)), parties=parties)


async def compare(
    asker: Asker, place: str, member: Member, question: Question, *, costs: bool = False
) -> Compared | Failed:
    """One judge's verdict about the pair of `question`, asked in both orders at once.

    Who writes what the judge's server refuses loses, or wins where a win `costs`; where two policies both do, it is a
    tie.
    """
    first, second = (question.material[name] for name in NAMES)
    if first == second:
        return Compared((0.5, 0.5), "the two are equal", 0, {}, is_cached=False)
    other = {NAMES[0]: NAMES[1], NAMES[1]: NAMES[0]}
    swapped = tuple(frozenset(other[name] for name in party) for party in reversed(question.parties))
    orders = (question, paired(question, second, first, parties=swapped))
    async with at_once(asker.ask(f"{place} order {at}", member, order) for at, order in enumerate(orders)) as asking:
        (one, one_known), (two, two_known) = await asyncio.gather(*asking)
    if isinstance(one, Failed):
        return one
    if isinstance(two, Failed):
        return two
    shares = (_win_share(one, orders[0], costs), 1 - _win_share(two, orders[1], costs))
    usages = [asked.usage for asked, is_known in ((one, one_known), (two, two_known)) if not is_known]
    known_usages = [usage for usage in usages if usage is not None]
    usage = sum(known_usages, Usage()).as_dict() if usages and len(known_usages) == len(usages) else {}
    verdict = one.verdict or two.verdict or JudgeVerdict(0.0, "the judge's server refuses what was written")
    return Compared(shares, verdict.reason, one.attempts + two.attempts, usage, is_cached=one_known and two_known)


def _win_share(reply: JudgeReply, question: Question, costs: bool) -> float:
    """The share of the win of the one that stands first."""
    if reply.verdict is not None:
        return reply.verdict.score
    blamed = frozenset[str]().union(*(question.parties[index] for index in reply.blamed))
    if len(blamed) == len(NAMES):
        return 0.5
    return float((NAMES[0] in blamed) == costs)


_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Met:
    """One comparison: the first one's share of the win, and why; how many of the judges saw only the place."""

    share: float
    reason: str
    biased: int
    judges: Sequence[dict[str, Any]]


def drawn(count: int, *, opponents: int | None, seed: str) -> list[tuple[int, int]]:
    """The pairs among `count` answers: each pair once, or each answer with `opponents` of the others.

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
    """The results of the comparisons, or the errors of those that failed, in order; all are asked at once.

    What a comparison asks for is counted in the account of its first answer.
    """

    async def play_one(first: int, second: int) -> Met | RewardError:
        with counted(accounts[first], role):
            try:
                return await compare(first, second)
            except RewardError as error:
                return error

    async with at_once(play_one(*pair) for pair in pairs) as asking:
        return list(await asyncio.gather(*asking))


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
    return [_win_rate(own, seeds, least) for own in met]


def _win_rate(
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


Combine = Literal["mean", "median", "majority", "min", "max", "trimmed"]

_LEAST_TRIMMED = 3


def check_panel(how: Combine, *, count: int, is_weighted: bool, quorum: int | float | None) -> None:
    """Raises UsageError: these judges cannot be combined so, or the quorum is none of theirs."""
    if how == "trimmed" and count < _LEAST_TRIMMED:
        raise UsageError(
            f"trimmed leaves out two of {count} scores", key="combine", hint="name three judges, or combine: mean"
        )
    if is_weighted and how in ("min", "max"):
        raise UsageError(f"{how} has no use for weights", key="combine", hint="leave the weights out, or combine: mean")
    if quorum is None:
        return
    if count < 2:
        raise UsageError("a quorum is one of several judges", key="quorum", hint="leave it out, or give judges")
    if quorum > count:
        raise UsageError(f"{quorum} of {count} judges", key="quorum", hint=f"give at most {count}, or a share up to 1")


def needed(quorum: int | float | None, count: int) -> int:
    """The number of judges of `count` that have to give a verdict: all without a quorum, a share rounded up."""
    if quorum is None:
        return count
    return quorum if isinstance(quorum, int) else math.ceil(quorum * count - _CLOSE)


@dataclass(frozen=True, slots=True)
class Given:
    """One judge's score, its reasoning and its details."""

    score: float
    reason: str
    details: Mapping[str, Any]


async def ask_all(
    asked: Sequence[Coroutine[Any, Any, Given | Failed]], members: Sequence[Member], *, least: int
) -> list[Given | Failed]:
    """The results of the judges, in order; all are asked at once.

    Args:
        asked: one for each member.
        least: how many have to give a score.

    Raises:
        RewardError: too few gave one, or what asking raises.
    """
    async with at_once(asked) as asking:
        for ended in asyncio.as_completed(asking):
            found = await ended
            # Without a quorum nobody waits for the others of a panel that has failed.
            if isinstance(found, Failed) and least == len(asking):
                raise RewardError(found.why)
        results = [one.result() for one in asking]
    pairs = zip(members, results, strict=True)
    failed = [f"{member.endpoint.name}: {one.why}" for member, one in pairs if isinstance(one, Failed)]
    if (gave := len(results) - len(failed)) < least:
        raise RewardError(f"{gave} of {len(results)} judges gave a verdict, {least} have to ({'; '.join(failed)})")
    return results


def combine(scores: Sequence[float], *, how: Combine, weights: Sequence[float] = ()) -> float:
    """Several judges' scores as one.

    `mean`; `median`, the score where half of the weight is reached (the mean of two where it falls between them);
    `majority`, the score with the most weight, the lowest of equals; `min`; `max`; `trimmed`, the mean without one
    lowest and one highest score, or the mean of all where there are fewer than three.

    Args:
        weights: one for each score, above 0; equal ones by default.
    """
    pairs = sorted(zip(scores, weights or [1.0] * len(scores), strict=True))
    if how in ("min", "max"):
        return pairs[0 if how == "min" else -1][0]
    if how == "median":
        return _median(pairs)
    if how == "majority":
        total: dict[float, float] = {}
        for score, weight in pairs:
            total[score] = total.get(score, 0.0) + weight
        most = max(total.values())
        return min(score for score, weight in total.items() if weight >= most - _CLOSE)
    if how == "trimmed" and len(pairs) >= _LEAST_TRIMMED:
        pairs = pairs[1:-1]
    return statistics.fmean([score for score, _ in pairs], [weight for _, weight in pairs])


def _median(pairs: Sequence[tuple[float, float]]) -> float:
    half, below = math.fsum(weight for _, weight in pairs) / 2, 0.0
    for place, (score, weight) in enumerate(pairs):
        below += weight
        if abs(below - half) <= _CLOSE:
            return (score + pairs[place + 1][0]) / 2
        if below > half:
            break
    return score
