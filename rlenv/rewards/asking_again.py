"""Whose failure it was: what failed unclearly is asked again, beside a question that is known to work.

One rule for terms, judges and simulated users. A call is the policy's failure only where that very call fails again,
time after time, while a known one goes well each time before it. Where it goes well after all, that is what it gives.
Whatever else happens tells nothing, and is tried again a few times; then nobody can tell, and there is no value.

Chance is told from cause by how often which of them failed: did both fail by one chance, so many failures would fall on
the very call, and so few on the known one, less than once in 20 million times (`_Turns`, Fisher's exact test). Which is
asked first is drawn, once the known one went well: in one order it could take each time what only one can have.
What others ask may fell both, and a long call meets that more often than a short one. So now and then the known one is
asked for longer than the call took, and where it fails often, they ask one after the other. Waiting for others counts
for no limit, nor does waiting for a process to start.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import comb, inf
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import Countdown, bounded_by_itself, pause, running_under
from rlenv.errors import RewardError

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
_PATIENCE: Final = 19
"""Tries in a row that tell nothing, before nobody can tell: with the pauses between them some 28 s."""
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.5
_LONGER: Final = 3
"""In one of so many rounds the known one is asked for so many times as long: what others do again meets it then."""
_FEW, _OFTEN = 3, 0.3
"""After so many rounds, and so many failures of the known question in the time of a try, what others ask fells both."""
_LOOKS: Final = 8
"""Known questions in a row that a server answers which a question felled, and none that fails by chance."""
_AWAY: Final = 10
"""So often, in some 6 s, the known question is tried where the very one may have felled its server."""
_QUEUE: Final = 10
"""For how many times its own time one may wait for others who ask the same server, and for processes to start."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[_T]):
    """A try that went well, or that says clearly whose failure it is; of what is known to work, as good as so many."""

    value: _T
    times: int = 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A try that failed, and that may have failed by what was asked."""

    why: str


@dataclass(frozen=True, slots=True)
class Unread(Refused):
    """A reply that is none, which another seed may mend; it fells nobody."""


@dataclass(frozen=True, slots=True)
class HeldUp(Refused):
    """Tries that had no answer in all the time that there was, while what is known to work soon had one each time."""


@dataclass(frozen=True, slots=True)
class Untold:
    """A try that failed by something else, such as that nobody is there. `is_last`: another one would be no use."""

    why: str
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Barred(Untold):
    """A try that a limit of rate had no room for: it counts for nothing, not even where it is known to work."""


class TooManyWait(RewardError):
    """One's turn did not come in the time that there is to wait for it."""


Ask = Callable[[], Awaitable[Answered[_T] | Refused | Untold]]


