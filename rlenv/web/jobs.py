"""Commands that are started from the browser: `rlenv validate`, `audit`, `eval` and `train` as child processes.

A command is a list of arguments made of a table of options, never a text for a shell. It writes to a log that is read
from an offset on; it is stopped as Ctrl-C would, then harder, and no longer runs than the server that started it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import encodable
from rlenv._base.text import did_you_mean
from rlenv.cli.commands import COMMANDS
from rlenv.cli.options import Option, Options, options_of
from rlenv.errors import UsageError
from rlenv.runs.locks.files import kept_command

MOST_RUNNING: Final = 4
"""Jobs at once."""
MOST_KEPT: Final = 50
"""Jobs that have ended and are still listed."""
MOST_READ: Final = 256 * 1024
"""Bytes of a log in one answer."""

KINDS: Final = ("validate", "audit", "eval", "train")
"""The commands that a page may start."""
_WAITS: Final = ((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
_PACKAGES: Final = [str(Path(__file__).resolve().parents[2])]
_RUNS: Final = ("out", "output")
"""The options that name the run, where a command writes something beside it."""
_WORDS: Final = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"
}  # fmt: skip


def job_arguments(
    kind: str, spec: str, options: Mapping[str, Any], *, confine: Callable[[str], Path] = Path
) -> tuple[list[str], Path | None]:
    """The arguments of a command behind `rlenv`, and the folder or file that it writes (None where it writes none).

    Args:
        confine: what makes a path of a text that names what is written, or refuses it by UsageError.

    Raises:
        UsageError: there is no such command or option, or a value of another type.
        MissingExtra: the command is the trainer's, which is not installed.
    """
    if kind not in KINDS:
        raise UsageError(f"no job '{kind}'", key="kind", hint=did_you_mean(kind, KINDS))
    if spec.startswith("-"):
        raise UsageError(f"'{spec[:40]}' is no spec", key="spec", hint="name a file")
    known = job_options(COMMANDS[kind].record(kind))
    written: Path | None = None
    argv = [kind, spec]
    for name, value in options.items():
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"it has: {', '.join(known)}")
            raise UsageError(f"`rlenv {kind}` has no option '{name[:40]}' here", key=f"options.{name[:40]}", hint=hint)
        if value is None:
            continue
        wanted = known[name]
        if not _is_fitting(value, wanted):
            hint = f"see `rlenv {kind} --help`"
            raise UsageError(f"expected {_expected_word(wanted)}", key=f"options.{name}", hint=hint)
        texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if any("\0" in text or encodable(text) is not text for text in texts):
            raise UsageError("a text that no command can be given", key=f"options.{name}")
        if wanted.writes:
            value = confine(value)
            written = value if written is None or name in _RUNS else written
            value = os.fspath(value)
        argv += _option_words(wanted.flag, value)
    return argv, written


def job_options(record: type[Options]) -> dict[str, Option]:
    """The options of a command's record that a page may give, by their names without dashes."""
    return {one.flag.lstrip("-").replace("-", "_"): one for one in options_of(record) if one.flags and not one.local}


def _expected_word(wanted: Option) -> str:
    if wanted.is_list:
        return "a list of texts"
    return "a path" if wanted.writes else _WORDS[wanted.kind]


def _is_fitting(value: Any, wanted: Option) -> bool:
    if wanted.is_list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if wanted.kind in (str, Path):
        return isinstance(value, str) and (bool(value) or not wanted.writes)
    if wanted.kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is wanted.kind


def _option_words(flag: str, value: Any) -> list[str]:
    """One option; its value stands in the same argument, so that none is read as an option of its own."""
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list):
        return [part for item in value for part in _option_words(flag, item)]
    return [f"{flag}={value}"] if flag.startswith("--") else [f"{flag}{value}"]


