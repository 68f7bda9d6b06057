"""The `command` tool: a program on this machine, started without a shell and within limits."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rlenv.errors import ToolFailed, UsageError
from rlenv.registry import Kind
from rlenv.secrets import redact
from rlenv.spec import Bool, Int, Text, ToolSpec
from rlenv.templates import compile_template
from rlenv.tools._bubblewrap import around, check_bubblewrap, no_children
from rlenv.tools._filling import Filling, compile_filling, is_dynamic, read_parameters
from rlenv.tools._process import Ended, Limits, run_program
from rlenv.tools._signature import shorthand
from rlenv.tools.base import CompileContext, Tool, ToolContext, ToolOutput, common

__all__ = ["KIND", "CommandSpec"]

_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHOWN_ERRORS = 300
_NUMBER = re.compile(r"-\.?\d")


class CommandSpec(ToolSpec):
    """Runs a program on this machine; its arguments are templates, and there is no shell."""

    kind: Literal["command"]
    argv: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The program and its arguments; each template makes one argument, a list makes several, None makes none."""
    stdin: Text | None = None
    """What the program reads; a template."""
    cwd: Text = "temp"
    """`temp`: an empty folder that is removed after the call; otherwise a folder, relative to the spec."""
    env: Mapping[str, Text] = Field(default_factory=dict)
    """The program's environment beside PATH and LANG; values are templates, and secrets are written ${env:NAME}."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """What the model gives, read by templates as `args`: `{text: string, limit: integer?}`, or a JSON Schema."""
    expect_exit: tuple[Annotated[Int, Field(ge=0, le=255)], ...] = (0,)
    """The exit statuses that count as an answer."""
    max_bytes: Annotated[Int, Field(ge=1, le=100_000_000)] = 1_000_000
    """A program that writes more than this is killed."""
    cpu_s: Annotated[Int, Field(ge=1)] = 10
    """CPU seconds of each process."""
    memory_mb: Annotated[Int, Field(ge=16)] = 2_048
    """Address space of each process."""
    file_mb: Annotated[Int, Field(ge=0)] = 64
    """The largest file that a process may write."""
    sandbox: Literal["none", "bubblewrap"] = "none"
    """`bubblewrap`: the machine's files are read-only, personal folders are empty, and there is no network."""
    processes: Bool = True
    """False: the program cannot start others; with `sandbox: bubblewrap`."""
    options: Bool = False
    """True: what a call fills in may begin with `-`; otherwise only after `--`, or as a number."""


def _program(spec: CommandSpec, context: CompileContext) -> str:
    word = spec.argv[0]
    if is_dynamic(word):
        raise UsageError(f"argv: the program '{word}' must not depend on the call; write it out")
    word = str(compile_template(word).text(vars=context.vars))
    search = f"{os.environ.get('PATH', '')}:{_PATH}"
    if "/" in word:
        path = context.path("argv", word).absolute()
        if not path.is_file():
            raise UsageError(f"argv: there is no program '{word}' beside the spec")
        if not os.access(path, os.X_OK):
            raise UsageError(f"argv: '{word}' is not executable; run: chmod +x {word}")
        return str(path)
    found = shutil.which(word, path=search)
    if found is None:
        close = get_close_matches(word, sorted(_programs(search)), n=1)
        hint = f"did you mean '{close[0]}'?" if close else "install it"
        raise UsageError(f"argv: there is no program '{word}' on PATH; {hint}")
    return found


def _programs(search: str) -> set[str]:
    found: set[str] = set()
    for folder in search.split(":"):
        try:
            found.update(os.listdir(folder))
        except OSError:
            continue
    return found


