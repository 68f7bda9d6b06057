"""The `command` tool: a program on this machine, started without a shell and within limits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.text import did_you_mean
from rlenv.concurrency.deadline import pause
from rlenv.errors import ToolFailed, UsageError, under
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.requirements import sandbox
from rlenv.language.spec import Bool, Int, Text, ToolSpec
from rlenv.language.templates import compile_template, template_of
from rlenv.resources.base import Folder
from rlenv.secrets import redact_within
from rlenv.tools import arguments
from rlenv.tools._bubblewrap import Confined, check_bubblewrap, confine, is_hidden
from rlenv.tools._process import ProgramEnd, ProgramLimits, is_disk_full, run_program
from rlenv.tools._signature import expand_shorthand
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHOWN_ERRORS = 300
_KILLED = (-signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Statuses of what was killed, perhaps from outside; 128 and the number is how a shell says it of what it ran."""
_NUMBER = re.compile(r"-([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FILLED = re.compile(r"\{\{.*?\}\}|\{%")
_OWN = re.compile(r"\{\{\s*(?:(vars)|resources)\.\w+(\.[\w.]+)?\s*\}\}$")
_CLIMBS = re.compile(r"(?:^|[/\\=@:,])\.\.(?:[/\\]|$)")
# Also after what programs write before a name (`key=/…`, `@/…`, `host:/…`); an address `https://…` is none, and one of
# a file (`jar:file:///…`, `git+file:///…`) is wherever it stands.
_ABSOLUTE = re.compile(r"(?:^|[=@,])(?:/|~/|file:)|:/(?!/)|(?<!\w)file:/", re.IGNORECASE)


class CommandSpec(ToolSpec):
    """Runs a program on this machine; its arguments are templates, and there is no shell."""

    kind: Literal["command"]
    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The program and its arguments; each template makes one argument, a list makes several, None makes none."""
    stdin: Text | None = None
    """What the program reads; a template."""
    cwd: Text = "temp"
    """`temp`: an empty folder that is removed after the call; otherwise a folder, relative to the spec, or one of the
    episode's, such as `{{ resources.work }}`."""
    env: Mapping[str, Text] = Field(default_factory=dict)
    """The program's environment beside PATH and LANG; values are templates, and secrets are written ${env:NAME}."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """What the model gives, read by templates as `args`: `{text: string, limit: integer?}`, or a JSON Schema."""
    expect: tuple[Annotated[Int, Field(ge=0, le=255)], ...] = (0,)
    """The exit statuses that count as an answer."""
    max_bytes: Annotated[Int, Field(ge=1, le=100_000_000)] = 1_000_000
    """A program that writes more than this is killed."""
    cpu_s: Annotated[Int, Field(ge=1)] = 10
    """CPU seconds of each process."""
    memory_mb: Annotated[Int, Field(ge=16)] = 2_048
    """Address space of each process."""
    disk_mb: Annotated[Int, Field(ge=0)] = 64
    """The largest file that a process may write."""
    sandbox: Literal["none", "bubblewrap"] = "none"
    """`bubblewrap`: the machine's files are read-only, personal folders are empty, and there is no network."""
    processes: Bool = True
    """False: the program cannot start others; with `sandbox: bubblewrap`."""
    paths: Bool = False
    """True: what a call fills in may be an absolute path, or climb with `..`; otherwise only names below a folder."""
    options: Bool = False
    """True: what a call fills in may begin with `-`; otherwise only after `--`, or as a number."""


def _find_program(spec: CommandSpec, context: CompileContext) -> str:
    word = spec.command[0]
    if arguments.is_dynamic(word):
        raise UsageError(f"the program '{word}' must not depend on the call", key="command", hint="write it out")
    word = str(compile_template(word).text(vars=context.vars))
    search = f"{os.environ.get('PATH', '')}:{_PATH}"
    if "/" in word:
        path = context.path("command", word).absolute()
        if not path.is_file():
            raise UsageError(f"there is no program '{word}' beside the spec", key="command")
        if not os.access(path, os.X_OK):
            raise UsageError(f"'{word}' is not executable", key="command", hint=f"run: chmod +x {word}")
        return str(path)
    found = shutil.which(word, path=search)
    if spec.sandbox == "bubblewrap":  # what lies in a hidden folder, as a virtual environment does, may not start
        seen = [folder for folder in search.split(":") if not is_hidden(Path(folder, word))]
        found = shutil.which(word, path=":".join(seen)) or found
    if found is None:
        hint = did_you_mean(word, sorted(_list_programs(search)), otherwise="install it")
        raise UsageError(f"there is no program '{word}' on PATH", key="command", hint=hint)
    return found


def _list_programs(search: str) -> set[str]:
    found: set[str] = set()
    for folder in search.split(":"):
        with suppress(OSError):
            found.update(os.listdir(folder))
    return found


def _render_words(value: Any) -> Iterator[str]:
    """The words of a rendered template: a list gives several, None none, anything else than text is JSON."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, (list, tuple)):
            rest.extend(reversed(one))
        elif one is not None:
            yield os.fspath(one) if isinstance(one, (str, os.PathLike)) else _to_json(one)


def _to_json(value: Any) -> str:
    try:
        # Numbers of any size, unlike faster writers.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed("an argument cannot be written as JSON", reason="bad_arguments") from error


@dataclass(frozen=True, slots=True)
class _Word:
    """One entry of `command`. `is_filled` is true where a call, a row or a resource, in which an earlier call may have
    left anything, fills something in, and `is_given` where the call or the row does. `before` has the parts in front of
    the first such thing: texts of the author's, and each resource alone."""

    fill: arguments.Filling
    is_filled: bool
    is_given: bool
    before: Sequence[tuple[str, arguments.Filling]]

    def fixed_prefix(self, values: Mapping[str, Any]) -> str:
        """What the author wrote, and paths of resources are, before the first thing that may be the policy's."""
        found = ""
        for part, fill in self.before:
            value, own = fill(**values), _OWN.match(part)
            if own and not own[1] and not isinstance(value, os.PathLike if own[2] else (str, os.PathLike)):
                break  # only a path, or a resource that is a text, is as its author's function made it
            found += str(value)
        return found

    def check(self, word: str, spec: CommandSpec, values: Mapping[str, Any], *, ends_options: bool) -> None:
        """Refuses what a call, or what an earlier one left, must not make of this argument."""
        before = self.fixed_prefix(values)
        is_value = before.startswith("--") and "=" in before
        if word.startswith("-") and not (spec.options or ends_options or is_value or _NUMBER.fullmatch(word)):
            raise ToolFailed("an argument must not begin with '-'", reason="bad_arguments")
        if spec.paths:
            return
        # What the author wrote up to the last slash is the folder that the call stays below.
        folder = before[: before.rfind("/") + 1] if word.startswith(before) else ""
        if not folder and not self.is_given:  # `{{ resources.work ~ '/a' }}`
            own = (f"{one.path}/" for one in values["resources"].values() if isinstance(one, Folder))
            folder = next(filter(word.startswith, own), "")
        if _CLIMBS.search(word[len(folder) :]) or (not folder and _ABSOLUTE.search(word)):
            raise ToolFailed("an argument must not name a path outside of its folder", reason="bad_arguments")


def _build_argv(words: Sequence[_Word], values: Mapping[str, Any], spec: CommandSpec) -> Iterator[str]:
    ends_options = False
    for word in words:
        for text in _render_words(word.fill(**values)):
            if word.is_filled:
                word.check(text, spec, values, ends_options=ends_options)
            elif text == "--":
                ends_options = True
            yield text


def _build_environment(extra: Mapping[str, Any]) -> dict[str, str]:
    base = {"PATH": os.environ.get("PATH", _PATH), "LANG": os.environ.get("LANG", "C.UTF-8")}
    return base | {name: str(value) for name, value in extra.items() if value is not None}


def _build_output(ended: ProgramEnd, program: str, folder: str, spec: CommandSpec) -> ToolOutput:
    name = os.path.basename(program)
    if not ended.has_sandbox:
        raise ToolFailed(f"the sandbox of {name} could not be started", reason="worker", retryable=True)
    if ended.is_flood:
        raise ToolFailed(f"{name} wrote more than {spec.max_bytes} bytes and was stopped", reason="too_large")
    if ended.code not in spec.expect:
        reason = "killed" if ended.code in _KILLED else "disk_full" if is_disk_full(folder) else "failed"
        raise ToolFailed(f"{name} {_exit_text(ended.code)}{_errors_text(ended.errors, folder)}", reason=reason)
    text = ended.output.decode("utf-8", errors="replace").removesuffix("\n")
    return ToolOutput(text or "(no output)", text)


def _exit_text(code: int) -> str:
    # A shell that executes gives 128 + signal where it waited; a program of its own the negative signal.
    if code >= 0:
        return f"ended with status {code}"
    told = {-signal.SIGXCPU: "used up its CPU time", -signal.SIGXFSZ: "wrote a file beyond the limit"}.get(code)
    return told or f"was killed by {signal.Signals(-code).name if -code in set(signal.Signals) else code}"


def _errors_text(errors: bytes, folder: str) -> str:
    words = " ".join(errors.decode("utf-8", errors="replace").replace(folder, ".").split())
    text = redact_within(words, _SHOWN_ERRORS, tail=True)  # the rest may be a megabyte
    return f": {'…' * (len(words) > _SHOWN_ERRORS)}{text[len(words) > _SHOWN_ERRORS :]}" if text else ""


def _fixed_parts(word: str) -> Iterator[str]:
    """The parts before the first thing that a call or a row fills in: texts, and each resource alone."""
    end = 0
    for piece in _FILLED.finditer(word):
        yield word[end : piece.start()]
        if not _OWN.match(piece[0]):
            return
        yield piece[0]
        end = piece.end()
    yield word[end:]


def _choose_folder(spec: CommandSpec, context: CompileContext) -> tuple[Callable[[ToolContext], Path | None], bool]:
    """The folder of a call's program, None for a new one; and whether it is the call's or the episode's own.

    Raises UsageError: the author's folder, or a resource, is not there.
    """
    if spec.cwd == "temp":
        return (lambda _: None), True
    if arguments.is_of_episode(spec.cwd):
        template = template_of(spec.cwd, key="cwd", names=("resources", "vars"))
        arguments.check_resources(spec.cwd, key="cwd", resources=context.resources)

        def found_in(call: ToolContext) -> Path:
            at = Path(template.text(resources=call.resources, vars=context.vars))
            return arguments.folder_inside(at, call.resources)

        return found_in, True
    found = context.path("cwd", spec.cwd).absolute()
    if not found.is_dir():
        raise UsageError(f"there is no folder '{spec.cwd}'; expected temp, or a folder beside the spec", key="cwd")
    return (lambda _: found), False


def compile_command(name: str, spec: CommandSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool that runs the program; its text and its value are what it wrote.

    Raises:
        UsageError: the program is not there, a template is wrong, or the sandbox is missing.
    """
    with under("parameters"):
        parameters = expand_shorthand(spec.parameters)
    program = _find_program(spec, context)
    if spec.sandbox == "bubblewrap":
        check_bubblewrap()
    elif not spec.processes:
        message = "only a sandbox can keep a program from starting others"
        raise UsageError(message, key="processes", hint="add sandbox: bubblewrap")
    folder_of, is_own = _choose_folder(spec, context)

    def filling(key: str, value: Any) -> arguments.Filling:
        known: dict[str, Any] = {"vars": context.vars, "resources": context.resources}
        return arguments.compile_filling(value, key=key, parameters=parameters, **known)

    def word_of(key: str, word: str) -> _Word:
        is_given = arguments.is_dynamic(word)
        before = [(part, filling(key, part)) for part in _fixed_parts(word)]
        return _Word(filling(key, word), is_given or arguments.is_of_episode(word), is_given, before)

    words = [word_of(f"command.{index}", word) for index, word in enumerate(spec.command[1:], start=1)]
    stdin = filling("stdin", spec.stdin if spec.stdin is not None else "")
    env = filling("env", dict(spec.env))
    arguments_of = arguments.read_parameters(parameters)
    limits = ProgramLimits(spec.cpu_s, spec.memory_mb, spec.disk_mb, spec.max_bytes)

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        values = {"args": arguments_of(arguments), "task": call.task, "resources": call.resources}
        argv = [program, *_build_argv(words, values, spec)]
        environment = _build_environment(env(**values))
        given = "".join(_render_words(stdin(**values))).encode("utf-8", errors="replace")

        def started(folder: str) -> AbstractContextManager[Confined]:
            if spec.sandbox == "none":
                return nullcontext(Confined(tuple(argv)))
            return confine(argv, folders={folder: is_own}, cwd=folder, processes=spec.processes)

        for wait_s in (0.05, 0.2, 0.0):
            ended, folder = await run_program(started, stdin=given, cwd=folder_of(call), env=environment, limits=limits)
            if ended.has_sandbox:
                break
            await pause(wait_s)  # a mount of this machine's may have gone while bwrap took it over: nothing has run
        return _build_output(ended, program, folder, spec)

    said = spec.description or f"Run {os.path.basename(program)} and read what it writes."
    return (Tool(name=name, description=said, parameters=parameters, run=run, mode="async", **common(spec)),)


KIND = Kind(CommandSpec, compile_command, sandbox)
