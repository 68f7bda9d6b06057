"""`rlenv tools`: the tools as the model sees them; `call` runs one, `check` tries each, `--pin` keeps them.

`rlenv list`: the environments that ship; `rlenv list dialects [NAME|SPEC]`: the dialects, or one of them as the model
sees it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlenv import dialects
from rlenv._base.bounded import cut_end
from rlenv._base.text import nearest
from rlenv.cli.console import Console, counting, show_spending_line
from rlenv.cli.options import Options, WithSet, WithSpec, argument, option
from rlenv.cli.terminal import write, write_error, write_json
from rlenv.dialects.base import Dialect, calls_of
from rlenv.dialects.built_in import FAMILIES, family_text, row_name, row_of, whole_row
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.roundtrip import TOOLS
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.episode import Episode
from rlenv.errors import EpisodeError, UsageError, told_as
from rlenv.language import kinds as registry
from rlenv.language.kinds import CompileContext
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.shipped import find, shipped
from rlenv.language.spec import Spec
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.runs.usage import spending_line
from rlenv.tools.base import Tool, ToolContext


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
                "offered": environment.spec.tools[tool.entry].offered,
                "idempotent": tool.idempotent,
                "policy": _policy_keys(tool),
                "runs": tool.mode,
            }
            for tool in _tools_of(self, environment).values()
        ]
        if self.json:
            write_json(rows, indent=2)
            return 0
        console = Console()
        for row in rows:
            console.print(
                f"[bold]{escape(row['name'])}[/bold]  [dim]{row['runs']}, ends after {row['timeout_s']:g} s, "
                f"at most {row['concurrency']} at once{', mutates' if row['mutates'] else ''}"
                f"{'' if row['offered'] else ', not offered to the policy'}[/dim]"
            )
            for key, value in row["policy"].items():
                console.print(f"  [dim]{key}: {escape(value if isinstance(value, str) else json.dumps(value))}[/dim]")
            console.print(f"  {escape(row['description'])}")
            required = set(row["parameters"].get("required", ()))
            for name, schema in row["parameters"].get("properties", {}).items():
                kind = _type_words(schema)
                note = schema.get("description", "")
                optional = "" if name in required else " (optional)"
                console.print(f"  [cyan]{escape(name)}[/cyan]: {escape(str(kind))}{optional}  {escape(str(note))}")
        return 0


def _type_words(schema: Mapping[str, Any]) -> str:
    """The type of an argument in words; of a class its name."""
    parts = " or ".join(map(_type_words, schema.get("anyOf", ())))
    return parts or str(schema.get("type") or schema.get("$ref", "any").rpartition("/")[2])


def _read_action(args: ToolsCommand) -> None:
    match args.action:
        case [] | ["check"]:
            return
        case ["call", name, arguments]:
            args.call = [name, arguments]
        case _:
            raise UsageError(f"found '{' '.join(args.action)}'; expected nothing, 'call NAME ARGUMENTS' or 'check'")


def _tools_of(args: ToolsCommand, environment: Environment) -> Mapping[str, Tool]:
    """The tools of the spec, and those that the row declares."""
    if not environment.parts.row_tools:
        return environment.parts.tools
    row = environment.tasks(args.split or next(iter(environment.spec.tasks)))[args.task]
    with told_as(UsageError, "", EpisodeError, hint="name a row by --task"):
        return {**environment.parts.tools, **environment.toolsets.of(row).tools}


def _policy_keys(tool: Tool) -> dict[str, Any]:
    """The keys of a tool's call policy that are set, as JSON."""
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
        return await call_tool(environment, episode, call)


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
        for name, tool in _tools_of(args, environment).items():
            if tool.example is None:
                checked.append(_Checked(name, None, "has no example; add 'example: {…}' with arguments"))
                continue
            result = await call_tool(environment, episode, ToolCall(name, tool.example))
            shown = cut_end(result.text.strip().partition("\n")[0], _SHOWN)
            note = shown if not result.is_error else f"{result.outcome}: {shown}"
            checked.append(_Checked(name, not result.is_error, note, result.seconds))
    return checked


