"""Requests to a model: one that takes long, that fells its server or whose reply cannot be read is made again.

Whose failure it is then is told as `rlenv.rewards.asking_again` says, beside a question that is known to work. What
holds a model up, or fells it, takes its time or its server from all who ask, so more is known of those than of a tool.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from statistics import fmean, median
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import Countdown, bounded_by_itself, left_s, pause, running_under
from rlenv.concurrency.lanes import entered
from rlenv.concurrency.scope import Scope, cancel_all
from rlenv.endpoints import BARRED, REFUSED, Client
from rlenv.endpoints.account import is_away
from rlenv.errors import EndpointError, RewardError
from rlenv.rewards.asking_again import ROUNDS, Answered, Ask, Barred, HeldUp, Known, Refused, Untold, in_turn, waits_s

_T = TypeVar("_T")
_Request = Callable[[], Awaitable[_T]]
UNCLEAR: Final = frozenset((*REFUSED, 403, 451))
"""What a server answers to a conversation whose words it cannot take, and to every one where it is set up wrongly. No
5xx is among them: a server that fails by chance would be taken for one that refuses."""
_YIELDS: Final = 3
"""How often whoever asks about a refusal asks again where a limit of rate bars that, and waits for a second before."""
_REFUSALS: Final = 6
"""How often a server refuses a policy's words, and harmless ones never, before it refuses them for what they are."""
_FEWEST_FALLS: Final = 7
"""How sure it has to be that a text fells a server, as the number of rounds: others may fell it again and again."""
_LEAST_S: Final = 0.02
"""No connection counts as broken sooner."""
_LOST: Final = 5
"""Of what is known to work, so many fail in a row while a server is away, and seldom where it refuses some."""
_APART_S: Final = 2.0
"""Within so many seconds those ask again whom a server took along when it fell: what felled it meets few of them."""
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
    begun, mine = time.monotonic(), object()
    pace.waiting[mine] = pace.answered
    first = asyncio.ensure_future(request())
    with entered("beside"):  # a replay does not ask these
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
        await cancel_all(first, beside)


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
                return await tried(request)
        except TimeoutError:
            return Refused(no_answer)

    try:
        given = await in_turn(soon, once, most=most, within_s=beside_s, took_s=slice_s, tries=pace.tries)
    except RewardError:
        return None
    return HeldUp(no_answer) if given is None else Answered(given)


async def if_unread(
    known: Ask[Any],
    request: Callable[[], Awaitable[_T]],
    found: _T,
    is_read: Callable[[_T], bool],
    *,
    most: int = ROUNDS,
    took_s: float,
    within_s: float,
) -> _T:
    """A reply that can be read in place of `found`, which cannot; `found` where there is time to ask one at a time.

    A text about which a model writes long would otherwise leave too little time to tell it from a model that writes so
    by chance: several requests are made at once, as many of `known` beside them.

    Raises:
        EndpointError: `is_held`: none of the replies can be read, and those to `known` all can.
    """
    if 2 * (most + 1) * took_s <= within_s or is_read(found):
        return found

    async def again() -> Answered[_T] | Refused | Untold:
        told = await tried(request)
        return Refused("its reply cannot be read") if isinstance(told, Answered) and not is_read(told.value) else told

    rounds = max(1, int(within_s / (2 * took_s)) - 1)
    try:
        with entered("beside"):
            given = await in_turn(known, again, most=most, within_s=within_s, at_once=ceil(most / rounds))
    except RewardError:
        return found
    if given is None:
        raise EndpointError("no reply to it can be read", is_held=True)
    return given


