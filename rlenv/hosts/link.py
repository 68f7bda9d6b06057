"""The client's side of an episode that a server plays: its connection, and what is asked over it, in order."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from rlenv._base.strict_json import MOST_BEYOND_JSON
from rlenv.endpoints import body_within
from rlenv.episodes.episode import Episode
from rlenv.errors import EpisodeError, UsageError, told_as
from rlenv.hosts import wire

if TYPE_CHECKING:
    from rlenv.hosts.remote import RemoteEnvironment

REASON: Final = "remote"
"""Why an episode ended whose server did not answer, or had forgotten it."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
CARD_S: Final = 30.0
_START_S: Final = 20.0
_IDLE_S: Final = 10.0
"""A connection without an episode is kept so long: it has a place of the server's."""
_BEAT_S: Final = 20.0
_BEYOND_S: Final = 30.0
"""A step is waited for so much longer than the spec's own limits let it take."""
_BUSY: Final = frozenset(("CAPACITY_REACHED", "SESSION_ERROR"))


class ServerRefused(Exception):
    """The server's own word for why it does not answer a message: `code`, and its text."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class TooLong(ValueError):
    """An answer is longer than is taken."""


def _read(text: str) -> Any:
    """The value of an answer; also of what Python writes and no JSON has: NaN, infinities and halves of a character."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        if len(text) > MOST_BEYOND_JSON:
            raise TooLong(f"the server's answer is long, and no JSON: {error}") from error
        with told_as(ValueError, "the server's answer is too deep:", RecursionError):
            return json.loads(text)


class Socket:
    """A connection to a server. It is read at all times, so that pings are answered while a policy samples."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answer: asyncio.Future[str] | None = None
        self._early: str | None = None
        self._gone: Exception = ConnectionError("the server has closed the connection")
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def opened(cls, client: aiohttp.ClientSession, url: str, most_bytes: int) -> Socket:
        """Connects; raises as aiohttp does."""
        async with asyncio.timeout(CARD_S):
            return cls(await client.ws_connect(url, heartbeat=_BEAT_S, max_msg_size=most_bytes, compress=0))

    @property
    def is_closed(self) -> bool:
        """True where nothing can be asked any more."""
        return self._socket.closed or self._reading.done()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.ERROR:
                    is_long = getattr(message.data, "code", 0) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
                    self._gone = (TooLong if is_long else ValueError)(f"the answer is not taken: {message.data}")
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message.data)
                else:
                    self._early = message.data  # such as that there is no slot
        finally:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(self._gone)

    def close_later(self, idle: list[Socket]) -> None:
        """Closes the connection where it is still among these after a while."""

        def close() -> None:
            if self in idle:
                idle.remove(self)
                self._closing = asyncio.ensure_future(self.aclose())

        asyncio.get_running_loop().call_later(_IDLE_S, close)

    async def ask(self, kind: str, data: Any, *, timeout_s: float) -> dict[str, Any]:
        """The answer to a message. One that was given up may be followed by `end` alone, whose answer says so.

        Raises:
            ConnectionError, TimeoutError: there is none; answers have no ids, so that the socket is of no more use.
            ServerRefused: the server says that it does not.
            ValueError: what it says is no answer of this wire, or too long for one.
        """
        if kind == "end":
            self._early = None
        async with asyncio.timeout(timeout_s):
            await self._send(wire.to_json({"type": kind, "data": data}))
            while True:
                told = _read(await self._next())
                held = told.get("data") if isinstance(told, dict) else None
                if not isinstance(held, dict):
                    raise ValueError("the server's answer is none of this wire")
                if told.get("type") == "error":
                    raise ServerRefused(str(held.get("code")), str(held.get("message")))
                if kind != "end" or (isinstance(meta := held.get("metadata"), dict) and meta.get("is_end")):
                    return held

    async def _send(self, text: str) -> None:
        if self._early is not None or self.is_closed:
            return  # whoever reads is told
        with suppress(ConnectionError):  # an answer may have come before the end
            await self._socket.send_str(text)

    async def _next(self) -> str:
        early, self._early = self._early, None
        if early is not None:
            return early
        if self.is_closed:
            raise self._gone
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    async def aclose(self) -> None:
        """Closes the connection; may be called twice."""
        with suppress(Exception):
            await asyncio.shield(asyncio.wait_for(self._socket.close(), 5.0))
        self._reading.cancel()


@dataclass(frozen=True, slots=True)
class Door:
    """The way into a server, which is asked again where it is full or is being started: with growing waits, each time
    otherwise, so that clients that were refused together come back one by one. `patience_s` is for how long.
    No answer may be longer than `most_bytes`."""

    url: str
    headers: Mapping[str, str]
    patience_s: float
    most_bytes: int = 64 << 20

    async def fetched(self, path: str) -> Any:
        """What the server answers to a GET of this path, from one that is just being started too.

        Raises:
            UsageError: there is none, or it refuses.
        """
        until = time.monotonic() + min(self.patience_s, _START_S)
        while True:
            try:
                return await self._fetch_once(path)
            except UsageError as error:
                if not isinstance(error.__cause__, (OSError, TimeoutError)) or time.monotonic() > until:
                    raise
                await asyncio.sleep(_FIRST_WAIT_S)

    async def _fetch_once(self, path: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=CARD_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self.headers, timeout=timeout) as client,
                client.get(f"{self.url}{path}") as response,
            ):
                body, goes_on = await body_within(response, self.most_bytes)
                if goes_on:
                    raise UsageError(f"{self.url}{path} is longer than {self.most_bytes:,} bytes")
                if response.status != 200:
                    told = body[:200].decode(errors="replace")
                    raise UsageError(f"{self.url} answers with status {response.status}: {told}")
                return orjson.loads(body)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            hint = "start it with `rlenv serve SPEC`"
            raise UsageError(f"there is no environment at {self.url} ({type(error).__name__})", hint=hint) from error

    async def connected(self, client: aiohttp.ClientSession, until: float) -> Socket:
        """A new socket, once the server is there.

        Args:
            until: how long it is waited for, on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: it was not there until then, or lets nobody in.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await Socket.opened(client, f"{self.url}/ws", self.most_bytes)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                status = getattr(error, "status", 0)
                if status in (401, 403, 404):
                    raise EpisodeError(f"{self.url} answers with status {status}", reason=REASON) from error
                await self._back_off(wait_s, until, f"{type(error).__name__}")
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def begun(
        self, connect: Callable[[float], Awaitable[Socket]], data: Mapping[str, Any], *, timeout_s: float
    ) -> tuple[Socket, dict[str, Any]]:
        """A socket with an episode, and what the server says of its beginning.

        Raises:
            EpisodeError: the server took none in time, or does not begin this one.
        """
        until = time.monotonic() + self.patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            socket = await connect(until)
            try:
                return socket, await socket.ask("reset", data, timeout_s=timeout_s)
            except (ServerRefused, ValueError) as error:
                await socket.aclose()
                if not isinstance(error, ServerRefused) or (error.code not in _BUSY and "ending" not in str(error)):
                    raise EpisodeError(f"{self.url}: {error}", reason=REASON) from error
                why = str(error)
            except (ConnectionError, TimeoutError) as error:
                await socket.aclose()
                why = f"{type(error).__name__}: {error}"
            except BaseException:
                await socket.aclose()
                raise
            await self._back_off(wait_s, until, why)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _back_off(self, wait_s: float, until: float, why: str) -> None:
        if time.monotonic() + wait_s > until:
            raise EpisodeError(f"{self.url} took no episode within {self.patience_s:g} s: {why}", reason=REASON)
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))


