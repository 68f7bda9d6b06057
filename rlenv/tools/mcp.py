"""The `mcp` tool: all tools of an MCP server, by one entry.

The server is started (`command`) or reached (`url`) with the official SDK. Its sessions are shared by all episodes
unless the entry asks for one of each; one that ends is renewed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlenv._base.schemas import without_unreadable_patterns
from rlenv._base.text import did_you_mean
from rlenv.concurrency.lanes import Event, here
from rlenv.errors import EpisodeError, MissingExtra, ResourceError, ToolFailed, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.requirements import Requirement, program
from rlenv.language.spec import Float, Int, Text, ToolSpec
from rlenv.language.templates import TemplateError, template_of
from rlenv.secrets import resolve, set_aside
from rlenv.tools._mcp.listing import ListedTool, Listing, differences, discover, listing_of, read_pin
from rlenv.tools.arguments import ArgumentCheck, check_resources, folder_inside, is_of_episode
from rlenv.tools.base import Tool, ToolContext, ToolOutput, asked_again, common

if TYPE_CHECKING:
    from rlenv.tools._mcp.server import McpServer

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DEFAULT_POOL = 4
_DEATHS = frozenset({"crashed", "killed", "server_died"})
"""After them nothing is left of what a server kept."""
_TOO_LARGE = "the server's answer was too large to be read"
_SHOWN_DIFFERENCES = 5


class McpSpec(ToolSpec):
    """Brings the tools of an MCP server."""

    aside: ClassVar[Mapping[str, str]] = {
        **ToolSpec.aside,
        "headers": "they hold keys, and say who asks",
        "transport": "it is how the server is reached",
        "start_timeout_s": "no server is started",
        "include": "tools are chosen again; a call of one that is not there fails",
        "exclude": "tools are chosen again; a call of one that is not there fails",
        "pin": "a call is known by the parameters of its tool, pinned or not",
    }

    kind: Literal["mcp"]
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Starts the server, which speaks on its standard streams."""
    cwd: Text | None = None
    """With `command`: the folder that it runs in, relative to the spec; the spec's own otherwise."""
    url: Text | None = None
    """Where the server is, instead of `command`."""
    transport: Literal["http", "sse"] = "http"
    """With `url`: streamable HTTP, or the older SSE."""
    env: Mapping[str, Text] = Field(default_factory=dict)
    """With `command`: the server's environment; beside it the server sees only `PATH`."""
    headers: Mapping[str, Text] = Field(default_factory=dict)
    """With `url`: headers of every request."""
    include: tuple[Text, ...] | None = None
    """Only these tools, by the server's names; `*` stands for any characters."""
    exclude: tuple[Text, ...] = ()
    """Not these tools, by the server's names; `*` stands for any characters."""
    rename: Mapping[str, Text] = Field(default_factory=dict)
    """What the model calls a tool, by the server's name for it."""
    prefix: Text = ""
    """Stands before the names that are not under `rename`."""
    scope: Literal["process", "episode", "pool"] = "process"
    """One session for all episodes, one for each episode, or as many as `workers` for all. With `episode`, templates in
    `command`, `cwd`, `env`, `url` and `headers` may read `task` and `resources`."""
    workers: Annotated[Int, Field(ge=1, le=256)] | None = None
    """With `scope: pool`: how many sessions; 4 otherwise."""
    start_timeout_s: Annotated[Float, Field(gt=0)] = 30.0
    """The server has to answer within this many seconds after its start."""
    pin: Text | None = None
    """A file, relative to the spec, that holds the tools; `rlenv tools SPEC --pin` writes it."""


