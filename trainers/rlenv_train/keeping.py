"""The episodes of a run: kept by each process as they end, and counted by whoever follows the run.

Names what a run waits for: each process writes it down while something takes long, and anyone can read it.

On an episode's way the cost is two attribute writes a wait. A daemon thread looks every few seconds, so that it still
speaks where the event loop itself is held up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from rlenv.concurrency.lanes import Lane
from rlenv.runs.cassettes import Recorder
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.tools import asked
from rlenv.runs.folder import is_run, open_run, read_info
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.usage import Spending, spending_of_usage
from rlenv.runs.writer import KeepPolicy, RunWriter
from rlenv.secrets import logger
from rlenv.trajectory import Record, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

    from rlenv.episodes.environment import Environment
    from rlenv_train.samples import SampleTask

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

    def _open_writer(self) -> RunWriter:
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
            writer = self._open_writer()
            lock = self._locks.get(trajectory.environment, writer.lock)
            if events := self.recorder.take_rest("", lock=lock):  # such as the tools of a server, from compiling
                writer.append_late("", {"events": events})
            if lane is not None:
                facts = replace(facts, events=self.recorder.take_events(lane, lock=lock))
            return writer.append(trajectory, facts, lock=lock)
        except OSError as error:
            self._note_failure(error)
            return ""

    def forget_lane(self, lane: Lane | None) -> None:
        """Forgets what an episode has asked that is over, was it kept or not: a sample that is cancelled is not."""
        if lane is not None:
            self.recorder.drop_lane(lane)

    def append_late(self, id: str, **facts: Any) -> None:
        """Keeps what became known of an episode that any process has kept; nothing for one that none has ("")."""
        if not id:
            return
        try:
            self._open_writer().append_late(id, facts)
        except OSError as error:
            self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
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
    """The episodes in a run's folder now; each question reads those that have come since the last one."""

    folder: Path
    _reader: RunReader | None = None

    def _read_table(self) -> pa.Table | None:
        if self._reader is None:
            if not is_run(self.folder):
                return None
            self._reader = open_run(self.folder)
        self._reader.refresh()
        return self._reader.table

    def __len__(self) -> int:
        """The number of episodes that count."""
        table = self._read_table()
        return 0 if table is None else len(table)

    def spending(self) -> Spending:
        """The episodes' spending on judges, tools, users and agents; the policy that learns is none of these."""
        if self._read_table() is None or self._reader is None:
            return Spending()
        return spending_of_usage(asked(Snapshot(self._reader)))

    def count_by(self, *columns: str) -> Counter[tuple[Any, ...]]:
        """The number of episodes that count, by their values of `columns`."""
        table = self._read_table()
        if table is None:
            return Counter()
        found = table.group_by([*columns], use_threads=False).aggregate([([], "count_all")]).to_pylist()
        return Counter({tuple(row[name] for name in columns): row["count_all"] for row in found})

    def failures(self) -> list[Mapping[str, Any]]:
        """Step, split and failure of those that failed."""
        table = self._read_table()
        if table is None:
            return []
        import pyarrow.compute as pc

        failed = table.filter(pc.not_equal(table["failure"], ""))
        found: list[Mapping[str, Any]] = failed.select(["step", "split", "failure", "failure_message"]).to_pylist()
        return found

    def failed_by_step(self, *, split: str) -> dict[int, int]:
        """The number of failed episodes of a split, by step."""
        return dict(Counter(row["step"] for row in self.failures() if row["split"] == split))

    def reasons(self, *, most: int = 5) -> dict[str, int]:
        """The commonest reasons of failed episodes and how often each was seen; empty without failures."""
        counts = Counter(f"{row['failure']}: {row['failure_message']}" for row in self.failures())
        return dict(counts.most_common(most))


AFTER_S = 10.0
"""A wait is written down once it is longer than this."""

EVERY_S = 2.0
"""Seconds between two looks of a process."""

STALE_S = 30.0
"""A file that was not written again for this long belongs to a process that is gone."""


class _Waiting(Protocol):
    def waited_for(self) -> Mapping[str, list[float]]: ...


@dataclass(slots=True, eq=False)
class Activity:
    """The present wait of one running episode. `what` is "" while it waits for nothing worth a name."""

    environment: str
    what: str = "start"
    since: float = field(default_factory=time.monotonic)

    def waits_for(self, what: str) -> None:
        """Says what is waited for from now on."""
        self.what = what
        self.since = time.monotonic()


