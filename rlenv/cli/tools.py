"""`rlenv tools`: the tools as the model sees them; `call` runs one, `check` tries each."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import fields
from typing import Any

from rich.markup import escape

from rlenv.cli.call_tool import called
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, overrides
from rlenv.cli.spending import counting
from rlenv.cli.terminal import write, write_error, write_json
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.language.loader import load_spec
from rlenv.language.shipped import find
from rlenv.language.spec import Spec
from rlenv.messages import ToolCall, ToolResult
from rlenv.runs.usage import spending_line
from rlenv.tools.base import Tool

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv tools`."""
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument(
        "action",
        nargs="*",
        metavar="call NAME ARGUMENTS | check",
        help="run one tool (arguments are JSON), or call each tool's example and every server; lists without",
    )
    parser.add_argument("--json", action="store_true", help="print schemas and limits as JSON")
    parser.add_argument("--call", nargs=2, metavar=("NAME", "ARGUMENTS"), help="the same as `call NAME ARGUMENTS`")
    parser.add_argument("--pin", action="store_true", help="write the tools of MCP servers into the files under 'pin'")
    parser.add_argument("--split")
    parser.add_argument("--task", type=int, default=0, metavar="I", help="the row whose resources are opened for calls")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Lists the compiled tools, runs one or checks all; exit code 1 where a call or a check did not succeed."""
    _read_action(args)
    if args.pin:
        from rlenv.cli.pin import pin  # what is pinned need not be there yet, so nothing is compiled

        return pin(load_spec(find(args.spec), set=overrides(args.set)))
    environment = load(args.spec, set=overrides(args.set))
    if args.call:
        return _call(args, environment)
    if args.action:
        from rlenv.cli.check_tools import check  # brings what looks at servers

        return check(args, environment)
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
    if args.json:
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


def _read_action(args: argparse.Namespace) -> None:
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


def _call(args: argparse.Namespace, environment: Environment) -> int:
    name, raw = args.call
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


async def _run(args: argparse.Namespace, environment: Environment, call: ToolCall) -> ToolResult:
    async with environment, environment.start(task=args.task, split=args.split) as episode:
        if episode.failure is not None:
            raise UsageError(episode.failure.message)
        return await called(environment, episode, call)
