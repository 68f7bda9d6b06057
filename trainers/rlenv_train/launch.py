"""Runs a trainer as a subprocess that leaves nothing behind, however it or its driver ends; measures its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal
from uuid import uuid4

import psutil  # type: ignore[import-untyped]

from rlenv.runs.folder import State
from rlenv_train import guard
from rlenv_train.guard import RUN_MARK, Segments, end_marked

_POLL_S = 0.25
_GRACE_S = 10.0

How = Literal["finished", "failed", "time_limit", "interrupted"]

EXIT_STATUS: Mapping[How, int] = {"finished": 0, "failed": 1, "time_limit": 1, "interrupted": 130}
"""The exit status of a command whose run ended so."""

STATES: Mapping[How, State] = {
    "finished": "ended",
    "failed": "failed",
    "time_limit": "stopped",
    "interrupted": "stopped",
}
"""What has become of a run, by how its last start of veRL ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run. `code` is the exit status of veRL's driver; `seconds` is wall time; `log_from` is the byte of
    the log at which this start began to write.
    """

    how: How
    code: int
    seconds: float
    log_from: int = 0


def run_to_end(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    time_limit_s: float,
    on_poll: Callable[[float], None],
    cwd: str | None = None,
    lock: int | None = None,
    stop: Path | None = None,
) -> Ending:
    """Run `command` to its end or to the limit, and end every process it started.

    Ray starts daemons and workers in process groups and sessions of their own, so ending the driver's group is not
    enough: whatever still carries this run's mark in its environment is ended too. A guard in a session of its own
    does the same where this process dies without a chance to.

    Args:
        command: the driver; `{ray_dir}` in an argument becomes a folder for Ray's files and `{mark}` the run's mark.
            The folder is removed at the end.
        log: the file to which all output is appended.
        time_limit_s: after this many seconds of wall time the run is stopped.
        on_poll: called several times a second with the seconds so far.
        cwd: the driver's working directory; this process's own otherwise.
        lock: a file descriptor that the guard keeps open until the run is ended.
        stop: a file that ends the run like a Ctrl-C once it is there; it may be made on any machine.
    """
    mark = uuid4().hex
    started = time.monotonic()
    # In the system's temporary folder, not in the run's: Ray puts sockets there, whose paths are bounded (107 bytes).
    temporary = tempfile.TemporaryDirectory(prefix="rlenv-ray-", ignore_cleanup_errors=True)
    with temporary as ray_dir, _run_guard(mark, ray_dir, lock), log.open("ab") as output:
        log_from = output.tell()
        words = [part.replace("{ray_dir}", ray_dir).replace("{mark}", mark) for part in command]
        process = _start_driver(words, output, environment={**environment, RUN_MARK: mark}, cwd=cwd)
        segments = Segments(mark)

        def look() -> bool:
            """True if the driver may go on; its processes may end with it, so what is theirs has to be known before."""
            segments.look()
            seconds = time.monotonic() - started
            on_poll(seconds)
            if stop is not None and stop.exists():
                raise KeyboardInterrupt
            return seconds <= time_limit_s

        with terminated_as_interrupted():
            try:
                how = _waited_for(process, look)
            finally:
                # No further signal cuts the clean-up short: a second Ctrl-C is pressed exactly while it runs.
                with _handling(signal.SIGINT, signal.SIGTERM, handler=signal.SIG_IGN):
                    segments.look()
                    _end(process, mark)
                    segments.remove()
    if how == "finished" and process.returncode != 0:
        how = "failed"
    return Ending(how, process.returncode, time.monotonic() - started, log_from)


def _start_driver(
    command: Sequence[str], output: IO[bytes], *, environment: Mapping[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        cwd=cwd,
    )


def ending_lines(ending: Ending, log: Path, *, last: Callable[[], Iterable[str]]) -> Iterator[str]:
    """The reasons why a run did not finish, in lines for people; `last` gives the end of its log, asked for where it
    failed.
    """
    if ending.how == "time_limit":
        yield f"stopped at the time limit after {ending.seconds:.0f} s"
    elif ending.how == "interrupted":
        yield "interrupted; all processes of the run were ended"
    else:
        yield f"veRL ended with status {ending.code}; the end of {log}:"
        yield from last()


def _waited_for(process: subprocess.Popen[bytes], look: Callable[[], bool]) -> How:
    """Waits for the driver's end, asking `look` several times a second whether it may go on."""
    try:
        while process.poll() is None:
            time.sleep(_POLL_S)
            if not look():
                return "time_limit"
    except KeyboardInterrupt:
        return "interrupted"
    return "finished"


