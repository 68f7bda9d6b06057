"""The seam between resources and episodes, and what resources with a path have in common.

Two kinds are here too: `python`, an object that the author's function makes, and `tempdir`, a folder of the episode's.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

from rlenv._base.paths import RefusedPath, leads_out, remove
from rlenv.concurrency.scope import Hosted
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import EpisodeError, ResourceError, UsageError, under
from rlenv.language.functions import failure, import_function, named_parameters
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import ResourceSpec, Text
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.resources import copy_of, lent
from rlenv.secrets import logger

__all__ = ["PYTHON", "TEMPDIR", "Folder", "PythonResource", "PythonResourceSpec", "Resource", "ResourceContext"]
__all__ += ["TempdirResource", "TempdirSpec", "path_template"]


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """The values that opening a resource may see: the task (empty for scope `process`), constants and the episode's
    seed.
    """

    task: Mapping[str, Any] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


class Resource(Protocol):
    """A compiled resource, shared by all episodes of a process.

    `open(context)` gives a handle for as long as the context manager is entered; it is exited whatever happens,
    cancellation included, in reverse order of opening. Handles show public attributes to templates
    (`resources.db.schema`). Raises ResourceError where the infrastructure fails. One that keeps anything open beside
    its handles may have a method `forget()`, called as an environment closes, which closes it.
    """

    name: str
    scope: Literal["episode", "process"]

    def open(self, context: ResourceContext) -> AbstractAsyncContextManager[Any]: ...


def path_template(key: str, text: str, *, scope: Literal["episode", "process"]) -> Template:
    """The template of a path that stands under `key`: over `task` and `vars`, or over `vars` alone if it is shared.

    Raises:
        UsageError: it does not compile, or reads what is not there.
    """
    template = template_of(text, key=key, names=("task", "vars"))
    if scope == "process" and "task" in template.names:
        message = "a resource of scope process is opened once and cannot depend on the task"
        raise UsageError(message, key=key, hint="set scope: episode")
    return template


_log: Final = logger("rlenv.resources")
_GRACE_S: Final = 0.2
_CLOSE_S: Final = 30.0
_python_threads: Final = ThreadPool(size=64)
_OFFERED: Final = ("task", "seed", "vars")


class PythonResourceSpec(ResourceSpec):
    """Calls a function once for each episode (or once, with `scope: process`); what it gives is the resource.

    The function may be sync or async, give the value itself, a context manager, or yield it once. Parameters called
    `task`, `seed` and `vars` are filled by name.
    """

    kind: Literal["python"]
    function: Text
    """`file.py:function`, relative to the spec, or `package.module:function`."""
    run_in: Literal["loop", "thread"] = "thread"
    """Where a plain function runs: `thread` where it may block; `loop` for a quick one."""
    access: Literal["copy"] | None = None
    """`copy`: the function is called once, and each episode has a private copy of the plain data, as JSON has it, that
    it gives. Parts are copied when they are first read: opening and comparing tables costs what is touched."""


@dataclass(eq=False)
class PythonResource:
    """A compiled `python` entry.

    Blocking work, closing too, is done in a thread (unless `run_in: loop`). Where the episode is cancelled while one
    opens, what was opened is closed; a thread that hangs is left behind and closes by itself once it goes on. An async
    context manager is entered and exited by one task, as anyio asks for. What closing raises, and that it takes longer
    than 30 s, goes to the logger `rlenv.resources`.
    """

    name: str
    scope: Literal["episode", "process"]
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    in_thread: bool
    is_copied: bool = False
    _made: list[Any] = field(default_factory=list)
    _making: threading.Lock = field(default_factory=threading.Lock)

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Any]:
        """The value for as long as it is entered.

        Raises:
            ResourceError: the function, or entering what it gave, failed.
        """
        known: Mapping[str, Any] = {"task": context.task, "seed": context.seed, "vars": context.vars}
        given = {name: known[name] for name in self.parameters}
        async with AsyncExitStack() as stack:
            yield await self._open_value(given, stack)

    async def _open_value(self, given: Mapping[str, Any], stack: AsyncExitStack) -> Any:
        function = self.function
        with self._as_resource_error():
            if self.is_copied:
                return await self._blocking(lambda: self._copy_folder(given))
            if inspect.isasyncgenfunction(function):
                return await self._async_manager(asynccontextmanager(function)(**given), stack)
            if inspect.isgeneratorfunction(function):
                return await self._manager(contextlib.contextmanager(function)(**given), stack)
            if inspect.iscoroutinefunction(function):
                made = await function(**given)
            else:
                made = await self._blocking(lambda: function(**given))
            if hasattr(type(made), "__aenter__") and hasattr(type(made), "__aexit__"):
                return await self._async_manager(made, stack)
            if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
                return await self._manager(made, stack)
            return made

    def _copy_folder(self, given: Mapping[str, Any]) -> Any:
        with self._making:
            if not self._made:
                self._made.append(lent(self.function(**given)))
        return copy_of(self._made[0])

    async def _async_manager(self, manager: AbstractAsyncContextManager[Any], stack: AsyncExitStack) -> Any:
        host = Hosted(manager)
        value = await host.open()

        async def close() -> None:
            with self._log_errors():
                async with asyncio.timeout(_CLOSE_S):
                    await host.aclose()

        stack.push_async_callback(close)
        return value

    async def _manager(self, manager: AbstractContextManager[Any], stack: AsyncExitStack) -> Any:
        entered: list[Any] = []

        def enter() -> None:
            entered.append(manager.__enter__())

        def leave() -> None:
            if entered:
                entered.clear()
                manager.__exit__(None, None, None)

        def leave_late() -> None:
            with self._log_errors():
                leave()

        async def close() -> None:
            if entered:
                with self._log_errors():
                    async with asyncio.timeout(_CLOSE_S):
                        await self._blocking(leave)

        # Before it is entered: a cancellation that comes meanwhile must not leave it open.
        stack.push_async_callback(close)
        await self._blocking(enter, late=leave_late)
        return entered[0]

    async def _blocking(self, work: Callable[[], Any], *, late: Callable[[], None] | None = None) -> Any:
        """The result of `work`. `late` is called where it ends only after it was given up."""
        if not self.in_thread:
            return work()
        job = _python_threads.submit(work)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; one that hangs is left behind, and closes what it opens by itself.
            await asyncio.wait((job.done,), timeout=_GRACE_S)
            if not job.is_ended:
                _python_threads.give_up(job, after=late)
            raise
        return job.outcome()

    @contextlib.contextmanager
    def _as_resource_error(self) -> Iterator[None]:
        try:
            yield
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            message = f"the resource '{self.name}' cannot be opened: {failure(error)}"
            raise ResourceError(message) from error

    @contextlib.contextmanager
    def _log_errors(self) -> Iterator[None]:
        # The episode is over and its reward stands; what was opened before this still has to be closed.
        try:
            yield
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            _log.warning("resource '%s' cannot be closed", self.name, exc_info=error)


def compile_python(name: str, spec: PythonResourceSpec, context: CompileContext) -> PythonResource:
    """The resource of one entry.

    Raises:
        UsageError: there is no such function, or it takes what nothing gives.
    """
    with under("function"):
        function = import_function(spec.function, base=context.bases.get("function", context.base))
    names = named_parameters(function, key="function", offered=_OFFERED)
    if "task" in names and spec.scope == "process":
        raise UsageError(
            "a resource of scope process is made once and has no task", key="function", hint="use scope: episode"
        )
    is_copied = spec.access == "copy"
    if is_copied and spec.scope == "process":
        raise UsageError("episodes share what has scope: process", key="access", hint="use scope: episode")
    if is_copied and {"task", "seed"} & set(names):
        message = "what each episode has a copy of is made once, without a task and a seed"
        raise UsageError(message, key="access", hint="take 'access' out, or the parameters")
    in_parts = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if is_copied and any(goes_on(function) for goes_on in in_parts):
        raise UsageError("a copy is made of what a plain function returns", key="access", hint="take it out")
    return PythonResource(
        name,
        scope=spec.scope,
        function=function,
        parameters=names,
        in_thread=spec.run_in == "thread",
        is_copied=is_copied,
    )


PYTHON = Kind(PythonResourceSpec, compile_python)


_copy_threads: Final = ThreadPool(size=8)


class TempdirSpec(ResourceSpec):
    """A folder of its own for each episode, removed at its end."""

    kind: Literal["tempdir"]
    path: Text | None = None
    """A folder whose content it starts with, relative to the spec; a template over `task` and `vars`."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened folder; `path` is its absolute path."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(eq=False)
