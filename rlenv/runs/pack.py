"""Packing: journals that nobody writes any more become parts, and small parts one large one.

A packed part is named by what it holds, `P-<digest>`, and its metadata list the segments in it, each with the place of
its first row. Readers take a segment from the packed part that names it and leave its own part alone, so that for a
reader who looks in between nothing is missing and nothing there twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from rlenv.errors import MissingExtra, UsageError, told_as
from rlenv.runs import parts
from rlenv.runs.columns import arrow, body_schema, row_schema, whole_schema
from rlenv.runs.journal import KINDS, Claim, is_running, path_of, segment_names
from rlenv.runs.writer import host_name, kernel_name
from rlenv.secrets import logger

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BYTES: Final = 128_000_000
_log = logger("rlenv.runs.pack")


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of packing: journals sealed, parts merged, and journals left: of writers that live or may, or broken
    ones.
    """

    sealed: int
    merged: int
    left: tuple[str, ...]


def is_alive(segment: str) -> bool:
    """True if the writer of a segment may still write: its process lives, or is where nobody here sees it: on another
    host, or in another container.
    """
    named = segment.rsplit("-", 3)
    if len(named) < 4 or not _is_here(segment) or not named[1].isdecimal():
        return True
    return is_running(int(named[1]))


def pack(run: Path, *, force: bool = False) -> Packed:
    """Seals the journals of writers that are gone, and merges small parts.

    Args:
        force: seal the journals of writers on other hosts too; the caller knows that they are gone. A journal whose
            writer lives on this host is never touched.

    Raises:
        MissingExtra: pyarrow is not installed.
        OSError: the folder cannot be written; what was there stays.
        UsageError: a part cannot be read, or another process packs the run; all that was there stays.
    """
    arrow()
    with _pack_lock(run):
        return _pack_segments(run, force=force)


def seal_abandoned(run: Path) -> None:
    """Seals what writers of this host that are gone have left.

    What is not or cannot be sealed stays a journal, which is read as well. Whoever packs the run at the time does it.
    """
    if all(_may_write(run, segment) for segment in segment_names(run)):
        return
    try:
        with _pack_lock(run):
            _seal_journals(run, force=False)
    except (MissingExtra, UsageError):  # pyarrow is not installed, or the run is being packed
        return
    except OSError as error:
        _log.warning("%s: what writers have left stays in journals: %s", run, error)


def _seal_journals(run: Path, *, force: bool) -> tuple[int, list[str]]:
    """The number of journals that were sealed, and the segments that are left."""
    sealed, left = 0, list[str]()
    for segment in sorted(segment_names(run)):
        if _may_write(run, segment) and not (force and not _is_here(segment)):
            left.append(segment)
            continue
        if parts.part_of(
            run, "episodes", segment
        ).exists():  # killed between the renaming and the removal of the journals
            for kind in KINDS:
                path_of(run, segment, kind).unlink(missing_ok=True)
            continue
        try:
            parts.seal(run, segment)
            sealed += 1
        except UsageError as error:  # what can be read of it is read from the journal
            _log.warning("%s: the segment %s stays a journal: %s", run, segment, error)
            left.append(segment)
    return sealed, left


def _pack_segments(run: Path, *, force: bool) -> Packed:
    sealed, left = _seal_journals(run, force=force)
    _remove_leftovers(run)
    return Packed(sealed, sum(_merge_parts(run, group) for group in _merge_groups(run)), tuple(left))


def _is_here(segment: str) -> bool:
    """True if the number of its process means one of those seen here. Names of older versions hold the host alone."""
    return segment.rsplit("-", 3)[0] in (host_name(), host_name() + kernel_name())


def _may_write(run: Path, segment: str) -> bool:
    """As `is_alive`; a writer of this host's name that has written nothing since this machine started ended with it."""
    own, host = host_name(), segment.rsplit("-", 3)[0]
    if not is_alive(segment) or not host.startswith(own) or kernel_name()[:6] in ("", host[len(own) :][:6]):
        return is_alive(segment)
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    journals = (path_of(run, segment, kind) for kind in KINDS)
    return any(path.stat().st_mtime >= started for path in journals if path.exists())


def _remove_leftovers(run: Path) -> None:
    """Removes what was left by who was killed: bodies without rows, half parts, and parts that are in a packed one."""
    open_segments = segment_names(run)
    for path in (run / "journal").glob("*.bodies"):
        if path.stem not in open_segments and not is_alive(path.stem):
            path.unlink(missing_ok=True)
    for path in run.glob("*/*.parquet.tmp"):
        # Of packing nobody is at work but this process, which begins now.
        if path.name.startswith("P-") or not is_alive(path.name.removesuffix(".parquet.tmp")):
            path.unlink(missing_ok=True)
    for path in run.glob("blobs/*/*.tmp"):
        if not is_alive(f"{path.name.split('.')[1]}-0"):
            path.unlink(missing_ok=True)
    for path in filter(Path.is_file, (run / "episodes").glob("P-*.parquet")):
        for segment, *_ in parts.packed_in(parts.read_part(path, arrow().schema([row_schema().field("id")])), path):
            for kind in ("episodes", "bodies"):
                parts.part_of(run, kind, segment).unlink(missing_ok=True)


