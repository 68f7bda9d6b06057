"""`rlenv tools SPEC --pin`: keeps the tools of MCP servers in files, so that a change is noticed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from rlenv.cli.terminal import write
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.loader import LoadedSpec
from rlenv.tools._mcp.listing import Listing, write_pin
from rlenv.tools.mcp import McpSpec, live_listing, pin_path

__all__ = ["pin"]


def pin(loaded: LoadedSpec) -> int:
    """Asks the server of every entry with a `pin` for its tools and writes them; nothing else of a spec is compiled.

    Raises:
        UsageError: no entry has a pin, or a server does not start.
    """
    found: dict[Path, dict[str, Listing]] = defaultdict(dict)
    servers = {name: entry for name, entry in loaded.spec.tools.items() if isinstance(entry, McpSpec)}
    for name, entry in servers.items():
        path = f"tools.{name}"
        bases = {key: loaded.base_of(f"{path}.{key}") for key in type(entry).model_fields}
        context = CompileContext(loaded.base_of(path), loaded.spec.vars, {}, bases)
        file = pin_path(entry, context)
        if file is not None:
            found[file][name] = live_listing(name, entry, context)
    if not found:
        names = ", ".join(servers)
        where = f"add 'pin: tools.lock.json' to {names}" if servers else "it has no tools of kind mcp"
        raise UsageError(f"{loaded.path.name} names no file to pin its tools in", hint=where)
    for file, entries in found.items():
        write_pin(file, entries)
        counts = ", ".join(f"{name} ({len(listing.tools)} tools)" for name, listing in entries.items())
        write(f"wrote {file}: {counts}\n")
    return 0
