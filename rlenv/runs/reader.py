"""A run as others see it, while it is written too."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.journal import Lines, loads, path_of, read_body, segments
from rlenv.runs.parts import (
    Sealed,
    arrow,
    flattened,
    late_schema,
    list_schema,
    packed_in,
    part_of,
    read_part,
    row_schema,
    rows_table,
)
from rlenv.runs.schema import LATE, Tokens
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Body", "RunReader"]


_LARGE: Final = 1_000_000
"""Bytes of a part that is worth several threads: about 10,000 rows."""


@dataclass(frozen=True, slots=True)
class Body:
    """The whole record of an episode: its trajectory as JSON, and its tokens (empty without a tokenizer).

    `ending` is JSON of what it has ended as where that became known later, "" elsewhere.
    """

    id: str
    record: bytes
    tokens: Sequence[Tokens]
    ending: str = ""

    def as_json(self) -> Any:
        """The record as JSON has it, with what it has ended as.

        Raises:
            UsageError: it is none.
        """
        try:
            held = loads(self.record)
            return {**held, **loads(self.ending.encode())} if self.ending else held
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"the record of '{self.id}' cannot be read: {type(error).__name__}") from error

    def trajectory(self) -> Trajectory:
        """The record read."""
        return files.parse(json.dumps(self.as_json())) if self.ending else files.parse(self.record)


@dataclass(slots=True)
class _Open:
    """A segment that is still a journal: the lines that were seen so far."""

    lines: Lines
    rows: list[dict[str, Any]] = field(default_factory=list)


def _is_large(path: Path) -> bool:
    return path.stat().st_size > _LARGE


class RunReader:
    """The rows and bodies of a run's folder. Each `refresh` reads only what is new; nothing is ever written.

    Between two refreshes it answers from one state. Rows of an older attempt beyond the step at which a later one went
    on do not count, nor its validation of that step where the later one has made it again: `from_steps` says where each
    attempt began.

    Raises:
        UsageError: the folder is not there.
        MissingExtra: it has sealed parts, and pyarrow is not installed.
    """

    def __init__(self, run: str | Path, *, from_steps: Mapping[int, int] | None = None) -> None:
        self.run = Path(run)
        if not self.run.is_dir():
            raise UsageError(f"there is no run at {run}")
        self.from_steps = dict(from_steps or {})
        self.version = 0
        """Grows whenever a refresh found something new."""
        self._parts: dict[str, pa.Table] = {}
        self._bodies: dict[str, Sealed] = {}
        self._packed: dict[str, tuple[str, int, int]] = {}
        """By segment: the packed part that holds it, its first row there, and its first body."""
        self._open: dict[str, _Open] = {}
        self._late_parts: dict[str, pa.Table] = {}
        self._late_open: dict[str, _Open] = {}
        self._table: pa.Table | None = None
        self._again: tuple[int, set[int]] | None = None
        self._endings: tuple[int, dict[str, str]] | None = None
        self._terms: tuple[int, dict[str, list[dict[str, Any]]]] | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Looks for what is new; whether there was something."""
        before = self.version
        # Journals are listed before parts: a segment that is sealed in between is then seen in both, never in neither.
        journals = segments(self.run)
        for kind, known, opened in (
            ("episodes", self._parts, self._open),
            ("late", self._late_parts, self._late_open),
        ):
            for segment in self._listed(kind):
                if segment not in self._packed:
                    self._take(kind, segment, known, opened)
            for segment in sorted(journals):
                if segment not in known and segment not in self._packed:
                    self._follow(kind, segment, known, opened)
        if self.version != before:
            self._table = None
        return self.version != before

    def _listed(self, kind: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.run / kind) as entries:
            # Packed parts first: what they hold is not taken from the parts that they were made of.
            return sorted(
                (entry.name[:-8] for entry in entries if entry.name.endswith(".parquet") and entry.is_file()),
                key=lambda name: (not name.startswith("P-"), name),
            )
        return []

    def _take(self, kind: str, segment: str, known: dict[str, pa.Table], opened: dict[str, _Open]) -> None:
        """A sealed part in the place of its journal."""
        if segment in known:
            return
        schema = row_schema(is_nested=False) if kind == "episodes" else late_schema()
        path = part_of(self.run, kind, segment)
        try:
            # Threads cost more than they bring for the parts of a few hundred rows that writers make.
            table = read_part(path, schema, use_threads=_is_large(path))
        except FileNotFoundError:  # packed since it was listed; the next look finds it there
            return
        packed = packed_in(table, path)
        known[segment] = table
        opened.pop(segment, None)
        for inside, row, body in packed:
            self._packed[inside] = (segment, row, body)
            known.pop(inside, None)
            opened.pop(inside, None)
        self.version += 1

    def _follow(self, kind: str, segment: str, known: dict[str, pa.Table], opened: dict[str, _Open]) -> None:
        """The new lines of a journal, or the part that it has become."""
        lines = opened.get(segment)
        if lines is None:
            path = path_of(self.run, segment, "rows" if kind == "episodes" else "late")
            if not path.exists():
                return
            lines = opened[segment] = _Open(Lines(path))
        try:
            new = lines.lines.read()
        except FileNotFoundError:
            if part_of(self.run, kind, segment).exists():
                self._take(kind, segment, known, opened)
            return
        if new:
            lines.rows += new
            self.version += 1

    # rows

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows that count (`rlenv.runs.schema.ROW`), with what came later in its place.

        Beside them stand `fate`, `why`, `advantage` and `staleness`, null where nothing is known.
        """
        if self._table is None:
            pa = arrow()
            schema = row_schema(is_nested=False)
            live = [row for segment in self._open.values() for row in segment.rows]
            tables = [*self._parts.values(), rows_table(live, schema)]
            self._table = self._completed(self._counted(pa.concat_tables(tables)))
        return self._table

    def _counted(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        for attempt, step in self.from_steps.items():
            if not attempt:
                continue
            gone = pc.greater(table["step"], step)
            if attempt in self._validated_again():
                held_out = pc.and_(pc.equal(table["step"], step), pc.not_equal(table["mode"], "train"))
                gone = pc.or_(gone, held_out)
            table = table.filter(pc.invert(pc.and_(pc.less(table["attempt"], attempt), gone)))
        return table

    def _validated_again(self) -> set[int]:
        """The attempts that began with the validation of the step that they go on from."""
        if self._again is None or self._again[0] != self.version:
            columns = ["attempt", "step", "mode"]
            seen = {(row["attempt"], row["step"], row["mode"]) for one in self._open.values() for row in one.rows}
            for table in self._parts.values():
                kinds = table.group_by(columns, use_threads=False).aggregate([])
                seen |= {(row["attempt"], row["step"], row["mode"]) for row in kinds.to_pylist()}
            held_out = [(attempt, step) for attempt, step, mode in seen if mode != "train"]
            again = {
                number
                for number, begun in self.from_steps.items()
                if any(attempt >= number and step == begun for attempt, step in held_out)
            }
            self._again = (self.version, again)
        return self._again[1]

    def _completed(self, table: pa.Table) -> pa.Table:
        """The table with the late facts of each row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        flat = [name for name in LATE if name != "id"]
        late = self._late()
        if late is None:
            for name in flat:
                if name not in table.column_names:
                    kind = late_schema().field(name).type
                    table = table.append_column(name, pa.nulls(len(table), kind))
            return table
        at = pc.index_in(table["id"], value_set=late["id"].combine_chunks())
        at = at.combine_chunks() if hasattr(at, "combine_chunks") else at
        has_ended = pc.is_valid(late["ending"].combine_chunks().take(at))
        for name in flat:
            found = late[name].combine_chunks().take(at)
            if name in table.column_names:
                whole = pc.coalesce(found, table[name])
                if name in ("reward", "success"):  # an ending without one says that there is none
                    whole = pc.if_else(has_ended, found, whole)
                table = table.set_column(table.column_names.index(name), name, whole)
            else:
                table = table.append_column(name, found)
        return table

    def _late(self) -> pa.Table | None:
        """One row for each episode of which something came later: of each column what was said last."""
        pa = arrow()
        live = [row for segment in self._late_open.values() for row in segment.rows]
        tables = [*self._late_parts.values(), *([rows_table(live, late_schema())] if live else [])]
        if not tables:
            return None
        flat = pa.concat_tables(tables).select(list(LATE))
        grouped = flat.group_by("id", use_threads=False).aggregate(
            [(name, "last") for name in LATE if name != "id"]  # the last that is not null
        )
        return grouped.rename_columns([name.removesuffix("_last") for name in grouped.column_names])

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """`terms` or `calls` of episodes, one row an entry, with the episode's `id` beside; of all without `ids`.

        Terms that came later stand in the place of the earlier ones.
        """
        import pyarrow.compute as pc

        pa = arrow()
        # An id names its segment: a page of a list reads the parts of its own rows.
        whole = pa.concat_tables(self._lists(column, None if ids is None else self._held_in(ids), ()))
        asked = self.table["id"].combine_chunks() if ids is None else pa.array(list(ids), pa.string())
        whole = self._with_late(whole.filter(pc.is_in(whole["id"], value_set=asked)), column)
        found = flattened(whole, column)
        return found.set_column(0, "id", whole["id"].take(found["row"]))

    def entries(self, column: str, fields: Sequence[str] = ()) -> pa.Table:
        """The `terms` or `calls` of all rows that count, one row an entry; `row` is the place of its row in `table`.

        Of `fields`, where given, these alone, texts as numbers of words.
        """
        pa = arrow()
        whole = pa.concat_tables(self._lists(column, None, fields))
        if len(whole) != len(self.table):  # of attempts that do not count
            import pyarrow.compute as pc

            whole = whole.filter(pc.is_in(whole["id"], value_set=self.table["id"].combine_chunks()))
        return flattened(self._with_late(whole, column), column)

    def _held_in(self, ids: Collection[str]) -> set[str]:
        """The parts and open segments that hold some episodes."""
        segments = {id.rpartition("-")[0] for id in ids}
        return {self._packed.get(segment, (segment,))[0] for segment in segments}

    def _lists(self, column: str, asked: Collection[str] | None, fields: Sequence[str]) -> list[pa.Table]:
        """Ids and lists of `column`, in the order of `table`; of some parts and segments, where `asked`."""
        schema = list_schema(column, tuple(fields))
        parts = [part_of(self.run, "episodes", one) for one in self._parts if asked is None or one in asked]
        live = [one for segment, one in self._open.items() if asked is None or segment in asked]
        tables = [read_part(part, schema) for part in parts]
        bare = [table.replace_schema_metadata() for table in tables]
        return [*bare, rows_table([row for one in live for row in one.rows], schema)]

    def _with_late(self, whole: pa.Table, column: str) -> pa.Table:
        """Lists of terms with those that came later in their place."""
        if column != "terms" or not (late := self._late_terms()):
            return whole
        pa = arrow()
        ids = whole["id"].to_pylist()
        own = [(place, id) for place, id in enumerate(ids) if id in late]
        behind = {place: len(ids) + at for at, (place, _) in enumerate(own)}
        others = rows_table([{"id": id, column: late[id]} for _, id in own], whole.schema)
        order = pa.array([behind.get(place, place) for place in range(len(ids))], pa.int64())
        return pa.concat_tables([whole, others]).take(order)

    def _late_terms(self) -> dict[str, list[dict[str, Any]]]:
        """By id, the terms of which a late fact says that they are others now."""
        if self._terms is None or self._terms[0] != self.version:
            import pyarrow.compute as pc

            found: dict[str, list[dict[str, Any]]] = {}
            for table in self._late_parts.values():
                said = table.filter(pc.is_valid(table["terms"]))
                found |= dict(zip(said["id"].to_pylist(), said["terms"].to_pylist(), strict=True))
            for segment in self._late_open.values():
                found |= {row["id"]: row["terms"] for row in segment.rows if row.get("terms") is not None}
            self._terms = (self.version, found)
        return self._terms[1]

    def counts(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of an attempt that was not gone on from before it."""
        later = [(attempt, step) for attempt, step in self.from_steps.items() if attempt > row["attempt"]]
        if any(row["step"] > step for _, step in later):
            return False
        is_begun = [attempt for attempt, step in later if row["step"] == step and row["mode"] != "train"]
        return not is_begun or self._validated_again().isdisjoint(is_begun)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as they were written, with `terms` and `calls`, in the order of their segments."""
        for segment in sorted({*self._parts, *self._open}):
            if segment in self._open:
                yield from self._open[segment].rows
                continue
            yield from read_part(part_of(self.run, "episodes", segment), row_schema()).to_pylist()

    def _ending(self, id: str) -> str:
        if self._endings is None or self._endings[0] != self.version:
            found: dict[str, str] = {}
            for table in self._late_parts.values():
                for one, ending in zip(table["id"].to_pylist(), table["ending"].to_pylist(), strict=True):
                    if ending is not None:
                        found[one] = ending
            for segment in self._late_open.values():
                found |= {row["id"]: row["ending"] for row in segment.rows if row.get("ending") is not None}
            self._endings = (self.version, found)
        return self._endings[1].get(id, "")

    # bodies

    def body(self, id: str) -> Body:
        """The whole record of an episode.

        Raises:
            UsageError: no episode has the id, or its body was not kept.
        """
        segment, _, number = id.rpartition("-")
        if not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        if segment in self._open:
            with contextlib.suppress(FileNotFoundError):
                return self._open_body(id, segment)
            self._take("episodes", segment, self._parts, self._open)
            self._table = None
        part, row, first = self._packed.get(segment, (segment, 0, 0))
        if part in self._parts and part == segment and not part_of(self.run, "episodes", part).exists():
            self.refresh()  # packed since it was seen
            part, row, first = self._packed.get(segment, (segment, 0, 0))
        if part not in self._parts:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        return self._sealed_body(id, part, row, int(number), first)

    def _open_body(self, id: str, segment: str) -> Body:
        # Where a line of the journal is left out, the rows behind it are not at their numbers.
        row = next((row for row in self._open[segment].rows if row["id"] == id), None)
        if row is None:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        if not row["has_body"]:
            raise UsageError(f"the body of '{id}' was not kept")
        with path_of(self.run, segment, "bodies").open("rb") as file:
            return Body(id, *read_body(file.fileno(), row), self._ending(id))

    def _sealed_body(self, id: str, part: str, row: int, number: int, first: int) -> Body:
        table, at = self._parts[part], row + number
        if at >= len(table) or table["id"][at].as_py() != id:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        kept = table["has_body"]
        if not kept[at].as_py():
            raise UsageError(f"the body of '{id}' was not kept")
        index = first + (int(kept.slice(row, number).to_numpy().sum()) if number else 0)
        sealed = self._bodies.setdefault(part, Sealed(part_of(self.run, "bodies", part)))
        return Body(id, *sealed.body(index), self._ending(id))

    def records(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """Every record that was kept (of `ids`, where given) as JSON, with its id, a segment after the other.

        A few episodes are in memory at a time; tokens are not read.
        """
        counted = None if ids is None else set(ids)
        for segment in sorted({*self._parts, *self._open} if counted is None else self._held_in(counted)):
            if segment in self._open:
                for row in list(self._open[segment].rows):
                    if row["has_body"] and (counted is None or row["id"] in counted):
                        with contextlib.suppress(UsageError, FileNotFoundError):
                            yield row["id"], self.body(row["id"]).record
            elif segment in self._parts and part_of(self.run, "bodies", segment).exists():
                for id, record in Sealed(part_of(self.run, "bodies", segment)).records():
                    if counted is None or id in counted:
                        yield id, record

    def trajectories(self) -> Iterator[tuple[dict[str, Any], Trajectory]]:
        """Every episode whose body was kept, with its row, in the order of segments."""
        for row in self.rows():
            if row["has_body"]:
                yield row, self.body(row["id"]).trajectory()
