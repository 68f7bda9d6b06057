"""`rlenv serve`: environments behind OpenEnv's wire, a socket an episode, and behind HTTP for those without one.

    GET  /ws                        an episode at a time; `rlenv.hosts.wire` has the messages
    GET  /health                    healthy or draining, sessions and slots; open without the token, for balancers
    GET  /metadata /schema /openapi.json /card
    GET  /list_environments, /NAME/splits; POST /NAME/tasks, num_tasks, task, task_range
    POST /mcp                       JSON-RPC: an episode's tools (`rlenv.hosts.http_sessions`)
    POST /reset /step /close        NeMo Gym's gymnasium agent (the same)

The first spec stands at the root, and each under /env/NAME. A client is bounded before it is believed: how many there
are, how long a message is, how many wait unanswered, how long a client may be silent, slow or half open.
"""

from __future__ import annotations

import asyncio
import mmap
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiohttp import WSCloseCode, web

from rlenv import __version__
from rlenv.episodes.environment import Environment
from rlenv.hosts import wire
from rlenv.hosts.conversation import ENDING, ServedSocket
from rlenv.hosts.http import answer, guard_requests, json_of
from rlenv.hosts.session import Session

if TYPE_CHECKING:
    from rlenv.hosts.http_sessions import HttpSessions


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of a server.

    `sessions` are open at once in one process; one more waits `queue_s` seconds for a slot. A session without a message
    for `idle_s` seconds is closed. A peer that does not answer a ping within `heartbeat_s` is gone, and one that does
    not read its answer within `send_s` too. On SIGTERM running episodes have `drain_s` seconds. `message_bytes` bounds
    what a client sends.
    """

    sessions: int = 1_024
    queue_s: float = 0.0
    idle_s: float = 3_600.0
    drain_s: float = 30.0
    heartbeat_s: float = 20.0
    send_s: float = 30.0
    message_bytes: int = 16 << 20


ACTIVE, WAITING, EPISODES, UP = range(_COUNTS := 4)
"""Places in the counts of a process: open sessions, clients that wait, episodes opened, 1 once it serves."""


class Board:
    """The counts of all processes at one address, in memory that they share: a balancer's question reaches only one.

    Args:
        file: a file of `size_of(workers)` bytes that the others have open too; None for a process alone.
        number: which of them this is, from 0.
    """

    def __init__(self, file: int | None = None, *, number: int = 0, workers: int = 1) -> None:
        self.number, self.workers, self.is_shared = number, workers, file is not None
        self._counts = memoryview(mmap.mmap(-1 if file is None else file, self.size_of(workers))).cast("q")

    @staticmethod
    def size_of(workers: int) -> int:
        """The bytes that the counts of so many workers take."""
        return workers * _COUNTS * 8

    def add(self, kind: int, change: int = 1) -> None:
        """Adds to a count of this process."""
        self._counts[self.number * _COUNTS + kind] += change

    def own(self, kind: int) -> int:
        """A count of this process."""
        return self._counts[self.number * _COUNTS + kind]

    def total(self, kind: int) -> int:
        """A count of all processes."""
        return sum(self._counts[kind::_COUNTS].tolist())

    def clear(self, number: int) -> None:
        """Takes away what a process that has ended had open; its episodes stay counted."""
        for kind in (ACTIVE, WAITING, UP):
            self._counts[number * _COUNTS + kind] = 0


class Slots:
    """Places for sessions, first come first served."""

    def __init__(self, most: int, board: Board | None = None) -> None:
        self.most, self._board = most, board or Board()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def active(self) -> int:
        """The number of places that are taken."""
        return self._board.own(ACTIVE)

    @property
    def waiting(self) -> int:
        """The number of sessions that wait for a place."""
        return sum(not one.done() for one in self._waiting)

    async def take(self, wait_s: float) -> bool:
        """True once there is a place, False where there was none for `wait_s` seconds, or as many wait as have one."""
        if self.active < self.most:
            self._board.add(ACTIVE)
            return True
        if wait_s <= 0 or self.waiting >= self.most:
            return False
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._board.add(WAITING)
        try:
            await asyncio.wait([place], timeout=wait_s)  # wait_for may give a result in place of the cancellation
        except asyncio.CancelledError:
            if not place.cancel():  # given in the same moment
                self.free()
            raise
        finally:
            self._board.add(WAITING, -1)
        return not place.cancel()

    def free(self) -> None:
        """Gives a place back, to who has waited longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._board.add(ACTIVE, -1)


