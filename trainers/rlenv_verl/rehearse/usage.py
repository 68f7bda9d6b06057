"""Measures what all processes of a run hold of memory, and how much they wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

__all__ = ["Peak", "held_by", "watched"]

_EVERY_S = 1.0


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


def held_by(
    variable: str, value: str, seconds: dict[tuple[int, float], float] | None = None
) -> tuple[int, dict[str, int], int]:
    """Bytes of all processes that have this environment variable, by their titles, and how many there are.

    Args:
        variable: the variable.
        value: what it has to be.
        seconds: takes what each process has computed, by its number and its start.
    """
    parts: dict[str, int] = {}
    count = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) != value or process.pid == os.getpid():
                continue
            title = _title(process)
            size = _share(process.pid)
            if seconds is not None:
                times = process.cpu_times()
                seconds[process.pid, process.create_time()] = times.user + times.system
        except (psutil.Error, OSError):
            continue
        parts[title] = parts.get(title, 0) + size
        count += 1
    return sum(parts.values()), parts, count


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
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            total, parts, count = held_by(variable, value, peak.seconds)
            if total > peak.bytes:
                peak.bytes, peak.parts, peak.processes = total, parts, count

    thread = threading.Thread(target=watch, name="rehearsal-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
