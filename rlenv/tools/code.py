"""The `code` tool: a model's Python, run where it can reach nothing but what it is given."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.text import did_you_mean
from rlenv.errors import ToolFailed, UnknownEntry, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.requirements import sandbox
from rlenv.language.spec import Bool, Float, Int, Text, ToolSpec
from rlenv.tools._cell import Outcome
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

_MAX_CODE = {"monty": 32_768, "bubblewrap": 200_000}
"""Characters. What monty runs is read in rlenv's own process first, in time that no other episode gets."""


class CodeSpec(ToolSpec):
    """Runs Python that the model writes."""

    kind: Literal["code"]
    sandbox: Literal["monty", "bubblewrap"] = "monty"
    """`monty`: a small Python of its own, without files, network or packages; `bubblewrap`: CPython in a sandbox."""
    session: Bool = False
    """True: names live from call to call within an episode (with monty)."""
    session_mb: Annotated[Int, Field(ge=1, le=1_024)] = 8
    """What a session may hold between calls; it is kept in rlenv's own process."""
    tools: tuple[Text, ...] = ()
    """Tools above this one that the code may call as functions (with monty)."""
    time_s: Annotated[Float, Field(gt=0, le=600)] = 2.0
    """The code is stopped after this many seconds of its own; the tools that it calls do not count."""
    memory_mb: Annotated[Int, Field(ge=16, le=65_536)] = 128
    """What the code may hold in memory."""
    max_bytes: Annotated[Int, Field(ge=64, le=10_000_000)] = 65_536
    """No more of what the code prints is kept."""
    workers: Annotated[Int, Field(ge=1, le=1_024)] = max(2, os.cpu_count() or 1)
    """How much code runs at once in one process; more waits."""


Run = Callable[[str, ToolContext], Awaitable[Outcome]]


def _callable_tools(spec: CodeSpec, name: str, context: CompileContext) -> dict[str, Tool]:
    for wanted in spec.tools:
        if wanted not in context.tools:
            hint = did_you_mean(wanted, context.tools, f"tools above '{name}'")
            message = f"there is no tool '{wanted}' above '{name}'"
            raise UnknownEntry("tools", wanted, context.tools, key="tools", message=message, hint=hint)
        if not wanted.isidentifier():
            raise UsageError(
                f"'{wanted}' cannot be called from Python, since its name is no identifier",
                key="tools",
                hint="leave it out",
            )
    return {wanted: context.tools[wanted] for wanted in spec.tools}


def _make_runner(name: str, spec: CodeSpec, called: Mapping[str, Tool]) -> Run:
    # Each sandbox is imported where it is named, since each needs something of its own to be installed.
    if spec.sandbox == "monty":
        from rlenv.tools._monty import monty_runner

        return monty_runner(name, spec, called)
    for key in ("session", "tools"):
        if getattr(spec, key):
            raise UsageError("only the sandbox monty has it", key=key, hint="leave it out, or write sandbox: monty")
    from rlenv.tools._sandbox import sandbox_runner

    return sandbox_runner(spec)


def _outcome_text(outcome: Outcome, max_bytes: int) -> str:
    output = outcome.output
    if outcome.is_cut:
        output += f"\n(cut after {max_bytes} bytes)\n"
    elif output and not output.endswith("\n"):
        output += "\n"
    return output + (outcome.shown or "")


def _count_calls(calls: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The number of calls of each tool, by outcome: it stays where a long list is cut."""
    counted: dict[str, dict[str, int]] = {}
    for call in calls:
        outcomes = counted.setdefault(call["tool"], {})
        outcomes[call["outcome"]] = outcomes.get(call["outcome"], 0) + 1
    return counted


def _description(spec: CodeSpec, called: Mapping[str, Tool]) -> str:
    text = "Run Python and read what it prints and what its last expression gives."
    if spec.session:
        text += " Names are kept from call to call."
    if called:
        functions = [f"{name}({', '.join(tool.parameters.get('properties', {}))})" for name, tool in called.items()]
        text += f" The code may call {', '.join(functions)}; in code that awaits, they are awaited."
    return text


def compile_code(name: str, spec: CodeSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `code`.

    Its value is `{"output": …, "result": …}`: what was printed, and what the last expression gave, as it is where it is
    JSON of exactly the built-in types and at most 10,000 characters, and as its repr otherwise. Code that raises (also
    SystemExit), or that breaks a limit, is a failure whose text holds what it had printed.

    Raises:
        MissingExtra, UsageError: the sandbox is not installed or does not work here; a tool is not there.
    """
    called = _callable_tools(spec, name, context)
    run_code = _make_runner(name, spec, called)

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        code = arguments["code"]
        if len(code) > _MAX_CODE[spec.sandbox]:
            raise ToolFailed(f"the code is longer than {_MAX_CODE[spec.sandbox]} characters", reason="bad_arguments")
        try:
            code.encode()
        except UnicodeEncodeError as error:
            raise ToolFailed("the code holds a character that no file can hold", reason="bad_arguments") from error
        outcome = await run_code(code, call)
        text = _outcome_text(outcome, spec.max_bytes)
        details = {"called": _count_calls(outcome.calls), "calls": list(outcome.calls)} if outcome.calls else None
        if outcome.error is not None:
            is_ours = outcome.reason in ("worker", "stalled")
            raise ToolFailed(
                text + outcome.error, reason=outcome.reason, retryable=is_ours, details=details, whose=outcome.whose
            )
        return ToolOutput(text or "(no output)", {"output": outcome.output, "result": outcome.result}, details=details)

    return (
        Tool(
            name=name,
            description=spec.description or _description(spec, called),
            parameters={
                "type": "object",
                "properties": {"code": {"type": "string", "description": "Python source."}},
                "required": ["code"],
            },
            run=run,
            mode="async",
            reaches_out=any(tool.reaches_out for tool in called.values()),
            shares=next((tool.shares for tool in called.values() if tool.shares and not tool.idempotent), ""),
            **{
                **common(spec),
                "mutates": spec.mutates or spec.session or any(tool.mutates for tool in called.values()),
            },
        ),
    )


KIND = Kind(CodeSpec, compile_code, sandbox, is_local=True)
