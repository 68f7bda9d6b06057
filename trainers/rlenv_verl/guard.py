"""Ends a run whose driver died: a process that waits on a pipe, run as `python guard.py MARK FOLDER`.

The driver holds the pipe's other end and writes to it when it has ended the run itself. End-of-file without that word
means that the driver is gone, by SIGKILL say: then everything with the run's mark is ended and Ray's folder removed.
A file of its own without imports of the package, so that it starts in a moment and needs nothing that may break.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys

import psutil  # type: ignore[import-untyped]

__all__ = ["DONE", "RUN_MARK", "end_marked"]

RUN_MARK = "RLENV_RUN_MARK"
"""The environment variable by which a run's processes are found; Ray hands it on to all that it starts."""

DONE = b"done\n"
"""What the driver writes when there is nothing left to guard."""


def end_marked(mark: str, *, grace_s: float = 2.0) -> None:
    """End every process that carries the mark, and what these have started: asked first, then killed.

    A tool's process may have been started with an environment of its own, without the mark; it is found as a
    descendant as long as its parents live, so all are listed before the first is ended.
    """
    found = _family(mark)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    # A daemon may have started another process meanwhile: look again until nothing is left.
    for _ in range(10):
        left = {process.pid: process for process in (*alive, *_family(mark))}
        if not left:
            return
        for process in left.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        _, alive = psutil.wait_procs(list(left.values()), timeout=grace_s)


def _family(mark: str) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in found and process.environ().get(RUN_MARK) == mark:
                for one in (process, *process.children(recursive=True)):
                    found[one.pid] = one
    found.pop(os.getpid(), None)
    # A zombie is dead; only its parent can put it away.
    return [process for process in found.values() if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _main(mark: str, folder: str) -> None:
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return
    end_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
