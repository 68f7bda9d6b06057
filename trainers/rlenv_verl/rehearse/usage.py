"""Measures what all processes of a run hold of memory, and how much they wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

__all__ = ["Peak", "watched"]

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
        """Those that are there now, this process left out."""
        found: dict[int, psutil.Process | None] = {}
        for pid in psutil.pids():
            known = self._known.get(pid)
            # A number may have come round; and a process that was just forked becomes another program yet.
            if pid in self._known and (known is None or known.is_running()):
                found[pid] = known
            elif pid != os.getpid():
                found[pid] = self._asked(pid)
        self._known = {pid: process for pid, process in found.items() if process is not None or pid in self._known}
        return [process for process in found.values() if process is not None]

    def _asked(self, pid: int) -> psutil.Process | None:
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
            title, size, times = _title(process), _share(process.pid), process.cpu_times()
        except (psutil.Error, OSError):
            continue
        parts[title] = parts.get(title, 0) + size
        peak.seconds[process.pid, process.create_time()] = times.user + times.system
    total = sum(parts.values())
    if total > peak.bytes:
        peak.bytes, peak.parts, peak.processes = total, parts, len(members)


def _title(process: psutil.Process) -> str:
    words: list[str] = process.cmdline()
    if not words:
        return str(process.name())
    first = words[0]
    if first.startswith("ray::"):
        return first.removeprefix("ray::").split(".")[0].split(" ")[0]
    return "main_ppo" if "verl.trainer.main_ppo" in words else Path(first).name


def _share(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def watched(variable: str, value: str) -> Iterator[Peak]:
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