def _make_server(name: str, spec: McpSpec, context: CompileContext, call: ToolContext | None = None) -> McpServer:
    """The server of an entry: of a call's episode, or one that stands for all while the spec is compiled: its task is
    the first row, and its resources are an empty folder."""
    if (spec.command is None) == (spec.url is None):
        found = "both" if spec.command is not None else "neither"
        raise UsageError(f"a server has either 'command' or 'url', and here are {found}", hint="name one of them")
    for key, owner in (("env", "command"), ("cwd", "command"), ("headers", "url"), ("transport", "url")):
        if key in spec.model_fields_set and getattr(spec, owner) is None:
            raise UsageError(f"it is read only with '{owner}'", key=key, hint=f"remove '{key}'")
    if spec.workers is not None and spec.scope != "pool":
        message = f"it is read only with 'scope: pool', and the scope is {spec.scope}"
        raise UsageError(message, key="workers", hint="remove 'workers'")
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtra("the tool kind 'mcp'", extra="mcp")
    from rlenv.tools._mcp.server import McpServer

    def filled(key: str, text: str) -> str:
        if "{{" not in text and "{%" not in text:
            return resolve(text)
        names = ("vars", "task", "resources") if spec.scope == "episode" else ("vars",)
        template = template_of(text, key=key, names=names)
        check_resources(text, key=key, resources=context.resources)
        row = context.row if call is None else lambda: call.task
        task = row() if "task" in template.names else {}
        resources = dict.fromkeys(context.resources, _Placeholder()) if call is None else call.resources
        text, put_in = set_aside(text)
        try:
            made = template_of(text, key=key).text(vars=context.vars, task=task, resources=resources)
        except TemplateError as error:
            if call is not None and error.is_unfit and "resources" in template.names:  # earlier calls have left that
                raise ToolFailed("the server cannot be asked as things are", reason="bad_arguments") from error
            raise UsageError(f"the template cannot be filled: {error}", key=key) from error
        return str(put_in(made))

    cwd = filled("cwd", spec.cwd) if spec.cwd is not None else None
    folder = (context.bases.get("command", context.base) if cwd is None else context.path("cwd", cwd)).absolute()
    if cwd is not None and call is not None:
        folder = folder_inside(folder, call.resources)
    return McpServer(
        name,
        command=tuple(filled(f"command.{i}", word) for i, word in enumerate(spec.command or ())),
        url=filled("url", spec.url) if spec.url is not None else None,
        transport=spec.transport,
        env={key: filled(f"env.{key}", value) for key, value in spec.env.items()},
        headers={key: filled(f"headers.{key}", value) for key, value in spec.headers.items()},
        cwd=folder,
        start_timeout_s=spec.start_timeout_s,
    )


@cache
def _empty_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rlenv-empty-")


class _Placeholder:
    """Stands for a resource while a spec is compiled; as text, also of whatever is asked of it, an empty folder."""

    def __getattr__(self, name: str) -> _Placeholder:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __str__(self) -> str:
        return _empty_folder().name


def pin_path(spec: McpSpec, context: CompileContext) -> Path | None:
    """The file that pins the entry's tools, where it names one."""
    return context.path("pin", spec.pin) if spec.pin is not None else None


def live_listing(name: str, spec: McpSpec, context: CompileContext) -> Listing:
    """The tools of the entry's server as it lists them now.

    Raises:
        UsageError: the entry names no server, or the server does not start.
    """
    return discover(_make_server(name, spec, context), is_fresh=True)


def describe_changes(name: str, spec: McpSpec, context: CompileContext) -> str | None:
    """The server's changes since the entry's tools were pinned, in words; None where they are as they were.

    Raises:
        UsageError: the pin cannot be read, or the server does not start.
    """
    path = pin_path(spec, context)
    if path is None:
        return None
    found = differences(read_pin(path, name), live_listing(name, spec, context))
    if not found:
        return None
    more = f", and {len(found) - _SHOWN_DIFFERENCES} more" if len(found) > _SHOWN_DIFFERENCES else ""
    return ", ".join(found[:_SHOWN_DIFFERENCES]) + more


