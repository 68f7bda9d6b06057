"""Server-sent events as they come in, each looked at before the SDK reads it.

Source: the HTML standard, "Server-sent events" (9.2.6, interpreting an event stream).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson
from mcp_types import ErrorData, JSONRPCError

from rlenv._base.json_limits import TooMuchJson, check_json
from rlenv.tools._mcp.limits import LARGE_BYTES, MAX_MESSAGE_BYTES, MAX_VALUES, TOO_LARGE, Gate, is_heard, too_long

__all__ = ["Events", "looked_at"]

_MAX_NAME: Final = 256
_EVENTS_AT_ONCE: Final = 100
_HOLD_S: Final = 0.5
"""For so long nothing is read of a server that sends far more than it was asked for."""
_SHOWN_OF_SKIPPED: Final = 300
_LEAST_RETRY_MS, _MOST_RETRY_MS = 1_000, 30_000


async def looked_at(data: bytes) -> None:
    """Counts what a message holds; a long one in a thread.

    Raises:
        TooMuchJson: it is over the limits.
    """
    if len(data) <= LARGE_BYTES:
        _look(data)
    else:
        await asyncio.to_thread(_look, data)


def _look(data: bytes) -> None:
    check_json(data, max_bytes=MAX_MESSAGE_BYTES, max_values=MAX_VALUES)


class Events:
    """One stream. What nobody waits for is left out, and the time until the next attempt is kept within bounds.

    Args:
        is_answer: the stream answers one request, so that an answer over the limits is an error in its place.
    """

    def __init__(self, gate: Gate, *, is_answer: bool, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._gate = gate
        self._is_answer = is_answer
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._looked_until = 0
        self._ends_in_return = False
        self._skipped = b""
        self._count = 0
        self.is_over = False
        """Nothing more of the stream is to be read."""

    async def of(self, chunk: bytes) -> AsyncIterator[bytes]:
        """The events that `chunk` completes and that are let through."""
        self._take(chunk)
        while not self.is_over:
            end = self._pending.find(b"\n\n", self._looked_until)
            if end < 0:
                break
            block = bytes(self._pending[:end])
            del self._pending[: end + 2]
            self._looked_until = 0
            self._count += 1
            if self._count % _EVENTS_AT_ONCE == 0:  # others have their turn
                await asyncio.sleep(0)
            if (event := await self._admitted(block)) is not None:
                yield event
        self._looked_until = max(len(self._pending) - 1, 0)
        if len(self._pending) > self._max_bytes and not self.is_over:
            if self._is_answer:
                self.is_over = True
                yield self._failed(b"", f"it is longer than {self._max_bytes:,} bytes") or b""
            else:
                await self._skip()

    def _take(self, chunk: bytes) -> None:
        """Adds what has come, with every end of a line as one newline."""
        if self._ends_in_return:
            chunk = b"\r" + chunk
        self._ends_in_return = chunk.endswith(b"\r")
        if self._ends_in_return:
            chunk = chunk[:-1]
        self._pending += chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    async def _skip(self) -> None:
        """Throws away what has come of an event that is too long, but for its two ends."""
        if not self._skipped:
            self._skipped = bytes(self._pending[:_SHOWN_OF_SKIPPED])
        if not self._gate.admits(len(self._pending)):
            await asyncio.sleep(_HOLD_S)
        del self._pending[:-_SHOWN_OF_SKIPPED]
        self._looked_until = 0

    async def _admitted(self, block: bytes) -> bytes | None:
        if not self._gate.admits(len(block)):
            await asyncio.sleep(_HOLD_S)
        if self._skipped:
            block, self._skipped = self._skipped + block[-_SHOWN_OF_SKIPPED:], b""
            return self._failed(block, f"it is longer than {self._max_bytes:,} bytes")
        name, identity, retry, data = b"message", b"", b"", []
        for line in block.split(b"\n"):
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"data":
                data.append(value)
            elif key == b"event":
                name = value[:_MAX_NAME]
            elif key == b"id" and len(value) <= _MAX_NAME:
                identity = value
            elif key == b"retry" and value.isdigit() and len(value) < 10:
                retry = b"%d" % min(max(int(value), _LEAST_RETRY_MS), _MOST_RETRY_MS)
        text = b"\n".join(data)
        if name == b"message" and text:
            try:
                await looked_at(text)
                text = self._wanted(text)
            except TooMuchJson as error:
                return self._failed(text, str(error))
            except ValueError:
                text = b"" if not self._is_answer else text
        head = b"event: %s\n" % name
        if identity:
            head += b"id: %s\n" % identity
        if retry:
            head += b"retry: %s\n" % retry
        if not text and not identity and not retry:
            return None
        return head + b"".join(b"data: %s\n" % line for line in text.split(b"\n")) + b"\n"

    def _wanted(self, text: bytes) -> bytes:
        """The message, or nothing where nobody waits for it."""
        message = orjson.loads(text)
        if not is_heard(message) or ("id" not in message and not self._gate.hears()):
            return b""
        if "id" in message and "method" in message:
            self._gate.answers(by_post=True)
        return text

    def _failed(self, text: bytes, why: str) -> bytes | None:
        """The event that tells the one who waits, where it is known who that is."""
        message = f"the server's answer is too much: {why}"
        failure = too_long(text[:_SHOWN_OF_SKIPPED], text[-_SHOWN_OF_SKIPPED:], why=message)
        if failure is None:
            if not self._is_answer:
                return None
            failure = JSONRPCError(jsonrpc="2.0", id=0, error=ErrorData(code=TOO_LARGE, message=message))
        return b"event: message\ndata: %s\n\n" % failure.model_dump_json(by_alias=True, exclude_unset=True).encode()
