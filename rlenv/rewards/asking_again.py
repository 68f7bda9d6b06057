"""Whose failure it was: what failed unclearly is asked again, beside a question that is known to work.

One rule for all terms. A call is the policy's failure only where that very call fails again, time after time, while a
known one goes well each time before it. Where it goes well after all, that is what it gives, however the known one
does. Whatever else happens tells nothing, and is tried again a few times; then nobody can tell, and what depends on it
has no value. A judge that gives no verdict is asked by the same rule, with and without what the policy wrote.

A server that fails by chance is told from one that fails by what it is asked by luck alone: the call is the policy's
where, did both fail by one chance, so many failures would fall on the very call, and so few on the known one, less than
once in 20 million times (`_Turns`, Fisher's exact test). A known call that is met by what others do costs more
rounds, and no verdict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from math import comb, inf
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import pause
from rlenv.errors import RewardError

__all__ = ["LONGEST_WAIT_S", "ROUNDS", "Answered", "Known", "Refused", "Untold", "in_turn"]

_T = TypeVar("_T")
ROUNDS: Final = 13
"""How often a call fails again, and a known one goes well and never fails, before the failure is the policy's."""
_SLOW_S: Final = 1.0
_DEAR_KNOWN: Final = 20
"""A call that took so long, or that fells what it asks, is asked with so many known ones, quick as a rule, each time:
4 rounds are as sure."""
_FEWEST: Final = 8
_FEWEST_SLOW: Final = 4
"""What has to be as sure as so many rounds, where there was no time for all: waiting for others takes it from a quick
call, and a slow one takes it itself. One round with so many known calls is as sure as these 4."""
_PATIENCE: Final = 12
"""Tries in a row that tell nothing, before nobody can tell."""
_FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Answered(Generic[_T]):
    """A try that went well, or that says clearly whose failure it is."""

    given: _T


@dataclass(frozen=True, slots=True)
class Refused:
    """A try that failed, and that may have failed by what was asked."""

    why: str


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
    is_gone: bool = False


@dataclass(slots=True)
class _Turns(Generic[_T]):
    """Two questions that are asked in turn; `known` is the one that is known to work."""

    known: Ask[Any]
    very: Ask[_T]
    most: int
    """Rounds that are sure, where the known question is asked once in each and never fails."""
    until: float
    each: int
    """How often the known question goes well for each round, once before it and else after it, whoever asks it."""
    quickest_s: float
    """Of the tries of the other question: a machine that stood still for a moment made one slow, and not the next."""
    tries: Known
    well_before: int
    failed_before: int
    well_at_round: int = 0
    rounds: int = 0
    """How often the other question was refused again, right after the known one went well."""
    refused: int = 1
    untold: int = 0
    """Tries in a row that told nothing."""

    async def given(self) -> _T | None:
        while not self._is_done:
            async with self.tries.alone:  # where many wait, for long
                failed = await self._known()
                if self.rounds and (self._is_done or not self._has_room):
                    break
                begun = time.monotonic()
                tried = failed if isinstance(failed, Untold) else await self.very()
            if isinstance(tried, Answered):
                return tried.given
            self.refused += isinstance(tried, Refused)
            if failed is not None:
                await self._wait(failed, "what is known to work failed too")
            elif isinstance(tried, Untold):
                await self._wait(tried, "its next try told nothing")
            else:
                self.rounds, self.untold, self.well_at_round = self.rounds + 1, 0, self.tries.well
                self.quickest_s = min(self.quickest_s, time.monotonic() - begun)
        if not self._is_done:
            raise RewardError(f"there was time for {self.rounds} rounds, which is too few")
        return None

    @property
    def _is_done(self) -> bool:
        """Whether the other question is asked no more: all this is as unlikely, did both fail by one chance, as that of
        so many rounds it is the very question that fails, and never the known one."""
        if not self.rounds or self.tries.well < self.well_at_round + self.each - 1:
            return False
        rounds = self.most
        if not self._has_room:
            rounds = min(rounds, _FEWEST_SLOW if self.quickest_s >= _SLOW_S else _FEWEST)
        refused, failed = self.refused, self.tries.failed - self.failed_before
        asked = refused + failed + self.tries.well - self.well_before
        return comb(refused + failed, refused) * comb(2 * rounds + 1, rounds) <= comb(asked, refused)

    @property
    def _has_room(self) -> bool:
        """Whether one more try ends in time, where it is as quick as the quickest."""
        return time.monotonic() + self.quickest_s < self.until

    async def _known(self) -> Refused | Untold | None:
        """How the known question failed; None where it went well now, and as often as it has to.

        The other question may have felled what is asked: it gets the time to come back.
        """
        tries, is_first = self.tries, True
        while is_first or (self.rounds and tries.well < self.well_at_round + self.each and not self._is_done):
            if self.rounds and time.monotonic() >= self.until:
                break
            tried = await self.known()
            if not isinstance(tried, Answered):
                self.untold = self.untold if is_first else 0
                was_gone, tries.is_gone = tries.is_gone, isinstance(tried, Untold)
                tries.failed += not (was_gone and tries.is_gone)
                return tried
            tries.well, tries.is_gone, is_first = tries.well + 1, False, False
        return None

    async def _wait(self, tried: Refused | Untold, what: str) -> None:
        """Takes note of a try that told nothing, and waits for a moment.

        Raises:
            RewardError: it was one too many, or there is no more time.
        """
        seconds = min(_FIRST_WAIT_S * 2**self.untold, LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
        self.untold += 1
        is_last = isinstance(tried, Untold) and tried.is_last
        if is_last or self.untold > _PATIENCE or time.monotonic() + seconds >= self.until:
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
    """What `very`, which was refused once, gives, asked in turn with `known`.

    None where it is refused `most` times and the known one never, or what is as sure.

    Fewer times, one at least, where it took long at first (`took_s`) or fells what it asks (`is_dear`), or where
    `within_s` seconds have no room for as many. `tries` are those of `known` that others count too.

    Raises:
        RewardError: nobody can tell.
    """
    each = _DEAR_KNOWN if most > 1 and (is_dear or took_s >= _SLOW_S) else 1
    until = time.monotonic() + within_s
    tries = tries or Known()
    return await _Turns(known, very, most, until, each, inf, tries, tries.well, tries.failed).given()