class TempdirResource:
    """A compiled `tempdir` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ("path",)

    name: str
    scope: Literal["episode", "process"]
    source: Template | None
    context: CompileContext

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Folder]:
        """The folder for as long as it is entered; it is removed with all that is in it.

        Raises:
            ResourceError: it cannot be made, or what it starts with is not there.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix=f"rlenv-{re.sub(r'[^A-Za-z0-9_-]', '_', self.name)[:40]}-"))
        except OSError as error:  # a full disk, say
            raise ResourceError(f"the folder of resource '{self.name}' cannot be made: {error}") from error
        try:
            if self.source is not None:
                await self._fill(path, self.source, context)
            yield Folder(path)
        finally:
            # To its end, whoever is cancelled meanwhile: nothing may be left behind.
            await _copy_threads.finish(partial(remove, path))

    async def _fill(self, path: Path, template: Template, context: ResourceContext) -> None:
        try:
            find = self.context.finder("path", template, vars=context.vars)
            source = find(template.text(task=context.task, vars=context.vars))
            allowed = None if template.is_constant else (source, *self.context.roots)
            # To its end: nothing may be copied into a folder that is being removed.
            await _copy_threads.finish(partial(_copy, source, path, allowed))
        except (TemplateError, RefusedPath, OSError, shutil.Error) as error:
            reason = "task" if isinstance(error, (TemplateError, RefusedPath)) else None
            raise ResourceError(
                f"the folder of resource '{self.name}' cannot be filled: {error}", reason=reason
            ) from error


def _copy(source: Path, target: Path, allowed: Sequence[Path] | None) -> None:
    """Copies a folder, its links as links.

    Raises:
        RefusedPath: a link leads out of `allowed` (None where the author named the folder), or there is a pipe or a
            device.
        OSError, shutil.Error: what cannot be copied.
    """
    for folder, folders, files in os.walk(source):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if allowed is not None and leads_out(path, allowed):
                    raise RefusedPath(f"the link '{path.relative_to(source)}' leads out of the folder")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a device would be copied for ever
                raise RefusedPath(f"'{path.relative_to(source)}' is no file and no folder")
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)


def compile_tempdir(name: str, spec: TempdirSpec, context: CompileContext) -> TempdirResource:
    """The resource of one entry.

    Raises:
        UsageError: the template does not compile or reads what is not there.
    """
    source = None if spec.path is None else path_template("path", spec.path, scope=spec.scope)
    return TempdirResource(name, scope=spec.scope, source=source, context=context)


TEMPDIR = Kind(TempdirSpec, compile_tempdir)
