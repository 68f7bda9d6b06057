"""What a process of this machine did with its time: worked, waited, or was not let to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

__all__ = ["Work", "only_child", "work_of"]

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Work:
    """`state` is the letter of proc(5): R, S, D, T, Z. `cpu_s` counts all threads, `children_s` the children that
    have ended, both to a hundredth of a second; `delayed_s` is how long the first thread was ready and got no
    processor; `age_s` is counted from its start. `threads` are those that have not ended; the first one counts
    until all have."""

    state: str
    cpu_s: float
    delayed_s: float
    age_s: float
    threads: int = 1
    children_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more. One whose first thread alone has ended is a zombie too, and goes on."""
        return self.state == "Z" and self.threads <= 1

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"

    @property
    def own_s(self) -> float:
        """The time that was its own: at work, or waiting for what it asked for itself."""
        return max(self.cpu_s, self.age_s - self.delayed_s)


def work_of(pid: int) -> Work | None:
    """None where the process is gone, or the system does not tell (it is not Linux)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, which stands in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        threads = int(fields[17])
        cpu_s, children_s = ((int(fields[at]) + int(fields[at + 1])) / _TICKS for at in (11, 13))
        age_s = time.clock_gettime(_CLOCK) - int(fields[19]) / _TICKS
    except (OSError, IndexError, ValueError):
        return None
    return Work(fields[0].decode(), cpu_s, _delayed_s(pid), age_s, threads, children_s)


def _delayed_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def only_child(pid: int) -> int | None:
    """The process that `pid` started; None where there is none, several, or the system does not tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            children = file.read().split()
    except OSError:
        return None
    return int(children[0]) if len(children) == 1 else None