async def call_tool(environment: Environment, episode: Episode, call: ToolCall) -> ToolResult:
    """The result of a call as a reward makes it: no faults are put into it."""
    context = ToolContext(
        episode.task,
        episode.resources,
        time.monotonic() + episode.limits.episode_s,
        scope=episode.tools.scope,
        shared=environment.scope,
        run_calls=environment.executor.run,
    )
    of_row = call.name not in environment.parts.tools
    executor = episode.toolset.executor if of_row else environment.executor
    (result,) = await executor.run((call,), context)
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


_BREAK: Final = "⏎"
_VALUES: Final[Mapping[str, Any]] = {
    "string": "VALUE", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {},
}  # fmt: skip


_NAMED: Final = 4
"""Tools of an environment that its line names."""


@dataclass
class ListCommand(Options):
    """`rlenv list`."""

    json: bool = option("print the list as JSON, with each spec's path")

    def execute(self) -> int:
        """Lists the environments that ship."""
        rows = [environment_row(name, path) for name, path in shipped().items()]
        if self.json:
            write_json(rows, indent=2)
            return 0
        table = Table("name", "tasks", "tools", "needs", "trains", show_edge=False)
        for row in rows:
            tasks = " ".join(f"{split} {'without end' if n is None else n}" for split, n in row["tasks"].items())
            needs = ", ".join(f"{what} ({lacks})" if lacks else what for what, lacks in row["needs"].items())
            names, left = ", ".join(row["tools"][:_NAMED]), len(row["tools"]) - _NAMED
            shown = f"{names}, and {left} more" if left > 0 else names
            cells = (row["name"], tasks, shown or "–", needs or "–", row["description"])
            table.add_row(*map(Text, cells))
        Console().print(table)
        write("`rlenv init --from NAME FOLDER` starts from one of them\n")
        return 0


def environment_row(name: str, path: Path) -> dict[str, Any]:
    """A shipped environment as `--json` prints it; `needs` says of each need what this machine lacks, "" for nothing.

    Tasks and tools are what can be known where something is missing.
    """
    from rlenv.checks.diagnose import diagnose  # brings what looks at servers

    spec, needs = load_spec(path).spec, asyncio.run(diagnose(path))
    row = {"name": name, "description": spec.description, "tasks": {}, "tools": list(spec.tools)}
    if all(one.is_met for one in needs):
        environment = load(path)
        splits = {split: environment.tasks(split) for split in spec.tasks}
        row["tasks"] = {split: None if tasks.is_endless else len(tasks) for split, tasks in splits.items()}
        by_row = [f"{entry} (by row)" for entry in environment.parts.row_tools]
        row["tools"] = [*environment.parts.tools, *by_row]
    return {**row, "needs": {one.what: one.lacks for one in needs}, "path": str(path)}


@dataclass
class DialectsCommand(WithSet):
    """`rlenv list dialects`."""

    name: str | None = argument("a dialect, or a spec whose dialect is shown", metavar="NAME|SPEC")
    json: bool = option("print the texts as one JSON object", one_of="form")
    yaml: bool = option("print what a built-in dialect is, for a spec's `dialect`", one_of="form")

    def execute(self) -> int:
        """Lists the dialects, or shows a conversation in the words of one."""
        if self.yaml and self.name is None:
            raise UsageError("--yaml prints one dialect, and none is named", hint="rlenv list dialects NAME --yaml")
        if self.set and (self.yaml or self.name is None or _is_dialect(self.name)):
            raise UsageError("--set replaces keys of a spec, and none is shown", hint="name a spec, or leave --set out")
        if self.name is None:
            return _list_dialects(as_json=self.json)
        if self.yaml:
            return _print_yaml(self.name)
        texts = _conversation_texts(*_choose_dialect(self.name, self.overrides))
        if self.json:
            write_json(texts, indent=2)
            return 0
        console = Console(soft_wrap=True, highlight=False)
        for title, text in texts.items():
            console.print(Text(title, style="bold"))
            # A line break is shown, since one at the end of a text could not be seen.
            lines = text.split("\n")
            console.print(Text(f"{_BREAK}\n".join(lines) or "(nothing)"))
        return 0