def _raise_interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """In the block a SIGTERM, which would end the process where it stands, is a Ctrl-C."""
    return _handling(signal.SIGTERM, handler=_raise_interrupt)


@contextlib.contextmanager
def _handling(*signs: signal.Signals, handler: Any) -> Iterator[None]:
    """Signals by another handler; as they are outside of the main thread, which alone may set one."""
    if threading.current_thread() is not threading.main_thread():
        signs = ()
    handlers = [signal.signal(sign, handler) for sign in signs]
    try:
        yield
    finally:
        for sign, known in zip(signs, handlers, strict=True):
            signal.signal(sign, known)


@contextlib.contextmanager
def _run_guard(mark: str, ray_dir: str, lock: int | None) -> Iterator[None]:
    """A guard for as long as the block runs; it ends by itself, whether this process lives or not."""
    process = subprocess.Popen(
        # -P: the folder of the file, whose modules may be called anything, stays out of the path.
        [sys.executable, "-P", guard.__file__, mark, ray_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The mark is an argument and not in its environment: it would end itself.
        env={name: value for name, value in os.environ.items() if name != RUN_MARK},
        start_new_session=True,
        pass_fds=() if lock is None else (lock,),
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # someone ended the guard
            process.stdin.write(guard.DONE)
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the driver's group gently, then whatever carries the mark, then without asking."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    end_marked(mark)
    process.wait()


_EVERY_S = 2.0  # reading what is shared walks a process's page tables


@dataclass(slots=True)
class Peak:
    """The most bytes that a run's processes held at once, and what each kind of them held then.

    A page that several processes share is counted once in all (Linux's PSS); Ray's object store is among them.
    `cpu_s` are the seconds that they computed, of each by what it had when it was last seen.
    """

    bytes: int = 0
    processes: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float:
        """Seconds of all processors together."""
        return sum(self.seconds.values())


class _Family:
    """The processes that have an environment variable with a value; each process is asked once."""

    def __init__(self, variable: str, value: str) -> None:
        self._wanted = (variable, value)
        self._known: dict[int, psutil.Process | None] = {}

    def members(self) -> list[psutil.Process]:
        """The processes of the family that are there now, without this one."""
        found: dict[int, psutil.Process | None] = {}
        for pid in psutil.pids():
            known = self._known.get(pid)
            # A number may have come round; and a process that was just forked becomes another program yet.
            if pid in self._known and (known is None or known.is_running()):
                found[pid] = known
            elif pid != os.getpid():
                found[pid] = self._find_member(pid)
        self._known = {pid: process for pid, process in found.items() if process is not None or pid in self._known}
        return [process for process in found.values() if process is not None]

    def _find_member(self, pid: int) -> psutil.Process | None:
        variable, value = self._wanted
        try:
            process = psutil.Process(pid)
            return process if process.environ().get(variable) == value else None
        except (psutil.Error, OSError):
            return None


def look(family: _Family, peak: Peak) -> None:
    """Takes into `peak` what the family holds now and what each of it has computed so far."""
    parts: dict[str, int] = {}
    members = family.members()
    for process in members:
        try:
            title, size, times = _process_title(process), _memory_share(process.pid), process.cpu_times()
        except (psutil.Error, OSError):
            continue
        parts[title] = parts.get(title, 0) + size
        peak.seconds[process.pid, process.create_time()] = times.user + times.system
    total = sum(parts.values())
    if total > peak.bytes:
        peak.bytes, peak.parts, peak.processes = total, parts, len(members)


def _process_title(process: psutil.Process) -> str:
    words: list[str] = process.cmdline()
    if not words:
        return str(process.name())
    first = words[0]
    if first.startswith("ray::"):
        return first.removeprefix("ray::").split(".")[0].split(" ")[0]
    return "main_ppo" if "verl.trainer.main_ppo" in words else Path(first).name


def _memory_share(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def watch_peak(variable: str, value: str) -> Iterator[Peak]:
    """The peak while the block runs, of the processes that have this environment variable."""
    peak, ended, family = Peak(), threading.Event(), _Family(variable, value)

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            look(family, peak)

    thread = threading.Thread(target=watch, name="rehearsal-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
