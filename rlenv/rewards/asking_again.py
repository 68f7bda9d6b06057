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

Whether a judge's endpoint is worth asking, and asking again, shared by all episodes of an environment.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from math import comb, inf
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import Breaker, Countdown, bounded_by_itself, pause, running_under
from rlenv.concurrency.lanes import Kept
from rlenv.concurrency.scope import Scope
from rlenv.endpoints import REFUSED, Endpoint
from rlenv.errors import EndpointError, RewardError
from rlenv.language.spec import BreakerSpec

__all__ = ["ROUNDS", "Answered", "Ask", "Health", "Held", "Known", "Legibility", "Refused", "Untold"]
__all__ += ["in_time", "in_turn", "paces_of"]

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
class Held(Refused):
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
Paces = Kept[int, float]
"""The seconds in which what is known to work was answered, `inf` where it was not, by when that was asked."""


def paces_of(scope: Scope, whose: Hashable) -> Paces:
    """Those that all share who ask the same in `scope`."""
    return scope.keep(("paces", whose), lambda: Kept(2))


async def in_time(
    known: Ask[Any], very: Ask[_T], *, most: int = ROUNDS, within_s: float, paces: Paces
) -> Answered[_T] | Refused | Untold:
    """What comes of a first try of `very`. One that takes long goes on, and others are asked beside it.

    A text that keeps a model busy for all the time that there is would otherwise make its own reward invalid.
    `Held` where none of the tries has an answer when `within_s` seconds are over, and `known` soon has one each time.
    """
    begun = time.monotonic()
    first = asyncio.ensure_future(very())
    beside = asyncio.ensure_future(_beside(known, very, most, within_s, paces))
    try:
        await asyncio.wait({first, beside}, return_when=asyncio.FIRST_COMPLETED)
        is_early = time.monotonic() - begun < _ALONE * within_s
        if first.done() and (is_early or not isinstance(first.result(), Refused)):
            return first.result()
        told = await beside
        if isinstance(told, Held) and not first.done():  # a slow model answers the first try in the end
            await asyncio.wait({first}, timeout=max(0.0, begun + within_s - time.monotonic()))
        is_told = isinstance(told, Answered) or not first.done() or isinstance(first.result(), Refused)
        return told if told is not None and is_told else await first
    finally:
        for task in (first, beside):
            task.cancel()
        await asyncio.gather(first, beside, return_exceptions=True)


async def _beside(
    known: Ask[Any], very: Ask[_T], most: int, within_s: float, paces: Paces
) -> Answered[_T] | Held | None:
    """What tries come to that are asked beside one that takes long; None where nobody can tell."""
    alone_s, beside_s = _ALONE * within_s, _BESIDE * within_s
    slice_s = beside_s / _SLICES[beside_s < _SLICES[0]]
    no_answer = f"no answer within {within_s:.3g} s"

    async def pace() -> float:
        begun = time.monotonic()
        return time.monotonic() - begun if isinstance(await known(), Answered) else inf

    async def once() -> Answered[_T] | Refused | Untold:
        try:
            async with asyncio.timeout(slice_s):
                return await very()
        except TimeoutError:
            return Refused(no_answer)

    await asyncio.sleep(alone_s)
    # Where a server has too much to do many wait: one of them asks for all how soon it answers what is known to work.
    if (await paces.get(int(time.monotonic() // alone_s), pace))[0] > slice_s:
        return None
    try:
        given = await in_turn(known, once, most=most, within_s=beside_s, took_s=slice_s)
    except RewardError:
        return None
    return Held(no_answer) if given is None else Answered(given)


_HUNG_S = 10.0
_MOST_UNREAD: Final = 10


class Health:
    """A breaker around the requests to one endpoint.

    What counts as a failure: no answer, or one that says that the server is not well. A server that refuses what it
    was sent is well, and so is one whose reply cannot be read: a policy could bring both about. A request that is
    cancelled, because the time for the reward was over, counts if it had waited for `hung_s` seconds and nobody got an
    answer meanwhile. Failures of one episode alone open nothing,
    unless one is enough.
    """

    def __init__(
        self, name: str, spec: BreakerSpec, *, hung_s: float = _HUNG_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._spec, self._clock, self._hung_s = name, spec, clock, hung_s
        self._breaker = Breaker(failures=spec.failures, reset_s=spec.reset_s, clock=clock)
        self._answers = 0

    @classmethod
    def of(cls, endpoint: Endpoint, spec: BreakerSpec, scope: Scope, *, limit_s: float | None) -> Health | None:
        """The one that all who share `scope` share; None where the spec wants no breaker.

        Args:
            limit_s: the seconds for one judge's verdict; None for no limit.
        """
        if not spec.failures:
            return None
        hung_s = _HUNG_S if limit_s is None else min(_HUNG_S, limit_s / 2)
        key = ("judge health", endpoint, spec.failures, spec.reset_s, hung_s)
        return scope.keep(key, lambda: cls(endpoint.name, spec, hung_s=hung_s))

    async def ask(self, request: Callable[[], Awaitable[_T]], *, caller: Hashable, is_known: bool = False) -> _T:
        """The answer to the request.

        Args:
            caller: the episode that asks; its material may be what a server breaks on.
            is_known: the request holds none of that, so only no answer in time may be the caller's doing: its material
                may have held the server up before.

        Raises:
            EndpointError: the breaker is open, or what the request raises.
        """
        breaker = self._breaker
        if not breaker.admits():
            spec = self._spec
            told = f"{spec.failures} failures in a row; it is tried again after {spec.reset_s:g} s"
            raise EndpointError(f"endpoint '{self._name}' is left alone: {told}")
        begun, answers = self._clock(), self._answers
        try:
            found = await request()
        except EndpointError as error:
            if error.status in REFUSED:
                breaker.succeeded()
            else:
                breaker.failed(caller if error.is_late or not is_known else None)
            raise
        except asyncio.CancelledError:
            if self._answers == answers and self._clock() - begun >= self._hung_s:
                breaker.failed(caller)
            else:
                breaker.abandoned()
            raise
        except BaseException:
            breaker.abandoned()
            raise
        self._answers += 1
        breaker.succeeded()
        return found


@dataclass(slots=True)
class Legibility:
    """The knowledge that nothing of a judge can be read, shared by all episodes that ask it.

    Replies about harmless characters tell it, which no policy brings about: `most` in a row that cannot be read, with
    nothing read of the judge between them. It holds for `hold_s` seconds, or until something is read. A judge that can
    be read now and then needs more of them: were it given up as soon, who makes it unreadable would often be spared.
    """

    hold_s: float
    clock: Callable[[], float] = time.monotonic
    most: int = 3
    unread: int = 0
    until: float = -inf

    @property
    def is_lost(self) -> bool:
        """True while it is no use to ask for a reply again."""
        return self.clock() < self.until

    def told(self, *, is_read: bool) -> None:
        """Takes note of a reply that was read, or of one about harmless characters that was not."""
        if is_read:
            self.most, self.unread, self.until = _MOST_UNREAD, 0, -inf
            return
        self.unread += 1
        if self.unread >= self.most:
            self.until = self.clock() + self.hold_s