def _list_dialects(*, as_json: bool) -> int:
    names = registry.names("dialects")
    built_in = registry.BUILT_IN["dialects"]
    rows = {name: [[form.body, *marks_of(form.open)[:1]] for form in calls_of(row_of(name))] for name in built_in}
    if as_json:
        write_json({name: rows.get(name) for name in names}, indent=2)
        return 0
    table = Table("dialect", "a call's body and its mark", show_edge=False)
    for name in names:
        forms = [" ".join([body, *(mark or ["at the start"])]) for body, *mark in rows.get(name, [])]
        table.add_row(Text(name), Text(", ".join(forms).replace("\n", _BREAK) or "of a plug-in"))
    Console().print(table)
    return 0


def _print_yaml(name: str) -> int:
    try:
        write(family_text(name))
    except KeyError as error:
        if name in registry.names("dialects"):
            raise UsageError(
                f"'{name}' is of a plug-in, whose code says what it is", hint="leave --yaml out"
            ) from error
        message, hint = dialects.unknown(name, is_base=True)
        raise UsageError(message, hint=hint) from error
    return 0


def _is_dialect(name: str) -> bool:
    """True for the name of a dialect, by any name that people know a built-in one by, and False for a spec's."""
    return name in registry.names("dialects") or row_name(name, FAMILIES) in FAMILIES


def _choose_dialect(name: str, set: Mapping[str, Any]) -> tuple[Dialect, Sequence[Mapping[str, Any]], Dialect]:
    """The dialect, the tools that it is shown with, and what writes its calls."""
    if _is_dialect(name):
        dialect = dialects.get(name)
        return dialect, [{"type": "function", "function": dict(tool)} for tool in TOOLS.values()], dialect
    try:
        spec = find(name)
    except UsageError as error:
        message, hint = dialects.unknown(name)
        if nearest(name, registry.names("dialects")) is None and nearest(name, shipped()) is not None:
            hint = error.hint
        raise UsageError(f"{message}, and {error.message}", hint=hint) from error
    environment = load(spec, set=set)
    given = environment.spec.dialect
    inside = dialects.get(given) if isinstance(given, str) else TextDialect("inline", whole_row("inline", given))
    return environment.parts.dialect, environment.tool_schemas, inside


def _conversation_texts(dialect: Dialect, tools: Sequence[Mapping[str, Any]], inside: Dialect) -> dict[str, str]:
    """A conversation part by part: what the model is given, and what it writes."""
    texts = {"prompt": dialect.render_prompt([Message("system", "SYSTEM"), Message("user", "USER")], tools)}
    if tools:
        call = _example_call(tools[0])
        row = inside.spec if isinstance(inside, TextDialect) else None
        texts["a call"] = dialect.render_action(Message("assistant", "", (call,)))
        two = dialect.render_action(Message("assistant", "WORDS", (call, call)))
        if row is not None and row.thinking_marks.open:
            shown = row.thinking_marks.written.replace("{thinking}", "THINKING")
            texts["thinking, words and two calls"] = shown + two
        else:
            texts["words and two calls"] = two
        if row is not None:
            for number, form in enumerate(calls_of(row)[1:], 2):
                other = TextDialect(dialect.name, row.model_copy(update={"calls": form}))
                texts[f"a call by form {number}"] = other.render_action(Message("assistant", "", (call,)))
        results = [Message("tool", f"RESULT {number}", name=call.name) for number in (1, 2)]
        texts["what follows one call"] = dialect.render_observation(results[:1])
        texts["what follows two calls"] = dialect.render_observation(results)
    return texts


def _example_call(tool: Mapping[str, Any]) -> ToolCall:
    function = tool.get("function", tool)
    parameters = function.get("parameters", {})
    properties = parameters.get("properties", {})
    wanted = parameters.get("required") or list(properties)[:1]
    arguments = {key: _VALUES.get(str(properties.get(key, {}).get("type", "string")), "VALUE") for key in wanted}
    return ToolCall(str(function["name"]), arguments)