@dataclass(eq=False)
class Server:
    """Some environments as a web application, with the sessions that are open.

    Args:
        environments: by name, the first at the root too.
        token: what clients have to show as `Authorization: Bearer` or `?token=`; "" for whoever is on this machine.
        is_open: True lets whoever reaches the server play without a token, by any name of the machine.
        board: the counts of all processes that take requests at the same address; where there are several, there are
            no sessions over HTTP, whose requests would come to any of them.

    Raises:
        UsageError: a spec cannot be served (`rlenv.hosts.wire.card_of`).
    """

    environments: Mapping[str, Environment]
    limits: ServerLimits = ServerLimits()
    token: str = ""
    board: Board = field(default_factory=Board)
    is_open: bool = False
    is_draining: bool = False
    slots: Slots = field(init=False)
    conversations: set[ServedSocket] = field(default_factory=set)
    cards: dict[str, Mapping[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.limits.sessions, self.board)
        self.cards = {name: wire.card_of(environment) for name, environment in self.environments.items()}

    def application(self, held: HttpSessions) -> web.Application:
        """The application, to be run by aiohttp.

        Args:
            held: the sessions of clients without a socket.
        """
        guard = guard_requests(
            self.token,
            is_local_only=not self.token and not self.is_open,
            is_free=lambda request: request.path.endswith("/health"),
            refusal=lambda status, text: answer({"detail": text}, status=status),
            status_of=lambda error: 422,
        )
        app = web.Application(client_max_size=self.limits.message_bytes, middlewares=[guard])
        asked = {
            "ws": self._socket, "health": self._health, "metadata": self._metadata, "card": self._card,
            **{path: _always_answer(value) for path, value in _SAID.items()},
        }  # fmt: skip
        for prefix in ("", *(f"/env/{name}" for name in self.environments)):
            named = [web.get(f"{prefix}/{path}", answers) for path, answers in asked.items()]
            app.router.add_routes([*named, *held.routes(prefix)])
        app.router.add_get("/list_environments", self._names)
        app.router.add_get("/{name}/splits", self._splits)
        app.router.add_post("/{name}/{asked:tasks|num_tasks|task|task_range}", self._tasks)
        app.on_cleanup.append(held.aclose)
        app.on_cleanup.append(self._aclose)
        return app

    def named(self, request: web.Request) -> str:
        """The environment that a request is for.

        Raises:
            HTTPNotFound: there is none of that name.
        """
        name = request.match_info.get("name")
        if name is None:
            parts = request.path.split("/")
            name = parts[2] if request.path.startswith("/env/") else next(iter(self.environments))
        if name not in self.environments:
            raise web.HTTPNotFound(text=f"there is no environment '{name[:80]}'; see /list_environments")
        return name

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        environment = self.environments[self.named(request)]
        self.refuse_if_draining()
        limits = self.limits
        # Sessions that a trainer opens at once would be pinged in one pass of the loop: 3,000 pings hold it for 0.2 s.
        beat_s = limits.heartbeat_s * random.uniform(0.5, 1.0)
        socket = web.WebSocketResponse(heartbeat=beat_s, max_msg_size=limits.message_bytes, compress=False, timeout=2.0)
        await socket.prepare(request)
        conversation = ServedSocket(self, Session(environment), socket, request.transport)
        self.conversations.add(conversation)
        try:
            await conversation.run()
        finally:
            self.conversations.discard(conversation)
        return socket

    def note_opened(self) -> None:
        """Counts an episode that was opened."""
        self.board.add(EPISODES)

    def refuse_if_draining(self) -> None:
        """Raises HTTPServiceUnavailable once the server is about to end."""
        if self.is_draining:
            raise web.HTTPServiceUnavailable(text=f"{ENDING}; ask another one, or this one later")

    async def drain(self) -> None:
        """Takes no new session, lets running episodes end within `drain_s` seconds, and ends the others as invalid."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.drain_s
        while self.conversations and loop.time() < until:
            await self._close([one for one in self.conversations if one.is_between], ENDING)
            await asyncio.sleep(0.05)
        await self._close(self.conversations, "the server has ended")

    async def _close(self, conversations: Sequence[ServedSocket] | set[ServedSocket], why: str) -> None:
        await asyncio.gather(*[one.close(WSCloseCode.GOING_AWAY, why) for one in list(conversations)])

    async def _aclose(self, app: web.Application) -> None:
        for environment in self.environments.values():
            await environment.aclose()

    async def _health(self, request: web.Request) -> web.Response:
        board, word = self.board, "draining" if self.is_draining else "healthy"
        state = {
            "active_sessions": board.total(ACTIVE),
            "max_sessions": board.workers * self.slots.most,
            "waiting": board.total(WAITING),
            "episodes": board.total(EPISODES),
        }
        return answer({"status": word, **state}, status=503 if self.is_draining else 200)

    async def _metadata(self, request: web.Request) -> web.Response:
        spec = self.environments[self.named(request)].spec
        described = spec.description or f"{spec.name}, an environment of rlenv"
        return answer({"name": spec.name, "description": described, "version": f"{spec.version}", "rlenv": __version__})

    async def _card(self, request: web.Request) -> web.Response:
        return answer(self.cards[self.named(request)])

    async def _names(self, request: web.Request) -> web.Response:
        return answer(list(self.environments))

    async def _splits(self, request: web.Request) -> web.Response:
        splits = self.cards[self.named(request)]["splits"]
        return answer([{"name": name, "num_tasks": held["size"]} for name, held in splits.items()])

    async def _tasks(self, request: web.Request) -> web.Response:
        """The task API: rows by their addresses alone, since they hold the answers."""
        name, asked = self.named(request), request.match_info["asked"]
        body = await json_of(request)
        splits = self.cards[name]["splits"]
        split = body.get("split") or next(iter(splits))
        if split not in splits:
            raise web.HTTPNotFound(text=f"there is no split '{split!s:.80}'; there are {', '.join(splits)}")
        size = splits[split]["size"]
        if asked == "num_tasks":
            return answer({"num_tasks": size})
        at, start, stop = (body.get(key, 0) for key in ("index", "start", "stop"))
        stop = size if asked == "tasks" or stop is None else stop
        if not all(isinstance(one, int) and 0 <= one <= size for one in (at, start, stop)) or at >= size:
            raise web.HTTPBadRequest(text=f"the split '{split}' has tasks 0 to {size - 1}")
        if asked == "task":
            return answer({"task": {"split": split, "task": at}})
        found = [{"split": split, "task": index} for index in range(start, min(stop, start + 100_000))]
        return answer({"tasks": found, "env_name": name})


def _always_answer(value: Mapping[str, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def say(request: web.Request) -> web.Response:
        return answer(value)

    return say


_DONE: Final = {"responses": {"200": {"description": "JSON"}}}
_PATHS: Final = {"get": ("/health", "/metadata", "/schema", "/state"), "post": ("/reset", "/step", "/mcp")}
_SAID: Final[Mapping[str, Any]] = {
    "schema": wire.SCHEMAS,
    "state": {"episode_id": None, "step_count": 0},  # of a request without a socket, as with OpenEnv
    "openapi.json": {
        "openapi": "3.1.0",
        "info": {"title": "rlenv serve", "version": "1.0.0"},
        "paths": {path: {method: _DONE} for method, paths in _PATHS.items() for path in paths},
    },
}
"""The answers that are the same whatever is served."""
