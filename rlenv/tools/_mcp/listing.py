"""The tools of a server, as it lists them or as a file pins them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv._base.bounded import cut_middle, encodable, size
from rlenv._base.paths import read_file
from rlenv.errors import UsageError

_VERSION = 1
_PAGES = 100
_MAX_TOOLS = 1_000
_MAX_CHARS = 8_000_000
_MAX_NAME = 200
_MAX_DESCRIPTION = 16_384
# What no description is written in: control characters but for tab and newline, and marks that turn text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SLACK_S = 15.0


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server. `is_read_only` and `is_idempotent` are None where the server says nothing."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_read_only: bool | None = None
    is_idempotent: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """As a pin file holds it."""
        said = {"read_only": self.is_read_only, "idempotent": self.is_idempotent}
        return {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
            **{key: value for key, value in said.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """The name of a server and its tools, in its order.

    `protocol` is the version that was agreed on with it, "" in a pin, which holds for every server with these tools.
    """

    server: str
    version: str
    tools: tuple[ListedTool, ...]
    protocol: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) over the tools as JSON with sorted keys, in the order of their names."""
        tools = sorted((tool.as_dict() for tool in self.tools), key=lambda tool: str(tool["name"]))
        return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """As a pin file holds it."""
        return {
            "server": self.server,
            "version": self.version,
            "digest": self.digest,
            "tools": [tool.as_dict() for tool in self.tools],
        }


_found: dict[Any, Listing] = {}
_lock = threading.Lock()


def discover(server: Any, *, is_fresh: bool = False) -> Listing:
    """Asks a server for its tools, once for each server in a process unless `is_fresh`.

    Tools have to be known where an environment is compiled, and that is plain code which may be called inside an
    event loop or outside: the server is asked by a short-lived thread with a loop of its own, and is stopped again.
    The caller waits, for at most the server's `start_timeout_s` and a little.

    Raises:
        UsageError: the server does not start or does not answer; with the last lines that it wrote.
    """
    if not is_fresh:
        with _lock:
            found = _found.get(server.key)
        if found is not None:
            return found
    listing = _in_thread(server)
    with _lock:
        _found[server.key] = listing
    return listing


def _in_thread(server: Any) -> Listing:
    outcome: list[Listing | BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_ask(server)))
        except BaseException as error:  # carried over to the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=work, name="rlenv-mcp-listing", daemon=True)
    thread.start()
    thread.join(2 * server.start_timeout_s + _SLACK_S)
    if not outcome:
        raise UsageError(f"the MCP server '{server.name}' ({server.address}) neither starts nor ends")
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found


async def _ask(server: Any) -> Listing:
    from mcp.shared.exceptions import MCPError

    from rlenv.tools._mcp.server import ServerDown, connect

    try:
        async with connect(server) as connection:
            async with asyncio.timeout(server.start_timeout_s):
                tools: list[ListedTool] = []
                cursor: str | None = None
                known = chars = 0
                for _ in range(_PAGES):
                    page = await connection.client.list_tools(cursor=cursor)
                    tools += [_listed(tool) for tool in page.tools]
                    chars += size([(tool.description, tool.parameters) for tool in tools[known:]], _MAX_CHARS)
                    known = len(tools)
                    if known > _MAX_TOOLS or chars > _MAX_CHARS:
                        raise UsageError(
                            f"the MCP server '{server.name}' ({server.address}) lists more than {_MAX_TOOLS:,} tools, "
                            f"or more than {_MAX_CHARS:,} characters of them"
                        )
                    cursor = page.next_cursor
                    if cursor is None:
                        break
            info = connection.client.server_info
            names = (_clean(info.name, _MAX_NAME), _clean(info.version, _MAX_NAME)) if info else ("", "")
            return Listing(*names, tuple(tools), str(connection.client.protocol_version))
    except ServerDown as error:
        raise UsageError(str(error)) from error
    except (MCPError, TimeoutError, ValueError, RuntimeError, BaseExceptionGroup) as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise UsageError(
            f"the MCP server '{server.name}' ({server.address}) does not list its tools: {error}"
        ) from error


