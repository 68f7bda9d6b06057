"""Faults at random moments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.faults.left_behind import below


class Injector:
    """Does a fault at random moments to a process below this one, or to the disk."""

    def __init__(self, fault: str, rng: random.Random, folder: Path, every_s: float) -> None:
        self.fault, self.rng, self.every_s = fault, rng, every_s
        self.filler = folder / "filler"
        self.done = 0

    async def run(self) -> None:
        """Until it is cancelled; what was only slowed goes on then, and the disk is free."""
        stopped: set[int] = set()
        try:
            while self.fault != "none":
                await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
                await self.once(stopped)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
            self.filler.unlink(missing_ok=True)

    async def once(self, stopped: set[int]) -> None:
        """One fault."""
        if self.fault == "full":
            self.fill()
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
            self.filler.unlink(missing_ok=True)
            return
        pids = sorted(below())
        if not pids:
            return
        pid = self.rng.choice(pids)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.fault == "kill":
                os.kill(pid, signal.SIGKILL)
            elif self.fault == "nofile":
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))
            else:
                os.kill(pid, signal.SIGSTOP)
            self.done += 1
        if self.fault == "slow":
            stopped.add(pid)
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
            stopped.discard(pid)

    def fill(self) -> None:
        """Leaves no room on the disk of the temporary files."""
        try:
            with self.filler.open("wb", buffering=0) as file:
                while file.write(b"\0" * 65_536):
                    pass
        except OSError:
            self.done += 1


@contextlib.asynccontextmanager
async def injected(injector: Injector) -> AsyncIterator[None]:
    """Faults while the block runs."""
    task = asyncio.ensure_future(injector.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