def _load_listing(server: McpServer, pin: Path | None) -> Listing:
    """The tools as they are pinned or as the server lists them; where neither can be, as a tape has them."""

    def found() -> Listing:
        return discover(server) if pin is None else read_pin(pin, server.name)

    # A pin that is there counts in a replay too: it may have changed, and with it what the policy is shown.
    is_pinned = pin is not None and pin.exists()
    if (lane := here()) is None or (is_pinned and lane.tape.is_offline):
        return found()
    content = {"tools": server.name, "server": server.digest}  # another entry may have its name
    lane = lane.at(f"tools of {server.name}")
    event = lane.tape.look(lane, Event(kind="list", name=server.name, request=content))
    if event.outcome and not is_pinned:
        return listing_of(event.response)
    listing = found()
    if not event.outcome:
        lane.tape.keep(lane, event.ended("ok", listing.as_dict()))
    return listing


def _choose_tools(spec: McpSpec, listing: Listing, name: str) -> list[ListedTool]:
    known = [tool.name for tool in listing.tools]

    def names_matching(key: str, patterns: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for pattern in patterns:
            hits = [tool for tool in known if fnmatchcase(tool, pattern)]
            if not hits:
                hint = did_you_mean(pattern, known, "it has")
                raise UsageError(f"the server '{name}' has no tool '{pattern}'", key=key, hint=hint)
            found.update(hits)
        return found

    wanted = names_matching("include", spec.include) if spec.include is not None else set(known)
    wanted -= names_matching("exclude", spec.exclude)
    names_matching("rename", tuple(spec.rename))
    if not wanted:
        raise UsageError(f"no tool of the server '{name}' is left", hint=f"it has: {', '.join(known) or 'none'}")
    return [tool for tool in listing.tools if tool.name in wanted]


def _tool_name(spec: McpSpec, tool: ListedTool) -> str:
    name = spec.rename.get(tool.name, spec.prefix + tool.name)
    if not _TOOL_NAME.fullmatch(name):
        fixed = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:64]
        raise UsageError(
            f"'{name}' is no name that models can call; expected 1 to 64 letters, digits, '_' or '-'",
            hint=f"add 'rename: {{{tool.name}: {fixed}}}'",
        )
    return name


def compile_mcp(name: str, spec: McpSpec, context: CompileContext) -> Sequence[Tool]:
    """The server's tools, in its order; what they answer as structured content is the value.

    Without `pin` the server is started once to be asked for its tools (see `discover`). A tool that the server
    declares as one that is not read-only counts as `mutates`, and one that it declares as read-only or idempotent
    may be retried, unless the entry says otherwise.

    Raises:
        MissingExtra: the SDK is not installed.
        UsageError: the keys do not fit together, the server does not start, or a named tool does not exist.
    """
    server = _make_server(name, spec, context)
    path = pin_path(spec, context)
    listing = _load_listing(server, path)
    tools = _choose_tools(spec, listing, name)
    if spec.description is not None and len(tools) != 1:
        raise UsageError(
            f"the entry gives {len(tools)} tools, which have their own", key="description", hint="remove 'description'"
        )
    said = {"server": listing.server, "version": listing.version, "protocol": listing.protocol}
    pinned = {"pin": listing.digest} if path is not None else {}
    about = {key: value for key, value in (said | pinned).items() if value}
    is_own = is_of_episode([spec.command, spec.cwd, spec.url, dict(spec.env), dict(spec.headers)])

    def server_of(call: ToolContext) -> McpServer:
        try:
            return _make_server(name, spec, context, call) if is_own else server
        except UsageError as error:  # of this row, or this episode's resources
            raise EpisodeError(f"tools.{name}: {error.message}", reason="tools") from error

    return tuple(_make_tool(spec, tool, server, server_of, listing, about) for tool in tools)


