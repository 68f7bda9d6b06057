"""Messages of the Language Server Protocol over bytes: JSON-RPC 2.0 behind a header (LSP 3.17, "Base Protocol")."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["INTERNAL", "INVALID_PARAMS", "INVALID_REQUEST", "MAX_BYTES", "NOT_FOUND", "NOT_INITIALISED", "PARSE",
           "Unreadable", "frame", "messages"]  # fmt: skip

MAX_BYTES: Final = 64 * 1024 * 1024
"""A longer message is passed over."""

PARSE: Final = -32700
INVALID_REQUEST: Final = -32600
NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
NOT_INITIALISED: Final = -32002

_MAX_HEADER: Final = 8192


class Unreadable(ValueError):
    """A message that is none; `code` is the error's in JSON-RPC."""

    def __init__(self, message: str, *, code: int) -> None:
        self.code = code
        super().__init__(message)


def frame(message: dict[str, Any]) -> bytes:
    """A message with its header. Lone surrogates, which a client may send, are escaped."""
    try:
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def messages(read_line: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[dict[str, Any] | Unreadable]:
    """The messages of a stream until it ends; one that cannot be read stands as what is wrong with it.

    Args:
        read_line: reads one line, of at most so many bytes.
        read: reads so many bytes, fewer only at the end.
    """
    while True:
        length: int | None = None
        while line := read_line(_MAX_HEADER):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value) if value.strip().isdigit() and len(value) < 20 else None
            if not line.strip():
                break
        else:
            return
        if length is None:
            yield Unreadable("a header without a Content-Length", code=PARSE)
        elif length > MAX_BYTES:
            for _ in range(length // MAX_BYTES):
                read(MAX_BYTES)
            read(length % MAX_BYTES)
            yield Unreadable(f"a message of {length} bytes; at most {MAX_BYTES} are read", code=INVALID_REQUEST)
        else:
            body = read(length)
            if len(body) < length:
                return
            yield _parsed(body)


def _parsed(body: bytes) -> dict[str, Any] | Unreadable:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"not JSON: {error}", code=PARSE)
    if not isinstance(message, dict):
        return Unreadable("expected an object", code=INVALID_REQUEST)
    return message
