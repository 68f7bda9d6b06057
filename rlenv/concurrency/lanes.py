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
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from rlenv.errors import CassetteError

__all__ = ["POLICY", "Answer", "Asked", "Heard", "Kept", "Lane", "Slot", "Tape", "check_going_out", "entered", "given"]
__all__ += ["heard_again", "hearing", "here", "offline", "said_again", "through"]

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
POLICY: Final = "policy "
"""What the place of a policy's request begins with."""
Outcome = Literal["ok", "failed", "refused", "cancelled"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a tape knows it.

    `content` is what decides the answer, as JSON: no address, no header, no key, no id of a call, nothing that is drawn
    anew for each request. `echo` is such a thing where the answer repeats it, as a judge does its nonce: a tape writes
    the new one over the old. `is_shared` is true where equal content may be answered alike wherever it is asked;
    `is_local` where nothing leaves the process.
    """

    kind: str
    name: str
    content: Any
    echo: str = ""
    is_shared: bool = False
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: `response` is JSON of the answer, or of the failure that `reason` names.

    `refused` is one that cannot be given again; `cancelled` one that nobody waited for to its end, because a request
    beside it failed, or a limit of time had passed: `given` waits as long then. `seconds` is how long a recorded one
    took.
    """

    outcome: Outcome
    response: Any = None
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A request's place on a tape. `answer` is None where it has to be made, and `Tape.keep` is told what came of it.

    `started` is on the clock of `time.time()`; `sleep` waits for the time of a recorded answer, None where it is given
    at once.
    """

    lane: Lane
    asked: Asked
    content: str
    ordinal: int
    started: float
    answer: Answer | None = None
    sleep: Callable[[float], Awaitable[object]] | None = None

    @property
    def seconds(self) -> float:
        """The seconds that `given` waits for the answer."""
        return self.answer.seconds if self.answer is not None and self.sleep is not None else 0.0


async def given(slot: Slot) -> Answer | None:
    """The answer of a slot, which may be that there never was one."""
    if slot.answer is not None and slot.answer.outcome == "cancelled":
        await asyncio.get_running_loop().create_future()
    if slot.sleep is not None and slot.seconds:
        await slot.sleep(slot.seconds)
    return slot.answer


def said_again(slot: Slot, answer: Answer, again: Callable[[Slot, Answer], _T]) -> _T:
    """The recorded answer as the caller had it, an exception included.

    Raises:
        CassetteError: it could not be kept, or is none of its kind; and whatever `again` raises.
    """
    name, place = slot.asked.name, slot.lane.place
    if answer.outcome == "refused":
        raise CassetteError(f"{place}: the tape has no result of {name}: {answer.reason}")
    try:
        return again(slot, answer)
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CassetteError(f"{place}: what the tape has of {name} is no answer of its kind: {why}") from error


async def through(
    lane: Lane,
    asked: Asked,
    make: Callable[[], Awaitable[_T]],
    *,
    again: Callable[[Slot, Answer], _T],
    kept: Callable[[_T], Answer],
    failed: Callable[[BaseException], Answer | None],
) -> _T:
    """The answer to a request: from the tape, or made and then recorded. All requests that may be awaited go this way.

    Args:
        again: what a recorded answer is to whoever asked, or raises.
        kept: what the tape keeps of what was given, and `failed` of what was raised, None for nothing.

    Raises:
        CassetteError: the tape has no answer and nobody may be asked, or has one that is none of its kind.
    """
    slot = lane.tape.look(lane, asked)
    if (answer := await given(slot)) is not None:
        return said_again(slot, answer, again)
    try:
        found = await make()
    except (CassetteError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if (ending := failed(error)) is not None:
            lane.tape.keep(slot, ending)
        raise
    lane.tape.keep(slot, kept(found))
    return found


class Tape(Protocol):
    """Keeps answers, or gives them again; see `rlenv.runs.cassettes`. For one event loop."""

    @property
    def is_offline(self) -> bool:
        """True where nothing may leave the process but what is let out."""
        ...

    @property
    def wants_local(self) -> bool:
        """True where what nothing leaves the process for is kept or answered too."""
        ...

    def look(self, lane: Lane, asked: Asked) -> Slot:
        """The next answer to a request, or that it has to be made.

        Raises:
            CassetteError: the tape has none, and nothing may be asked.
        """
        ...

    def keep(self, slot: Slot, answer: Answer) -> None:
        """Takes what came of a request that had to be made."""
        ...

    def copied(self, lane: Lane, heard: Heard) -> None:
        """Takes for a lane what another one had asked, whose result it is given."""
        ...

    def lets_out(self, tool: str) -> bool:
        """True where a tool's requests are made all the same; of "", the policy's."""
        ...

    def missed(self, episode: str) -> str:
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
    """Makes `lane` the one of a block, and of the tasks that it starts; None changes nothing."""

    __slots__ = ("_lane", "_token")

    def __init__(self, lane: Lane | None) -> None:
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
        lane.tape.copied(lane, heard)


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
