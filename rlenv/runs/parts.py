"""Sealed segments: Parquet parts that never change.

    RUN/bodies/SEGMENT.parquet      record, messages, tokens and events, in row groups of `GROUP`: an episode is a small
                                    read
    RUN/episodes/SEGMENT.parquet    the rows; renamed into its place last, its presence is what makes a segment sealed
    RUN/late/SEGMENT.parquet        facts that came later

A part is written beside its place, synced, and renamed: there is no half of one. What is left of an attempt that was
killed (`.tmp`, bodies without rows, a journal behind its part) counts for nothing and is overwritten or removed.
Reading and writing parts takes pyarrow, the extra `parquet`; without it the journals stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rlenv._base.bounded import encodable
from rlenv.errors import UsageError, told_as
from rlenv.runs import columns as cols
from rlenv.runs.journal import KINDS, entries_of, loads, path_of, put_back, read_body
from rlenv.runs.schema import NEVER_NULL, Tokens

if TYPE_CHECKING:
    import pyarrow as pa

GROUP: Final = 8
"""Episodes a row group of bodies."""
_RECORD: Final = ("id", "record", "blobs")
PACKED: Final = b"rlenv.segments"
"""The key of a packed part's metadata: JSON of [segment, first row, first body], in order; see `rlenv.runs.pack`."""


def part_of(run: Path, kind: str, segment: str) -> Path:
    """The path of a segment's part of `episodes`, `bodies` or `late`."""
    return run / kind / f"{segment}.parquet"


def seal(run: Path, segment: str) -> None:
    """Makes parts of a segment's journals and removes them. May be done again after any interruption.

    Raises:
        MissingExtra: pyarrow is not installed.
        OSError: the parts cannot be written; the journals stay.
        UsageError: a journal holds what is no entry, no record, or what a part cannot hold; it stays.
    """
    rows_at, late_at = path_of(run, segment, "rows"), path_of(run, segment, "late")
    if late_at.exists():
        _write_rows(entries_of(late_at), cols.late_schema(), part_of(run, "late", segment))
    if rows_at.exists():
        rows = entries_of(rows_at)
        kept = [row for row in rows if row["has_body"]]
        if kept:
            _seal_bodies(run, segment, kept)
        if rows:
            _write_rows(rows, cols.row_schema(), part_of(run, "episodes", segment))
    for kind in KINDS:  # bodies last: without its rows a body is nothing
        path_of(run, segment, kind).unlink(missing_ok=True)


def _write_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, path: Path) -> None:
    """Writes all that rows say, also what this process has no column for."""
    try:
        write_part(cols.rows_table(rows, cols.schema_with(schema, rows)), path)
    except (cols.arrow().ArrowException, OverflowError) as error:
        raise UsageError(f"{path} cannot hold what the journal does: {str(error).splitlines()[0][:200]}") from error


