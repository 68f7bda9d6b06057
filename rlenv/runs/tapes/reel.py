"""A tape as it is read: what finds its entries is held in memory, and each entry is read when it is asked for."""

from __future__ import annotations

import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from rlenv.errors import UsageError
from rlenv.runs.columns import arrow
from rlenv.runs.journal import loads, path_of, segments
from rlenv.runs.parts import told
from rlenv.runs.tapes.tape import COLUMNS, Entry
from rlenv.secrets import logger

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Key", "Reel"]

_TEXTS: Final = ("place", "content", "kind", "name", "outcome")
_KEYS: Final = ("episode", "ordinal", "started", *_TEXTS)
_HELD_BYTES: Final = 64_000_000
"""The most of a tape's parts that stays decoded. Episodes ask for entries about as they were written."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"string": (str,), "int32": (int,), "bool": (bool,)}
_log = logger("rlenv.runs.tapes.reel")


class Key(NamedTuple):
    """What finds an entry, and where it lies: in a journal its line's first byte and length, in a part its row group
    and the row in it."""

    started: float
    ordinal: int
    place: str
    content: str
    kind: str
    name: str
    outcome: str
    source: _Source
    at: int
    within: int


class _Source(Protocol):
    """A file of a tape."""

    def rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Where each row is, and its values of `_KEYS`."""
        ...

    def row(self, at: int, within: int, held: _Held) -> Mapping[str, Any]:
        """A whole row."""
        ...


@dataclass(slots=True)
class _Held:
    """The row groups that were asked for last."""

    batches: OrderedDict[tuple[int, int], pa.RecordBatch] = field(default_factory=OrderedDict)
    size: int = 0

    def of(self, part: _Part, group: int) -> pa.RecordBatch:
        known = (id(part), group)
        if (batch := self.batches.get(known)) is not None:
            self.batches.move_to_end(known)
            return batch
        batch = self.batches[known] = part.group(group)
        self.size += batch.nbytes
        while self.size > _HELD_BYTES and len(self.batches) > 1:
            self.size -= self.batches.popitem(last=False)[1].nbytes
        return batch


class _Lines:
    """A journal. Its file stays open, so that it is read to its end also where it is sealed meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        at = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    _log.warning("%s:%d: the last line is cut off: its entry is left out", self._path, number)
                    return
                yield at, len(line), self._read(line, f"{self._path}:{number}")
                at += len(line)

    def row(self, at: int, within: int, held: _Held) -> Mapping[str, Any]:
        return self._read(os.pread(self._file, within, at), f"{self._path}, byte {at}")

    def _read(self, line: bytes, where: str) -> Mapping[str, Any]:
        try:
            row = loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            hint = "without the line, the others can be read"
            raise UsageError(f"{where}: this line is no entry of a tape", hint=hint)
        _check_columns(row, where)
        for name, kind in COLUMNS.items():
            if type(row[name]) not in _TYPES.get(kind, (float, int)):
                raise UsageError(f"{where}: {name} is {type(row[name]).__name__}, not {kind}")
        return row


class _Part:
    """A sealed part, whose file stays open."""

    def __init__(self, path: Path) -> None:
        pa = arrow()
        import pyarrow.parquet as pq

        self._path = path
        with told(path):
            self._file = pq.ParquetFile(path)
            schema = self._file.schema_arrow
        _check_columns(schema.names, str(path))
        for name, kind in COLUMNS.items():
            if schema.field(name).type != pa.type_for_alias(kind):
                raise UsageError(f"{path}: the column {name} is {schema.field(name).type}, not {kind}")

    def rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        for group in range(self._file.num_row_groups):
            for index, row in enumerate(self._table(group, _KEYS).to_pylist()):
                yield group, index, row

    def row(self, at: int, within: int, held: _Held) -> Mapping[str, Any]:
        group = held.of(self, at)
        return {name: group.column(name)[within].as_py() for name in COLUMNS}

    def group(self, group: int) -> pa.RecordBatch:
        """The rows of a row group."""
        (batch,) = self._table(group, tuple(COLUMNS)).combine_chunks().to_batches()
        return batch

    def _table(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        with told(self._path):
            table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
            for name in columns:
                if table[name].null_count:
                    raise ValueError(f"an entry of row group {group} has no {name}")
            return table


def _check_columns(names: Any, where: str) -> None:
    if new := sorted({*names} - {*COLUMNS}):
        hint = "read it with the version of rlenv that recorded it"
        raise UsageError(f"{where}: this version knows no {', '.join(new)} of an entry", hint=hint)
    if lacking := sorted({*COLUMNS} - {*names}):
        raise UsageError(f"{where}: an entry has no {', '.join(lacking)}", hint="bring the tape back from a copy")


@dataclass(slots=True)
class Reel:
    """The entries of a tape: by the episode's id and place, in the order of ordinals, and by content.

    It holds some 500 bytes of each entry, whatever its texts are, and at most 64 MB of what was asked for last.
    """

    lanes: dict[str, dict[str, list[Key]]] = field(default_factory=dict)
    contents: dict[str, list[Key]] = field(default_factory=dict)
    _held: _Held = field(default_factory=_Held)

    @classmethod
    def of(cls, run: str | Path) -> Reel:
        """The tape of a run, while it is written too.

        Raises:
            UsageError: it was not recorded, or its tape is damaged or of a newer version.
            MissingExtra: it is sealed, and pyarrow is not installed.
        """
        tape = Path(run) / "tape"
        if not tape.is_dir():
            raise UsageError(f"{run} has no tape", hint="record one with: rlenv eval SPEC --record -o DIR")
        ids: dict[str, str] = {}
        found: list[tuple[str, Key]] = []
        for source in _sources(tape):
            for at, within, row in source.rows():
                if row["kind"] == "episode":
                    ids[row["episode"]] = row["name"]
                    continue
                place, content, kind, name, outcome = (sys.intern(row[one]) for one in _TEXTS)
                key = Key(row["started"], row["ordinal"], place, content, kind, name, outcome, source, at, within)
                found.append((sys.intern(row["episode"]), key))
        reel = cls({id: {} for id in ids.values()})
        for episode, key in sorted(found, key=lambda one: one[1][:2]):
            reel.contents.setdefault(key.content, []).append(key)
            reel.lanes.setdefault(ids.get(episode, episode), {}).setdefault(key.place, []).append(key)
        return reel

    def entry(self, key: Key) -> Entry:
        """A whole entry.

        Raises:
            UsageError: it cannot be read.
        """
        return Entry(**key.source.row(key.at, key.within, self._held))


def _sources(tape: Path) -> Iterator[_Source]:
    # Journals are listed before parts: one that is sealed in between is seen in both, and its part counts.
    open_ones = segments(tape)
    sealed = {path.stem: path for path in sorted(tape.glob("*.parquet"))}
    for path in sealed.values():
        yield _Part(path)
    for segment in sorted(open_ones - set(sealed)):
        try:
            yield _Lines(path_of(tape, segment, "rows"))
        except FileNotFoundError:
            path = tape / f"{segment}.parquet"
            if path.exists():
                yield _Part(path)
