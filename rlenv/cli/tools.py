"""`rlenv tools`: the tools as the model sees them; `call` runs one, `check` tries each, `--pin` keeps them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.markup import escape

from rlenv._base.bounded import cut_end
from rlenv.cli.console import Console
from rlenv.cli.options import WithSpec, argument, option
from rlenv.cli.spending import counting, show_spending_line
from rlenv.cli.terminal import write, write_error, write_json
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.episode import Episode
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.shipped import find
from rlenv.language.spec import Spec
from rlenv.messages import ToolCall, ToolResult
from rlenv.runs.usage import spending_line
from rlenv.tools.base import Tool, ToolContext

__all__ = ["ToolsCommand"]


@dataclass
class ToolsCommand(WithSpec):
    """`rlenv tools`."""

    spec: str = argument("a YAML file, or the name of a shipped environment")
    action: list[str] = argument(
        "run one tool (arguments are JSON), or call each tool's example and every server; lists without",
        metavar="call NAME ARGUMENTS | check",
        nargs="*",
    )
    json: bool = option("print schemas and limits as JSON")
    call: list[str] | None = option("the same as `call NAME ARGUMENTS`", metavar=("NAME", "ARGUMENTS"), nargs=2)
    pin: bool = option("write the tools of MCP servers into the files under 'pin'")
    split: str | None = option("which tasks; the first split by default")
    task: int = option("the row whose resources are opened for calls", default=0, metavar="I")

    def execute(self) -> int:
        """Lists the compiled tools, runs one or checks all; exit code 1 where a call or a check did not succeed."""
        _read_action(self)
        if self.pin:
            return pin(  # what is pinned need not be there yet, so nothing is compiled
                load_spec(find(self.spec), set=self.overrides)
            )
        environment = load(self.spec, set=self.overrides)
        if self.call:
            return _call(self, environment, *self.call)
        if self.action:
            return check(self, environment)
        calls = environment.spec.calls
        rows = [
            {
                **tool.schema["function"],
                "timeout_s": tool.timeout_s or calls.timeout_s,
                "concurrency": tool.concurrency or calls.concurrency,
                "mutates": tool.mutates,
                "idempotent": tool.idempotent,
                "policy": _policy(tool),
                "runs": tool.mode,
            }
            for tool in environment.parts.tools.values()
        ]
        if self.json:
            write_json(rows, indent=2)
            return 0
        console = Console()
        for row in rows:
            console.print(
                f"[bold]{escape(row['name'])}[/bold]  [dim]{row['runs']}, ends after {row['timeout_s']:g} s, "
                f"at most {row['concurrency']} at once{', mutates' if row['mutates'] else ''}[/dim]"
            )
            for key, value in row["policy"].items():
                console.print(f"  [dim]{key}: {escape(value if isinstance(value, str) else json.dumps(value))}[/dim]")
            console.print(f"  {escape(row['description'])}")
            required = set(row["parameters"].get("required", ()))
            for name, schema in row["parameters"].get("properties", {}).items():
                kind = schema.get("type", "any")
                note = schema.get("description", "")
                optional = "" if name in required else " (optional)"
                console.print(f"  [cyan]{escape(name)}[/cyan]: {escape(str(kind))}{optional}  {escape(str(note))}")
        return 0


def _read_action(args: ToolsCommand) -> None:
    match args.action:
        case [] | ["check"]:
            return
        case ["call", name, arguments]:
            args.call = [name, arguments]
        case _:
            raise UsageError(f"found '{' '.join(args.action)}'; expected nothing, 'call NAME ARGUMENTS' or 'check'")


def _policy(tool: Tool) -> dict[str, Any]:
    """What is set of a tool's policy, as JSON."""
    if tool.policy is None:
        return {}
    found: dict[str, Any] = {}
    for field in fields(tool.policy):
        value = getattr(tool.policy, field.name)
        if isinstance(value, Spec):
            value = value.model_dump(mode="json", exclude_none=True)
        elif isinstance(value, frozenset):
            value = sorted(value)
        if value and field.name != "cache_path":
            found[field.name] = value
    return found


