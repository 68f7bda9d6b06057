"""Episodes that are held for clients over HTTP, each under an id for its driver and a key for its agent.

    POST   /episodes             {"task": 3, "split": "test", "seed": 7}      opens one: its prompt, tools and addresses
    GET    /episodes/ID                                                       what has become of it
    POST   /episodes/ID/finish   {"answer": "…"} or {"transcript": [ … ]}     scores it; asked again, it says the same
    DELETE /episodes/ID                                                       gives it up: an invalid reward (`client`)
    GET    /health                                                            how many are open

The driver starts an agent and is told the reward. The agent has the key alone, in its addresses: with it nothing can be
opened, ended or read, and no other episode be reached.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from rlenv.episodes.environment import Environment
from rlenv.episodes.tool_session import ToolSession
from rlenv.errors import UsageError
from rlenv.hosts.http import answer, guard_requests, is_local, json_of
from rlenv.messages import Message, ToolCall
from rlenv.secrets import logger
from rlenv.trajectory import Trajectory

_LOOK_S: Final = 1.0
STOPPED: Final = "the server was stopped before the episode had ended"
_log = logger("rlenv.hosts")
Keep = Callable[["Held", Trajectory], None]


def refusal(status: int, message: str, **more: Any) -> web.Response:
    """An answer that says what is wrong, in the form of OpenAI's errors."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return answer({"error": {"message": message, "type": kind, **more}}, status=status)


def guard_of(host: str, token: str, *, is_free: Callable[[web.Request], bool]) -> Any:
    """The middleware of a server at an address whose driver has a token; `is_free` is true for an agent's requests."""
    return guard_requests(
        token,
        is_local_only=is_local(host),
        is_free=lambda request: request.path == "/health" or is_free(request),  # for balancers
        refusal=refusal,
        status_of=lambda error: 503 if isinstance(error, Full) else 404 if isinstance(error, Unknown) else 400,
    )