@dataclass(slots=True)
class Felling:
    """What a server fell over of the questions that hold the same material, as those of a group do: what is found out
    of one is known of all. `alone` is held by one at a time, once its request is cut again, until that is found."""

    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    material: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Suspect(Generic[_T]):
    """A request that a server may have fallen over, asked in turn with `known`."""

    known: Ask[Any]
    request: Callable[..., Awaitable[_T]]
    client: Client
    is_known: Callable[[], Awaitable[bool]] | None = None
    cut_s: list[float] = field(default_factory=list)
    """How long it went on each time, before the connection broke."""
    is_counted: bool = False
    """A proxy said that the server went, and it was back soon: it may only refuse some of what it is asked, short or
    long, for having too much to do. So each of `known` counts for one."""
    lost: int = 0
    """How often `known` failed in a row, when the server was last waited for."""
    well_s: float = 0.0
    asked: int = 0
    well: int = 0

    async def is_back(self) -> bool:
        """True once the server answers."""
        for self.lost, wait in enumerate(waits_s()):
            if isinstance(await self.known(), Answered):
                return True
            if wait >= left_s():
                break
            await pause(wait)
        return False

    async def once(self) -> Answered[_T] | Refused | Untold:
        """Its answer; where the connection breaks over it, refused once the server is back.

        Raises EndpointError: it fails by something else, which is told by how often that is, whatever time it takes.
        """
        begun = time.monotonic()
        try:
            async with asyncio.timeout(None if (left := left_s()) == inf else left):
                return Answered(await at_once(self.request))
        except TimeoutError:
            return Untold("there was no more time", is_last=True)
        except EndpointError as error:
            if not error.is_cut and not is_away(error):
                raise
            if not error.is_cut:
                return Untold(str(error))
            self.cut_s.append(time.monotonic() - begun)
            await self.is_back()
            self.is_counted |= error.status is not None and self.lost < _LOST
            return Refused(str(error))

    async def as_long(self) -> Answered[Any] | Refused | Untold:
        """`known`, asked for as long as the request went on before it was cut.

        Others fell the server too, and a long answer meets that more often than a short one. So what counts is time,
        and that no connection breaks in it, whoever asked.
        """
        if not await self.is_back():
            return Untold("the server did not come back")
        begun, before = time.monotonic(), self.client.server.cuts
        while isinstance(tried := await self.known(), Answered) and self.client.server.cuts == before:
            self.asked, seconds = self.asked + 1, time.monotonic() - begun
            if seconds >= max(self.cut_s[-1:], default=0.0):
                self.well_s += seconds
                well = int(self.well_s / max(fmean(self.cut_s or [_LEAST_S]), _LEAST_S))
                well = min(well, self.asked) if self.is_counted else well
                times, self.well = well - self.well, well
                return Answered(None, times)
            await pause(_LEAST_S / 2)  # a server that answers at once would be asked thousands of times
        if isinstance(tried, Refused | Barred):
            return tried
        return Refused("it fell by something else") if isinstance(tried, Answered) else Untold(tried.why)

    async def found(self, line: Known, *, was_cut: bool, most: int) -> _T | None:
        """Its answer; None where the server falls over it each time.

        Raises RewardError: nobody can tell.
        """
        tried: Answered[_T] | Refused | Untold = Untold("")
        while isinstance(tried, Untold):
            if left_s() == 0 or not await self.is_back():
                raise RewardError("the server did not come back")
            await pause(random.uniform(0, _APART_S))
            tried = await self.once()
            if isinstance(tried, Answered):
                return tried.value
            if was_cut:
                break
        if self.is_known is not None and await self.is_known():
            return None
        few, left, tries = _FEWEST_FALLS, left_s(), Known(line.alone)
        return await in_turn(self.as_long, self.once, most=most, within_s=left, is_dear=True, tries=tries, fewest=few)


async def if_felled(
    known: Ask[Any],
    request: Callable[..., Awaitable[_T]],
    error: EndpointError,
    client: Client,
    scope: Scope,
    *,
    most: int = ROUNDS,
    within_s: float | None = None,
    is_known: Callable[[], Awaitable[bool]] | None = None,
) -> _T:
    """The answer to a request that failed with `error`, where it may have felled the server: it broke the connection.
    Where the server is away then, the request is made again once it is back, as are those that found it away for what
    others asked. One over which the connection breaks again is asked in turn with `known`.

    Args:
        known: fails at once where the server is away.
        scope: all who share it and ask for what may have felled the server do so one at a time.
        is_known: asked of a request that was cut again; True where it is known to fell the server.

    Raises:
        EndpointError: `error`, where the server was not away; `is_held`: it fell each time; or nobody can tell.
    """
    line, was_cut = _line(client, scope), error.is_cut
    within_s = tries_s(client) if within_s is None else within_s
    with entered("beside"), running_under(Countdown(within_s)):  # a replay does not ask these
        line.fellers += was_cut  # at once: others find the server away before anybody can say that it is
        try:
            if isinstance(await known(), Answered) if was_cut else not (line.fellers and is_away(error)):
                raise error
            given = await _Suspect(known, request, client, is_known).found(line, was_cut=was_cut, most=most)
        except RewardError as untold:
            raise EndpointError(f"{error}; {untold}") from error
        finally:
            line.fellers -= was_cut
    if given is None:
        raise EndpointError(f"the server fell each time: {error}", is_held=True) from error
    return given


