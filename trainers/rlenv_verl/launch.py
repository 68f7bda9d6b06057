"""Run veRL as a subprocess that leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psutil  # type: ignore[import-untyped]

__all__ = ["Ending", "run_to_end"]

RUN_MARK = "RLENV_RUN_MARK"
"""The environment variable by which a run's processes are found; Ray hands it on to all that it starts."""

_POLL_S = 0.25
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. `code` is the exit status of veRL's driver; `seconds` is wall time."""

    how: Literal["finished", "failed", "time_limit", "interrupted"]
    code: int
    seconds: float


def run_to_end(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    time_limit_s: float,
    on_poll: Callable[[float], None],
) -> Ending:
    """Run `command` to its end or to the limit, and end every process it started.

    Ray starts daemons and workers in process groups and sessions of their own, so ending the driver's group is not
    enough: whatever still carries this run's mark in its environment is ended too.

    Args:
        command: the driver; `{ray_dir}` in an argument becomes a folder for Ray's files, removed at the end.
        log: the file for all output.
        environment: the driver's whole environment.
        time_limit_s: after this many seconds of wall time the run is stopped.
        on_poll: called several times a second with the seconds so far.
    """
    mark = uuid4().hex
    started = time.monotonic()
    # In the system's temporary folder, not in the run's: Ray puts sockets there, whose paths are bounded (107 bytes).
    with _temporary_folder() as ray_dir, log.open("wb") as output:
        process = subprocess.Popen(
            [part.replace("{ray_dir}", str(ray_dir)) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, RUN_MARK: mark},
            start_new_session=True,
        )
        how: Literal["finished", "failed", "time_limit", "interrupted"] = "finished"
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGTERM, _as_interrupt) if is_main else None
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                seconds = time.monotonic() - started
                on_poll(seconds)
                if seconds > time_limit_s:
                    how = "time_limit"
                    break
        except KeyboardInterrupt:
            how = "interrupted"
        finally:
            with _undisturbed() if is_main else contextlib.nullcontext():
                _end(process, mark)
            if is_main:
                signal.signal(signal.SIGTERM, handler)
    if how == "finished" and process.returncode != 0:
        how = "failed"
    return Ending(how, process.returncode, time.monotonic() - started)


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


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the driver's group gently, then whatever carries the mark, then without asking."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    leftovers = _marked(mark)
    for left in leftovers:
        with contextlib.suppress(psutil.Error):
            left.terminate()
    psutil.wait_procs(leftovers, timeout=2.0)
    # A daemon may have started another process meanwhile: look again until nothing is left.
    for _ in range(5):
        leftovers = _marked(mark)
        if not leftovers:
            break
        for left in leftovers:
            with contextlib.suppress(psutil.Error):
                left.kill()
        psutil.wait_procs(leftovers, timeout=2.0)
    process.wait()


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(RUN_MARK) == mark:
                found.append(process)
    return found
