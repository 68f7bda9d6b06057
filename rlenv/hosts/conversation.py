"""One client of a server: a socket, the messages that it sends, and the session that answers them in turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp import WSCloseCode, WSMsgType, web

from rlenv._base.strict_json import read_sent
from rlenv.concurrency.scope import cancel_all
from rlenv.dialects.base import cut_chars
from rlenv.errors import RlenvError, UsageError
from rlenv.hosts import wire
from rlenv.hosts.session import Session

if TYPE_CHECKING:
    from rlenv.hosts.serve import Server

_LOGGER: Final = logging.getLogger("rlenv.hosts.serve")
_MOST_WAITING: Final = 8
"""Messages of one socket that wait for an answer; the wire allows one, and one more is a flood."""
_END: Final = '{"type":"end"'
"""The first characters of the message by which a client of ours ends an episode."""
_GONE: Final = "the client has left"
ENDING: Final = "the server is ending"


class ServedSocket:
    """One socket: its session, the message that is being answered, and those that wait."""

    def __init__(
        self, server: Server, session: Session, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        self._server, self.session, self._socket, self._transport = server, session, socket, transport
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING + 1)
        self.is_answering = False
        self._is_interrupted = False
        """Set by a message that ends the episode: a step that runs is given up, and has no answer."""
        self._is_left = False
        self._scope: asyncio.Timeout | None = None
        self._is_ours = False
        self._why = _GONE

    @property
    def is_between(self) -> bool:
        """True where no episode runs and nothing is being answered."""
        return self.session.is_ended and not self.is_answering and self._inbox.empty()

    async def run(self) -> None:
        """Answers until the client leaves or is sent away; an episode that runs then has an invalid reward."""
        reading = asyncio.create_task(self._read())
        has_slot = False
        try:
            has_slot = await self._await_beside(self._server.slots.take(self._server.limits.queue_s)) is True
            if has_slot:
                while await self._answer_next(reading):
                    pass
            elif not reading.done():
                slots = self._server.slots
                held = {"active_sessions": slots.active, "max_sessions": slots.most}
                await self._send_error("CAPACITY_REACHED", f"{slots.active} of {slots.most} sessions are open", **held)
        finally:
            await cancel_all(reading)
            if not self.session.is_ended:
                self.session.fail("client" if self._why == _GONE else "server", self._why)
            try:
                await self.session.aclose()
            finally:
                if has_slot:
                    self._server.slots.free()
            await self.close(WSCloseCode.OK, self._why)
            if self._transport is not None:
                self._transport.abort() if self._transport.get_write_buffer_size() else self._transport.close()

    async def close(self, code: int, why: str) -> None:
        """Sends the client away; one that does not read is not waited for."""
        self._why = why
        with suppress(Exception):
            await asyncio.wait_for(self._socket.close(code=code, message=why.encode()), self._server.limits.send_s)

    async def _read(self) -> None:
        """Reads while an answer is being made too: that is how a client is known to have left."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    await self.close(WSCloseCode.UNSUPPORTED_DATA, "expected texts of JSON")
                elif self._inbox.qsize() >= _MOST_WAITING:
                    await self.close(WSCloseCode.POLICY_VIOLATION, "one message, then its answer")
                else:
                    self._inbox.put_nowait(message.data)
                    if message.data.startswith(_END):
                        self._is_interrupted = True
                        self._give_up()
        finally:
            self._is_left = True
            self._give_up()
            self._inbox.put_nowait(None)

    def _give_up(self) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(0.0)

    async def _await_beside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`; None where the client leaves or ends the episode before, and work is given up.

        It runs in this task: a task of its own, and one that waits for both, took as long as most steps.
        """
        if self._is_left or self._is_interrupted:
            work.close()
            return None
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            return None
        finally:
            self._scope = None

    async def _answer_next(self, reading: asyncio.Task[None]) -> bool:
        """Answers the next message; False where there is none."""
        limits = self._server.limits
        try:
            async with asyncio.timeout(limits.idle_s):
                asked = await self._inbox.get()
        except TimeoutError:
            await self._send_error("SESSION_ERROR", f"no message for {limits.idle_s:g} s")
            await self.close(WSCloseCode.GOING_AWAY, "idle")
            return False
        if asked is None:
            return False
        self.is_answering = True
        try:
            if asked.startswith(_END):
                self._is_interrupted = False
            told = await self._await_beside(self._answer_text(asked))
            if told is None:
                return self._is_interrupted and not reading.done()
            async with asyncio.timeout(limits.send_s):
                await self._socket.send_str(told)
        except (ConnectionError, TimeoutError):  # the client is gone, or does not read
            return False
        finally:
            self.is_answering = False
        return not reading.done() or not self._inbox.empty()

    async def _answer_text(self, text: str) -> str | None:
        """The answer to a message as JSON; None for one that ends the session. Never raises for what was sent."""
        try:
            raw = text.encode("utf-8", "replace")
            message = read_sent(raw, max_bytes=self._server.limits.message_bytes)
        except ValueError as error:
            return _to_error("INVALID_JSON", f"the message is not JSON: {error}")
        if not isinstance(message, dict):
            return _to_error("VALIDATION_ERROR", 'a message is an object: {"type": "reset", "data": {…}}')
        kind = message.get("type")
        try:
            if kind == "close":
                return None
            made = await self._dispatch(kind, message.get("data", {}))
        except (ValueError, RlenvError) as error:
            return _to_error("VALIDATION_ERROR", str(error))
        except Exception as error:  # the boundary: a bug of a tool's author ends no server
            _LOGGER.exception("session %s failed", self.session.id)
            return _to_error("EXECUTION_ERROR", f"{type(error).__name__}; see the server's log")
        if made is None:
            return _to_error("UNKNOWN_TYPE", f"{kind!r:.80} is none of reset, step, state, end, mcp and close")
        return wire.to_json(made)

    async def _dispatch(self, kind: Any, data: Any) -> dict[str, Any] | None:
        session = self.session
        if kind == "reset":
            if self._server.is_draining:
                raise UsageError(ENDING, hint="ask another one, or this one later")
            return {"type": "observation", "data": await self._open_episode(data)}
        if kind == "step":
            step = await session.step(wire.action_of(data))
        elif kind == "end":
            step = await self._end_episode(data)
        elif kind == "state":
            return {"type": "state", "data": session.state()}
        elif kind == "mcp":
            tools = session.episode.tool_schemas if session.episode else session.environment.tool_schemas
            return {"type": "mcp", "data": wire.tools_answer(data, tools)}
        else:
            return None
        if step.is_last:
            note_end(session)
        made = wire.step_data(step, session, is_ours=self._is_ours)
        if kind == "end":
            made["metadata"]["is_end"] = True
        return {"type": "observation", "data": made}

    async def _open_episode(self, data: Any) -> dict[str, Any]:
        session = self.session
        place = wire.place_of(data, session.environment)
        if not session.is_ended:
            session.fail("client", "the client has begun another episode")
        ours = data.get(wire.OURS)
        self._is_ours = isinstance(ours, Mapping)
        spec = session.environment.spec.observation
        by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
        counts_tokens = isinstance(ours, Mapping) and bool(ours.get("counts_tokens"))
        # A cut by tokens follows, at the client: any object but the environment's own says so.
        opened = await session.reset(**place, cut=(lambda text: by_chars(text)) if counts_tokens else None)
        self._server.note_opened()
        if opened.is_ended:
            note_end(session)
        return wire.opened_data(opened, session, is_ours=self._is_ours)

    async def _end_episode(self, data: Any) -> Any:
        """Ends the episode as its driver says: a limit of its own (scored), or a failure (invalid)."""
        session, given = self.session, data if isinstance(data, Mapping) else {}
        reason, turns = wire.text_of(given, "reason", most=64), wire.whole_of(given, "turns") or 0
        if session.episode is None or not reason:
            raise ValueError('expected {"reason": WORD} of an episode that was opened')
        if given.get("failed"):
            session.fail(reason, "the client says so")
        else:
            # A client that gave up a step may not know that it was taken.
            is_taken = len(session.episode.turns) > turns
            action = wire.action_of(given["action"]) if given.get("action") and not is_taken else None
            await session.episode.truncate(reason, action=action)
        return await session.step("")

    async def _send_error(self, code: str, message: str, **more: Any) -> None:
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._socket.send_str(_to_error(code, message, **more)), self._server.limits.send_s)


def _to_error(code: str, message: str, **more: Any) -> str:
    return wire.to_json({"type": "error", "data": {"message": message, "code": code, **more}})


def note_end(session: Session) -> None:
    """Says in the log why a reward is invalid: clients are told the reason's word alone."""
    if (failure := session.trajectory.failure) is not None:
        _LOGGER.warning("session %s: %s: %s", session.id, failure.reason, failure.message)
