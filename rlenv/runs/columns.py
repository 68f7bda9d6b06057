"""Rows and bodies as columns: the Arrow types of what is kept, and tables made of rows without pandas.

What became known of episodes after they were kept: what was said last counts, whoever said it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rlenv.errors import MissingExtra, told_as
from rlenv.runs.schema import BESIDE, LATE, NESTED, ROW, TERMS

if TYPE_CHECKING:
    import pyarrow as pa


def arrow() -> Any:
    """pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    with told_as(MissingExtra, "reading the sealed parts of a run", ModuleNotFoundError, extra="parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _struct_type(columns: Mapping[str, str]) -> pa.DataType:
    pa = arrow()
    return pa.struct([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def row_schema(*, is_nested: bool = True) -> pa.Schema:
    """The Arrow schema of rows; without their lists where not `is_nested`."""
    return _row_schema(tuple(ROW.items()), is_nested=is_nested)  # a plug-in may have added a column


@cache
def _row_schema(columns: tuple[tuple[str, str], ...], *, is_nested: bool) -> pa.Schema:
    pa = arrow()
    flat = [(name, pa.type_for_alias(kind)) for name, kind in columns]
    nested = [(name, pa.list_(_struct_type(columns))) for name, columns in NESTED.items()]
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
    beside = [("terms", pa.list_(_struct_type(TERMS))), ("events", pa.string()), ("blobs", pa.list_(pa.string()))]
    return pa.schema([*flat, *beside])


def schema_with(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """A schema with what rows say beyond it, as those of a plug-in or of a newer version do: nothing is left out.

    Raises:
        pyarrow.ArrowException, OverflowError: Arrow has no type for what they say.
    """
    pa = arrow()

    def new_fields(held: Sequence[Mapping[str, Any]], known: frozenset[str]) -> list[Any]:
        new = {name: None for one in held if not one.keys() <= known for name in one if name not in known}
        said = {name: [value for one in held if (value := one.get(name)) is not None] for name in new}
        return [pa.field(name, pa.array(values).type) for name, values in said.items() if values]

    fields = []
    for one in schema:
        if one.name in NESTED:
            inside = one.type.value_type
            entries = [entry for row in rows for entry in row.get(one.name) or ()]
            if more := new_fields(entries, frozenset(field.name for field in inside)):
                one = pa.field(one.name, pa.list_(pa.struct([*inside, *more])))
        fields.append(one)
    return pa.schema([*fields, *new_fields(rows, BESIDE.union(schema.names))])


def whole_schema(schema: pa.Schema, held: Iterable[pa.Schema]) -> pa.Schema:
    """A schema with what parts hold beyond it.

    Raises:
        pyarrow.ArrowException: two of them hold values of different types under one name.
    """
    pa = arrow()
    flat = {one.name for one in schema if not pa.types.is_list(one.type)}
    others = [pa.schema([one for one in part if one.name not in flat]) for part in held]
    return pa.unify_schemas([schema, *others], promote_options="permissive")


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
            [array_of([(value or {}).get(one.name) for value in values], one.type) for one in fields], fields=fields
        )
    if pa.types.is_floating(kind):  # Arrow takes no whole number that a float does not hold to the digit
        values = [float(value) if type(value) is int else value for value in values]
    return pa.array(values, kind, from_pandas=False)


def offsets_of(lengths: Iterable[int]) -> list[int]:
    """The beginning of each of several joined lists of these lengths, and the end of the last."""
    return [*accumulate(lengths, initial=0)]


def flatten_lists(table: pa.Table, column: str) -> pa.Table:
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


def merge_late_facts(segments: Mapping[str, pa.Table]) -> pa.Table:
    """The late facts of segments, by their names, as one table: what was said last stands last.

    Of two writers the clocks decide; what says no time stands before. Whether a segment is sealed changes nothing.
    """
    import pyarrow.compute as pc

    if not segments:
        return late_schema().empty_table()
    whole = arrow().concat_tables([segments[name] for name in sorted(segments)])
    return whole.take(pc.sort_indices(pc.fill_null(whole["said"], 0.0)))  # what is equal keeps its order


def latest_values(
    parts: Mapping[str, pa.Table], live: Mapping[str, Sequence[Mapping[str, Any]]], column: str
) -> dict[str, Any]:
    """By id, the last value of a column in the facts of sealed and then of open segments."""
    found: list[tuple[float, str, str, Any]] = []
    for name, rows in live.items():
        said = (row for row in rows if row.get(column) is not None)
        found += [(row.get("said") or 0.0, name, row["id"], row[column]) for row in said]
    for name, table in parts.items():
        columns = (table[one].to_pylist() for one in ("said", "id", column))
        found += [(at or 0.0, name, id, value) for at, id, value in zip(*columns, strict=True) if value is not None]
    found.sort(key=itemgetter(0, 1))
    return {id: value for _, _, id, value in found}


def with_late_facts(table: pa.Table, facts: pa.Table) -> pa.Table:
    """The table of rows with what facts in order say last of each column; null where nothing is known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [name for name in LATE if name != "id"]
    if not len(facts):
        for name in names:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), late_schema().field(name).type))
        return table
    # Of each column the last that is not null.
    grouped = facts.group_by("id", use_threads=False).aggregate([(name, "last") for name in names])
    at = pc.index_in(table["id"], value_set=grouped["id"].combine_chunks())
    at = at.combine_chunks() if hasattr(at, "combine_chunks") else at
    found = {name: grouped[f"{name}_last"].combine_chunks().take(at) for name in names}
    for name, values in found.items():
        if name not in table.column_names:
            table = table.append_column(name, values)
            continue
        whole = pc.coalesce(values, table[name])
        if name in ("reward", "success"):  # an ending without one says that there is none
            whole = pc.if_else(pc.is_valid(found["ending"]), values, whole)
        table = table.set_column(table.column_names.index(name), name, whole)
    return table
