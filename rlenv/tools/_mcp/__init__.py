"""MCP servers: how they are reached, kept, listed and pinned. The SDK is imported only where one is asked.

Limits of a server's messages: on each one, and on the number of those that nobody asked for.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from rlenv._base.strict_json import TooMuchJson, check_json

if TYPE_CHECKING:
    from mcp_types import JSONRPCError, JSONRPCMessage

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Of one message: no text that a model reads is that long, and few images are."""
MAX_VALUES: Final = 20_000
"""In one message; the SDK checks every one of them on the event loop."""
LARGE_BYTES: Final = 256 * 1024
"""A longer message is parsed in a thread."""
TOO_LARGE: Final = -32083
"""The code of an answer that was over the limits and not read; in the range that JSON-RPC leaves to implementations."""
SPOILT: Final = -32085
"""The code in place of an answer that cannot be read for what something else wrote into its line."""
_MAX_ID_CHARS: Final = 128
_INTERNAL_ERROR: Final = -32603
_OF_CONNECTIONS: Final = (-32000, *range(-32089, -32080))
"""Codes by which the SDK and this package tell of a connection: where a server says one, it tells of its call alone."""
# The only notifications that change anything here; what a server says beside its answers is nobody's.
_HEARD: Final = frozenset({"notifications/tools/list_changed"})
_ID: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*[,}]')
_OWN_ID: Final = re.compile(rb'"id"\s*:\s*("rlenv-[0-9a-f]{24}")')
_ANSWER: Final = re.compile(rb'"(?:result|error)"\s*:')
_START: Final = re.compile(rb'\{\s*"(?:jsonrpc|id|result|error)"')

_BURST: Final = 4_000.0
_PER_S: Final = 1_000.0
_BYTES_PER_UNIT: Final = 4_096
_PER_REQUEST: Final = 20.0
_PER_POST: Final = 400.0
_PER_CALL: Final = 2 * MAX_MESSAGE_BYTES / _BYTES_PER_UNIT
_MOST: Final = _BURST + 16 * _PER_CALL


