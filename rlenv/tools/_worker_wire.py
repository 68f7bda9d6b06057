"""The wire between a `python` tool and its worker processes.

A frame is eight bytes with its length and then that many bytes. A request is one JSON object; an answer is four bytes
with the length of a JSON object, that object, and the text of the result as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_BYTES", "packed", "unpacked"]

MAX_BYTES = 32_000_000
"""The longest answer."""


def packed(answer: Mapping[str, Any], text: str = "") -> bytes:
    """The body of an answer.

    Raises:
        TypeError, ValueError: `answer` is not JSON.
    """
    head = json.dumps(answer).encode()
    return len(head).to_bytes(4, "big") + head + text.encode("utf-8", "surrogatepass")


def unpacked(body: bytes) -> tuple[dict[str, Any], str]:
    """The answer, and the text that goes with it.

    Raises:
        ValueError: the body is no answer.
    """
    end = 4 + int.from_bytes(body[:4], "big")
    answer = json.loads(body[4:end])
    if type(answer) is not dict:
        raise ValueError("an answer is an object")
    return answer, body[end:].decode("utf-8", "surrogatepass")
