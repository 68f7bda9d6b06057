"""A database as an episode has it, and its compiled entry: which file a task names, and the files opened before.

Processes in which SQL statements run that may take long: each can be killed, and whose failure it was is measured.

Nothing of a statement runs in this process, so that it can be stopped wherever it is, in the engine's parser too, and
its memory is not ours. A statement may use a quarter of its time limit as processor time, which is the same on a busy
machine; the rest is for a machine that has other work. One that used it up was too slow by itself
(`timeout`, the policy's); one that did not get it, because its process was stopped, starved or killed from outside,
says nothing about the policy (`stalled`, `worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import orjson

from rlenv._base.paths import RefusedPath
from rlenv._base.text import nearest
from rlenv.concurrency.deadline import Expired, left_s, waited_s
from rlenv.concurrency.pool import MARGIN_S, Pool
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed
from rlenv.concurrency.served import ENDED_FULL
from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import ResourceSpec
from rlenv.language.templates import TemplateError
from rlenv.resources.base import ResourceContext, path_template
from rlenv.resources.sql import MAX_SIZE, MAX_SQL, Engine, OpenDatabase, Rows, StatementLimits


class Database:
    """An opened database.

    `schema` is the text of its CREATE statements, `dialect` the name of its SQL (`sqlite`, `duckdb`). `version` is
    equal where equal statements give equal rows: the file and when it was changed. It is None for a private copy, which
    may be written.
    """

    __slots__ = ("_engine", "_is_closed", "_opened", "_turn")

    def __init__(self, opened: OpenDatabase, engine: Engine[Any], *, is_private: bool) -> None:
        self._opened = opened
        self._engine = engine
        self._turn = asyncio.Lock() if is_private else None
        self._is_closed = False

    @property
    def dialect(self) -> str:
        return self._engine.dialect

    @property
    def schema(self) -> str:
        return self._opened.about.schema

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._opened.about.version

    async def query(
        self,
        sql: str,
        *,
        deadline: float,
        max_rows: int = 10_000,
        max_size: int = MAX_SIZE,
        cpu_s: float | None = None,
        is_urgent: bool = False,
    ) -> Rows:
        """The rows of one statement; the event loop is held for a few milliseconds at most.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_size: how many characters their cells may take together, as JSON.
            cpu_s: how much processor time it may use; a quarter of the time to the deadline otherwise.
            is_urgent: before others where several wait, for what a reward asks.

        Raises:
            ToolFailed: the statement is at fault (the engine's message, shortened), or ran out of time; `reason` says
                whether it used its time up (`timeout`) or did not get it (`stalled`, `busy`, `worker`).
            ResourceError: the database is.
        """
        if len(sql) > MAX_SQL:
            raise ToolFailed(f"the statement is longer than {MAX_SQL} characters", reason="too_large")
        limits = limits_for(deadline, cpu_s=cpu_s, max_rows=max_rows, max_size=max_size, is_urgent=is_urgent)
        try:
            if self._turn is None:
                return await self._opened.run(sql, limits)
            async with self._turn:
                if self._is_closed:
                    raise ResourceError("the database was closed")
                try:
                    return await self._opened.run(sql, limits)
                finally:
                    if self._is_closed:  # this statement was left behind
                        await self._opened.close()
        except ToolFailed as error:
            error.text = self._add_hint(error.text)
            error.args = (error.text,)
            raise

    def _add_hint(self, message: str) -> str:
        found = self._engine.missing(message)
        if found is None:
            return message
        name, message = found
        close = nearest(name.rpartition(".")[2], self._opened.about.words())
        return f"{message}; did you mean {close}?" if close else message

    async def close(self) -> None:
        """Ends the use of the database; a private copy is gone once no statement uses it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._turn is None or not self._turn.locked():
            await self._opened.close()


_CPU_SHARE: Final = 0.25  # how much of its time limit a statement may use as processor time
_LEAST_CPU_S: Final = 0.02


def limits_for(
    deadline: float, *, cpu_s: float | None, max_rows: int, max_size: int, is_urgent: bool = False
) -> StatementLimits:
    """The limits of a statement that is given now; without `cpu_s` a quarter of its time is for the processor.

    Seconds that its call has waited for a place count as its time: a statement that came late is stopped by the
    deadline, and does not look as if it had used its time up.
    """
    if cpu_s is None:
        cpu_s = max((deadline - time.monotonic() + waited_s()) * _CPU_SHARE, _LEAST_CPU_S)
    return StatementLimits(deadline, cpu_s, max_rows, max_size, is_urgent)


_MAX_SOURCES: Final = 256


class DatabaseSpec(ResourceSpec):
    """The keys that every kind of database takes."""

    access: Literal["read_only", "copy"] = "read_only"
    """`read_only`: nothing can be written; `copy`: a private copy that may be written and is thrown away."""


class SqlResource:
    """A compiled entry whose handle is a `Database`.

    Files are taken not to change while the process runs; what is known of them is read once.

    Args:
        key: the key of the spec under which `path` stands.
        path: the file, as a template over `task` and `vars`.

    Raises:
        UsageError: the path does not compile, or that of a shared database depends on the task.
    """

    template_attributes: ClassVar[tuple[str, ...]] = ("schema", "dialect")

    def __init__(
        self, name: str, spec: DatabaseSpec, context: CompileContext, *, key: str, path: str, engine: Engine[Any]
    ) -> None:
        if spec.access == "copy" and spec.scope == "process":
            message = "one copy for all episodes would carry writes from one to the next"
            raise UsageError(message, key="scope", hint="use scope: episode")
        self.name = name
        self.scope = spec.scope
        self.access = spec.access
        self.engine = engine
        self._template = path_template(key, path, scope=spec.scope)
        self._find = context.finder(key, self._template, vars=context.vars)
        self._sources: OrderedDict[str, Any] = OrderedDict()

    def open(self, context: ResourceContext) -> _Opening:
        """Opens the database of the context's task.

        Raises:
            ResourceError: on entering, where the file is missing or is no database.
        """
        return _Opening(self, context)

    def forget(self) -> None:
        """Closes what is kept of files beside open databases; what is opened later reads them again."""
        while self._sources:
            self.engine.forget(self._sources.popitem()[1])

    def source(self, context: ResourceContext) -> Any:
        """The engine's source for the file that the task names.

        Raises:
            ResourceError: the path cannot be filled in, or the file is missing or is no database.
        """
        try:
            written = self._template.text(task=context.task, vars=context.vars)
            source = self._sources.get(written)
            if source is not None:
                self._sources.move_to_end(written)
                return source
            path = self._find(written)
        except (TemplateError, RefusedPath) as error:
            told = f"resource '{self.name}': its path cannot be filled in: {error}"
            raise ResourceError(told, reason="task") from error
        return self._add_source(written, path)

    def _add_source(self, written: str, path: Path) -> Any:
        source = self.engine.source(path)
        if len(self._sources) >= _MAX_SOURCES:
            self.engine.forget(self._sources.popitem(last=False)[1])
        self._sources[written] = source
        return source


class _Opening:
    __slots__ = ("_context", "_database", "_resource")

    def __init__(self, resource: SqlResource, context: ResourceContext) -> None:
        self._resource = resource
        self._context = context
        self._database: Database | None = None

    async def __aenter__(self) -> Database:
        resource = self._resource
        opened = await resource.engine.open(resource.source(self._context))
        self._database = Database(opened, resource.engine, is_private=resource.access == "copy")
        return self._database

    async def __aexit__(self, *_error: object) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None


_OUT_OF_TIME: Final = "the query did not end within its time"


Image = Callable[[], AbstractAsyncContextManager[int]]
"""A descriptor of the image, which stays the giver's, for as long as it is entered."""


@dataclass(slots=True)
class WorkerAnswer:
    """A worker's answer, and the image of a copy that the statement changed, as a descriptor to be closed."""

    reply: dict[str, Any]
    fd: int | None = None


class EngineRaised(Exception):
    """An engine could not be loaded, or met a bug; the message is its traceback, for the author's log."""


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """One statement on its way to a process.

    `where` is what the engine needs beside it: which file, and what may be done there. `key` stands for the file, or
    for the image of a private copy, which is only sent if the process has another one; `next_key` for what the copy is
    after a statement that wrote.
    """

    sql: str
    limits: StatementLimits
    where: Mapping[str, Any]
    key: str = ""
    image: Image | None = None
    next_key: str = ""

    def as_json(self, left: float) -> dict[str, Any]:
        """As the process reads it, with so many seconds left."""
        return {
            **self.where,
            "sql": self.sql,
            "key": self.key,
            "next": self.next_key,
            "cpu_s": self.limits.cpu_s,
            "wall_s": left + MARGIN_S,
            "max_rows": self.limits.max_rows,
            "max_size": self.limits.max_size,
        }


class SqlWorkers:
    """Processes of one engine.

    Args:
        engine: its class as `module:class` (see `rlenv.resources.sql.WorkerEngine`).
        can_sleep: whether a statement of it can wait for nothing but the time.
    """

    def __init__(self, engine: str, *, can_sleep: bool = False) -> None:
        waits = {"S": "timeout"} if can_sleep else {}
        self.pool = Pool(Program("rlenv.resources.sql:serve", {"engine": engine}, is_bare=True, waits=waits))

    async def run(self, request: StatementRequest) -> WorkerAnswer:
        """The worker's answer to a statement.

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
                lambda process: _ask_worker(process, request),
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
        return _raise_failure(answer)


async def _ask_worker(process: Process, request: StatementRequest) -> WorkerAnswer:
    image = request.image if process.holds != request.key else None
    async with contextlib.nullcontext() if image is None else image() as fd:
        left = left_s()
        if left <= 0:
            raise ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
        body, fd = await process.ask(orjson.dumps(request.as_json(left)), fd, cpu_s=request.limits.cpu_s)
    try:
        reply = orjson.loads(body)
        process.holds = reply["holds"]
    except (ValueError, TypeError, KeyError) as error:
        process.is_busy = True
        if fd is not None:
            os.close(fd)
        raise Gone(None) from error
    return WorkerAnswer(reply, fd)


def _failure(error: Gone) -> ToolFailed:
    """The failure of a statement whose process ended, by the way it ended."""
    if error.cause == "processor":
        return ToolFailed(_OUT_OF_TIME, reason="timeout")
    if error.cause == "time":
        return ToolFailed(_OUT_OF_TIME, reason="stalled", retryable=True)
    if error.status == ENDED_FULL:
        return ToolFailed("the statement needs more memory than it may use", reason="memory")
    details = {"process": str(error)}  # `kind: state` looks for it
    if error.cause == "crash":
        return ToolFailed("the statement made the database engine fail", details=details)
    return ToolFailed("the process of the query was ended", reason="worker", retryable=True, details=details)


def _raise_failure(answer: WorkerAnswer) -> WorkerAnswer:
    reply = answer.reply
    if "lost" in reply:
        raise ResourceError(reply["lost"])
    if "raised" in reply:
        raise EngineRaised(reply["raised"])
    if "failed" in reply:
        reason = reply["reason"]
        raise ToolFailed(reply["failed"], reason=reason, retryable=reason == "stalled")
    return answer
