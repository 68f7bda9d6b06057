"""The place that a request to the outside comes from, and the tape that keeps its answer or gives it again.

Whatever leaves the process asks `here()` first. Without a tape that is None, and nothing else is done. With one, a
request is looked up, answered by the tape or made, and what came of it is handed to the tape; above retries, so that
one entry is what the episode saw.

A lane is the place of a request in its episode (`turn 3 call 1`, `term correct judge 0`), never the order in which
requests were made: episodes that run at once cannot take each other's answers. It is carried by a context variable,
so that a task inherits the lane of whoever started it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rlenv.errors import CassetteError

__all__ = ["POLICY", "Event", "Heard", "Kept", "Lane", "Tape", "check_going_out", "entered", "heard_again", "hearing"]
__all__ += ["here", "offline", "said_again", "through"]

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
Sleep = Callable[[float], Awaitable[object]]
POLICY: Final = "policy "
"""The beginning of the place of a policy's request."""


class Event(NamedTuple):
    """A request and its answer, both JSON: as it is asked, as a tape answers it, and as a run keeps it.

    Whoever asks says what is asked, the tape where and when that is, and whoever answers what came of it.

    `request` is what decides the answer: no address, no header, no key, no id of a call, nothing that is drawn anew for
    each request. `echo` is such a thing where the answer repeats it, as a judge does its nonce: a tape writes the new
    one over the old. `is_shared` is true where equal requests may be answered alike wherever they are asked;
    `is_local`, which no run keeps, where nothing leaves the process.

    `content` is the digest of `request`, and `ordinal` counts the equal ones of a place, from 0. A run keeps `request`
    for people: long texts in it are cut, and it is None where another episode had asked.

    `outcome` is "" before there is an answer, then `ok` or `failed`, for which `response` holds the answer or the
    failure that `reason` names; `refused`, which cannot be given again; or `cancelled`, whose end nobody waited for,
    because a request beside it failed, or a limit of time had passed: a replay waits as long then.

    `started` is in seconds since the epoch. `seconds` is how long it took; from a tape, how long `through` waits.
    `lock` is what made the request.
    """

    place: str = ""
    ordinal: int = 0
    content: str = ""
    kind: str = ""
    name: str = ""
    request: Any = None
    outcome: str = ""
    reason: str = ""
    response: Any = None
    echo: str = ""
    is_shared: bool = False
    started: float = 0.0
    seconds: float = 0.0
    lock: str = ""
    is_local: bool = False

    def ended(self, outcome: str, response: Any = None, reason: str = "") -> Event:
        """The event with its outcome and its response."""
        return self._replace(outcome=outcome, response=response, reason=reason)


def said_again(event: Event, again: Callable[[Event], _T]) -> _T:
    """The recorded answer as the caller had it, an exception included.

    Raises:
        CassetteError: it could not be kept, or is none of its kind; and whatever `again` raises.
    """
    if event.outcome == "refused":
        raise CassetteError(f"{event.place}: the tape has no result of {event.name}: {event.reason}")
    try:
        return again(event)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{event.place}: what the tape has of {event.name} is no answer of its kind"
        raise CassetteError(f"{what}: {type(error).__name__}: {error}".splitlines()[0]) from error