STEP = "environment"
"""The activity of an episode whose environment takes a step; told apart by tool and reward term where possible."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that is waited for: by how many, and for how long already by the one that waits longest."""

    what: str
    count: int
    longest_s: float


@dataclass(slots=True, eq=False)
class Watch:
    """The episodes of this process, and the file that says what they wait for.

    The file stands as long as anything waits for more than `after_s` seconds; it holds everything that is waited for.
    """

    folder: Path
    after_s: float = AFTER_S
    _activities: set[Activity] = field(default_factory=set)
    _sources: dict[str, tuple[str, _Waiting]] = field(default_factory=dict)

    def begin(self, activity: Activity) -> None:
        """A new episode, to be ended with `end`."""
        self._activities.add(activity)

    def end(self, activity: Activity) -> None:
        """The episode has ended."""
        self._activities.discard(activity)

    def look_at(self, environment: str, *, tools: _Waiting, rewards: _Waiting) -> None:
        """Names an environment's executor and scorer, which know the calls that run; again is harmless."""
        self._sources[f"{environment} tools"] = ("tool", tools)
        self._sources[f"{environment} rewards"] = ("reward", rewards)

    @property
    def file(self) -> Path:
        """The file of this process."""
        return self.folder / f"{os.getpid()}.json"

    def waits(self, now: float) -> list[Wait]:
        """The waits at `now` (`time.monotonic`), longest first."""
        begun: dict[str, list[float]] = {}
        for activity in list(self._activities):
            if activity.what != STEP:
                begun.setdefault(activity.what, []).append(activity.since)
        named = 0
        for kind, source in list(self._sources.values()):
            for name, since in source.waited_for().items():
                begun.setdefault(f"{kind} {name}", []).extend(since)
                named += len(since)
        steps = [activity.since for activity in list(self._activities) if activity.what == STEP]
        if steps and not named:  # a step that waits for no call: an inline tool, an observation that is encoded
            begun[STEP] = steps
        found = [Wait(what, len(since), max(0.0, now - min(since))) for what, since in begun.items() if since]
        return sorted(found, key=lambda wait: -wait.longest_s)

    def look(self) -> None:
        """Writes the file where something has waited for long, and takes it away where nothing has."""
        waits = self.waits(time.monotonic())
        if not waits or waits[0].longest_s < self.after_s:
            self.file.unlink(missing_ok=True)
            return
        entry = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "at": time.time(),
            "waits": [{"what": w.what, "count": w.count, "longest_s": round(w.longest_s, 1)} for w in waits],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_bytes(orjson.dumps(entry))
        part.replace(self.file)  # a reader sees the whole file or none

    def keep_looking(self) -> None:
        """Looks every `EVERY_S` seconds, in a daemon thread that ends with the process."""

        def loop() -> None:
            while True:
                time.sleep(EVERY_S)
                # A full disk or a folder that was removed must not end the watch; the next look may succeed.
                with contextlib.suppress(OSError):
                    self.look()

        threading.Thread(target=loop, name="rlenv-watch", daemon=True).start()


def read_waits(folder: Path, *, now: float | None = None) -> list[Wait]:
    """The waits of all processes of a run, the same ones added up, longest first; empty while nothing takes long.

    Args:
        now: seconds of the system's clock; files of processes that are gone are left out by it.
    """
    now = time.time() if now is None else now
    counts: dict[str, int] = {}
    longest: dict[str, float] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            entry: Mapping[str, Any] = orjson.loads(file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):  # taken away meanwhile
            continue
        age = now - float(entry["at"])
        if age > STALE_S:
            continue
        for item in entry["waits"]:
            what = str(item["what"])
            counts[what] = counts.get(what, 0) + int(item["count"])
            longest[what] = max(longest.get(what, 0.0), float(item["longest_s"]) + max(0.0, age))
    found = [Wait(what, counts[what], longest[what]) for what in counts]
    return sorted(found, key=lambda wait: -wait.longest_s)


def wait_line(waits: Iterable[Wait]) -> str:
    """One line for people, such as `waits 62 s: tool search (3 calls, longest 58 s), generation (12)`; "" for none."""
    found = sorted(waits, key=lambda wait: -wait.longest_s)
    if not found:
        return ""
    parts = []
    for wait in found:
        unit = {"tool": " call", "reward": " measurement"}.get(wait.what.partition(" ")[0], "")
        plural = "s" if unit and wait.count != 1 else ""
        parts.append(f"{wait.what} ({wait.count}{unit}{plural}, longest {wait.longest_s:.0f} s)")
    return f"waits {found[0].longest_s:.0f} s: {', '.join(parts)}"
