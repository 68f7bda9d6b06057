"""What this process holds, and what it holds beyond what it held before."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SETTLE_S: Final = 60.0  # a thread may wait for a process that was stopped for some 40 s


@dataclass(frozen=True)
class Left:
    """What a process holds."""

    processes: Mapping[int, str]
    descriptors: Mapping[str, str]
    threads: frozenset[str]
    files: frozenset[str]
    memory: frozenset[str]

    def beyond(self, before: Left) -> dict[str, list[str]]:
        """What is held now and was not before; of what may be kept, no more of it."""
        more = {
            "processes": [] if len(self.processes) <= len(before.processes) else [*self.processes.values()],
            "descriptors": []
            if len(self.descriptors) <= len(before.descriptors)
            else sorted((Counter(self.descriptors.values()) - Counter(before.descriptors.values())).elements()),
            "threads": sorted(self.threads - before.threads),
            "files": sorted(self.files - before.files),
            "memory": sorted(path for path in self.memory - before.memory if _is_forgotten(path)),
        }
        return {what: found for what, found in more.items() if found}


def below() -> dict[int, str]:
    """The processes below this one, with their command lines; those that ended are none."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                state, parent, *_ = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if state not in "ZX":
                    parents[int(entry)] = int(parent)
    found: dict[int, str] = {}
    new = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new and pid not in found}:
        for pid in new:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if "multiprocessing.resource_tracker" not in line:
                    found[pid] = line[:80]
    return found


def held(folder: Path) -> Left:
    """What this process holds now."""
    descriptors = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptors[entry] = re.sub(r"[\d/].*", "", os.readlink(f"/proc/self/fd/{entry}")) or "file"
    shared = Path("/dev/shm")
    return Left(
        below(),
        descriptors,
        # The loop's own threads end with it.
        frozenset(thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")),
        frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "filler"),
        frozenset(str(path) for path in shared.iterdir() if _is_mine(path)) if shared.is_dir() else frozenset(),
    )


def _is_forgotten(path: str) -> bool:
    """Whether it is there and no living process maps it or has it open: it may be another program's."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{entry}/maps").read_text(errors="replace"):
                return False
            for file in Path(f"/proc/{entry}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(file) == path:
                        return False
    return os.path.exists(path)


def _is_mine(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_uid == os.geteuid()
    return False


async def settled(folder: Path, before: Left | None) -> Left:
    """What is held once whatever is on its way out is gone, or after a bounded time."""
    now = None
    for turn in range(int(SETTLE_S / 0.1)):
        gc.collect()
        last, now = now, held(folder)
        if (turn > 5 and now == last) if before is None else not now.beyond(before):
            break
        await asyncio.sleep(0.1)
    assert now is not None
    return now
