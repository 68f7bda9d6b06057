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
from collections.abc import Iterable

import psutil  # type: ignore[import-untyped]

RUN_MARK = "RLENV_RUN_MARK"
"""The environment variable by which a run's processes are found; Ray hands it on to all that it starts."""

DONE = b"done\n"
"""The bytes that the driver writes when nothing is left to guard."""


_SHARED = "/dev/shm"
_NAMED_BY = ("psm_", "sem.", "torch_", "verl_weights_")
"""How Python, torch and veRL name shared memory, which vLLM and the weights' way into it use."""
_GRACE_S = 2.0


class Segments:
    """The shared memory of a run, which is memory that stays taken after its processes are gone.

    Expected: who makes a segment removes it. Actual: Python does so when a process ends by itself (`multiprocessing`'s
    resource tracker), and the processes of a run are ended by Ray or killed: each run with vLLM left two segments and
    one that was cut in the middle of a sync its bucket of weights (256 MB, until the machine's next start).

    Args:
        folder: where the system shows shared memory as files.
    """

    def __init__(self, mark: str, *, folder: str = _SHARED) -> None:
        self._mark = mark
        self._folder = folder
        self._known: set[str] = set()
        self._own: set[str] = set()

    def look(self) -> None:
        """Finds out which are the run's, where there is a new one; to be called while its processes live."""
        there = _segment_names(self._folder)
        if there - self._known:
            self._own |= there & _mapped_names(_marked_processes(self._mark), self._folder)
        self._known = there

    def remove(self) -> None:
        """Removes the run's; not one that a living process has whose address space can be read."""
        left = self._own & _segment_names(self._folder)
        if left:
            left -= _mapped_names(psutil.process_iter(), self._folder)
        for name in left:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))


def _segment_names(folder: str) -> set[str]:
    try:
        found = os.scandir(folder)
    except OSError:  # another system, where nothing is left either
        return set()
    with found:
        return {entry.name for entry in found if entry.name.startswith(_NAMED_BY) and _is_own(entry)}


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat().st_uid == os.getuid()
    except OSError:  # removed since the folder was read, as some are in every run
        return False


def _mapped_names(processes: Iterable[psutil.Process], folder: str) -> set[str]:
    """The names in the folder that the address spaces of these processes hold."""
    names = set()
    for process in processes:
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as maps,
        ):
            for line in maps:
                _, _, name = line.rstrip("\n").partition(f" {folder}/")
                if name:
                    names.add(name)
    return names


def end_marked(mark: str) -> None:
    """End every process that carries the mark, and what these have started: asked first, then killed.

    A tool's process may have been started with an environment of its own, without the mark; it is found as a
    descendant as long as its parents live, so all are listed before the first is ended.
    """
    found = _marked_processes(mark)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=_GRACE_S)
    # A daemon may have started another process meanwhile: look again until nothing is left.
    for _ in range(10):
        left = {process.pid: process for process in (*alive, *_marked_processes(mark))}
        if not left:
            return
        for process in left.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        _, alive = psutil.wait_procs(list(left.values()), timeout=_GRACE_S)


def _marked_processes(mark: str) -> list[psutil.Process]:
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
    segments = Segments(mark)
    segments.look()
    end_marked(mark)
    segments.remove()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
