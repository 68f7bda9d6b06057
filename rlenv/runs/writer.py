"""Keeping episodes as they end: one series of segments a writer, so that nobody ever writes another's file."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from rlenv.errors import MissingExtra
from rlenv.runs import files, parts
from rlenv.runs.journal import Blobs, Journal, body_of
from rlenv.runs.schema import Facts, late_of, row_of
from rlenv.secrets import logger
from rlenv.trajectory import Trajectory

__all__ = ["KeepPolicy", "RunWriter", "Syncing", "host_name", "kernel_name", "writer_name"]

_log = logger("rlenv.runs.writer")
_SYNC_S: Final = 1.0


@dataclass(slots=True)
class KeepPolicy:
    """Whose bodies are kept; a row is kept of every episode.

    All of them up to `keep_gb` (10⁹ bytes of this writer's journals, before they are packed, and blobs); from then on
    those of failures, of validation, of the best and the worst of each group as far as this writer has seen it, and a
    `share` of the others, drawn by their ids.
    """

    keep_gb: float = 5.0
    share: float = 0.02
    _extremes: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)

    def keeps_body(self, trajectory: Trajectory, facts: Facts, *, id: str, written: int) -> bool:
        """True if the body of an episode is kept once so many bytes are written."""
        is_extreme = self._is_extreme(trajectory.reward.total, (facts.step, facts.group))
        if written < self.keep_gb * 1e9 or trajectory.failure is not None or facts.mode != "train" or is_extreme:
            return True
        drawn = int.from_bytes(hashlib.blake2b(id.encode(), digest_size=4).digest(), "big")
        return drawn < self.share * 2**32

    def _is_extreme(self, reward: float | None, group: tuple[int, str]) -> bool:
        if reward is None or not group[1]:
            return False
        if group not in self._extremes and len(self._extremes) >= 4096:
            self._extremes.pop(next(iter(self._extremes)))
        low, high = self._extremes.get(group, (reward + 1.0, reward - 1.0))
        self._extremes[group] = (min(low, reward), max(high, reward))
        return reward < low or reward > high


def writer_name() -> str:
    """A name that no other writer has: the host, its kernel, the process, and chance. It says whose a journal is."""
    return f"{host_name()}{kernel_name()}-{os.getpid()}-{secrets.token_hex(4)}"


def host_name() -> str:
    """This host in at most 12 letters and digits, the last of them from its whole name: nodes of a cluster often differ
    at the end alone, and whose a journal is decides whether it may be sealed."""
    name = socket.gethostname().lower()
    letters = "".join(letter for letter in name if letter.isascii() and letter.isalnum())
    return (letters[:5] or "host") + hashlib.blake2b(name.encode(errors="replace")).hexdigest()[:7]


@functools.cache
def kernel_name() -> str:
    """The name within which a process number is unique: 6 digits for this start of the machine, and 6 for the
    namespace.

    Containers may share a host's name and have numbers of their own. "" where neither can be read.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return "".join(
            hashlib.blake2b(one.encode()).hexdigest()[:6] for one in (boot, os.readlink("/proc/self/ns/pid"))
        )
    except OSError:
        return ""


