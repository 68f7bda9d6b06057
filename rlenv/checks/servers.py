"""Servers whose tools are pinned: they still have the tools that the pin holds."""

from __future__ import annotations

from collections.abc import Iterator

from rlenv.checks.subject import Subject, split_message
from rlenv.errors import Fault, UsageError
from rlenv.secrets import redact
from rlenv.tools.base import CompileContext
from rlenv.tools.mcp import McpSpec, changes

__all__ = ["check_servers"]


def check_servers(subject: Subject) -> Iterator[Fault]:
    """Faults of `pin`: a tool that is gone, new or different, or a server that does not start.

    Every server with a pin is started once for it.
    """
    loaded = subject.loaded
    for name, spec in loaded.spec.tools.items():
        if not isinstance(spec, McpSpec) or spec.pin is None or not subject.tools_are_known:
            continue
        path = f"tools.{name}"
        bases = {key: loaded.base_of(f"{path}.{key}") for key in type(spec).model_fields}
        context = CompileContext(loaded.base_of(path), loaded.spec.vars, subject.resources, bases)
        try:
            found = changes(name, spec, context)
        except UsageError as error:
            yield subject.document.fault(path, *split_message(redact(str(error))), at="key")
            continue
        if found is not None:
            message = f"the server of '{name}' is not as it was pinned: {redact(found)}"
            yield subject.document.fault(f"{path}.pin", message, "look at the change, then: rlenv tools SPEC --pin")
