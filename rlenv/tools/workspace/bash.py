"""The tools `bash` and `files`: an episode's shell in its machine, and files there, in the words that models know."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rlenv.errors import ToolFailed, told_as
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text, ToolSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common
from rlenv.tools.workspace.machine import CommandEnd, MachineFailed
from rlenv.tools.workspace.resource import Workspace, WorkspaceResource

_TIMEOUT_S: Final = 60.0
_TOLD: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""What a model is told of each tool."""
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


def ran_text(ran: CommandEnd, *, seconds: float, workspace: Workspace) -> str:
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


@dataclass(frozen=True, slots=True)
class _Tool:
    """A compiled tool: `run` is its function, `timeout_s` what each of its commands may take."""

    resource: str
    timeout_s: float

    async def run_command(self, call: ToolContext, command: str, *, most: int = 65_536) -> tuple[CommandEnd, str]:
        """A command's end in the episode's machine, and as the policy reads it.

        Raises:
            ToolFailed: the machine does not come up, or was ended from outside.
        """
        workspace: Workspace = call.resources[self.resource]
        with told_as(ToolFailed, "the machine is not there:", MachineFailed, reason="worker"):
            ran = await workspace.run(command, self.timeout_s, most=most)
        return ran, ran_text(ran, seconds=self.timeout_s, workspace=workspace)

    async def run(self, arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        """The value is `{"output": …, "status": number or None}`."""
        ran, text = await self.run_command(call, arguments["command"])
        value = {"output": ran.output.decode("utf-8", errors="replace"), "status": ran.code}
        status = "none" if ran.code is None else ran.code
        return ToolOutput(text, value, details={"status": status, "bytes": len(ran.output) + ran.dropped})


def _make_factory(made: type[_Tool], description: str, parameters: Mapping[str, Any], *, commands: int) -> Any:
    """The factory of a tool each of whose calls runs so many commands.

    Raises:
        UsageError: the resource does not exist or is of another kind.
    """

    def compile_tool(name: str, spec: BashSpec | FilesSpec, context: CompileContext) -> Sequence[Tool]:
        context.resource(spec.resource, WorkspaceResource, "workspace")
        seconds = spec.timeout_s or _TIMEOUT_S
        said = spec.description or description.format(seconds)
        rest = {**common(spec), "mutates": True, "timeout_s": commands * seconds + 30.0, "mode": "async"}
        return (Tool(name=name, description=said, parameters=parameters, run=made(spec.resource, seconds).run, **rest),)

    return compile_tool


BASH = Kind(BashSpec, _make_factory(_Tool, **_TOLD["bash"], commands=1))

_MOST_BYTES: Final = 1_000_000
_NO_FILE, _IS_FOLDER, _NO_TEXT = 66, 67, 68  # statuses of a command that finds nothing, a folder, or a pipe or device
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "view": (),
    "create": ("file_text",),
    "str_replace": ("old_str",),
    "insert": ("insert_line", "insert_text"),
}


class FilesSpec(ToolSpec):
    """Views, makes and changes text files in the episode's machine."""

    kind: Literal["files"]
    resource: Text
    """The machine: the name of a resource of kind workspace."""


def _view_lines(text: str, given: Any) -> str:
    lines = text.splitlines()
    first, last = map(int, given or (1, -1))  # 1.0 is an integer of JSON Schema
    last = len(lines) if last == -1 else last
    if not 1 <= first <= max(last, 1) <= max(len(lines), 1):
        raise ToolFailed(f"view_range: the file has {len(lines)} lines; found {list(given)}", reason="bad_arguments")
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first)) or "(empty)"


def _replace_once(text: str, arguments: Mapping[str, Any]) -> str:
    old = arguments["old_str"]
    count = text.count(old) if old else 0
    if count != 1:
        places = "nowhere" if not count else f"at {count} places; add lines around it that make it one"
        raise ToolFailed(f"old_str has to stand in the file once; it stands {places}", reason="failed")
    return text.replace(old, arguments.get("new_str") or "")


