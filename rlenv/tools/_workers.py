"""Worker processes for functions that have to be stopped: each is killed, and replaced, when a call does not end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.messages import Image
from rlenv.tools.base import ToolContext, ToolOutput

__all__ = ["MAX_BYTES", "Workers", "packed", "unpacked"]

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


_LARGE = 256_000
# What a function waits for is unknown, and it may stop itself.
_WAITS: Final = {"S": "late", "D": "late", "T": "stopped", "?": "late"}


class FunctionRaised(Exception):
    """A function raised something undeclared; the message is its traceback, for the author's log."""


def _output(answer: Mapping[str, Any], text: str) -> ToolOutput | Exception:
    kind = answer["kind"]
    if kind == "ok":
        images = tuple(Image(mime, base64) for mime, base64 in answer["images"])
        return ToolOutput(text, text if answer["is_text"] else answer["value"], images, answer["details"])
    if kind == "failed":
        return ToolFailed(text, reason=answer["reason"], retryable=answer["retryable"], details=answer["details"])
    if kind == "episode":
        return EpisodeError(text, reason=answer["reason"])
    return FunctionRaised(text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value and cannot be handed to another process")


class Workers:
    """At most `limit` workers of one tool, started when they are needed; calls beyond them wait their turn."""

    def __init__(self, name: str, told: Mapping[str, Any], *, limit: int) -> None:
        self._name = name
        self._pool = Pool(Program("rlenv.tools._worker:serve", told, waits=_WAITS), limit=limit)

    async def run(self, arguments: Mapping[str, Any], call: ToolContext, *, with_task: bool) -> ToolOutput:
        """Calls the function in a worker; cancelled, or at the call's deadline, the worker is killed.

        Raises:
            ToolFailed: the function declared a failure, or its process ended.
            Expired: the deadline passed; with what the time went to.
            EpisodeError: the function raised it, or no worker could be started.
            FunctionRaised: the function raised anything else.
        """
        asked = {"arguments": arguments, "task": call.task if with_task else {}, "seed": call.seed}

        async def work(process: Process) -> ToolOutput | Exception:
            asked["seconds"] = call.deadline - time.monotonic()
            frame, _ = await process.ask(json.dumps(asked, default=_plain).encode())
            try:
                answer, text = unpacked(frame) if len(frame) <= _LARGE else await asyncio.to_thread(unpacked, frame)
                return _output(answer, text)
            except (ValueError, KeyError, TypeError, RecursionError) as error:  # the function wrote into the socket
                process.is_busy = True
                raise Gone(None) from error

        try:
            result = await self._pool.run(work, until=call.deadline)
        except StartFailed as error:
            raise EpisodeError(
                f"a worker process of tool '{self._name}' did not start: {error}", reason="worker"
            ) from error
        except Gone as error:
            # The call may have ended its process, also by a signal that usually comes from outside.
            was_killed = error.cause == "outside"
            raise ToolFailed(
                f"the tool {self._name} failed: its process ended",
                reason="killed" if was_killed else "crashed",
                retryable=was_killed,
                details={"process": str(error)},
            ) from error
        if isinstance(result, Exception):
            raise result
        return result

    async def aclose(self) -> None:
        """Kills all workers and waits until they are gone."""
        await self._pool.aclose()