@dataclass(slots=True, eq=False)
class StartedCommand:
    """A command that was started. `started` is seconds since 1970; `run` is what it writes, None for nothing.

    `state` is `running`, `stopping` or `ended`; `code` is the exit code once it has ended, negative for a signal.
    """

    id: str
    kind: str
    argv: Sequence[str]
    started: float
    run: Path | None
    log: Path
    process: asyncio.subprocess.Process
    stopping: asyncio.Task[None] | None = None

    @property
    def code(self) -> int | None:
        """The exit code, None while the command runs."""
        return self.process.returncode

    @property
    def state(self) -> str:
        """The state of the command."""
        if self.code is not None:
            return "ended"
        return "stopping" if self.stopping is not None else "running"

    def as_dict(self) -> dict[str, Any]:
        """The job as JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "argv": list(kept_command(self.argv)),
            "state": self.state,
            "started": self.started,
            "run": None if self.run is None else str(self.run),
            "code": self.code,
        }

    def read(self, offset: int) -> tuple[str, int]:
        """The log from a byte on, and the byte to go on from. A character that is not whole yet waits for its rest."""
        with self.log.open("rb") as file:
            file.seek(max(offset, 0))
            part = file.read(MOST_READ)
        is_last = self.code is not None and len(part) < MOST_READ
        text, taken = codecs.utf_8_decode(part, "replace", is_last)
        return text, max(offset, 0) + taken


@dataclass(slots=True, eq=False)
class Jobs:
    """The jobs of one server, in the order in which they were started.

    Args:
        waits: the signals that stop a job, each with the seconds until the next one.
    """

    waits: Sequence[tuple[signal.Signals, float]] = _WAITS
    most_running: int = MOST_RUNNING
    _jobs: dict[str, StartedCommand] = field(default_factory=dict)
    _folder: Path | None = None
    _starting: int = 0

    async def start(
        self, kind: str, spec: str, options: Mapping[str, Any], *, confine: Callable[[str], Path] = Path
    ) -> StartedCommand:
        """Starts a command; see `job_arguments`.

        Raises:
            UsageError: it has no such options, or too many jobs are running.
        """
        argv, written = job_arguments(kind, spec, options, confine=confine)
        running = sum(job.code is None for job in self._jobs.values()) + self._starting
        if running >= self.most_running:
            raise UsageError(f"{self.most_running} jobs are running already", hint="stop one, or wait for it")
        self._forget_ended()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rlenv-jobs-"))
        id = secrets.token_urlsafe(6)
        log = self._folder / f"{len(self._jobs)}-{id}.log"
        self._starting += 1
        try:
            process = await _start_process([sys.executable, "-m", "rlenv", *argv], log)
        finally:
            self._starting -= 1
        job = self._jobs[id] = StartedCommand(id, kind, ("rlenv", *argv), time.time(), written, log, process)
        return job

    def get(self, id: str) -> StartedCommand:
        """The job with an id.

        Raises:
            UsageError: there is none.
        """
        if id not in self._jobs:
            raise UsageError(f"no job '{id[:40]}'", hint="GET /api/jobs lists them")
        return self._jobs[id]

    def all(self) -> list[StartedCommand]:
        """All jobs, the newest first."""
        return list(reversed(self._jobs.values()))

    def stop(self, id: str) -> StartedCommand:
        """Asks a job to stop as Ctrl-C does, and less kindly where it does not; returns at once."""
        job = self.get(id)
        if job.code is None and job.stopping is None:
            job.stopping = asyncio.create_task(self._stop_job(job))
        return job

    async def wait(self, id: str) -> StartedCommand:
        """Waits until a job has ended."""
        job = self.get(id)
        await job.process.wait()
        if job.stopping is not None:
            await job.stopping
        return job

    async def aclose(self) -> None:
        """Stops all jobs and waits until they have ended; their logs go."""
        for job in self._jobs.values():
            self.stop(job.id)
        await asyncio.gather(*(self.wait(job.id) for job in self._jobs.values()))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _stop_job(self, job: StartedCommand) -> None:
        for number, wait_s in self.waits:
            if job.code is not None:
                break
            _send_signal(job.process, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.process.wait(), wait_s)
        _send_signal(job.process, signal.SIGKILL)  # what it has left behind

    def _forget_ended(self) -> None:
        ended = [job for job in self._jobs.values() if job.code is not None]
        for job in ended[: max(0, len(ended) - MOST_KEPT + 1)]:
            del self._jobs[job.id]
            job.log.unlink(missing_ok=True)


async def _start_process(argv: list[str], log: Path) -> asyncio.subprocess.Process:
    paths = [*_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    # Where `rlenv view` ignores SIGINT, as what a shell starts by `&` does, its jobs are to hear it all the same.
    is_main = threading.current_thread() is threading.main_thread()
    with log.open("wb") as out, contextlib.ExitStack() as after:
        if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            after.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_DFL))
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environ,
        )


def _send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """A signal to a command and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