@dataclass(slots=True)
class Room:
    """Asks a server where a limit of rate leaves room: while one bars anybody's requests whoever asks so waits, one at
    a time, since the others have few tries.

    To refuse takes a server no time, and to have many refused costs others theirs: all that is asked of what one
    refuses has one place of `concurrency` (`has_place`), but while it waits, and until it is closed.
    """

    client: Client
    has_place: bool = False
    is_in: bool = False

    def close(self) -> None:
        """Gives the place back."""
        if self.is_in:
            self.client.places.release()
        self.is_in = False

    async def ask(self, request: Callable[..., Awaitable[_T]], **tries: Any) -> _T:
        """The answer to a request; waiting for room counts for no limit.

        Raises EndpointError: it has none, or each time no room.
        """
        for left in range(_YIELDS - 1, -1, -1):
            async with AsyncExitStack() as turn:
                with bounded_by_itself():
                    if time.monotonic() < self.client.barred_until:
                        self.close()
                        await turn.enter_async_context(self.client.yielding)
                    for _ in range(_YIELDS):
                        if time.monotonic() < self.client.barred_until:
                            await pause(random.uniform(0.5, 1.5))
                    if self.has_place and not self.is_in:
                        self.is_in = await self.client.places.acquire()
                try:
                    return await request(**tries)
                except EndpointError as error:
                    if not left or error.status != 429:
                        raise
        raise AssertionError("the last try returns or raises")


async def if_refused(
    known: _Request[Any], very: _Request[_T], room: Room, *, looks: int = 3, took_s: float = 0.0
) -> _T | None:
    """The answer to a request that a server refuses (`has_place`), or else fails at, asked in turn with what is known
    to work, which may fail `looks` times at first, as at a part of a server; None where the very request fails each
    time. What is refused is asked fewer times. Raises RewardError: nobody can tell.
    """
    is_refused, looked = room.has_place, partial(tried, partial(room.ask, known))
    for _ in range(looks):
        if not isinstance(told := await looked(), Refused):
            break
    if isinstance(told, Refused) or (isinstance(told, Untold) and not (is_refused or isinstance(told, Barred))):
        raise RewardError(told.why)
    most, within_s = _REFUSALS if is_refused else ROUNDS, tries_s(room.client)
    again = partial(tried, partial(room.ask, very))
    return await in_turn(looked, again, most=most, within_s=within_s, took_s=took_s)


def line_of(client: Client, scope: Scope) -> Known:
    """Those right behind whose requests the server fails all who share `scope`, in one line with those who fell it."""
    return scope.keep(("fails", client.endpoint.base_url), lambda: Known(_line(client, scope).alone))


def _line(client: Client, scope: Scope) -> Known:
    """Those whose requests were cut twice, or fail beside those of others who share `scope`: one after the other."""
    return scope.keep(("falls", client.endpoint.base_url), lambda: Known(asyncio.Lock()))


def tries_s(client: Client) -> float:
    """As long as the tries of one answer take, but six at least: rounds of a request that hangs need as much."""
    return client.endpoint.timeout_s * max(6, client.endpoint.retries + 1)


async def at_once(request: Callable[..., Awaitable[_T]]) -> _T:
    """One try of a client's request, whatever its endpoint's retries."""
    return await request(retries=0)


def failed(who: str, error: EndpointError, *, is_harmless: bool = False) -> Refused | Untold:
    """What a request without an answer tells: `Refused` where what was asked may have done it.

    One that knows no such key or model for harmless words either, and has answered nothing else, is asked no more.
    """
    why = f"{who}: {error}"
    if error.is_held:
        return HeldUp(why)
    is_clear = is_harmless and error.is_unknown
    is_of_text = error.is_garbled or error.is_late or error.is_cut or error.status is not None
    return Refused(why) if is_of_text and not is_clear else Untold(why, is_last=True)


async def tried(request: Callable[[], Awaitable[_T]]) -> Answered[_T] | Refused | Untold:
    """What a request tells of what it asks: nothing where nobody was there to have it, had room or was paid for it."""
    try:
        return Answered(await request())
    except EndpointError as error:
        is_told = error.is_garbled or error.is_late or error.status not in BARRED
        return (Refused if is_told else Barred if error.status == 429 else Untold)(str(error))
