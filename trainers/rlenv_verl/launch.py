"""Run veRL as a subprocess that leaves nothing behind, however it or its driver ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from rlenv_verl import guard
from rlenv_verl.guard import RUN_MARK, Segments, end_marked

__all__ = ["Ending", "run_to_end"]

_POLL_S = 0.25
_GRACE_S = 10.0

How = Literal["finished", "failed", "time_limit", "interrupted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. `code` is the exit status of veRL's driver; `seconds` is wall time; `log_from` is the byte of
    the log at which this start began to write."""

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
) -> Ending:
    """Run `command` to its end or to the limit, and end every process it started.

    Ray starts daemons and workers in process groups and sessions of their own, so ending the driver's group is not
    enough: whatever still carries this run's mark in its environment is ended too. A guard in a session of its own
    does the same where this process dies without a chance to.

    Args:
        command: the driver; `{ray_dir}` in an argument becomes a folder for Ray's files and `{mark}` the run's mark.
            The folder is removed at the end.
        log: the file to which all output is appended.
        environment: the driver's whole environment.
        time_limit_s: after this many seconds of wall time the run is stopped.
        on_poll: called several times a second with the seconds so far.
        cwd: the driver's working directory; this process's own otherwise.
        lock: a file descriptor that the guard keeps open until the run is ended.
    """
    mark = uuid4().hex
    started = time.monotonic()
    # In the system's temporary folder, not in the run's: Ray puts sockets there, whose paths are bounded (107 bytes).
    with _temporary_folder() as ray_dir, _guarded(mark, ray_dir, lock), log.open("ab") as output:
        log_from = output.tell()
        process = subprocess.Popen(
            [part.replace("{ray_dir}", str(ray_dir)).replace("{mark}", mark) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, RUN_MARK: mark},
            start_new_session=True,
            cwd=cwd,
        )
        segments = Segments(mark)
        how: How = "finished"
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGTERM, _as_interrupt) if is_main else None
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                seconds = time.monotonic() - started
                # Its processes may end with the driver, so what is theirs has to be known before.
                segments.look()
                on_poll(seconds)
                if seconds > time_limit_s:
                    how = "time_limit"
                    break
        except KeyboardInterrupt:
            how = "interrupted"
        finally:
            with _undisturbed() if is_main else contextlib.nullcontext():
                segments.look()
                _end(process, mark)
                segments.remove()
            if is_main:
                signal.signal(signal.SIGTERM, handler)
    if how == "finished" and process.returncode != 0:
        how = "failed"
    return Ending(how, process.returncode, time.monotonic() - started, log_from)


def _as_interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No further signal cuts the clean-up short: a second Ctrl-C is pressed exactly while it runs."""
    signs = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(sign, signal.SIG_IGN) for sign in signs]
    try:
        yield
    finally:
        for sign, handler in zip(signs, handlers, strict=True):
            signal.signal(sign, handler)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rlenv-ray-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _guarded(mark: str, ray_dir: Path, lock: int | None) -> Iterator[None]:
    """A guard for as long as the block runs; it ends by itself, whether this process lives or not."""
    process = subprocess.Popen(
        # -P: the folder of the file, whose modules may be called anything, stays out of the path.
        [sys.executable, "-P", guard.__file__, mark, str(ray_dir)],
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