def _call(args: ToolsCommand, environment: Environment, name: str, raw: str) -> int:
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--call {name}: the arguments are not JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise UsageError(f"--call {name}: the arguments are a JSON object, not {type(arguments).__name__}")
    with counting() as so_far:
        result = asyncio.run(_run(args, environment, ToolCall(name, arguments)))
    write(result.text + "\n")
    asked = spending_line(so_far())
    write_error(f"{result.outcome} in {result.seconds * 1000:.2f} ms\n" + (f"{asked}\n" if asked else ""))
    return 1 if result.is_error else 0


async def _run(args: ToolsCommand, environment: Environment, call: ToolCall) -> ToolResult:
    async with environment, environment.start(task=args.task, split=args.split) as episode:
        if episode.failure is not None:
            raise UsageError(episode.failure.message)
        return await called(environment, episode, call)


_SHOWN = 100


@dataclass(frozen=True, slots=True)
class _Checked:
    """One line of the report; `is_right` is None where there was nothing to call."""

    what: str
    is_right: bool | None
    note: str
    seconds: float = 0.0


def check(args: ToolsCommand, environment: Environment) -> int:
    """Prints a line for each tool and each requirement; 1 where one of them is not right."""
    with counting() as so_far:
        checked = asyncio.run(_check(args, environment))
    wrong = any(one.is_right is False for one in checked)
    if args.json:
        write_json([asdict(one) for one in checked], indent=2)
        return 1 if wrong else 0
    console = Console(soft_wrap=True)
    for one in checked:
        mark = {True: "[green]ok   [/green]", False: "[red]wrong[/red]", None: "[yellow]-    [/yellow]"}[one.is_right]
        spent = f" [dim]{one.seconds * 1000:.1f} ms[/dim]" if one.seconds else ""
        console.print(f"{mark} {escape(one.what)}{spent}  {escape(one.note)}")
    show_spending_line(console, so_far())
    return 1 if wrong else 0


async def _check(args: ToolsCommand, environment: Environment) -> list[_Checked]:
    from rlenv.checks.diagnose import diagnose  # brings what looks at servers

    found = await diagnose(environment.loaded.path, set=args.overrides)
    checked = [_Checked(one.what, one.is_met, one.lacks) for one in found]
    async with environment, environment.start(task=args.task, split=args.split) as episode:
        if episode.failure is not None:
            raise UsageError(episode.failure.message)
        for name, tool in environment.parts.tools.items():
            if tool.example is None:
                checked.append(_Checked(name, None, "has no example; add 'example: {…}' with arguments"))
                continue
            result = await called(environment, episode, ToolCall(name, tool.example))
            first = result.text.strip().partition("\n")[0]
            shown = cut_end(first, _SHOWN)
            note = shown if not result.is_error else f"{result.outcome}: {shown}"
            checked.append(_Checked(name, not result.is_error, note, result.seconds))
    return checked


async def called(environment: Environment, episode: Episode, call: ToolCall) -> ToolResult:
    """The result of a call as a reward makes it: no faults are put into it."""
    context = ToolContext(
        episode.task,
        episode.resources,
        time.monotonic() + environment.spec.limits.episode_s,
        scope=episode.tools.scope,
        shared=environment.scope,
        run_calls=environment.executor.run,
    )
    (result,) = await environment.executor.run((call,), context)
    return result


def pin(loaded: LoadedSpec) -> int:
    """Asks the server of every entry with a `pin` for its tools and writes them; nothing else of a spec is compiled.

    Raises:
        UsageError: no entry has a pin, or a server does not start.
    """
    from rlenv.tools._mcp.listing import Listing, write_pin
    from rlenv.tools.mcp import McpSpec, live_listing, pin_path

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