def _insert_lines(text: str, arguments: Mapping[str, Any]) -> str:
    lines, at = text.splitlines(keepends=True), int(arguments["insert_line"])
    if at > len(lines):
        raise ToolFailed(f"insert_line: the file has {len(lines)} lines; found {at}", reason="bad_arguments")
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    new = arguments["insert_text"]
    return "".join([*lines[:at], new if new.endswith("\n") else f"{new}\n", *lines[at:]])


class _Files(_Tool):
    """All is done by the machine's own shell: nothing outside opens a path that links may lead out of."""

    async def run(self, arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        command, path = arguments["command"], arguments["path"]
        lacking = [key for key in _NEEDED[command] if key not in arguments]
        if lacking or not 0 < len(path) <= 4_096 or "\0" in path:
            needed = f"{command} needs {' and '.join(lacking)}" if lacking else "path: expected up to 4,096 characters"
            raise ToolFailed(needed, reason="bad_arguments")
        if command == "create":
            await self._write_file(call, path, arguments["file_text"])
            return ToolOutput(f"wrote {path}", {"path": path})
        text, is_folder = await self._read_path(call, path)
        if command == "view":
            seen = text if is_folder else await asyncio.to_thread(_view_lines, text, arguments.get("view_range"))
            return ToolOutput(seen, {"path": path})
        if is_folder:
            raise ToolFailed(f"'{path}' is a folder", reason="failed")
        change = _replace_once if command == "str_replace" else _insert_lines
        changed = await asyncio.to_thread(change, text, arguments)
        await self._write_file(call, path, changed)
        return ToolOutput(f"changed {path}", {"path": path})

    async def _read_path(self, call: ToolContext, path: str) -> tuple[str, bool]:
        """A file's text, or the names in a folder and True."""
        word = shlex.quote(path)
        listed = f"command ls -a -- {word}; exit {_IS_FOLDER}"
        looks = f"[ -e {word} ] || exit {_NO_FILE}; [ -d {word} ] && {{ {listed}; }}; [ -f {word} ] || exit {_NO_TEXT}"
        ran = await self._run_checked(call, f"( {looks}; command cat -- {word} )", path)
        text = ran.output.decode(errors="replace")
        if ran.code == _IS_FOLDER:
            return text, True
        if ran.dropped:
            raise ToolFailed(f"'{path}' is longer than {_MOST_BYTES:,} bytes; use a shell", reason="too_large")
        if text.encode() != ran.output:
            raise ToolFailed(f"'{path}' is no text", reason="failed")
        return text, False

    async def _write_file(self, call: ToolContext, path: str, text: str) -> None:
        word, data = shlex.quote(path), base64.b64encode(text.encode(errors="replace")).decode()
        if len(data) > 2 * _MOST_BYTES:
            raise ToolFailed(f"a file may have {_MOST_BYTES:,} bytes", reason="too_large")
        made = f'd=$(dirname -- {word}); command mkdir -p -- "$d" && t=$(mktemp "$d/.XXXXXX")'
        # What is there keeps its mode, and who reads it meanwhile sees the old text or the new.
        mode = f'if [ -e {word} ]; then command cp -p -- {word} "$t"; else chmod 644 "$t"; fi'
        into = f'command base64 -d > "$t" <<\'END\' && command mv -f -- "$t" {word}\n{data}\nEND\n'
        looks = f"[ ! -d {word} ] || exit {_IS_FOLDER}; [ ! -e {word} ] || [ -f {word} ] || exit {_NO_TEXT}"
        command = f"( {looks}; {made} && {mode} && {into})"
        if (await self._run_checked(call, command, path)).code:
            raise ToolFailed(f"'{path}' is a folder", reason="failed")

    async def _run_checked(self, call: ToolContext, command: str, path: str) -> CommandEnd:
        ran, text = await self.run_command(call, command, most=_MOST_BYTES)
        if ran.code == _NO_FILE:
            raise ToolFailed(f"there is no file '{path}'", reason="failed")
        if ran.code == _NO_TEXT:
            raise ToolFailed(f"'{path}' is no text", reason="failed")
        if ran.why or ran.code not in (0, _IS_FOLDER):
            raise ToolFailed(text, reason="failed")
        return ran


FILES = Kind(FilesSpec, _make_factory(_Files, **_TOLD["files"], commands=2))
