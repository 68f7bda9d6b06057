"""The tool `bash`: commands in the shell of an episode's machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from rlenv.errors import ToolFailed, UnknownEntry, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text, ToolSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common
from rlenv.tools.workspace.machine import MachineFailed, Ran
from rlenv.tools.workspace.resource import Workspace, WorkspaceResource

__all__ = ["BASH", "BashSpec"]

_TIMEOUT_S: Final = 60.0
_DESCRIPTION: Final = (
    "Run a command in a bash shell. The working folder, variables and background jobs stay from call to call. A "
    "command reads no input. One that takes longer than {:g} seconds is stopped. Of a long output the middle is left "
    "out."
)
_NEW: Final = "a new shell has been started in {}: files are kept, variables and processes are gone"
_WHY: Final[Mapping[str, str]] = {
    "late": "stopped after {seconds:g} seconds; the shell goes on",
    "ended": "the shell ended; {new}",
    "cut": "stopped after {seconds:g} seconds; the shell did not answer, so {new}",
    "broken": "the machine does not start over its files as they are now",
    "full": "the files grew beyond the {disk} MB that they may have; {new}",
}


class BashSpec(ToolSpec):
    """A shell in the episode's machine, which keeps its folder, variables and background jobs from call to call."""

    kind: Literal["bash"]
    resource: Text
    """The machine: the name of a resource of kind workspace."""


def shown(ran: Ran, *, seconds: float, workspace: Workspace) -> str:
    """A command's end as the policy reads it: what it wrote, and what is to be said of it."""
    text = ran.output.decode("utf-8", errors="replace")
    if ran.dropped:
        at = len(text) // 2
        text = f"{text[:at]}\n[{ran.dropped:,} bytes left out]\n{text[at:]}"
    text = text.removesuffix("\n")
    if ran.why:
        values = {"seconds": seconds, "new": _NEW.format(workspace.workdir), "disk": workspace.limits.disk_mb}
        note = f"[{_WHY[ran.why].format(**values)}]"
    else:
        note = f"[exit status {ran.code}]" if ran.code else "" if text else "(no output)"
    return "\n".join(part for part in (text, note) if part)


def workspace_of(name: str, context: CompileContext) -> WorkspaceResource:
    """The compiled workspace of that name.

    Raises:
        UsageError: the resource does not exist or is of another kind.
    """
    found = context.resources.get(name)
    if found is None:
        raise UnknownEntry("resources", name, context.resources, key="resource")
    if not isinstance(found, WorkspaceResource):
        raise UsageError(f"'{name}' is a {type(found).__name__}; expected one of kind workspace", key="resource")
    return found


async def ran_in(
    call: ToolContext, resource: str, command: str, timeout_s: float, *, most: int = 65_536
) -> tuple[Workspace, Ran]:
    """A command's end in the episode's machine.

    Raises:
        ToolFailed: the machine does not come up, or was ended from outside.
    """
    workspace: Workspace = call.resources[resource]
    try:
        return workspace, await workspace.run(command, timeout_s, most=most)
    except MachineFailed as error:
        raise ToolFailed(f"the machine is not there: {error}", reason="worker") from error


def compile_bash(name: str, spec: BashSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `command`; its value is `{"output": …, "status": number or None}`.

    Raises:
        UsageError: the resource does not exist or is of another kind.
    """
    workspace_of(spec.resource, context)
    timeout_s = spec.timeout_s or _TIMEOUT_S

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        workspace, ran = await ran_in(call, spec.resource, arguments["command"], timeout_s)
        text = shown(ran, seconds=timeout_s, workspace=workspace)
        return ToolOutput(text, {"output": ran.output.decode("utf-8", errors="replace"), "status": ran.code})

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command, or several lines of them."}},
        "required": ["command"],
    }
    return (
        Tool(
            name=name,
            description=spec.description or _DESCRIPTION.format(timeout_s),
            parameters=parameters,
            run=run,
            mode="async",
            depends_on="episode",
            **{**common(spec, idempotent=False), "mutates": True, "timeout_s": timeout_s + 30.0},
        ),
    )


BASH = Kind(BashSpec, compile_bash)
