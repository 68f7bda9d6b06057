"""The compiled entry of a database: which file a task names, and the files that were opened before."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Literal

from rlenv._base.paths import RefusedPath
from rlenv.errors import ResourceError, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import ResourceSpec
from rlenv.language.templates import TemplateError
from rlenv.resources.base import ResourceContext, path_template
from rlenv.resources.sql.database import Database
from rlenv.resources.sql.engine import Engine

__all__ = ["DatabaseSpec", "SqlResource"]

_MAX_SOURCES: Final = 256


class DatabaseSpec(ResourceSpec):
    """What every kind of database takes."""

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

    def source(self, context: ResourceContext) -> Any:
        """What the engine has of the file that the task names.

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
            raise ResourceError(f"resource '{self.name}': its path cannot be filled in: {error}") from error
        return self._new(written, path)

    def _new(self, written: str, path: Path) -> Any:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None
