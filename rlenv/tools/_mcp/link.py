"""Sessions that are kept: opened when first needed, renewed when they end, shared by many calls.

A server may die at any time. Calls that it was running fail at once and say so; the next call opens it anew, not more
often than `_Pace` lets it, so that one that cannot live does not take the machine with it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from math import inf
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST, CallToolResult

from rlenv import secrets
from rlenv.concurrency.deadline import Expired, Waited
from rlenv.concurrency.scope import Hosted, cancel_all
from rlenv.errors import EpisodeError, ResourceError
from rlenv.tools._mcp import SPOILT, TOO_LARGE
from rlenv.tools._mcp.http import BROKEN, LOST, UNREACHABLE
from rlenv.tools._mcp.server import Connection, McpServer, ServerDown, connect
from rlenv.tools._wire import Breaks
from rlenv.tools.base import asked_again

_log = secrets.logger("rlenv.tools")
_MOST_FAILED_STARTS = 3
_LEAST_PAUSE_S, _MOST_PAUSE_S, _TRIAL_PAUSE_S = 0.5, 8.0, 0.1
_PROBE_S = 2.0
_STARTS_AT_ONCE = 8
_SHOWN_STDERR = 1_000
# A server may send the same code with a message of its own; these are the SDK's (mcp 2.3, shared/jsonrpc_dispatcher.py
# and client/streamable_http.py).
_SESSION_ENDED = "Connection closed"
_ANSWER_CUT = "SSE stream"
_MOST_SAID = 4_000
_SOONER_S = 0.05
_REDIRECTED = "Redirect to "
_REASONS = {INVALID_PARAMS: "refused", TOO_LARGE: "too_large"}

Connect = Callable[..., AbstractAsyncContextManager[Connection]]

# A start costs a processor for about half a second: more at once only make each other late.
_starts: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}


class CallFailed(Exception):
    """The server answered a call with an error of the protocol; the message is the server's.

    `reason` is a word of `rlenv.errors.WHOSE`.
    """

    def __init__(self, message: str, *, reason: str = "server_error") -> None:
        super().__init__(message)
        self.reason = reason


class ServerDied(CallFailed):
    """The server ended, or could not be reached, while it had the call: whether the call was run is not known."""


def _place_to_start() -> asyncio.Semaphore:
    loop = asyncio.get_running_loop()
    found = _starts.get(id(loop))
    if found is None or found[0] is not loop:
        for key in [key for key, (other, _) in _starts.items() if other.is_closed()]:
            del _starts[key]
        found = _starts[id(loop)] = (loop, asyncio.Semaphore(_STARTS_AT_ONCE))
    return found[1]


class _Pace:
    """The pace of restarts of a server: at once where it lived for a while, later and later where it did not."""

    def __init__(self, most_pause_s: float = _MOST_PAUSE_S) -> None:
        self._most_pause_s = most_pause_s
        self._pause = min(_LEAST_PAUSE_S, most_pause_s)
        self._not_before = 0.0
        self.failed_starts = 0

    @property
    def wait_s(self) -> float:
        return max(0.0, self._not_before - time.monotonic())

    def has_started(self) -> None:
        self.failed_starts = 0

    def has_failed(self) -> None:
        self.failed_starts += 1
        self._slow_down()

    def has_ended(self, lived_s: float) -> None:
        if lived_s < self._pause:
            self._slow_down()
        else:
            self._pause = min(_LEAST_PAUSE_S, self._most_pause_s)

    def _slow_down(self) -> None:
        # Jittered, so that the processes of one machine do not start their servers together.
        self._not_before = time.monotonic() + self._pause * random.uniform(0.75, 1.25)
        self._pause = min(2 * self._pause, self._most_pause_s)


class Link:
    """One session that is renewed when it ends. `in_flight` calls are using it."""

    def __init__(
        self, server: McpServer, *, connect: Connect = connect, is_trial: bool = False, has_state: bool = False
    ) -> None:
        self._server = server
        self._connect = connect
        self._is_trial = is_trial
        self._has_state = has_state
        self._last: Connection | None = None
        self._pace = _Pace(_TRIAL_PAUSE_S if is_trial else _MOST_PAUSE_S)
        self._host: Hosted[Connection] | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[Any]] = set()
        self._breaks = Breaks()
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_flight = 0

    @property
    def current(self) -> Connection | None:
        """The connection, where there is one that takes calls."""
        task = self._opening
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        connection = task.result()
        return connection if connection.is_open and self._host is not None and self._host.is_open else None

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, late: list[Connection | None] | None = None
    ) -> CallToolResult:
        """One call of a tool. `late` gets the connection that had it until its time was over.

        Raises:
            CallFailed: the server refused it.
            ServerDied: the server ended during the call.
            ServerDown: the server cannot be opened again at the moment.
            Expired: the deadline has come; `stopped` where the server was stopped, by itself or by others.
            EpisodeError: what it kept for the calls is lost.
            ResourceError: it could not be opened several times in a row.
        """
        self.in_flight += 1
        try:
            try:
                return await self._call(name, arguments, deadline, late)
            except _NotRun:
                try:
                    return await self._call(name, arguments, deadline, late)
                except ServerDown as error:  # right behind this very call, which may have done it
                    raise CallFailed(str(error)) from error
        except _NotRun as error:  # a session that was opened for it
            raise CallFailed(str(error)) from error
        finally:
            self.in_flight -= 1

    async def _call(
        self, name: str, arguments: Mapping[str, Any], deadline: float, late: list[Connection | None] | None
    ) -> CallToolResult:
        connection = self.current
        if connection is None:
            with Waited():
                connection = await self._connected()
        try:
            left = deadline - time.monotonic()
            # A little before the executor ends the call, which does not know what the server was at.
            async with asyncio.timeout(left - min(_SOONER_S, left / 20)):
                return await connection.call(name, arguments)
        except TimeoutError as error:
            is_stopped = connection.child is not None and connection.child.is_stopped
            if is_stopped:
                self._forget(connection)
            else:
                self._suspect(connection)
            if late is not None:
                late.append(connection)
            raise Expired(reason="stopped" if is_stopped else "late") from error
        except MCPError as error:
            code, message = error.error.code, error.error.message[:_MOST_SAID]
            if code == LOST:
                raise _NotRun(message) from error
            if code == SPOILT:  # by this call or another one, and perhaps again and again
                is_suspect = not connection.calls
                if self.current is connection:
                    self._retire(connection)
                raise ServerDied(message, reason="disconnected" if is_suspect else "server_died") from error
            if code == CONNECTION_CLOSED and message == _SESSION_ENDED:
                is_suspect = not (connection.is_gone or connection.calls)  # the server has said it, and lives on
                self._forget(connection)
                if is_suspect:
                    raise ServerDied(message, reason="disconnected") from error
            if code == UNREACHABLE:
                raise ServerDied(message, reason="unavailable") from error
            was_cut = code == BROKEN or (code == CONNECTION_CLOSED and message.startswith(_ANSWER_CUT))
            if was_cut or connection.is_gone:
                raise ServerDied(message, reason=await self._death(connection)) from error
            if code == INVALID_REQUEST and message.startswith(_REDIRECTED):
                message = "the server redirected to another server, which is not followed"
            raise CallFailed(message, reason=_REASONS.get(code, "server_error")) from error
        except (ValueError, RuntimeError) as error:  # the SDK could not read the answer
            raise CallFailed("the server's answer is not of the protocol") from error
        except (AttributeError, IndexError, KeyError, NameError, TypeError):
            raise  # a bug, and told to the author as one
        except Exception as error:  # of the SDK's transports: httpx2's, anyio's and its own have no common base
            self._suspect(connection)
            message = f"the connection to the server failed ({type(error).__name__})"
            raise ServerDied(message, reason=await self._death(connection)) from error
        except asyncio.CancelledError:
            if time.monotonic() >= deadline:
                self._suspect(connection)
            raise

    async def _death(self, connection: Connection) -> str:
        """The failure of a call whose connection ended: any of several calls may have brought that about."""
        child = connection.child
        if child is None:
            is_suspect = not connection.is_gone and (asked_again.get() or await self._breaks.is_alone())
            return "disconnected" if is_suspect else "server_died"
        has_exited = await child.has_exited()
        if connection.calls_at_end != 1:
            return "server_died"
        return "disconnected" if not has_exited else "killed" if child.was_killed else "crashed"

    async def aclose(self) -> None:
        """Ends the session and everything that is under way for it."""
        if not self._closing.done():
            self._closing.set_result(None)
        opening, self._opening = self._opening, None
        await cancel_all(opening, self._probe)
        self._close_host()
        while self._work:
            await asyncio.wait(self._work)

    async def _connected(self) -> Connection:
        if self._has_state and self._last is not None and await self._last.was_emptied():
            said = f"the MCP server '{self._server.name}' was ended between two calls, and what it kept is lost"
            raise EpisodeError(said, reason="resource")
        if self._opening is None or self._opening.done():
            if self._pace.failed_starts >= _MOST_FAILED_STARTS:
                self._pace.failed_starts = _MOST_FAILED_STARTS - 1  # the next episode may try once
                raise ResourceError(f"the MCP server '{self._server.name}' could not be started several times in a row")
            self._close_host()
            # A task of its own: the caller's time may be up before a slow server has started.
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Connection:
        await asyncio.sleep(self._pace.wait_s)
        async with _place_to_start():
            host = Hosted(self._connect(self._server, on_end=self._has_ended, on_unknown=self._retire))
            try:
                connection = await host.open()
            except ServerDown as error:
                self._pace.has_failed()
                _log.warning("%s", error)
                raise
        self._pace.has_started()
        self._host, self._last = host, connection
        return connection

    def _has_ended(self, connection: Connection) -> None:
        self._pace.has_ended(connection.lived_s)
        # Closing fails the calls that wait for an answer which cannot come any more.
        self._close_host(report=connection)

    def _retire(self, connection: Connection) -> None:
        """The next call opens another session; those that are on this one end on it, and it with them."""
        connection.is_retired = True
        if connection.lived_s == inf:
            self._pace.has_ended(inf)
        host, self._host = self._host, None
        if host is not None:
            self._in_background(self._left_to_end(host, connection))

    async def _left_to_end(self, host: Hosted[Connection], connection: Connection) -> None:
        ended = asyncio.ensure_future(connection.ended())
        await asyncio.wait((ended, self._closing), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        await self._closed(host, None)

    def _close_host(self, *, report: Connection | None = None) -> None:
        host, self._host = self._host, None
        if host is not None:
            self._in_background(self._closed(host, report))

    async def _closed(self, host: Hosted[Connection], report: Connection | None) -> None:
        # What a connection raises while it is taken down was already said to the calls on it.
        with suppress(Exception, BaseExceptionGroup):
            await host.aclose()
        child = report.child if report is not None else None
        if child is not None and not self._is_trial:  # only now is it known how the process ended
            last = child.last_words(_SHOWN_STDERR)
            said = f"; its standard error ends with: {last}" if last else ""
            how = f"was ended: {child.fault}" if child.fault else f"ended by itself ({child.fate})"
            _log.warning("MCP server '%s' %s%s", self._server.name, how, said)

    def _forget(self, connection: Connection) -> None:
        if self.current is connection:
            connection.is_lost = True
            self._pace.has_ended(connection.lived_s)
            self._close_host()

    def _suspect(self, connection: Connection) -> None:
        """A call ran out of time: a server that does not answer a simple question either is replaced. In a trial it is
        at once, so that nobody waits for it in the time of others."""
        if self.current is connection and self._is_trial:
            self._retire(connection)
        elif self.current is connection and (self._probe is None or self._probe.done()):
            self._probe = self._in_background(self._ask(connection))

    async def _ask(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_PROBE_S):
                await connection.client.list_tools()
        except TimeoutError:
            if self.current is connection:
                _log.warning("MCP server '%s' does not answer any more; it is replaced", self._server.name)
                self._forget(connection)
        except Exception:  # it answers, or the next call finds the connection broken and says so
            pass

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task


class _NotRun(Exception):
    """The server did not know the session, and has not run the call."""


class SessionPool:
    """At most `size` sessions on one server, each with any number of calls; the least busy one takes the next."""

    def __init__(self, size: int, make: Callable[[], Link]) -> None:
        self._size = size
        self._make = make
        self._links: list[Link] = []

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, late: list[Connection | None] | None = None
    ) -> CallToolResult:
        """One call of a tool; see `Link.call`."""
        return await self._link().call(name, arguments, deadline=deadline, late=late)

    async def aclose(self) -> None:
        """Ends all sessions, at once."""
        await asyncio.gather(*(link.aclose() for link in self._links))

    def _link(self) -> Link:
        if self._links:
            least = min(self._links, key=lambda link: link.in_flight)
            if least.in_flight == 0 or len(self._links) == self._size:
                return least
        self._links.append(self._make())
        return self._links[-1]


def open_pool(
    server: McpServer, *, size: int, connect: Connect = connect, is_trial: bool = False, has_state: bool = False
) -> AbstractAsyncContextManager[SessionPool]:
    """A pool, closed on leaving; `connect` opens one session.

    Args:
        is_trial: what is called may end the server, as it has before: it is started anew at once, and nobody is told.
        has_state: it is of one episode, and may keep something for its calls.
    """
    return aclosing(SessionPool(size, lambda: Link(server, connect=connect, is_trial=is_trial, has_state=has_state)))
