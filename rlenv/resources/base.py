"""The seam between resources and episodes, and what resources with a path have in common."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rlenv.errors import UsageError
from rlenv.language.templates import Template, template_of

__all__ = ["Resource", "ResourceContext", "path_template"]


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """What opening a resource may see: the task (empty for scope `process`), constants and the episode's seed."""

    task: Mapping[str, Any] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


class Resource(Protocol):
    """A compiled resource, shared by all episodes of a process.

    `open(context)` gives a handle for as long as the context manager is entered; it is exited whatever happens,
    cancellation included, in reverse order of opening. Handles show public attributes to templates
    (`resources.db.schema`). Raises ResourceError where the infrastructure fails.
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