def _listed(tool: Any) -> ListedTool:
    # The model reads the schema: what only names the dialect of JSON Schema is left out.
    schema = {key: _described(value) for key, value in tool.input_schema.items() if key != "$schema"}
    notes = tool.annotations
    return ListedTool(
        tool.name[:_MAX_NAME],
        _clean(tool.description or "", _MAX_DESCRIPTION).strip(),
        {**schema, "type": "object"},
        notes.read_only_hint if notes else None,
        notes.idempotent_hint if notes else None,
    )


def _clean(text: str, limit: int) -> str:
    return cut_middle(_CONTROL.sub("", encodable(text)), limit)


def _described(schema: Any) -> Any:
    """The same schema; what it says to people is cleaned."""
    if isinstance(schema, dict):
        return {
            key: _clean(value, _MAX_DESCRIPTION)
            if key in ("title", "description", "$comment") and isinstance(value, str)
            else _described(value)
            for key, value in schema.items()
        }
    return [_described(one) for one in schema] if isinstance(schema, list) else schema


def listing_of(held: Mapping[str, Any]) -> Listing:
    """The listing that `Listing.as_dict` gave.

    Raises:
        KeyError, TypeError, AttributeError: it is another object.
    """
    tools = tuple(
        ListedTool(tool["name"], tool["description"], tool["parameters"], tool.get("read_only"), tool.get("idempotent"))
        for tool in held["tools"]
    )
    return Listing(held["server"], held["version"], tools)


def read_pin(path: Path, entry: str) -> Listing:
    """The listing of an entry in a pin file.

    Raises:
        UsageError: there is no such file, it is no pin file, or it does not hold the entry.
    """
    again = "write it with: rlenv tools SPEC --pin"
    try:
        content = json.loads(read_file(path))
    except FileNotFoundError as error:
        raise UsageError(f"there is no file '{path.name}'", key="pin", hint=again) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"'{path.name}' cannot be read: {error}", key="pin", hint=again) from error
    try:
        if content["rlenv_tools"] != _VERSION:
            message = f"'{path.name}' is of version {content['rlenv_tools']}, not {_VERSION}"
            raise UsageError(message, key="pin", hint=again)
        found = content["entries"].get(entry)
        if found is None:
            known = ", ".join(content["entries"])
            raise UsageError(f"'{path.name}' has no entry '{entry}', only {known or 'none'}", key="pin", hint=again)
        listing = listing_of(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"'{path.name}' is no file of pinned tools ({error!r})", key="pin", hint=again) from error
    if listing.digest != found.get("digest"):
        raise UsageError(f"the tools of '{entry}' in '{path.name}' were changed by hand", key="pin", hint=again)
    return listing


def write_pin(path: Path, entries: Mapping[str, Listing]) -> None:
    """Writes the listings of these entries; what the file holds of others stays."""
    kept: dict[str, Any] = {}
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            kept = dict(old["entries"]) if old["rlenv_tools"] == _VERSION else {}
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"'{path}' is no file of pinned tools", hint="name another under 'pin'") from error
    new = {**kept, **{name: listing.as_dict() for name, listing in entries.items()}}
    content = {"rlenv_tools": _VERSION, "entries": dict(sorted(new.items()))}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(pinned: Listing, live: Listing) -> Sequence[str]:
    """The changes since the tools were pinned, in words; empty where there are none."""
    before = {tool.name: tool for tool in pinned.tools}
    after = {tool.name: tool for tool in live.tools}
    found = [f"the tool '{name}' is gone" for name in before if name not in after]
    found += [f"the tool '{name}' is new" for name in after if name not in before]
    for name, tool in before.items():
        now = after.get(name)
        if now is None or now == tool:
            continue
        what = [
            word
            for word, is_changed in (
                ("parameters", dict(tool.parameters) != dict(now.parameters)),
                ("description", tool.description != now.description),
                ("annotations", (tool.is_read_only, tool.is_idempotent) != (now.is_read_only, now.is_idempotent)),
            )
            if is_changed
        ]
        found.append(f"the tool '{name}' has other {' and '.join(what)}")
    return found
