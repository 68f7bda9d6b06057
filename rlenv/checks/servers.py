"""Servers whose tools are pinned: they still have the tools that the pin holds."""

from __future__ import annotations

from collections.abc import Iterator

from rlenv.checks.subject import Subject
from rlenv.episodes.compile import bases_of, entry_fault
from rlenv.errors import Fault, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.secrets import redact
from rlenv.tools.mcp import McpSpec, changes

__all__ = ["check_servers"]


def check_servers(subject: Subject) -> Iterator[Fault]:
    """Faults of `pin`: a tool that is gone, new or different, or a server that does not start.

    Every server with a pin is started once for it.
    """
    loaded = subject.loaded
    for name, spec in loaded.spec.tools.items():
        if not isinstance(spec, McpSpec) or spec.pin is None or subject.lacks("tools", name):
            continue
        path = f"tools.{name}"
        context = CompileContext(
            loaded.base_of(path), loaded.spec.vars, subject.resources, bases_of(loaded, path, spec)
        )
        try:
            found = changes(name, spec, context)
        except UsageError as error:
            yield entry_fault(subject.document, path, error)
            continue
        if found is not None:
            message = f"the server of '{name}' is not as it was pinned: {redact(found)}"
            yield subject.document.fault(f"{path}.pin", message, "look at the change, then: rlenv tools SPEC --pin")
