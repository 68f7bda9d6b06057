"""A run's tape: what its episodes asked of the outside, and what they were answered.

    RUN/tape/journal/SEGMENT.rows.jsonl   entries, a line each, written before whoever asked goes on
    RUN/tape/SEGMENT.parquet              the same, sealed

in the protocol of `rlenv.runs.journal` and `rlenv.runs.parts`. An entry of the kind `episode` says which kept episode
(`name`) the lanes of `episode` are of: its id is known once it has ended.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import orjson

from rlenv.errors import MissingExtra, UsageError
from rlenv.runs.journal import KINDS, Journal, loads, path_of, segments, whole_lines
from rlenv.runs.parts import arrow, rows_table, write_part
from rlenv.runs.writer import Syncing, writer_name
from rlenv.secrets import logger

__all__ = ["COLUMNS", "Entry", "Reel", "TapeWriter", "canonical", "content_of", "has_tape"]

COLUMNS: Final[Mapping[str, str]] = {
    "episode": "string",
    "place": "string",
    "ordinal": "int32",
    "content": "string",
    "kind": "string",
    "name": "string",
    "request": "string",
    "outcome": "string",
    "reason": "string",
    "response": "string",
    "echo": "string",
    "is_shared": "bool",
    "started": "float64",
    "seconds": "float32",
    "lock": "string",
}
"""An entry. `request` and `response` are JSON; `request` is for people: long texts in it are cut. `ordinal` counts the
equal requests of one place, from 0."""

_ROLL_BYTES: Final = 32_000_000
_log = logger("rlenv.runs.tapes.tape")


def canonical(value: Any) -> str:
    """JSON that is equal for equal values: keys sorted, all but ASCII as escapes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def content_of(kind: str, content: Any) -> str:
    """BLAKE2b-256 (hexadecimal) of a request."""
    return blake2b(canonical([kind, content]).encode("ascii"), digest_size=32).hexdigest()


def has_tape(run: str | Path) -> bool:
    """Whether a run was recorded."""
    return (Path(run) / "tape").is_dir()


@dataclass(frozen=True, slots=True)
class Entry:
    """One request and its answer; see `COLUMNS`."""

    episode: str
    place: str = ""
    ordinal: int = 0
    content: str = ""
    kind: str = ""
    name: str = ""
    request: str = "null"
    outcome: str = "ok"
    reason: str = ""
    response: str = "null"
    echo: str = ""
    is_shared: bool = False
    started: float = 0.0
    seconds: float = 0.0
    lock: str = ""


class TapeWriter:
    """Writes entries into a run's folder, beside any number of other writers.

    A full disk does not end the run: what cannot be written is counted in `lost` and told once.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, run: Path, *, lock: str = "") -> None:
        self.lost = 0
        self._tape, self._lock = run / "tape", lock
        self._name, self._number = writer_name(), 0
        self._sealing: ThreadPoolExecutor | None = None
        (self._tape / "journal").mkdir(parents=True, exist_ok=True)
        self._journal = self._opened()
        self._syncing = Syncing()

    def _opened(self) -> Journal:
        journal = Journal(self._tape, f"{self._name}-{self._number:05d}")
        self._number += 1
        return journal

    def put(self, entry: Entry) -> None:
        """Keeps an entry."""
        row = {one.name: getattr(entry, one.name) for one in fields(Entry)} | {"lock": self._lock}
        try:
            self._journal.put("rows", orjson.dumps(row) + b"\n")
        except OSError as error:
            if not self.lost:
                _log.warning("%s: what is asked is not recorded: %s", self._tape, error.strerror or error)
            self.lost += 1
            return
        self._syncing.of(self._journal)
        if self._journal.size >= _ROLL_BYTES:
            self._roll()

    def _roll(self) -> None:
        done, self._journal = self._journal, self._opened()
        self._syncing.of(None)
        done.close()
        if done.size:
            if self._sealing is None:  # it takes a second or two, and those who ask do not wait for it
                self._sealing = ThreadPoolExecutor(1, thread_name_prefix="rlenv-tape")
            self._sealing.submit(self._seal, done.segment)

    def _seal(self, segment: str) -> None:
        try:
            _seal(self._tape, segment)
        except MissingExtra:
            pass  # a journal is read as well
        except OSError as error:
            _log.warning("%s: the segment %s stays a journal: %s", self._tape, segment, error)

    def close(self) -> None:
        """Seals what is open and waits until all is sealed."""
        self._syncing.close()
        self._roll()
        self._journal.close()
        if self._sealing is not None:
            self._sealing.shutdown(wait=True)


def _seal(tape: Path, segment: str) -> None:
    pa = arrow()
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    rows = [loads(line) for line in whole_lines(path_of(tape, segment, "rows"))]
    write_part(rows_table(rows, schema), tape / f"{segment}.parquet", row_group_size=256)
    for kind in KINDS:
        path_of(tape, segment, kind).unlink(missing_ok=True)


@dataclass(slots=True)
class Reel:
    """The entries of a tape: by the episode's id and place, in the order of ordinals, and by content."""

    lanes: dict[str, dict[str, list[Entry]]] = field(default_factory=dict)
    contents: dict[str, list[Entry]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: str | Path) -> Reel:
        """The tape of a run, while it is written too.

        Raises:
            UsageError: it was not recorded.
            MissingExtra: it is sealed, and pyarrow is not installed.
        """
        tape = Path(run) / "tape"
        if not tape.is_dir():
            raise UsageError(f"{run} has no tape", hint="record one with: rlenv eval SPEC --record -o DIR")
        entries = [Entry(**row) for row in _rows(tape)]
        ids = {entry.episode: entry.name for entry in entries if entry.kind == "episode"}
        reel = cls({id: {} for id in ids.values()})
        for entry in sorted(entries, key=lambda one: (one.started, one.ordinal)):
            if entry.kind == "episode":
                continue
            reel.contents.setdefault(entry.content, []).append(entry)
            episode = ids.get(entry.episode, entry.episode)
            reel.lanes.setdefault(episode, {}).setdefault(entry.place, []).append(entry)
        return reel


def _rows(tape: Path) -> list[dict[str, Any]]:
    # Journals are listed before parts: one that is sealed in between is seen in both, and its part counts.
    open_ones = segments(tape)
    sealed = {path.stem: path for path in sorted(tape.glob("*.parquet"))}
    rows: list[dict[str, Any]] = []
    for path in sealed.values():
        arrow()
        import pyarrow.parquet as pq

        rows += pq.ParquetFile(path).read(use_threads=False).to_pylist()
    for segment in sorted(open_ones - set(sealed)):
        try:
            rows += [loads(line) for line in whole_lines(path_of(tape, segment, "rows"))]
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                arrow()
                import pyarrow.parquet as pq

                rows += pq.ParquetFile(tape / f"{segment}.parquet").read(use_threads=False).to_pylist()
    return rows
