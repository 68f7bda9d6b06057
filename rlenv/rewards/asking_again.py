"""Whose failure it was: what failed unclearly is asked again, beside a question that is known to work.

One rule for all terms. A call is the policy's failure only where that very call fails again, time after time, while a
known one goes well each time before it. Where it goes well after all, that is what it gives, however the known one
does. Whatever else happens tells nothing, and is tried again a few times; then nobody can tell, and what depends on it
has no value. A judge that gives no verdict is asked by the same rule, with and without what the policy wrote.

A server that fails by chance is told from one that fails by what it is asked by luck alone: the call is the policy's
where, did both fail by one chance, so many failures would fall on the very call, and so few on the known one, less than
once in 20 million times (`_Turns`, Fisher's exact test). Which of them is asked first is drawn, once the known one went
well: in one order it could take each time what only one can have, such as a place under a rate, or the turn of the
server that is well of two. A known call that is met by what others do costs more rounds, and no verdict. What decides
is how often which of them failed. Seconds only say how many known calls are made between two tries, and when to stop:
waiting for others who ask the same server, or for a process to start, counts for no limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from math import comb, inf
from statistics import median
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import Countdown, bounded_by_itself, pause, running_under
from rlenv.concurrency.lanes import entered, here
from rlenv.concurrency.scope import Scope
from rlenv.errors import EndpointError, RewardError

__all__ = ["ROUNDS", "Answered", "Ask", "HeldUp", "Known", "Pace", "Refused", "Untold", "in_time", "in_turn"]

_T = TypeVar("_T")
ROUNDS: Final = 13
"""How often a call fails again, and a known one goes well and never fails, before the failure is the policy's."""
_SLOW_S: Final = 1.0
_DEAR_KNOWN: Final = 20
"""A call that took so long, or that fells what it asks, is asked with so many known ones each time, or with as many as
take a second, or half as long as a try: 4 rounds with all of them are as sure."""
_FEWEST: Final = 8
_FEWEST_SLOW: Final = 4
"""What has to be as sure as so many rounds, where there was no time for all: waiting for others takes it from a quick
call, and a slow one takes it itself. One round with so many known calls is as sure as these 4."""
_PATIENCE: Final = 16
"""Tries in a row that tell nothing, before nobody can tell: with the pauses between them some 28 s."""
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.5
_QUEUE: Final = 10
"""For how many times its own time one may wait for others who ask the same server, and for processes to start."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[_T]):
    """A try that went well, or that says clearly whose failure it is."""

    value: _T


@dataclass(frozen=True, slots=True)
class Refused:
    """A try that failed, and that may have failed by what was asked."""

    why: str


@dataclass(frozen=True, slots=True)
class HeldUp(Refused):
    """Tries that had no answer in all the time that there was, while what is known to work soon had one each time."""


@dataclass(frozen=True, slots=True)
class Untold:
    """A try that failed by something else, such as that nobody is there. `is_last`: another one would be no use."""

    why: str
    is_last: bool = False


Ask = Callable[[], Awaitable[Answered[_T] | Refused | Untold]]


@dataclass(slots=True)
class Known:
    """The tries of what is known to work: of one call, or of all that wait for one server that a call may fell."""

    alone: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)
    """Held while a call and what is known to work are asked, or those who ask would fell the server for each other."""
    well: int = 0
    failed: int = 0
    """Counted once for all the time that what is asked was gone."""
    gone_since: float | None = None


@dataclass(slots=True)
class _Turns(Generic[_T]):
    """Two questions that are asked in turn; `known` is the one that is known to work."""

    known: Ask[Any]
    very: Ask[_T]
    most: int
    """Rounds that are sure, where the known question is asked once in each and never fails."""
    within_s: float
    each: int
    """How often the known question goes well for each round, once before it and else after it, whoever asks it."""
    tries: Known
    limit: Countdown = field(init=False)
    queue_s: float = field(init=False)
    begun: float = field(init=False)
    well_before: int = field(init=False)
    failed_before: int = field(init=False)
    turn_s: float = inf
    tried_s: float = inf
    """Of the quickest of one's turns, and of the quickest try of the other question: a machine that stood still for a
    moment made one slow, and not the next."""
    well_at_round: int = 0
    looked_s: float = 0.0
    """What the known question has taken here since the last round, the time left out that its server was away."""
    rounds: int = 0
    """How often the other question was refused again, right after the known one went well."""
    refused: int = 1
    untold: int = 0
    """Tries in a row that told nothing."""

    def __post_init__(self) -> None:
        self.queue_s, self.begun = _QUEUE * self.within_s, time.monotonic()
        self.limit = Countdown(self.within_s, self.queue_s)
        self.well_before, self.failed_before = self.tries.well, self.tries.failed

    async def given(self) -> _T | None:
        while not self._is_done:
            async with self._turn():
                begun, failed, early = self.limit.clock_s, None, None
                if self.each == 1 and self.rounds and self._has_room and random.random() < 0.5:
                    early = await self._try()
                if early is None or isinstance(early[0], Refused):
                    failed = await self._known()
                if early is None and self.rounds and (self._is_done or not self._has_room):
                    break
                tried, tried_s = early or ((failed, 0.0) if isinstance(failed, Untold) else await self._try())
                turn_s = self.limit.clock_s - begun
            if isinstance(tried, Answered):
                return tried.value
            if isinstance(tried, HeldUp):
                return None
            self.refused += isinstance(tried, Refused)
            if failed is not None:
                ends = isinstance(tried, Untold) and tried.is_last
                await self._wait(tried if ends else failed, "what is known to work failed too")
            elif isinstance(tried, Untold):
                await self._wait(tried, "its next try told nothing")
            else:
                self.rounds, self.untold, self.well_at_round = self.rounds + 1, 0, self.tries.well
                self.turn_s, self.tried_s = min(self.turn_s, turn_s), min(self.tried_s, tried_s)
                self.looked_s = 0.0
        # A last round without an end counts for nothing: who fells what it asks leaves no time for the known question.
        if not self._is_done and not self._is_sure(self.rounds - 1, self.refused - 1):
            raise RewardError(f"there was time for {self.rounds} rounds, which is too few")
        return None

    async def _try(self) -> tuple[Answered[_T] | Refused | Untold, float]:
        """What came of asking the other question, and the seconds that it took."""
        begun = self.limit.clock_s
        return await self.very(), self.limit.clock_s - begun

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One's turn. Those who have theirs before have limits of their own, so waiting for it counts for none.

        Raises RewardError: there are too many before, or what is asked was gone all the time.
        """
        begun = time.monotonic()
        try:
            with bounded_by_itself():
                async with asyncio.timeout(self.queue_s):
                    await self.tries.alone.__aenter__()
        except TimeoutError:
            raise RewardError("too many others waited to ask the same") from None
        try:
            now, gone_since = time.monotonic(), self.tries.gone_since
            self.queue_s -= now - begun
            if gone_since is not None and now - max(gone_since, self.begun) > self.within_s:
                raise RewardError("what is known to work failed for all who asked")
            yield
        finally:
            await self.tries.alone.__aexit__(None, None, None)

    @property
    def _is_done(self) -> bool:
        """True if the other question is asked no more."""
        return self._has_looked(self.each - 1) and self._is_sure(self.rounds, self.refused)

    def _is_sure(self, made: int, refused: int) -> bool:
        """True if all this is as unlikely, did both fail by one chance, as that of so many rounds it is the very
        question that fails, and never the known one."""
        fewest = _FEWEST_SLOW if self.turn_s >= _SLOW_S else _FEWEST
        rounds = self.most if self._has_room else min(self.most, fewest)
        failed = self.tries.failed - self.failed_before
        asked = refused + failed + self.tries.well - self.well_before
        return made > 0 and comb(refused + failed, refused) * comb(2 * rounds + 1, rounds) <= comb(asked, refused)

    def _has_looked(self, times: int) -> bool:
        """True if the known question went well so often since the last round, or took half as long as a try."""
        return self.tries.well >= self.well_at_round + times or self.looked_s >= max(_SLOW_S, self.tried_s / 2)

    @property
    def _has_room(self) -> bool:
        """True if one more try ends in time, where it is as quick as the quickest."""
        return self.tried_s < self.limit.left_s

    async def _known(self) -> Refused | Untold | None:
        """The failure of the known question; None where it went well now, and as often as it has to.

        The other question may have felled what is asked: it gets the time to come back.
        """
        tries, is_first = self.tries, True
        while is_first or (self.rounds and not self._has_looked(self.each) and not self._is_done):
            if self.rounds and self.limit.is_over:
                break
            begun, again = time.monotonic(), self.limit.clock_s
            tried = await self.known()
            if isinstance(tried, Answered) or tries.well > self.well_at_round:  # it had come back
                self.looked_s += self.limit.clock_s - again
            if not isinstance(tried, Answered):
                self.untold = self.untold if is_first else 0
                gone_since, tries.gone_since = tries.gone_since, None
                if isinstance(tried, Untold):
                    tries.gone_since = begun if gone_since is None else gone_since
                tries.failed += gone_since is None or tries.gone_since is None
                return tried
            tries.well, tries.gone_since, is_first = tries.well + 1, None, False
        return None

    async def _wait(self, tried: Refused | Untold, what: str) -> None:
        """Takes note of a try that told nothing, and waits for a moment.

        Raises RewardError: it was one too many, or there is no more time.
        """
        seconds = min(_FIRST_WAIT_S * 2**self.untold, _LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
        self.untold += 1
        is_last = isinstance(tried, Untold) and tried.is_last
        if is_last or self.untold > _PATIENCE or seconds >= self.limit.left_s:
            raise RewardError(f"{what}: {tried.why}")
        await pause(seconds)


async def in_turn(
    known: Ask[Any],
    very: Ask[_T],
    *,
    most: int = ROUNDS,
    within_s: float,
    took_s: float = 0.0,
    is_dear: bool = False,
    tries: Known | None = None,
) -> _T | None:
    """The answer to `very`, which was refused once, asked in turn with `known`.

    None where it is refused `most` times and the known one never, or what is as sure.

    Fewer times, one at least, where it took long at first (`took_s`) or fells what it asks (`is_dear`), or where
    `within_s` seconds have no room for as many. `tries` are those of `known` that others count too.

    Raises:
        RewardError: nobody can tell.
    """
    each = _DEAR_KNOWN if most > 1 and (is_dear or took_s >= _SLOW_S) else 1
    turns = _Turns(known, very, most, within_s, each, tries or Known())
    with running_under(turns.limit):
        return await turns.given()


_ALONE: Final = 0.2
"""Of the time for one answer, for the first try alone, and `_BESIDE` for others beside it."""
_BESIDE: Final = 0.6
_SLICES: Final = (7, 12)
"""Of `_BESIDE`, one for each of these tries, where it is a second or more and where it is less: enough of them fit."""
_SPREAD: Final = 1.5
"""How many times the usual seconds of others an answer may take that is soon."""
_TIMES: Final = 12
"""How many times the usual seconds of others a question that holds a model up takes, at least."""
_SOON: Final = 0.02
"""A share of the time for one answer that is soon for what is known to work, however soon others have theirs."""
_LATEST: Final = 32
_FEW: Final = 16
"""So many may wait at once, before as many have to be answered meanwhile."""
_FIRST: Final = 3
"""So many may hold a model up of which no answer is known: where all take too long, the limit is too short."""


@dataclass(slots=True)
class Pace:
    """How soon a model answers, shared by all who ask it alike; of several event loops too."""

    took: tuple[float, ...] = ()
    """The seconds of the latest answers."""
    answered: int = 0
    held: int = 0
    waiting: dict[object, int] = field(default_factory=dict)
    """Those without an answer yet, each with how many had one when it was asked."""
    tries: Known = field(default_factory=Known)

    @classmethod
    def of(cls, scope: Scope, whose: Hashable) -> Pace:
        """That of all who share `scope`."""
        return scope.keep(("pace", whose), cls)

    @property
    def usual_s(self) -> float:
        """What half of the latest answers took at most; 0 where that is not known yet."""
        return median(self.took) if len(self.took) > 1 else 0.0

    @property
    def is_busy(self) -> bool:
        """True where more wait than were answered meanwhile: it may be the model that is late with them."""
        waiting = [*self.waiting.values()]
        most = max(_FEW, self.answered - min(waiting)) if len(self.took) > 1 else _FIRST - self.held
        return len(waiting) > most

    def told(self, seconds: float) -> None:
        """Takes note of an answer."""
        self.took, self.answered = (*self.took[1 - _LATEST :], seconds), self.answered + 1


async def in_time(
    known: Ask[Any], request: Callable[[], Awaitable[_T]], *, most: int = ROUNDS, within_s: float, pace: Pace
) -> _T:
    """The answer to a request. One that takes long goes on, and where others are soon answered, it is made again beside
    itself, in turn with `known`.

    A text that keeps a model busy for all the time that there is would otherwise make its own reward invalid. A model
    that takes long over most, or has much to do, is asked nothing beside: that would make it late.

    Raises:
        EndpointError: what the request raises; or `is_held`: none of the tries had an answer when `within_s` seconds
            were over, while `known` soon had one each time.
    """
    begun, mine, lane = time.monotonic(), object(), here()
    pace.waiting[mine] = pace.answered
    first = asyncio.ensure_future(request())
    with entered(lane and lane.at("beside")):  # a replay does not ask these
        beside = asyncio.ensure_future(_beside(known, request, most, within_s, pace))
    try:
        await asyncio.wait({first, beside}, return_when=asyncio.FIRST_COMPLETED)
        is_early = time.monotonic() - begun < _ALONE * within_s
        if not first.done() or (not is_early and isinstance(first.exception(), EndpointError)):
            told = await beside
            if isinstance(told, Answered):
                return told.value
            if told is not None:  # a slow model answers the first try in the end
                await asyncio.wait({first}, timeout=max(0.0, begun + within_s - time.monotonic()))
                if not first.done() or isinstance(first.exception(), EndpointError):
                    pace.held += 1
                    raise EndpointError(told.why, is_late=True, is_held=True)
        found = await first
        pace.told(time.monotonic() - begun)
        return found
    finally:
        del pace.waiting[mine]
        for task in (first, beside):
            task.cancel()
        await asyncio.gather(first, beside, return_exceptions=True)


async def _beside(
    known: Ask[Any], request: Callable[[], Awaitable[_T]], most: int, within_s: float, pace: Pace
) -> Answered[_T] | HeldUp | None:
    """What tries come to that are made beside one that takes long; None where nobody can tell."""
    alone_s, beside_s = _ALONE * within_s, _BESIDE * within_s
    await asyncio.sleep(alone_s)
    usual_s = pace.usual_s
    if pace.is_busy or usual_s * _TIMES > within_s:
        return None
    slice_s = max(beside_s / _SLICES[beside_s < _SLICES[0]], _SPREAD * usual_s)
    no_answer, well = f"no answer within {within_s:.3g} s", pace.tries.well

    async def soon() -> Answered[Any] | Refused | Untold:
        try:
            async with asyncio.timeout(max(_SPREAD * usual_s, _SOON * within_s)):
                return await known()
        except TimeoutError:  # it is the model that takes long, and no use to ask it more
            return Untold(no_answer, is_last=pace.tries.well == well)

    async def once() -> Answered[_T] | Refused | Untold:
        try:
            async with asyncio.timeout(slice_s):
                return Answered(await request())
        except TimeoutError:
            return Refused(no_answer)
        except EndpointError as error:
            is_told = error.status is not None or error.is_garbled or error.is_late
            return Refused(str(error)) if is_told else Untold(str(error))

    try:
        given = await in_turn(soon, once, most=most, within_s=beside_s, took_s=slice_s, tries=pace.tries)
    except RewardError:
        return None
    return HeldUp(no_answer) if given is None else Answered(given)