class MessageBudget:
    """Counts what a session is sent: a unit a message and one for every 4 kB of it.

    There are 4,000 units to begin with, 1,000 more a second, and enough for two of the longest messages with every
    request that is made. A session that is beyond them is read no faster than they come.
    """

    def __init__(self, *, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self._left = _BURST
        self._at = clock()
        self._has_heard = False

    def hears(self) -> bool:
        """True the first time that the server says that its tools have changed; nothing more comes of the next."""
        is_first, self._has_heard = not self._has_heard, True
        return is_first

    def answers(self, *, by_post: bool) -> None:
        """The server asks for something, which takes an answer: dearer than what is only read, and more so by HTTP."""
        self._left -= _PER_POST if by_post else _PER_REQUEST

    def asked(self) -> None:
        """A request is made, which may be answered."""
        self._left = min(self._left + _PER_CALL, _MOST)

    def admits(self, size: int) -> bool:
        """Takes a message of `size` bytes; False where nothing more should be read for now."""
        now = self._clock()
        if self._left < _BURST:
            self._left = min(_BURST, self._left + (now - self._at) * _PER_S)
        self._at = now
        self._left -= 1 + size / _BYTES_PER_UNIT
        return self._left >= 0


class OpenRequests:
    """The requests of one session that wait for their answers, by ids that nobody can guess.

    What a call makes a server write is so no answer to the call of another episode, and each has one answer.
    """

    def __init__(self) -> None:
        self._own: dict[Any, Any] = {}

    def sent(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """The message as the server gets it."""
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        if isinstance(message, JSONRPCRequest):
            identity = f"rlenv-{secrets.token_hex(12)}"
            self._own[identity] = message.id
            return message.model_copy(update={"id": identity})
        if isinstance(message, JSONRPCNotification) and "requestId" in (params := message.params or {}):
            own = next((one for one, known in self._own.items() if known == params["requestId"]), None)
            self._own.pop(own, None)
            return message.model_copy(update={"params": {**params, "requestId": own or params["requestId"]}})
        return message

    def heard(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """The message as the client knows it; None for an answer that nobody waits for."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return message
        own = self._own.pop(message.id, None)
        return None if own is None else message.model_copy(update={"id": own})


def read_message(line: bytes) -> JSONRPCMessage | None:
    """The message that `line` holds, where there is one that anybody waits for.

    An answer that is over the limits is the error `TOO_LARGE` in its place.

    Raises:
        ValueError: it is no message.
    """
    from mcp_types import JSONRPCNotification, JSONRPCRequest

    try:
        check_json(line, max_bytes=MAX_MESSAGE_BYTES, max_values=MAX_VALUES)
    except TooMuchJson as error:
        failure = too_long(line[:300], line[-300:], why=str(error))
        if failure is None:
            raise
        return failure
    try:
        message = _parsed(line)
    except ValueError:
        message = _behind(line)
    if isinstance(message, JSONRPCNotification):
        return JSONRPCNotification(jsonrpc="2.0", method=message.method) if message.method in _HEARD else None
    if isinstance(message, JSONRPCRequest) and len(str(message.id)) > _MAX_ID_CHARS:
        raise ValueError("the id of a request is too long")
    return message


def _parsed(line: bytes) -> JSONRPCMessage:
    from mcp_types import JSONRPCError, jsonrpc_message_adapter

    if b'"jsonrpc"' not in line:
        raise ValueError("it is no message")
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if b"\\u" not in line:
            raise
        # Servers that write every character as an escape give a lone surrogate back that they were given.
        mended = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
        message = jsonrpc_message_adapter.validate_json(mended, by_name=False)
    if isinstance(message, JSONRPCError) and message.error.code in _OF_CONNECTIONS:
        message.error.code = _INTERNAL_ERROR
    return message


def _behind(line: bytes) -> JSONRPCMessage:
    """The answer at the end of a line that begins with half of another one. Raises ValueError: there is none."""
    found = deque(_OWN_ID.finditer(line), 1)
    if not found or not _ANSWER.search(line):
        raise ValueError("it is no message")
    for start in [*deque(_START.finditer(line, 0, found[0].end()), 3)][::-1]:
        with suppress(ValueError):
            return _parsed(line[start.start() :])
    return _error(orjson.loads(found[0][1]), "something else stands in the line of its answer", SPOILT)


def too_long(head: bytes, tail: bytes, *, why: str = "it is too long") -> JSONRPCError | None:
    """The error in place of an answer that is not read, where its two ends say which request it answers."""
    found = next((one for form in (_OWN_ID, _ID) for one in (form.search(head), form.search(tail)) if one), None)
    is_whole = head.lstrip().startswith(b'{"')  # else it is the end of what another call wrote into the line
    return None if found is None else _error(orjson.loads(found[1]), why, TOO_LARGE if is_whole else SPOILT)


def of_its_call(data: bytes, message: Any) -> bytes:
    """A server's message as it is read, `message` parsed: an error of its own tells of no connection."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict) or error.get("code") not in _OF_CONNECTIONS:
        return data
    return orjson.dumps({**message, "error": {**error, "code": _INTERNAL_ERROR}})


def is_answer_to(identity: Any, request: bytes) -> bool:
    """True if an answer of this id is one to the request that begins so."""
    found = _ID.search(request)
    return found is None or str(identity) == found[1].decode()


def _error(identity: int | str, why: str, code: int = TOO_LARGE) -> JSONRPCError:
    from mcp_types import ErrorData, JSONRPCError

    return JSONRPCError(jsonrpc="2.0", id=identity, error=ErrorData(code=code, message=why))


def is_heard(message: Any) -> bool:
    """True if a parsed message is one that anybody waits for: an answer, a request, or a notification that counts."""
    if not isinstance(message, Mapping):
        return False
    if "id" in message:
        return isinstance(message["id"], (int, str, type(None))) and len(str(message["id"])) <= _MAX_ID_CHARS
    return message.get("method") in _HEARD


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

    def __init__(self, gate: MessageBudget, *, is_answer: bool, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
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
        return of_its_call(text, message)

    def _failed(self, text: bytes, why: str) -> bytes | None:
        """The event that tells the one who waits, where it is known who that is."""
        message = f"the server's answer is too much: {why}"
        failure = too_long(text[:_SHOWN_OF_SKIPPED], text[-_SHOWN_OF_SKIPPED:], why=message)
        if failure is None:
            if not self._is_answer:
                return None
            failure = _error(0, message)
        return b"event: message\ndata: %s\n\n" % failure.model_dump_json(by_alias=True, exclude_unset=True).encode()
