"""What one process of a run keeps of its episodes: each as it ends, and what becomes known of it later."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.concurrency.lanes import Lane
from rlenv.runs.cassettes import Recorder
from rlenv.runs.folder import read_info
from rlenv.runs.schema import Facts
from rlenv.runs.writer import KeepPolicy, RunWriter
from rlenv.secrets import logger
from rlenv.trajectory import Record, Trajectory

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment
    from rlenv_verl.loop.sample import SampleTask

__all__ = ["KEEP_GB", "Keeper", "nothing_of"]

KEEP_GB: Final = 5.0
"""`run.keep_gb` where a run says nothing: the bodies of episodes that are kept whatever they are, in 10⁹ bytes."""

_SEAL_S: Final = 600.0
"""A segment that is open longer is sealed. Ten minutes and not one: a run of a day would leave thousands of parts."""
_log = logger(__name__)


class Keeper:
    """Writes into a run's folder, for one thread of one process, beside any number of others.

    Nothing that goes wrong with it ends a step: what cannot be written, as on a full disk, is counted in `lost` and
    told once, and the next is tried again. The folders are made with the first episode.

    Args:
        run: the run's folder. Its `run.json` says which attempt this is, and with which lock of each environment;
            without one it is attempt 0.
        keep_gb: of the whole run, in 10⁹ bytes; bodies that lie in its folder already count.
        writers: how many processes share that.
        recorder: has what is asked in this process until it is kept.
    """

    def __init__(
        self, run: Path, *, keep_gb: float = KEEP_GB, writers: int = 1, recorder: Recorder | None = None
    ) -> None:
        self.run = run
        self.recorder = recorder or Recorder()
        self.lost = 0
        self._keep_gb, self._writers = keep_gb, max(1, writers)
        self._writer: RunWriter | None = None
        self._locks: Mapping[str, str] = {}

    def _opened(self) -> RunWriter:
        if self._writer is None:
            info = read_info(self.run)
            last = info.attempts[-1] if info is not None and info.attempts else None
            left = max(0.0, self._keep_gb - _held_bytes(self.run) / 1e9) / self._writers
            self._locks = last.locks if last is not None else {}
            self._writer = RunWriter(
                self.run,
                attempt=last.number if last is not None else 0,
                lock=last.lock if last is not None else "",
                keep=KeepPolicy(keep_gb=left),
                seal_s=_SEAL_S,
            )
            self.recorder.lock = self._writer.lock
        return self._writer

    def keep(self, trajectory: Trajectory, facts: Facts, lane: Lane | None = None) -> str:
        """Keeps an episode, which was played in a lane of the recorder; returns its id, "" if it cannot be written."""
        if lane is not None:
            facts = replace(facts, events=self.recorder.taken(lane))
        try:
            writer = self._opened()
            if events := self.recorder.rest(""):  # such as the tools of a server, from compiling
                writer.late("", {"events": events})
            return writer.append(trajectory, facts, lock=self._locks.get(trajectory.environment))
        except OSError as error:
            self._failed(error)
            return ""

    def late(self, id: str, **facts: Any) -> None:
        """Keeps what became known of an episode that any process has kept; nothing for one that none has ("")."""
        if not id:
            return
        try:
            self._opened().late(id, facts)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if not self.lost:
            _log.warning("%s: episodes are not kept: %s", self.run, error.strerror or error)
        self.lost += 1

    def close(self) -> None:
        """Seals what is open. A process that ends without leaves journals, which whoever ends the run seals."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _held_bytes(run: Path) -> int:
    """The bytes of the bodies that lie in a run's folder."""
    total = 0
    for kind, ending in (("bodies", ".parquet"), ("journal", ".bodies")):
        with contextlib.suppress(OSError), os.scandir(run / kind) as entries:
            for entry in entries:
                if entry.name.endswith(ending):
                    with contextlib.suppress(FileNotFoundError):  # sealed in the meantime
                        total += entry.stat().st_size
    return total


def nothing_of(environment: Environment, task: SampleTask, *, seed: int) -> Record:
    """The record of an episode that could not even be begun."""
    return {
        "environment": f"{environment.spec.name}-v{environment.spec.version}",
        "split": task.split,
        "task_index": task.index,
        "seed": seed,
        "task": {},
        "messages": (),
        "turns": (),
        "answer": None,
        "seconds": 0.0,
    }
