"""Rows and bodies as columns: the Arrow types of what is kept, and tables made of rows without pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rlenv.errors import MissingExtra
from rlenv.runs.schema import LATE, NESTED, ROW, TERMS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "array_of",
    "arrow",
    "body_schema",
    "flattened",
    "late_schema",
    "list_schema",
    "offsets_of",
    "row_schema",
    "rows_table",
]


def arrow() -> Any:
    """pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("reading the sealed parts of a run", extra="parquet") from error
    return pyarrow


def _struct(columns: Mapping[str, str]) -> pa.DataType:
    pa = arrow()
    return pa.struct([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


@cache
def row_schema(*, is_nested: bool = True) -> pa.Schema:
    """The Arrow schema of rows; without their lists where not `is_nested`."""
    pa = arrow()
    flat = [(name, pa.type_for_alias(kind)) for name, kind in ROW.items()]
    nested = [(name, pa.list_(_struct(columns))) for name, columns in NESTED.items()]
    return pa.schema(flat + nested if is_nested else flat)


@cache
def list_schema(column: str, fields: tuple[str, ...] = ()) -> pa.Schema:
    """The Arrow schema of ids with a list of `NESTED`: of its entries some `fields`, texts as numbers of words.

    Without `fields` all, as they stand in rows.
    """
    pa = arrow()
    whole = row_schema().field(column)
    if not fields:
        return pa.schema([row_schema().field("id"), whole])
    kinds = [one for one in whole.type.value_type if one.name in fields]
    coded = pa.dictionary(pa.int32(), pa.string())
    struct = pa.struct([(one.name, coded if one.type == pa.string() else one.type) for one in kinds])
    return pa.schema([row_schema().field("id"), pa.field(column, pa.list_(struct))])


@cache
def late_schema() -> pa.Schema:
    """The Arrow schema of late facts."""
    pa = arrow()
    flat = [(name, pa.type_for_alias(kind)) for name, kind in LATE.items()]
    return pa.schema([*flat, ("terms", pa.list_(_struct(TERMS))), ("events", pa.string())])


@cache
def body_schema() -> pa.Schema:
    """The Arrow schema of bodies."""
    pa = arrow()
    images = ("images", pa.list_(pa.string()))
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.string()), images])
    span = pa.struct([("start", pa.int32()), ("end", pa.int32())])
    tokens = pa.struct(
        [
            ("prompt_ids", pa.list_(pa.int32())),
            ("ids", pa.list_(pa.int32())),
            ("mask", pa.list_(pa.int8())),
            ("logprobs", pa.list_(pa.float32())),
            ("turns", pa.list_(span)),
        ]
    )
    return pa.schema(
        [
            ("id", pa.string()),
            ("record", pa.binary()),
            ("messages", pa.list_(message)),
            ("tokens", pa.list_(tokens)),
            ("blobs", pa.list_(pa.string())),
            ("events", pa.binary()),
        ]
    )


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; keys that are no columns are left out, missing ones are null.

    Built a column at a time from plain lists of known types: pyarrow's `Table.from_pylist` imports pandas where it is
    installed, for a quarter of a second.
    """
    pa = arrow()
    return pa.table([array_of([row.get(name.name) for row in rows], name.type) for name in schema], schema=schema)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Plain values as an Arrow array of a known type, lists and objects included."""
    pa = arrow()
    if pa.types.is_list(kind):
        lengths = [len(value or ()) for value in values]
        flat = [item for value in values for item in value or ()]
        offsets = pa.array(offsets_of(lengths), pa.int32())
        mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
        return pa.ListArray.from_arrays(offsets, array_of(flat, kind.value_type), type=kind, mask=mask)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(
            [array_of([value.get(one.name) for value in values], one.type) for one in fields], fields=fields
        )
    return pa.array(values, kind, from_pandas=False)


def offsets_of(lengths: Iterable[int]) -> list[int]:
    """Where each of lists of these lengths begins in what they are joined to, and where the last ends."""
    total, offsets = 0, [0]
    for length in lengths:
        total += length
        offsets.append(total)
    return offsets


def flattened(table: pa.Table, column: str) -> pa.Table:
    """The entries of a column of lists, one row an entry, with the place of its list in the table first, as `row`."""
    import pyarrow.compute as pc

    pa = arrow()
    kind = table.schema.field(column).type.value_type
    fields = [pa.field("row", pa.int64()), *(kind.field(index) for index in range(kind.num_fields))]
    batches, start = [], 0
    for chunk in table[column].chunks:
        inside = pc.list_flatten(chunk)
        places = pc.add(pc.cast(pc.list_parent_indices(chunk), pa.int64()), start)
        columns = [inside.field(index) for index in range(kind.num_fields)]
        batches.append(pa.RecordBatch.from_arrays([places, *columns], schema=pa.schema(fields)))
        start += len(chunk)
    return pa.Table.from_batches(batches, schema=pa.schema(fields))
