"""What a server may send: messages within limits, and not more of what nobody asked for than a session can bear."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from rlenv._base.json_limits import TooMuchJson, check_json

__all__ = ["LARGE_BYTES", "MAX_MESSAGE_BYTES", "TOO_LARGE", "Gate", "is_heard", "read_message", "too_long"]

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Of one message: no text that a model reads is that long, and few images are."""
MAX_VALUES: Final = 20_000
"""In one message; the SDK checks every one of them on the event loop."""
LARGE_BYTES: Final = 256 * 1024
"""A longer message is parsed in a thread."""
TOO_LARGE: Final = -32083
"""The code of an answer that was over the limits and not read; in the range that JSON-RPC leaves to implementations."""
_MAX_ID_CHARS: Final = 128
# The only notifications that change anything here; what a server says beside its answers is nobody's.
_HEARD: Final = frozenset({"notifications/tools/list_changed"})
_ID: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*[,}]')

_BURST: Final = 4_000.0
_PER_S: Final = 1_000.0
_BYTES_PER_UNIT: Final = 4_096
_PER_REQUEST: Final = 20.0
_PER_POST: Final = 400.0
_PER_CALL: Final = 2 * MAX_MESSAGE_BYTES / _BYTES_PER_UNIT
_MOST: Final = _BURST + 16 * _PER_CALL


class Gate:
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


def read_message(line: bytes) -> JSONRPCMessage | None:
    """The message that `line` holds, where there is one that anybody waits for.

    An answer that is over the limits is the error `TOO_LARGE` in its place.

    Raises:
        ValueError: it is no message.
    """
    try:
        check_json(line, max_bytes=MAX_MESSAGE_BYTES, max_values=MAX_VALUES)
    except TooMuchJson as error:
        failure = too_long(line[:300], line[-300:], why=str(error))
        if failure is None:
            raise
        return failure
    message = _parsed(line)
    if isinstance(message, JSONRPCNotification):
        return JSONRPCNotification(jsonrpc="2.0", method=message.method) if message.method in _HEARD else None
    if isinstance(message, JSONRPCRequest) and len(str(message.id)) > _MAX_ID_CHARS:
        raise ValueError("the id of a request is too long")
    return message


def _parsed(line: bytes) -> JSONRPCMessage:
    if b'"jsonrpc"' not in line:
        raise ValueError("it is no message")
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if b"\\u" not in line:
            raise
        # Servers that write every character as an escape give a lone surrogate back that they were given.
        mended = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
        return jsonrpc_message_adapter.validate_json(mended, by_name=False)


def too_long(head: bytes, tail: bytes, *, why: str = "it is too long") -> JSONRPCError | None:
    """The error in place of an answer that is not read, where its two ends say which request it answers."""
    found = _ID.search(head) or _ID.search(tail)
    if found is None:
        return None
    return JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=ErrorData(code=TOO_LARGE, message=why))


def is_heard(message: Any) -> bool:
    """Whether a parsed message is one that anybody waits for: an answer, a request, or a notification that counts."""
    if not isinstance(message, Mapping):
        return False
    if "id" in message:
        return isinstance(message["id"], (int, str, type(None))) and len(str(message["id"])) <= _MAX_ID_CHARS
    return message.get("method") in _HEARD