def _merge_groups(run: Path) -> Iterator[list[str]]:
    """Segments whose parts are merged into one, in the order of their names; a large one stays as it is."""
    group: list[str] = []
    size = 0
    for path in sorted((run / "episodes").glob("*.parquet")):
        segment = path.name[:-8]
        if segment.startswith("P-") or not path.is_file():  # a pipe would be waited for
            continue
        bodies = parts.part_of(run, "bodies", segment)
        if not _is_whole(run, segment):
            continue
        own = path.stat().st_size + (bodies.stat().st_size if bodies.exists() else 0)
        if size + own > _MOST_BYTES and group:
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(segment)
        size += own
    if len(group) > 1:
        yield group


def _is_whole(run: Path, segment: str) -> bool:
    """True if a segment has a body for each row that says so: where some are lost, all behind them would be shifted."""
    import pyarrow.parquet as pq

    rows, bodies = parts.part_of(run, "episodes", segment), parts.part_of(run, "bodies", segment)
    said = int(parts.read_part(rows, arrow().schema([row_schema().field("has_body")]))["has_body"].to_numpy().sum())
    try:
        with parts.part_errors(bodies):
            count = int(pq.read_metadata(bodies).num_rows)
    except FileNotFoundError:
        count = 0
    if count != said:
        _log.warning("%s: the segment %s is not packed: %d of its %d bodies are there", run, segment, count, said)
    return count == said


@contextlib.contextmanager
def _pack_lock(run: Path) -> Iterator[None]:
    """Two that pack one run at once would each remove what the other is about to read."""
    folder = run / "episodes"  # the run's own folder is claimed by whoever writes it, which is no hindrance
    folder.mkdir(exist_ok=True)
    with told_as(UsageError, f"{run} is being packed already", BlockingIOError, hint="wait until that has ended"):
        claim = Claim(folder)
    try:
        yield
    finally:
        claim.release()


def _merge_parts(run: Path, group: Sequence[str]) -> int:
    """Merges the parts of segments, and returns how many; bodies first, since rows make them count.

    What their writers had columns for stays, whoever packs; where two wrote different types, their parts stay.
    """
    held, rows, bodies = [], 0, 0
    tables: list[pa.Table] = []
    try:
        schema = whole_schema(row_schema(), _part_schemas(run, "episodes", group))
        inside = whole_schema(body_schema(), _part_schemas(run, "bodies", group))
    except arrow().ArrowException as error:
        _log.warning("%s: %d parts are not packed, whose columns do not go together: %s", run, len(group), error)
        return 0
    for segment in group:
        table = parts.read_part(parts.part_of(run, "episodes", segment), schema)
        held.append([segment, rows, bodies])
        rows += len(table)
        bodies += int(table["has_body"].to_numpy().sum())
        tables.append(table)
    name = f"P-{hashlib.blake2b(orjson.dumps(held), digest_size=8).hexdigest()}"
    if bodies:
        _merge_bodies(run, group, parts.part_of(run, "bodies", name), inside)
    whole = arrow().concat_tables(tables).replace_schema_metadata({parts.PACKED: orjson.dumps(held)})
    parts.write_part(whole, parts.part_of(run, "episodes", name))
    for segment in group:
        for kind in ("episodes", "bodies"):
            parts.part_of(run, kind, segment).unlink(missing_ok=True)
    return len(group)


def _part_schemas(run: Path, kind: str, group: Sequence[str]) -> Iterator[pa.Schema]:
    """The schemas of the parts of segments."""
    for segment in group:
        with contextlib.suppress(FileNotFoundError):
            yield parts.schema_of(parts.part_of(run, kind, segment))


def _merge_bodies(run: Path, group: Sequence[str], path: Path, schema: pa.Schema) -> None:
    """One part of the bodies of several, group of rows by group of rows, so that memory stays small."""
    import pyarrow.parquet as pq

    left: list[pa.Table] = []
    with parts.bodies_writer(path, schema) as write:
        for segment in group:
            part = parts.part_of(run, "bodies", segment)
            if not part.exists():
                continue
            with parts.part_errors(part), pq.ParquetFile(part) as source:
                for index in range(source.num_row_groups):
                    left.append(parts.bodies_in(source.read_row_group(index, use_threads=False), schema))
                    whole = arrow().concat_tables(left)
                    done = len(whole) // parts.GROUP * parts.GROUP
                    write(whole.slice(0, done))
                    left = [whole.slice(done)]
        write(arrow().concat_tables(left))
