"""The `tempdir` resource: a folder that is gone when the episode is."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Literal

from rlenv._base.paths import RefusedPath, leads_out
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import ResourceError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import ResourceSpec, Text
from rlenv.language.templates import Template, TemplateError
from rlenv.resources.base import ResourceContext, path_template

__all__ = ["KIND", "Folder", "TempdirResource", "TempdirSpec"]

_threads: Final = ThreadPool(size=8)


class TempdirSpec(ResourceSpec):
    """A folder of its own for each episode, removed at its end."""

    kind: Literal["tempdir"]
    copy_from: Text | None = None
    """A folder whose content it starts with, relative to the spec; a template over `task` and `vars`."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened folder; `path` is its absolute path."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


class TempdirResource:
    """A compiled `tempdir` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self, name: str, *, scope: Literal["episode", "process"], source: Template | None, context: CompileContext
    ) -> None:
        self.name = name
        self.scope = scope
        self._source = source
        self._context = context

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
            if self._source is not None:
                await self._fill(path, self._source, context)
            yield Folder(path)
        finally:
            # Done at once, whoever is cancelled meanwhile: nothing may be left behind.
            shutil.rmtree(path, ignore_errors=True)

    async def _fill(self, path: Path, template: Template, context: ResourceContext) -> None:
        try:
            find = self._context.finder("copy_from", template, vars=context.vars)
            source = find(template.text(task=context.task, vars=context.vars))
            allowed = None if template.is_constant else (source, *self._context.roots)
            # To its end: nothing may be copied into a folder that is being removed.
            await _threads.finish(partial(_copy, source, path, allowed))
        except (TemplateError, RefusedPath, OSError, shutil.Error) as error:
            raise ResourceError(f"the folder of resource '{self.name}' cannot be filled: {error}") from error


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
    source = None if spec.copy_from is None else path_template("copy_from", spec.copy_from, scope=spec.scope)
    return TempdirResource(name, scope=spec.scope, source=source, context=context)


KIND = Kind(TempdirSpec, compile_tempdir)
