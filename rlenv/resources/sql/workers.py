"""Processes in which SQL statements run that may take long: each can be killed, and whose failure it was is measured.

Nothing of a statement runs in this process, so that it can be stopped wherever it is, in the engine's parser too, and
its memory is not ours. A statement may use a quarter of its time limit as processor time, which is the same on a busy
machine; the rest is for a machine that has other work. One that used it up was too slow by itself
(`timeout`, the policy's); one that did not get it, because its process was stopped, starved or killed from outside,
says nothing about the policy (`stalled`, `worker`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.pool import MARGIN_S, Pool
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed
from rlenv.concurrency.served import ENDED_FULL
from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.sql.engine import Limits

__all__ = ["Answer", "EngineRaised", "Image", "Request", "SqlWorkers"]

_OUT_OF_TIME: Final = "the query did not end within its time"


Image = Callable[[], AbstractAsyncContextManager[int]]
"""A descriptor of the image, which stays the giver's, for as long as it is entered."""


@dataclass(slots=True)
class Answer:
    """What a worker says, and the image of a copy that the statement changed, as a descriptor to be closed."""

    told: dict[str, Any]
    fd: int | None = None


class EngineRaised(Exception):
    """An engine could not be loaded, or met a bug; the message is its traceback, for the author's log."""


@dataclass(frozen=True, slots=True)
class Request:
    """One statement on its way to a process.

    `where` is what the engine needs beside it: which file, and what may be done there. `key` stands for the file, or
    for the image of a private copy, which is only sent if the process has another one; `next_key` for what the copy is
    after a statement that wrote.
    """

    sql: str
    limits: Limits
    where: Mapping[str, Any]
    key: str = ""
    image: Image | None = None
    next_key: str = ""

    def told(self, left: float) -> dict[str, Any]:
        """As the process reads it, with so many seconds left."""
        return {
            **self.where,
            "sql": self.sql,
            "key": self.key,
            "next": self.next_key,
            "cpu_s": min(self.limits.cpu_s, left),
            "wall_s": left + MARGIN_S,
            "max_rows": self.limits.max_rows,
            "max_size": self.limits.max_size,
        }


class SqlWorkers:
    """Processes of one engine.

    Args:
        engine: the module that has it (see `_serve.Engine`).
        can_sleep: whether a statement of it can wait for nothing but the time.
    """

    def __init__(self, engine: str, *, can_sleep: bool = False) -> None:
        waits = {"S": "timeout"} if can_sleep else {}
        self.pool = Pool(Program("rlenv.resources.sql._serve:serve", {"engine": engine}, is_bare=True, waits=waits))

    async def run(self, request: Request) -> Answer:
        """What the statement gives.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time, or its process did.
            ResourceError: the database is at fault.
            EngineRaised: the engine is.
        """
        try:
            request.sql.encode()
        except UnicodeEncodeError as error:
            raise ToolFailed(f"the statement cannot be run: {error.reason}") from error
        limits = request.limits
        try:
            answer = await self.pool.run(
                lambda process: _asked(process, request),
                until=limits.deadline,
                key=request.key,
                is_urgent=limits.is_urgent,
            )
        except Expired as late:
            message = "no process for SQL was free in its time" if late.reason == "busy" else _OUT_OF_TIME
            raise ToolFailed(message, reason=late.reason, retryable=late.reason != "timeout") from late
        except Gone as error:
            raise _failure(error) from error
        except StartFailed as error:
            if error.is_told:
                raise EngineRaised(str(error)) from error
            message = f"a process for SQL did not start: {error}"
            raise ToolFailed(message, reason="worker", retryable=True) from error
        return _checked(answer)


async def _asked(process: Process, request: Request) -> Answer:
    image = request.image if process.holds != request.key else None
    async with contextlib.nullcontext() if image is None else image() as fd:
        left = request.limits.deadline - time.monotonic()
        if left <= 0:
            raise ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
        body, fd = await process.ask(orjson.dumps(request.told(left)), fd, cpu_s=request.limits.cpu_s)
    try:
        told = orjson.loads(body)
        process.holds = told["holds"]
    except (ValueError, TypeError, KeyError) as error:
        process.is_busy = True
        if fd is not None:
            os.close(fd)
        raise Gone(None) from error
    return Answer(told, fd)


def _failure(error: Gone) -> ToolFailed:
    """What the end of a process says about the statement that it had."""
    if error.cause == "processor":
        return ToolFailed(_OUT_OF_TIME, reason="timeout")
    if error.cause == "time":
        return ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
    if error.status == ENDED_FULL:
        return ToolFailed("the statement needs more memory than it may use", reason="memory")
    details = {"process": str(error)}
    if error.cause == "crash":
        return ToolFailed("the statement made the database engine fail", details=details)
    return ToolFailed("the process of the query was ended", reason="worker", retryable=True, details=details)


def _checked(answer: Answer) -> Answer:
    told = answer.told
    if "lost" in told:
        raise ResourceError(told["lost"])
    if "raised" in told:
        raise EngineRaised(told["raised"])
    if "failed" in told:
        reason = told["reason"]
        raise ToolFailed(told["failed"], reason=reason, retryable=reason == "stalled")
    return answer