def _tool_parameters(tool: ListedTool, server: McpServer) -> Mapping[str, Any]:
    """The schema that the server gives, without patterns that cannot be run in bounded time: it checks those itself."""
    parameters: Mapping[str, Any] = without_unreadable_patterns(tool.parameters)
    try:
        ArgumentCheck(parameters, tool=tool.name)
    except UsageError as error:
        raise UsageError(
            f"the server '{server.name}': {error.message}",
            hint=f"leave the tool out with 'exclude: [{tool.name}]', or mend the server",
        ) from error
    return parameters


def _check_sendable(arguments: Mapping[str, Any]) -> None:
    """Raises ToolFailed: no JSON can hold them. Met below, it would end the session that other calls are on."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolFailed("the arguments cannot be sent as JSON", reason="bad_arguments") from error


def _make_tool(
    spec: McpSpec,
    tool: ListedTool,
    server: McpServer,
    server_of: Callable[[ToolContext], McpServer],
    listing: Listing,
    about: Mapping[str, str],
) -> Tool:
    from rlenv.tools._mcp.link import CallFailed, ServerDied, open_pool
    from rlenv.tools._mcp.server import Connection, ServerDown, as_output

    name, remote = _tool_name(spec, tool), tool.name
    parameters = _tool_parameters(tool, server)
    is_own = spec.scope == "episode"
    is_stateless = all(one.is_read_only for one in listing.tools)
    has_state = is_own and not is_stateless
    size = (spec.workers or _DEFAULT_POOL) if spec.scope == "pool" else 1

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        _check_sendable(arguments)
        scope, server = call.scope() if is_own else call.shared(), server_of(call)
        key = ("mcp", server.key, size)
        reason, lost = asked_again.get(), call.scope().keep(("mcp lost", key), list[Connection | None])
        # A server that had a call until its time was over, and was replaced, has lost what it held as one that died.
        is_lost = reason in _DEATHS or (reason == "late" and any(one and one.is_gone for one in lost))
        # Servers of its own: what dies or hangs again takes no call of others along. Refusals are asked of itself.
        is_trial = not is_own and (is_lost or (is_stateless and reason not in ("", "refused")))
        kept, many = ((*key, "again"), _DEFAULT_POOL) if is_trial else (key, size)
        try:
            pool = await scope.get(kept, lambda: open_pool(server, size=many, is_trial=is_trial, has_state=has_state))
            result = await pool.call(remote, arguments, deadline=call.deadline, late=None if is_trial else lost)
        except ServerDied as error:
            lost += [None] * (error.reason != "unavailable")  # it died with this call, perhaps of it
            text = f"the server of the tool {name} stopped during the call"
            raise ToolFailed(text, reason=error.reason, retryable=True) from error
        except CallFailed as error:
            text = _TOO_LARGE if error.reason == "too_large" else str(error)
            raise ToolFailed(text, reason=error.reason) from error
        except (ServerDown, ResourceError) as error:
            if isinstance(error, ResourceError) and call.turn >= 0 and not lost:
                raise  # nobody plays on without it but who may have felled it, or a call could mask its sample
            text = f"the tool {name} is not available at the moment"
            raise ToolFailed(text, reason="server_down", retryable=True) from error
        return as_output(name, result)

    fields = common(spec, idempotent=bool(tool.is_read_only or tool.is_idempotent))
    if "mutates" not in spec.model_fields_set:
        fields["mutates"] = tool.is_read_only is False
    return Tool(
        name=name,
        description=spec.description or tool.description or f"The tool {remote} of {listing.server or server.name}.",
        parameters=parameters,
        run=run,
        mode="async",
        reaches_out=spec.command is None,
        may_write=not (tool.is_read_only or spec.idempotent),
        shares="" if is_own else f"the server's state, which episodes share (scope: {spec.scope})",
        about=about,
        **fields,
    )


def _requirements(spec: McpSpec, folder: Path) -> Sequence[Requirement]:
    return (program(resolve(spec.command[0]), folder=folder),) if spec.command is not None else ()


KIND = Kind(McpSpec, compile_mcp, _requirements)