@dataclass(eq=False)
class RemoteLink:
    """The server's side of one episode."""

    environment: RemoteEnvironment
    seed: int | None
    socket: Socket | None = None

    async def reset(self, episode: Episode, *, counts_tokens: bool) -> dict[str, Any]:
        """Opens the episode at the server; asks again where it is full, or the socket was lost meanwhile."""
        place = {"split": episode.split, "task": episode.task_index, "seed": self.seed}
        data = {**place, wire.OURS: {"counts_tokens": counts_tokens}}
        environment = self.environment
        self.socket, told = await environment.door.begun(environment.connected, data, timeout_s=_limit_of(episode))
        return told

    async def ask(self, kind: str, data: Any, episode: Episode) -> dict[str, Any]:
        """The server's answer in a running episode.

        Raises:
            EpisodeError: there is none, or one that goes on when the limits of time are over.
        """
        if self.socket is None:
            raise EpisodeError(f"{self.environment.url} has no such episode", reason=REASON)
        deadline, longest_s = episode.tools.begun + _limit_of(episode), episode.limits.reward_s + _BEYOND_S
        try:
            told = await self.socket.ask(kind, data, timeout_s=max(deadline - time.monotonic(), longest_s))
            if time.monotonic() > deadline and not told.get("done"):
                raise ValueError("the episode goes on behind its own limits of time")
            return told
        except (ConnectionError, TimeoutError, ServerRefused, ValueError) as error:
            socket, self.socket = self.socket, None
            await socket.aclose()
            raise EpisodeError(f"{self.environment.url}: {type(error).__name__}: {error}", reason=REASON) from error

    async def aclose(self, *, is_whole: bool) -> None:
        """Puts the socket back where its episode has ended at the server too, and closes it otherwise."""
        socket, self.socket = self.socket, None
        if socket is None:
            return
        if is_whole:
            self.environment.put_back(socket)
        else:
            await socket.aclose()


def _limit_of(episode: Episode) -> float:
    limits = episode.limits
    return limits.episode_s + limits.reward_s + _BEYOND_S
