"""What became known of episodes after they were kept: what was said last counts, whoever said it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rlenv.runs.columns import arrow, late_schema
from rlenv.runs.schema import LATE

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["completed", "in_order", "said_last"]


def in_order(segments: Mapping[str, pa.Table]) -> pa.Table:
    """The late facts of segments, by their names, as one table: what was said last stands last.

    Of two writers the clocks decide. What older versions wrote says no time: it stands before all that does, in the
    order of segments. Whether a segment is sealed or open changes nothing.
    """
    import pyarrow.compute as pc

    if not segments:
        return late_schema().empty_table()
    whole = arrow().concat_tables([segments[name] for name in sorted(segments)])
    return whole.take(pc.sort_indices(pc.fill_null(whole["said"], 0.0)))  # what is equal keeps its order


def said_last(
    parts: Mapping[str, pa.Table], live: Mapping[str, Sequence[Mapping[str, Any]]], column: str
) -> dict[str, Any]:
    """By id, what the facts of sealed and of open segments, in that order, say last of a column."""
    found: list[tuple[float, str, str, Any]] = []
    for name, rows in live.items():
        said = (row for row in rows if row.get(column) is not None)
        found += [(row.get("said") or 0.0, name, row["id"], row[column]) for row in said]
    for name, table in parts.items():
        columns = (table[one].to_pylist() for one in ("said", "id", column))
        found += [(at or 0.0, name, id, value) for at, id, value in zip(*columns, strict=True) if value is not None]
    found.sort(key=itemgetter(0, 1))
    return {id: value for _, _, id, value in found}


def completed(table: pa.Table, facts: pa.Table) -> pa.Table:
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