class RunWriter:
    """Writes episodes into a run's folder; safe to use from one thread at a time, beside any number of other writers.

    An episode is kept once `append` has returned its id: a kill of the process loses none, a loss of power at most the
    last second. Segments are sealed in a thread, where pyarrow is installed.

    Args:
        run: the run's folder; it is there.
        seal_episodes, seal_bytes, seal_s: a segment is sealed at so many episodes, bytes of journals or seconds.

    Raises:
        OSError: the folders cannot be made.
    """

    def __init__(
        self,
        run: Path,
        *,
        attempt: int = 0,
        lock: str = "",
        keep: KeepPolicy | None = None,
        seal_episodes: int = 256,
        seal_bytes: int = 32_000_000,
        seal_s: float = 60.0,
    ) -> None:
        self.run, self.attempt, self.lock = run, attempt, lock
        self.name = writer_name()
        self._keep = keep or KeepPolicy()
        self._limits = (seal_episodes, seal_bytes, seal_s)
        self._number = self._episodes = self._written = 0
        self._said = 0.0
        self._blobs = Blobs(run, self.name)
        self._sealing: ThreadPoolExecutor | None = None
        self._is_sealable = True
        for kind in ("episodes", "bodies", "late", "journal"):
            (run / kind).mkdir(parents=True, exist_ok=True)
        self._journal = self._open_journal()
        self._syncing = Syncing()

    def _open_journal(self) -> Journal:
        self._begun = time.monotonic()
        self._episodes = 0
        journal = Journal(self.run, f"{self.name}-{self._number:05d}", needs=self._blobs.sync)
        self._number += 1
        return journal

    def append(self, trajectory: Trajectory, facts: Facts, *, lock: str | None = None) -> str:
        """Keeps an episode and returns its id; `lock` is the writer's own where none is given.

        Raises:
            OSError: it cannot be written: a full disk, say. What was kept stays, and the next may be tried.
        """
        self._roll_where_full()
        journal = self._journal
        id = f"{journal.segment}-{self._episodes}"
        row = row_of(trajectory, facts, id=id, attempt=self.attempt, lock=self.lock if lock is None else lock)
        row["has_body"] = self._keep.keeps_body(trajectory, facts, id=id, written=self._written + self._blobs.written)
        if row["has_body"]:
            held = [files.dump(trajectory), *(() if facts.events is None else (facts.events,))]
            (record, *events), row["blobs"] = self._blobs.take_out(*held)
            body, row["lies"] = body_of(record, facts.tokens, *events)
            row["at"] = [journal.put("bodies", body), len(record), len(body)]
            self._written += len(body)
        journal.put("rows", orjson.dumps(row) + b"\n")
        self._episodes += 1
        self._syncing.of(journal)
        return id

    def append_late(self, id: str, facts: Mapping[str, Any]) -> None:
        """Keeps what became known of an episode that any writer has kept; see `rlenv.runs.schema.LATE`.

        Raises:
            OSError: it cannot be written.
            KeyError: a fact that has no column.
        """
        self._roll_where_full()
        self._said = max(self._said, time.time())  # a clock that is set back does not change what was said last
        facts = {"said": self._said, **facts}
        if "events" in facts:
            (events,), facts["blobs"] = self._blobs.take_out(facts["events"].encode())
            facts["events"] = events.decode()
        self._journal.put("late", orjson.dumps(late_of(id, facts)) + b"\n")
        self._syncing.of(self._journal)

    def _roll_where_full(self) -> None:
        episodes, most, seconds = self._limits
        size = self._journal.size
        is_old = size and time.monotonic() - self._begun >= seconds
        if self._episodes >= episodes or size >= most or is_old:
            self.roll()

    def roll(self) -> None:
        """Begins a new segment and seals the last one, as at a step's end; nothing where it is empty."""
        done = self._journal
        if not done.size:
            return
        self._journal = self._open_journal()
        self._syncing.of(None)
        done.close()
        if not self._is_sealable:
            return
        if self._sealing is None:
            self._sealing = ThreadPoolExecutor(1, thread_name_prefix="rlenv-seal")
        self._sealing.submit(self._seal, done.segment)

    def _seal(self, segment: str) -> None:
        try:
            parts.seal(self.run, segment)
        except MissingExtra:
            self._is_sealable = False  # the journals hold everything; `rlenv runs pack` seals them where pyarrow is
        except Exception as error:  # nobody waits for a segment; whatever Arrow finds, its journal holds everything
            _log.warning("%s: the segment %s stays a journal: %s", self.run, segment, error)

    def close(self) -> None:
        """Seals what is open and waits until all is sealed."""
        self._syncing.close()
        self.roll()
        self._journal.close()
        if self._sealing is not None:
            self._sealing.shutdown(wait=True)


class Syncing:
    """A thread that asks the machine once a second to keep what was written; it ends where nothing is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._journal: Journal | None = None
        self._thread: threading.Thread | None = None

    def of(self, journal: Journal | None) -> None:
        """The journal that is written now. Returns once no other one is being synced."""
        if journal is not self._journal:
            with self._lock:  # the thread may be inside of the old one, which is closed next
                self._journal = journal
        if journal is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rlenv-sync", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._wake.wait(_SYNC_S):
            with self._lock:
                self._sync()

    def _sync(self) -> None:
        if self._journal is not None and self._journal.is_dirty:
            try:
                self._journal.sync()
            except OSError as error:
                _log.warning("what was written cannot be synced: %s", error)

    def close(self) -> None:
        """Ends the thread."""
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._sync()
            self._journal = None