@dataclass(slots=True, eq=False)
class Held:
    """One episode that is held: `id` is the driver's name of it, `key` the agent's.

    `trajectory` is its record once it has ended; `aside` is what the server keeps beside it.
    """

    session: ToolSession
    touched: float
    aside: Any = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    trajectory: Trajectory | None = None
    is_closing: bool = False
    made: list[ToolCall] = field(default_factory=list)
    """The calls that the agent has made, each with an id of its own."""
    busy: int = 0
    """Requests of the agent that are being answered."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_over(self) -> bool:
        """True once nothing that the agent does counts any more."""
        return self.is_closing or self.session.is_over


class Desk:
    """The episodes of one environment that clients hold; entered with `async with`.

    Args:
        most: how many may be open at once.
        idle_s: an episode that nobody has asked anything of for so long is left (`leave`); and one that has ended is
            forgotten.
        keep: called once with each episode that has ended.
        scored: the transcript of an episode whose driver gives none, as the server has seen it, with an answer of the
            driver's at its end; it is None where the agent has done nothing and there is no answer. Without it what
            `finish` is given counts alone.
        aside: makes what is kept beside each episode.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        most: int = 1000,
        idle_s: float = 900.0,
        keep: Keep = lambda held, trajectory: None,
        scored: Callable[[Held, str | None], Awaitable[Sequence[Message] | None]] | None = None,
        aside: Callable[[], Any] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environment, self.most, self.idle_s, self.now = environment, most, idle_s, clock
        self._keep, self._scored, self._aside = keep, scored, aside
        self._by_id: dict[str, Held] = {}
        self._by_key: dict[str, Held] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._opening = 0

    async def __aenter__(self) -> Desk:
        self._reaper = asyncio.create_task(self._keep_reaping())
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaper
        for held in list(self._by_id.values()):
            await self.leave(held, gives_up="stopped", why=STOPPED)

    @property
    def open(self) -> int:
        """The number of episodes that have not ended."""
        return self._opening + sum(held.trajectory is None for held in self._by_id.values())

    async def start(self, *, task: Any = 0, split: Any = None, seed: Any = None) -> Held:
        """Opens an episode.

        Raises:
            UsageError: no such split or row, a simulated user, or too many are open.
        """
        if self.open >= self.most:
            raise Full(f"{self.most} episodes are open; finish one, or come back later")
        if type(task) is not int and not isinstance(task, Mapping):
            raise UsageError(f"task: found {task!r:.60}; expected a row's number")
        if (split is not None and not isinstance(split, str)) or (seed is not None and type(seed) is not int):
            raise UsageError("split is a name, and seed a whole number")
        held = Held(ToolSession(self.environment, task=task, split=split, seed=seed), self.now(), self._aside())
        self._opening += 1
        try:
            await held.session.open()
        finally:
            self._opening -= 1
        self._by_id[held.id] = self._by_key[held.key] = held
        return held

    def get(self, id: str) -> Held:
        """The episode with an id.

        Raises:
            UsageError: there is none.
        """
        return self._touch(self._by_id, id)

    def at(self, key: str) -> Held | None:
        """The episode with an agent's key; None where there is none."""
        return self._touch(self._by_key, key) if key in self._by_key else None

    def _touch(self, held_by: Mapping[str, Held], name: str) -> Held:
        held = held_by.get(name)
        if held is None:
            raise Unknown(
                f"there is no episode '{name[:60]}'; one that nobody asks is forgotten after {self.idle_s:g} s"
            )
        held.touched = self.now()
        return held

    async def finish(self, held: Held, said: str | Sequence[Any] | None = None) -> Trajectory:
        """Scores an episode once; whoever asks again is told the same.

        Args:
            said: as `ToolSession.finish` takes it; None for what the server has seen itself. Where that is nothing at
                all there is nothing to score: the reward is invalid (`client`).

        Raises:
            UsageError: the transcript is none.
        """
        async with held.lock:
            if held.trajectory is None:
                held.is_closing = True
                if said is None or isinstance(said, str):
                    said = await self._scored(held, said) if self._scored is not None else said or []
                try:
                    if said is None and not held.session.is_over:
                        held.session.episode.fail(
                            "client", "the agent has asked nothing of its model, and called no tool"
                        )
                    self._end(held, await held.session.finish(said or []))
                except UsageError:
                    held.is_closing = False
                    raise
        assert held.trajectory is not None
        return held.trajectory

    async def leave(self, held: Held, *, gives_up: str = "", why: str = "") -> Trajectory:
        """Ends an episode whose client has gone: one that the server has a transcript of, or that a call of the agent's
        has ended, is scored; any other has an invalid reward (`client`).

        Args:
            gives_up: the reason of an invalid reward in any case where it has not ended yet, and `why` in words.
        """
        if held.session.is_over or (self._scored is not None and not gives_up):
            return await self.finish(held)
        async with held.lock:
            if held.trajectory is None:
                held.is_closing = True
                told = why or "the client left before it had finished the episode"
                trajectory = held.session.episode.fail(gives_up or "client", told)
                await held.session.aclose()
                self._end(held, trajectory)
        assert held.trajectory is not None
        return held.trajectory

    def _end(self, held: Held, trajectory: Trajectory) -> None:
        held.trajectory, held.touched = trajectory, self.now()
        if (failure := trajectory.failure) is not None:  # an agent is told its word alone
            _log.warning("episode %s: %s: %s", held.id, failure.reason, failure.message)
        self._keep(held, trajectory)

    async def _keep_reaping(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_S, self.idle_s / 4))
            await self.reap()

    async def reap(self) -> None:
        """Leaves the episodes that nobody asks anything of, and forgets those that have ended as long ago."""
        last = self.now() - self.idle_s
        left: list[Held] = []
        for held in [held for held in self._by_id.values() if held.touched <= last]:
            if held.busy and held.touched > last - held.session.episode.limits.episode_s:
                continue  # a call may take as long; whoever reads no answer does not keep the episode open for ever
            if held.trajectory is None:
                left.append(held)
            else:
                del self._by_id[held.id], self._by_key[held.key]
        # At once: a judge that is slow keeps none of the others open.
        for error in await asyncio.gather(*[self.leave(held) for held in left], return_exceptions=True):
            if isinstance(error, Exception):  # the boundary: the others are ended all the same
                _log.error("an episode could not be ended", exc_info=error)

    # The driver's routes

    def routes(self, described: Callable[[web.Request, Held], dict[str, Any]]) -> list[web.RouteDef]:
        """The routes of the driver.

        Args:
            described: what the server says of an episode beside its outcome: addresses of one that was opened, the rows
                of one that has ended.
        """

        async def begin(request: web.Request) -> web.Response:
            asked = await json_of(request)
            if unknown := asked.keys() - {"task", "split", "seed"}:
                raise UsageError(f"unknown: {', '.join(sorted(unknown))[:200]}; expected task, split, seed")
            held = await self.start(**asked)
            messages = [message.as_dict() for message in held.session.episode.messages]
            tools = list(held.session.tools)
            told = {"episode": held.id, "messages": messages, "tools": tools, **described(request, held)}
            return answer(told, status=201)

        async def look(request: web.Request) -> web.Response:
            held = self.get(request.match_info["id"])
            return answer({"episode": held.id, **self._outcome_of(held), **described(request, held)})

        async def finish(request: web.Request) -> web.Response:
            held, asked = self.get(request.match_info["id"]), await json_of(request)
            if asked.keys() - {"answer", "transcript"} or len(asked) > 1:
                raise UsageError("expected {answer: TEXT}, {transcript: [messages]} or {}")
            said = asked.get("answer", asked.get("transcript"))
            if not isinstance(said, str | list | None):
                raise UsageError(f"found a {type(said).__name__}; expected a text or a list of messages")
            await self.finish(held, said)
            return answer({"episode": held.id, **self._outcome_of(held), **described(request, held)})

        async def leave(request: web.Request) -> web.Response:
            await self.leave(held := self.get(request.match_info["id"]), gives_up="client", why="it was given up")
            return answer({"episode": held.id, **self._outcome_of(held)})

        async def health(request: web.Request) -> web.Response:
            return answer({"status": "healthy", "episodes": self.open, "most": self.most})

        one = "/episodes/{id}"
        named = [web.post("/episodes", begin), web.get(one, look), web.delete(one, leave), web.get("/health", health)]
        return [*named, web.post(f"{one}/finish", finish)]

    def _outcome_of(self, held: Held) -> dict[str, Any]:
        return {"is_ended": False} if held.trajectory is None else {"is_ended": True, **held.trajectory.outcome()}


class Full(UsageError):
    """No more episodes may be open."""


class Unknown(UsageError):
    """There is no episode of that name."""