@dataclass(slots=True)
class Known:
    """The tries of what is known to work: of one call, or of all that wait for one server that a call may fell."""

    alone: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)
    """Held while a call and what is known to work are asked, or those who ask would fell the server for each other."""
    holds: bool = True
    """False if it is held no sooner than both have failed."""
    well: int = 0
    failed: int = 0
    """Counted once for all the time that what is asked was gone."""
    gone_since: float | None = None
    fellers: int = 0
    """How many seem to have felled what is asked, or to fell it each time: others find it away, and wait for it."""


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
    at_once: int = 1
    fewest: int = 1
    queue: int = _QUEUE
    keeps_turn: int = 0
    """1 if it waits in its turn until what is asked is back, others behind it; 2 if it fells that, and looks long."""
    looks: int = field(init=False)
    """`each`, or drawn about it once one failed: a server with 20 places a second would bar one alone each time. Beside
    others always: what fails all that a server has would set one beat for them, and never meet the known question."""
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
    longest_s: float = 0.0
    looks_s: float = 0.0
    """How long the known question is asked at least before the next round. It is drawn, or all would look at once."""
    known_s: float = 0.0
    looked_s: float = 0.0
    """What the known question has taken here since the last round, the time left out that its server was away."""
    rounds: int = 0
    """How often the other question was refused again, right after the known one went well."""
    refused: int = 1
    untold: int = 0
    pause_s: float = 0.0
    has_waited: bool = False
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.looks = self.each
        self.queue_s, self.begun = self.queue * self.within_s, time.monotonic()
        self.limit = Countdown(self.within_s, self.queue_s)
        self.well_before, self.failed_before = self.tries.well, self.tries.failed

    async def given(self) -> _T | None:
        while not self.has_ended and not self._is_done:
            if not self.tries.holds and not self.has_waited and self._is_hit_by_others:
                self.has_waited = True
                left_s, tries = self.limit.left_s, Known(self.tries.alone)  # what failed beside others counts no more
                ask = partial(in_turn, self.known, self.very, most=self.most, took_s=self.tried_s, queue=2)
                with suppress(TooManyWait):  # then beside them after all
                    return await ask(within_s=left_s, tries=tries)
            async with self._turn() if self.tries.holds else nullcontext():
                told = await self._told()
                # What comes back while one keeps the turn is there for whoever has waited for it.
                while told is None and self.keeps_turn and not self.has_ended and not self._is_done:
                    await pause(self.pause_s)
                    told = await self._told()
            if isinstance(told, Answered):
                return told.value
            if isinstance(told, HeldUp):
                return None
            if told is None and not self.has_ended:
                await pause(self.pause_s)
        # A last round without an end counts for nothing: who fells what it asks leaves no time for the known question.
        if not self._is_done and not self._is_sure(self.rounds - 1, self.refused - 1):
            raise RewardError(f"there was time for {self.rounds} rounds, which is too few")
        return None

    async def _told(self) -> Answered[_T] | Refused | None:
        """What came of asking both questions, None where it tells nothing."""
        now, gone_since = time.monotonic(), self.tries.gone_since
        if gone_since is not None and now - max(gone_since, self.begun) > self.within_s:
            raise RewardError("what is known to work failed for all who asked")
        begun, failed, early = self.limit.clock_s, None, None
        if self.each == 1 and self.rounds and self._has_room and random.random() < 0.5:
            early = await self._try()
        if early is None or isinstance(early[0], Refused):
            failed = await self._known()
        if early is None and self.rounds and (self._is_done or not self._has_room):
            self.has_ended = True
            return None
        tried, tried_s = early or ((failed, 0.0) if isinstance(failed, Untold) else await self._try())
        if isinstance(tried, (Answered, HeldUp)):
            return tried
        self.refused += self.at_once * isinstance(tried, Refused)
        if failed is not None:
            ends = isinstance(tried, Untold) and tried.is_last
            self._wait(tried if ends else failed, "what is known to work failed too")
        elif isinstance(tried, Untold):
            self._wait(tried, "its next try told nothing")
        else:
            self.rounds, self.untold, self.well_at_round = self.rounds + 1, 0, self.tries.well
            if self.each > 1 and (self.tries.failed > self.failed_before or not self.tries.holds):
                self.looks = random.randint(self.each // 2, self.each * 3 // 2)
            self.turn_s = min(self.turn_s, self.limit.clock_s - begun)
            self.tried_s, self.looked_s = min(self.tried_s, tried_s), 0.0
            self.longest_s = max(self.longest_s, tried_s)
            is_few = self.rounds > 2 * _FEW and self.known_s < _LONGER * self.longest_s
            is_drawn = self.each > 1 or is_few or random.random() < 1 / _LONGER
            is_long = self.keeps_turn > 1 or (is_drawn and not self.tries.holds)
            self.looks_s = is_long * random.uniform(1, 2 * _LONGER - 1) * self.longest_s
            return tried
        return None

    async def _try(self) -> tuple[Answered[_T] | Refused | Untold, float]:
        """What came of asking the other question, and the seconds that it took."""
        begun = self.limit.clock_s
        asked = await _each(self.very, self.at_once)
        told = (one for kind in _TELLING for one in asked if isinstance(one, kind))
        return next(told, asked[0]), self.limit.clock_s - begun

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One's turn. Those who have theirs before have limits of their own, so waiting for it counts for none.

        Raises RewardError: there are too many before.
        """
        begun = time.monotonic()
        try:
            with bounded_by_itself():
                async with asyncio.timeout(self.queue_s):
                    await self.tries.alone.__aenter__()
        except TimeoutError:
            raise TooManyWait("too many others waited to ask the same") from None
        try:
            self.queue_s -= time.monotonic() - begun
            yield
        finally:
            await self.tries.alone.__aexit__(None, None, None)

    @property
    def _is_done(self) -> bool:
        """True if the other question is asked no more."""
        return self._has_looked(self.looks - 1) and self._is_sure(self.rounds, self.refused)

    def _is_sure(self, made: int, refused: int) -> bool:
        """True if all this is as unlikely, did both fail by one chance, as that of so many rounds it is the very
        question that fails, and never the known one."""
        fewest = _FEWEST_SLOW if self.turn_s >= _SLOW_S else _FEWEST
        rounds = self.most if self._has_room else min(self.most, max(fewest, self.fewest))
        failed = self.tries.failed - self.failed_before
        asked = refused + failed + self.tries.well - self.well_before
        return made > 0 and comb(refused + failed, refused) * comb(2 * rounds + 1, rounds) <= comb(asked, refused)

    @property
    def _is_hit_by_others(self) -> bool:
        """True if the known question failed so often for its time that each try as long as the other may be hit."""
        often = self.rounds >= _FEW and self.tries.failed * self.longest_s > _OFTEN * self.known_s
        return often if self.each == 1 else self.tries.failed > 0

    def _has_looked(self, times: int) -> bool:
        """True if the known question went well so often since the last round, or took half as long as a try."""
        has_enough = self.looked_s >= self.looks_s and self.tries.well >= self.well_at_round + times
        return has_enough or self.looked_s >= max(_SLOW_S, self.tried_s / 2) * self.looks / self.each

    @property
    def _has_room(self) -> bool:
        """True if one more try ends in time, where it is as quick as the quickest."""
        return not self.has_ended and self.tried_s < self.limit.left_s

    async def _known(self) -> Refused | Untold | None:
        """The failure of the known question; None where it went well now, and as often as it has to.

        The other question may have felled what is asked: it gets the time to come back.
        """
        tries, is_first = self.tries, True
        while is_first or (self.rounds and not self._has_looked(self.looks) and not self._is_done):
            if self.rounds and self.limit.is_over:
                break
            begun, again = time.monotonic(), self.limit.clock_s
            asked = await _each(self.known, self.at_once)
            tried = next((one for one in asked if not isinstance(one, Answered)), asked[0])
            took_s = self.limit.clock_s - again
            self.known_s += took_s
            if isinstance(tried, Answered) or tries.well > self.well_at_round:  # it had come back
                self.looked_s += took_s
            if isinstance(tried, Barred):
                return tried
            if not isinstance(tried, Answered):
                self.untold = self.untold if is_first else 0
                gone_since, tries.gone_since = tries.gone_since, None
                if isinstance(tried, Untold):
                    tries.gone_since = begun if gone_since is None else gone_since
                tries.failed += gone_since is None or tries.gone_since is None
                return tried
            if is_first or self.each > 1 or tries.holds:
                tries.well += sum(one.times for one in asked if isinstance(one, Answered))
            tries.gone_since, is_first = None, False
            if self.looks_s or not tries.holds:
                again = self.limit.clock_s
                await asyncio.sleep(0.001)  # one that answers at once would be asked thousands of times
                self.looked_s += self.limit.clock_s - again
        return None

    def _wait(self, tried: Refused | Untold, what: str) -> None:
        """Takes note of a try that told nothing, and of how long to wait for another, where there is time for one.

        Raises RewardError: it was one too many, or the last, and what was found before is not sure.
        """
        is_last = self.untold == _PATIENCE or (isinstance(tried, Untold) and tried.is_last)
        seconds = 0.0 if is_last else waits_s()[self.untold] * random.uniform(0.5, 1.5)
        self.untold += 1
        self.has_ended = seconds >= self.limit.left_s
        if is_last or (self.has_ended and not self._is_sure(self.rounds - 1, self.refused - 1)):
            raise RewardError(f"{what}: {tried.why}")
        self.pause_s = seconds


_TELLING: Final = (Answered, HeldUp, Untold)


async def _each(ask: Ask[_T], times: int) -> list[Answered[_T] | Refused | Untold]:
    return [await ask()] if times == 1 else await asyncio.gather(*(ask() for _ in range(times)))


def waits_s() -> list[float]:
    """The seconds to wait after each try that tells nothing, before another one."""
    return [min(_FIRST_WAIT_S * 1.5**tries, _LONGEST_WAIT_S) for tries in range(_PATIENCE)]


async def in_turn(
    known: Ask[Any],
    very: Ask[_T],
    *,
    most: int = ROUNDS,
    within_s: float,
    took_s: float = 0.0,
    is_dear: bool = False,
    tries: Known | None = None,
    at_once: int = 1,
    fewest: int = 1,
    queue: int = _QUEUE,
    keeps_turn: int = 0,
) -> _T | None:
    """The answer to `very`, which was refused once, asked in turn with `known`.

    None where it is refused `most` times and the known one never, or what is as sure.

    Fewer times, one at least, where it took long at first (`took_s`) or fells what it asks (`is_dear`), or where
    `within_s` seconds have no room for as many. `tries` are those of `known` that others count too. Each time both are
    asked so many times `at_once`, which has to make no difference to what they are asked. None is as sure as `fewest`
    rounds, whatever the time. Others are waited for `queue` times as long at most. Who `keeps_turn` waits in its turn
    for what comes back, and others for it.

    Raises:
        RewardError: nobody can tell.
    """
    each = _DEAR_KNOWN if most > 1 and (is_dear or took_s >= _SLOW_S) else 1
    turns = _Turns(known, very, most, within_s, each, tries or Known(), at_once, fewest, queue, keeps_turn)
    with running_under(turns.limit):
        return await turns.given()


@dataclass(slots=True)
class InLine(Generic[_T]):
    """A question that failed and one that is known to work, asked in turn, and what is seen of their server meanwhile.

    One right behind which the known one fails too, in whatever way, may have felled it, and is not asked until it is
    back. If some known ones in a row go well then, it is asked in the line of those who fell it, one after the other.
    """

    known: Ask[Any]
    very: Ask[_T]
    line: Known
    may_fell: bool = False
    """True where the very question is asked as one that fells or holds up its server."""
    fells: bool = False
    """True if the known one was well all along once it was back, or others fell it."""
    is_well: bool = False
    is_behind: bool = True
    """True if the known one went well right before the very one failed again, as it did at first."""
    is_chancy: bool = False
    """True once it failed by chance, or for long: no use to wait for it."""
    tries: Known = field(init=False)

    async def given(
        self, left_s: Callable[[], float], tries: Callable[[], Known] | None = None, **keys: Any
    ) -> _T | None:
        """As `in_turn`; `tries` are by default its own, and in the line those of the line."""
        feller, own = self.fells, self.line if self.fells else Known(self.line.alone, holds=False)
        self.tries = own if tries is None else tries()
        self.line.fellers += feller
        turns = {"is_dear": self.may_fell, **keys} | ({"keeps_turn": 2} if feller else {})
        try:
            return await in_turn(self._ask_known, self._ask_again, within_s=left_s(), tries=self.tries, **turns)
        except RewardError:
            if self.may_fell or not self.fells:
                raise
        finally:
            self.line.fellers -= feller
        self.may_fell = True
        return await self.given(left_s, tries, **keys)

    async def _ask_known(self) -> Answered[Any] | Refused | Untold:
        found, is_behind = await self.known(), self.is_behind
        if not self.may_fell and not isinstance(found, Answered):
            if self.line.fellers > 0:
                self.fells = True
                raise RewardError("others fell it")  # and one waits for it in their line
            if is_behind and not (self.is_chancy or isinstance(found, Unread) or getattr(found, "is_last", False)):
                found = await self._ask_until_back()
        self.is_behind, self.is_well = False, isinstance(found, Answered)
        return Untold(found.why) if self.fells and isinstance(found, Refused) else found

    async def _ask_until_back(self) -> Answered[Any] | Refused | Untold:
        """What the known question gives, once it goes well some times in a row, or fails by chance."""
        failed = 0
        for wait in waits_s()[:_AWAY]:
            await pause(wait)
            if isinstance(again := await self.known(), Answered):
                break
            failed += 1
        for _ in range(_LOOKS):
            if isinstance(again, Answered):
                again = await self.known()
        self.fells = isinstance(again, Answered)
        self.is_chancy = not self.fells
        self.tries.failed += failed * self.is_chancy
        return again

    async def _ask_again(self) -> Answered[_T] | Refused | Untold:
        found = await self.very()
        self.is_behind = self.is_well and not isinstance(found, Unread)
        if self.fells and not self.may_fell and not isinstance(found, Answered):
            raise RewardError("it fells what it asks")
        return found
