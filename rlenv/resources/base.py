"""The seam between resources and episodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["Resource", "ResourceContext"]


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