def _words(value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _words(one)
    else:
        yield value if isinstance(value, str) else orjson.dumps(value).decode()


def _argv(words: Sequence[tuple[Filling, bool]], values: Mapping[str, Any], *, may_be_options: bool) -> list[str]:
    argv: list[str] = []
    for filling, is_filled in words:
        for word in _words(filling(**values)):
            if is_filled and not may_be_options and word.startswith("-") and not _NUMBER.match(word):
                raise ToolFailed("an argument must not begin with '-'", reason="bad_arguments")
            if not is_filled and word == "--":
                may_be_options = True
            argv.append(word)
    return argv


def _environment(extra: Mapping[str, Any]) -> dict[str, str]:
    base = {"PATH": os.environ.get("PATH", _PATH), "LANG": os.environ.get("LANG", "C.UTF-8")}
    return base | {name: str(value) for name, value in extra.items() if value is not None}


def _answer(ended: Ended, program: str, folder: str, spec: CommandSpec) -> ToolOutput:
    name = os.path.basename(program)
    if ended.is_flood:
        raise ToolFailed(f"{name} wrote more than {spec.max_bytes} bytes and was stopped")
    if ended.code not in spec.expect_exit:
        raise ToolFailed(f"{name} {_how(ended.code)}{_shown(ended.errors, folder)}")
    text = ended.output.decode("utf-8", errors="replace").removesuffix("\n")
    return ToolOutput(text or "(no output)", text)


def _how(code: int) -> str:
    # A shell that executes gives 128 + signal where it waited; a program of its own the negative signal.
    number = -code if code < 0 else 0
    if number == signal.SIGXCPU:
        return "used up its CPU time"
    if number == signal.SIGXFSZ:
        return "wrote a file beyond the limit"
    if number:
        return f"was killed by {signal.Signals(number).name}" if number in set(signal.Signals) else "was killed"
    return f"ended with status {code}"


def _shown(errors: bytes, folder: str) -> str:
    text = redact(" ".join(errors.decode("utf-8", errors="replace").replace(folder, ".").split()))
    if not text:
        return ""
    return ": " + (text if len(text) <= _SHOWN_ERRORS else "…" + text[-_SHOWN_ERRORS + 1 :])


def compile_command(name: str, spec: CommandSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool that runs the program; its text and its value are what it wrote.

    Raises:
        UsageError: the program is not there, a template is wrong, or the sandbox is missing.
    """
    parameters = shorthand(spec.parameters)
    program = _program(spec, context)
    if spec.sandbox == "bubblewrap":
        check_bubblewrap()
    elif not spec.processes:
        raise UsageError("processes: only a sandbox can keep a program from starting others; add sandbox: bubblewrap")
    cwd = None if spec.cwd == "temp" else context.path("cwd", spec.cwd).absolute()
    if cwd is not None and not cwd.is_dir():
        raise UsageError(f"cwd: there is no folder '{spec.cwd}'; expected temp, or a folder beside the spec")

    def filling(key: str, value: Any) -> Filling:
        return compile_filling(value, where=key, parameters=parameters, vars=context.vars)

    words = [(filling("argv", word), is_dynamic(word)) for word in spec.argv[1:]]
    stdin = filling("stdin", spec.stdin if spec.stdin is not None else "")
    env = filling("env", dict(spec.env))
    arguments_of = read_parameters(parameters)
    limits = Limits(spec.cpu_s, spec.memory_mb, spec.file_mb, spec.max_bytes)

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        values = {"args": arguments_of(arguments), "task": call.task}
        argv = [program, *_argv(words, values, may_be_options=spec.options)]
        environment = _environment(env(**values))
        given = "".join(_words(stdin(**values))).encode("utf-8", errors="replace")
        with no_children(applies=not spec.processes) as filter_fd:

            def started(folder: str) -> list[str]:
                if spec.sandbox == "none":
                    return argv
                return around(argv, folder=folder, may_write=cwd is None, filter_fd=filter_fd)

            ended, folder = await run_program(
                started,
                stdin=given,
                cwd=cwd,
                env=environment,
                limits=limits,
                pass_fds=() if filter_fd is None else (filter_fd,),
            )
        return _answer(ended, program, folder, spec)

    return (
        Tool(
            name=name,
            description=spec.description or f"Run {os.path.basename(program)} and read what it writes.",
            parameters=parameters,
            run=run,
            mode="async",
            **common(spec),
        ),
    )


KIND = Kind(CommandSpec, compile_command)