def _seal_bodies(run: Path, segment: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the part of bodies a group at a time: a segment may have 32 MB, and memory that is touched once costs
    more than what is done with it."""
    path = path_of(run, segment, "bodies")
    with part_errors(path):
        file = path.open("rb")
    with file, bodies_writer(part_of(run, "bodies", segment)) as write:
        for start in range(0, len(rows), GROUP):
            write(_bodies_table(run, file.fileno(), rows[start : start + GROUP]))


@contextlib.contextmanager
def bodies_writer(path: Path, schema: pa.Schema | None = None) -> Iterator[Callable[[pa.Table], None]]:
    """Writes a part of bodies, whole groups at a time but for the last; as `write_part`."""
    heavy = {"compression": "zstd", "compression_level": 1, "write_statistics": False, "use_dictionary": False}
    kind = cols.arrow().parquet.ParquetWriter
    with _replacing_file(path) as part, kind(part, schema or cols.body_schema(), **heavy) as writer:
        yield lambda table: writer.write_table(table, row_group_size=GROUP) if len(table) else None


def _bodies_table(run: Path, file: int, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    records, messages, tokens, events = [], [], [], []
    for row in rows:
        record, held, asked = read_body(file, row)
        records.append(bytes(record))  # pyarrow 26 never lets go of a view that it makes a value of, nor of its memory
        caught = (ValueError, TypeError, KeyError, RecursionError)
        with told_as(UsageError, f"the body of '{row['id']}' is no record:", *caught):
            told = put_back(run, bytes(record), row["blobs"], texts_only=True) if row.get("blobs") else record
            messages.append([_message_columns(message) for message in loads(told)["messages"]])
        tokens.append(held)
        events.append(asked)
    pa, schema = cols.arrow(), cols.body_schema()
    columns = [
        pa.array([row["id"] for row in rows], pa.string()),
        pa.array(records, pa.binary()),
        cols.array_of(messages, schema.field("messages").type),
        _tokens_array(tokens),
        cols.array_of([row.get("blobs") or None for row in rows], schema.field("blobs").type),
        pa.array(events, pa.binary()),
    ]
    return pa.table(columns, schema=schema)


def _message_columns(message: Mapping[str, Any]) -> dict[str, Any]:
    calls, shown = message["tool_calls"], message.get("images", ())
    return {
        "role": message["role"],
        "content": encodable(message["content"]),
        "tool_calls": encodable(json.dumps(calls, separators=(",", ":"))) if calls else None,
        "images": [image["base64"]["rlenv.base64"] for image in shown if isinstance(image["base64"], dict)] or None,
    }


def _tokens_array(episodes: Sequence[Sequence[Tokens]]) -> pa.Array:
    """A list of rows an episode. The ids are handed over as the memory they lie in, not number by number."""
    rows = [row for episode in episodes for row in episode]
    pa, kind = cols.arrow(), cols.body_schema().field("tokens").type

    def to_array(name: str, values: list[Any]) -> Any:
        item = kind.value_type.field(name).type
        held = b"".join(values)
        flat = pa.Array.from_buffers(item.value_type, sum(map(len, values)), [None, pa.py_buffer(held)])
        return pa.ListArray.from_arrays(pa.array(cols.offsets_of(map(len, values)), pa.int32()), flat, type=item)

    spans = [[{"start": start, "end": end} for start, end in row.turns] for row in rows]
    columns = [to_array(key, [getattr(row, key) for row in rows]) for key in ("prompt_ids", "ids", "mask", "logprobs")]
    columns.append(cols.array_of(spans, kind.value_type.field("turns").type))
    fields = [kind.value_type.field(index) for index in range(kind.value_type.num_fields)]
    inside = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.ListArray.from_arrays(pa.array(cols.offsets_of(map(len, episodes)), pa.int32()), inside, type=kind)


def write_part(table: pa.Table, path: Path) -> None:
    """Writes a part beside its place, syncs it, and renames it."""
    with _replacing_file(path) as file:
        cols.arrow().parquet.write_table(table, file, compression="zstd", row_group_size=1 << 20)


@contextlib.contextmanager
def _replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place, synced, once the block has ended; where it raises there is none."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def part_errors(path: Path) -> Iterator[None]:
    """Raises what Arrow finds wrong with a part as one error that names it; a journal's bodies are read without.

    Raises:
        UsageError: in the place of what was found.
        FileNotFoundError: the part is not there.
    """
    try:
        if not path.is_file() and path.exists():  # a pipe would be waited for
            raise OSError("it is no regular file")
        yield
    except FileNotFoundError:
        raise
    except _read_errors() as error:
        hint = "bring it back from a copy, or remove it: the other parts stand for themselves"
        raise UsageError(f"{path} cannot be read as a part: {str(error).splitlines()[0][:200]}", hint=hint) from error


def _read_errors() -> tuple[type[Exception], ...]:
    loaded: Any = sys.modules.get("pyarrow")
    found = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError)
    return found if loaded is None else (*found, loaded.ArrowException)


def read_part(path: Path, schema: pa.Schema, *, use_threads: bool = False) -> pa.Table:
    """The columns of `schema` in a part, and of lists the fields of `schema`: null where it was written before there
    was such a one.

    Raises:
        UsageError: it is no part, is broken, or holds what no row does.
        FileNotFoundError: it is not there: packed, say, since it was listed.
    """
    with part_errors(path), _open_part(path, schema) as part:
        metadata = part.schema_arrow.metadata
        table = part.read(columns=[*_leaf_paths(schema, part.schema_arrow)], use_threads=use_threads)
        if not table.schema.equals(schema):
            table = _conform_table(table, schema)
        for name in schema.names:
            if name in NEVER_NULL and table[name].null_count:
                raise ValueError(f"a row has no {name}")
        return table.replace_schema_metadata(metadata)


def schema_of(path: Path) -> pa.Schema:
    """The columns that a part holds, known or not; raises as `read_part`."""
    with part_errors(path):
        return cols.arrow().parquet.read_schema(path).remove_metadata()


def _open_part(path: Path, schema: pa.Schema) -> Any:
    """A part that gives as numbers of words what `schema` has so, of what it holds: pyarrow refuses to look for a
    column that was not written yet."""
    pq = cols.arrow().parquet
    if not (coded := _word_paths(schema)):
        return pq.ParquetFile(path)
    metadata = pq.read_metadata(path)
    held = {metadata.schema.column(index).path for index in range(metadata.num_columns)}
    return pq.ParquetFile(path, metadata=metadata, read_dictionary=[name for name in coded if name in held])


def _word_paths(schema: pa.Schema) -> list[str]:
    """The paths in a part of what `schema` has as numbers of words."""
    types = cols.arrow().types
    lists = [(one.name, one.type.value_type) for one in schema if _has_fields(one.type)]
    return [f"{name}.list.element.{one.name}" for name, kind in lists for one in kind if types.is_dictionary(one.type)]


def _leaf_paths(schema: pa.Schema, part: pa.Schema) -> Iterator[str]:
    """The paths in a part of what `schema` has; the whole column where a field of its lists is missing."""
    for one in schema:
        if one.name not in part.names:
            continue
        if _has_fields(one.type):
            asked = {field.name for field in one.type.value_type}
            held = {field.name for field in part.field(one.name).type.value_type}
            if asked < held:
                yield from (f"{one.name}.list.element.{name}" for name in asked)
                continue
        yield one.name


def _has_fields(kind: pa.DataType) -> bool:
    types = cols.arrow().types
    return bool(types.is_list(kind) and types.is_struct(kind.value_type))


def _conform_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, by their names; null where the table has none."""
    pa, known = cols.arrow(), set(table.column_names)
    columns = [table[it.name].cast(it.type) if it.name in known else pa.nulls(len(table), it.type) for it in schema]
    return pa.table(columns, schema=schema)


def bodies_in(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of bodies in a group of a part, by a schema that has those of `body_schema`.

    Raises:
        KeyError: it lacks one of these.
    """
    for name in cols.body_schema().names:
        table.field(name)
    return _conform_table(table, schema)


def packed_in(table: pa.Table, path: Path) -> list[tuple[str, int, int]]:
    """The segments that a part was packed of, each with its first row and its first body; none of any other part.

    Raises:
        UsageError: the part names what is no segment.
    """
    with part_errors(path):
        found = loads((table.schema.metadata or {}).get(PACKED, b"[]"))
        for name, row, body in found:
            if name != os.path.basename(name) or name.startswith(".") or type(row) is not int or type(body) is not int:
                raise ValueError(f"'{str(name)[:80]}' is no segment")
        return [(name, row, body) for name, row, body in found]


@dataclass(slots=True)
class Sealed:
    """The bodies of one part, opened when first asked for."""

    path: Path
    _file: Any = None

    def body(self, index: int) -> tuple[bytes, list[Tokens], bytes | None]:
        """The record, the tokens and the events of the body at `index` in the part.

        Raises:
            UsageError: the part cannot be read.
            FileNotFoundError: it is not there.
        """
        with part_errors(self.path):
            return self._body(index)

    def _body(self, index: int) -> tuple[bytes, list[Tokens], bytes | None]:
        if self._file is None:
            self._file = cols.arrow().parquet.ParquetFile(self.path)
        columns = [*_RECORD, "tokens", "events"]
        table = self._file.read_row_group(index // GROUP, columns=columns, use_threads=False).slice(index % GROUP, 1)
        rows = []
        inside = table["tokens"].combine_chunks()[0].values
        for row in inside:
            names = ("prompt_ids", "ids", "mask", "logprobs")
            held: dict[str, Any] = {name: row[name].values.to_numpy(zero_copy_only=False) for name in names}
            spans = [(span["start"], span["end"]) for span in row["turns"].as_py()]
            rows.append(Tokens(**held, turns=spans))
        if events := table["events"].cast("binary")[0].as_py():
            events = put_back(self.path.parent.parent, events, table["blobs"][0].as_py() or ())
        return next(self._batch_records(table))[1], rows, events

    def _batch_records(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        for id, record, names in zip(*(table[name].to_pylist() for name in _RECORD), strict=True):
            if not isinstance(record, bytes):
                raise ValueError(f"the body of '{id}' is no record")
            yield id, put_back(self.path.parent.parent, record, names or ())

    def has_events(self) -> bool:
        """True if any body holds events; a row group at a time, to the first that does."""
        with part_errors(self.path), cols.arrow().parquet.ParquetFile(self.path) as file:
            held = (file.read_row_group(at, columns=["events"])["events"] for at in range(file.num_row_groups))
            return any(events.null_count < len(events) for events in held)

    def records(self) -> Iterator[tuple[str, bytes]]:
        """The records of all bodies with their ids, a row group at a time."""
        with part_errors(self.path), cols.arrow().parquet.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                yield from self._batch_records(file.read_row_group(group, columns=_RECORD, use_threads=False))
