"""The episodes of a run: kept by each process as they end, and counted by whoever follows the run."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.concurrency.lanes import Lane
from rlenv.runs.cassettes import Recorder
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.tools import asked
from rlenv.runs.folder import is_run, open_run, read_info
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.usage import Spending, spent_by
from rlenv.runs.writer import KeepPolicy, RunWriter
from rlenv.secrets import logger
from rlenv.trajectory import Record, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

    from rlenv.episodes.environment import Environment
    from rlenv_train.samples import SampleTask

__all__ = ["KEEP_GB", "Keeper", "KeptEpisodes", "nothing_of"]

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
        return self._writer

    def keep(self, trajectory: Trajectory, facts: Facts, lane: Lane | None = None) -> str:
        """Keeps an episode, which was played in a lane of the recorder; returns its id, "" if it cannot be written."""
        try:
            writer = self._opened()
            lock = self._locks.get(trajectory.environment, writer.lock)
            if events := self.recorder.rest("", lock=lock):  # such as the tools of a server, from compiling
                writer.late("", {"events": events})
            if lane is not None:
                facts = replace(facts, events=self.recorder.taken(lane, lock=lock))
            return writer.append(trajectory, facts, lock=lock)
        except OSError as error:
            self._failed(error)
            return ""

    def left(self, lane: Lane | None) -> None:
        """Forgets what an episode has asked that is over, was it kept or not: a sample that is cancelled is not."""
        if lane is not None:
            self.recorder.dropped(lane)

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


@dataclass(slots=True)
class KeptEpisodes:
    """The episodes in a run's folder now; each question reads those that have come since the last one.

    Args:
        folder: the run's.
        records: where older versions wrote `failures.jsonl`, which stays readable.
    """

    folder: Path
    records: Path
    _reader: RunReader | None = None

    def _table(self) -> pa.Table | None:
        if self._reader is None:
            if not is_run(self.folder):
                return None
            self._reader = open_run(self.folder)
        self._reader.refresh()
        return self._reader.table

    def __len__(self) -> int:
        """The number of episodes that count."""
        table = self._table()
        return 0 if table is None else len(table)

    def asked(self) -> Spending:
        """Their spending on models: judges, tools, users and agents; the policy that learns is none of these."""
        if self._table() is None or self._reader is None:
            return Spending()
        return spent_by(asked(Snapshot(self._reader)))

    def by(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """The number of episodes that count, by their values of `columns`."""
        table = self._table()
        if table is None:
            return Counter()
        found = table.group_by([*columns], use_threads=False).aggregate([([], "count_all")]).to_pylist()
        return Counter({tuple(row[name] for name in columns): row["count_all"] for row in found})

    def failed(self) -> list[Mapping[str, Any]]:
        """Step, split and failure of those that failed, with those that an older version wrote down."""
        found: list[Mapping[str, Any]] = list(self._older())
        table = self._table()
        if table is not None:
            import pyarrow.compute as pc

            failed = table.filter(pc.not_equal(table["failure"], ""))
            found += failed.select(["step", "split", "failure", "failure_message"]).to_pylist()
        return found

    def _older(self) -> Iterator[Mapping[str, Any]]:
        for part in sorted(self.records.glob("failures*.jsonl")):
            for line in part.read_bytes().split(b"\n")[:-1]:
                entry = json.loads(line)
                told = {"failure": entry.get("reason", ""), "failure_message": entry.get("message", "")}
                yield {"step": entry["step"], "split": entry["split"], **told}

    def failed_by_step(self, *, split: str) -> dict[int, int]:
        """The number of failed episodes of a split, by step."""
        return dict(Counter(row["step"] for row in self.failed() if row["split"] == split))

    def reasons(self, *, most: int = 5) -> dict[str, int]:
        """The commonest reasons of failed episodes and how often each was seen; empty without failures."""
        counts = Counter(f"{row['failure']}: {row['failure_message']}" for row in self.failed())
        return dict(counts.most_common(most))