async def through(
    lane: Lane,
    asked: Event,
    make: Callable[[], Awaitable[_T]],
    *,
    again: Callable[[Event], _T],
    kept: Callable[[Event, _T], Event],
    failed: Callable[[Event, BaseException], Event | None],
) -> _T:
    """The answer to a request: from the tape, or made and then recorded. All requests that may be awaited go this way.

    Args:
        again: what a recorded answer is to whoever asked, or raises.
        kept: the event with what was given, and `failed` with what was raised, None where the tape keeps nothing.

    Raises:
        CassetteError: the tape has no answer and nobody may be asked, or has one that is none of its kind.
    """
    event = lane.tape.look(lane, asked)
    if event.outcome:
        if event.outcome == "cancelled":
            await asyncio.get_running_loop().create_future()
        if event.seconds and lane.tape.sleep is not None:
            await lane.tape.sleep(event.seconds)
        return said_again(event, again)
    try:
        found = await make()
    except (CassetteError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if (ending := failed(event, error)) is not None:
            lane.tape.keep(lane, ending)
        raise
    lane.tape.keep(lane, kept(event, found))
    return found


class Tape(Protocol):
    """Keeps answers, or gives them again; see `rlenv.runs.cassettes`. For one event loop.

    `is_offline` is true where nothing may leave the process but what is let out, `wants_local` where what nothing
    leaves the process for is kept or answered too. `sleep` waits for the time of a recorded answer; without it each is
    given at once, and its `seconds` are 0.
    """

    is_offline: bool
    wants_local: bool
    sleep: Sleep | None

    def look(self, lane: Lane, asked: Event) -> Event:
        """The request at its place, with the next answer to it; without an outcome where it has to be made.

        Raises:
            CassetteError: the tape has none, and nothing may be asked.
        """
        ...

    def keep(self, lane: Lane, event: Event) -> None:
        """Takes what came of a request that had to be made."""
        ...

    def copy_heard(self, lane: Lane, heard: Heard) -> None:
        """Takes for a lane what another one had asked, whose result it is given."""
        ...

    def lets_out(self, tool: str) -> bool:
        """True where a tool's requests are made all the same; of "", the policy's."""
        ...

    def missed_request(self, episode: str) -> str:
        """The request of an episode that the tape had no answer to, "" where there was nothing."""
        ...


Heard = list[Any]
"""JSON of what was asked and answered in a block, for a cache to keep beside its result."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A place in an episode; `place` is "" at its root. Requests of one that `is_live` are made, whatever the tape has.

    `episode` names the episode on the tape, "" before there is one. `ears` are those who hear what is asked in it, each
    with the length of the place that it began at.
    """

    tape: Tape
    episode: str
    place: str = ""
    is_live: bool = False
    ears: tuple[tuple[int, Heard], ...] = ()

    def at(self, place: str, *, is_live: bool = False) -> Lane:
        """A place inside of this one."""
        whole = f"{self.place} {place}" if self.place else place
        return replace(self, place=whole, is_live=self.is_live or is_live)


_lane: Final[ContextVar[Lane | None]] = ContextVar("rlenv_lane", default=None)
_offline = 0

here: Final = _lane.get
"""The lane of the task that asks, None without a tape."""


class entered:
    """Makes `lane` the one of a block, and of the tasks that it starts; None changes nothing. A text names a place
    inside of the lane that there is, if there is one.
    """

    __slots__ = ("_lane", "_token")

    def __init__(self, lane: Lane | str | None) -> None:
        if isinstance(lane, str):
            lane = around.at(lane) if (around := here()) is not None else None
        self._lane = lane

    def __enter__(self) -> None:
        self._token = None if self._lane is None else _lane.set(self._lane)

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            _lane.reset(self._token)


@contextmanager
def hearing() -> Iterator[Heard]:
    """The answers heard in the block, for a result that is kept for others: each episode has those that it stands on.

    Who is given the result says so with `heard_again`.
    """
    lane, heard = _lane.get(), Heard()
    with entered(lane and replace(lane, ears=(*lane.ears, (len(lane.place), heard)))):
        yield heard


def heard_again(heard: Heard) -> None:
    """Tells the tape, of the lane of this task, what a result stands on that was kept."""
    if heard and (lane := _lane.get()) is not None:
        lane.tape.copy_heard(lane, heard)


class Kept(Generic[_K, _T]):
    """The `size` results that were asked for last, by key, shared by all episodes of a process.

    Callers that ask at once share one request. A failure is never kept, nor a result that `is_good` is false of: one
    caller's failure or cancellation is not another's.
    """

    def __init__(self, size: int, *, is_good: Callable[[_T], bool] = lambda result: True) -> None:
        self._size = size
        self._is_good = is_good
        self._known: OrderedDict[_K, tuple[_T, Heard]] = OrderedDict()
        self._running: dict[tuple[_K, asyncio.AbstractEventLoop], asyncio.Future[tuple[_T, Heard] | None]] = {}

    async def get(self, key: _K, ask: Callable[[], Awaitable[_T]]) -> tuple[_T, bool]:
        """The result, and whether it was known or asked for already; raises what `ask` raises."""
        place = (key, asyncio.get_running_loop())
        while (known := self._known.get(key)) is None:
            running = self._running.get(place)
            if running is None:
                return await self._first(key, place, ask), False
            # Shielded: this caller's cancellation must not reach the others that wait for the same result.
            if (known := await asyncio.shield(running)) is not None:
                break
        else:
            with suppress(KeyError):  # another thread may have dropped it in between; what is in hand stays right
                self._known.move_to_end(key)
        heard_again(known[1])
        return known[0], True

    def drop(self, key: _K) -> None:
        """Forgets a result."""
        self._known.pop(key, None)

    async def _first(
        self, key: _K, place: tuple[_K, asyncio.AbstractEventLoop], ask: Callable[[], Awaitable[_T]]
    ) -> _T:
        shared = self._running[place] = place[1].create_future()
        known: tuple[_T, Heard] | None = None
        try:
            with hearing() as heard:
                result = await ask()
            known = (result, heard) if self._is_good(result) else None
        finally:
            del self._running[place]
            shared.set_result(known)  # None tells those who wait to ask for themselves
        if known is not None:
            self._known[key] = known
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return result


@contextmanager
def offline() -> Iterator[None]:
    """Lets nothing out of the process that is not let out by its lane, from whatever task or thread it comes."""
    global _offline
    _offline += 1
    try:
        yield
    finally:
        _offline -= 1


def check_going_out(what: str) -> None:
    """Asked by whoever is about to open a connection or to start a server.

    Raises:
        CassetteError: a run is replayed, and nothing may be asked.
    """
    lane = _lane.get()
    if lane is None:
        if not _offline:
            return
    elif lane.is_live or not lane.tape.is_offline:
        return
    raise CassetteError(f"{what} was about to be asked, and a replay asks nobody")
