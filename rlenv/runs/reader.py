"""A run as others see it, while it is written too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.errors import UsageError
from rlenv.runs import columns as cols
from rlenv.runs.files import Body
from rlenv.runs.journal import Lines, path_of, put_back, read_body, segment_names
from rlenv.runs.parts import Sealed, packed_in, part_errors, part_of, read_part, schema_of
from rlenv.runs.schema import ROW, Tokens

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Body", "RunReader"]

_LARGE: Final = 1_000_000
"""Bytes of a part that is worth several threads: about 10,000 rows."""
_PLACE: Final = ("environment", "split", "task", "sample", "step", "mode")
"""Columns that say which sample a row is of."""
_LOOKS: Final = 8
"""The most times that a refresh looks again because something was sealed or packed meanwhile."""


@dataclass(slots=True)
class _Open:
    """A segment that is still a journal: the lines that were seen so far."""

    lines: Lines
    rows: list[dict[str, Any]] = field(default_factory=list)


class RunReader:
    """The rows and bodies of a run's folder. Each `refresh` reads only what is new; nothing is ever written.
    Between two refreshes it answers from one state.

    Rows of an older attempt beyond the step at which a later one went on do not count, nor its validation of that step
    where the later one has made it again: `from_steps` says where each attempt began. Nor does the sample of an
    evaluation that a later attempt has played again.

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
        self._moved: dict[str, tuple[str, int, int]] = {}
        """As `_packed`, for what was packed since the last look: the rows stay as they are until the next one."""
        self._open: dict[str, _Open] = {}
        self._late_parts: dict[str, pa.Table] = {}
        self._late_open: dict[str, _Open] = {}
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        """Forgets what was made of the last version."""
        self._table: pa.Table | None = None
        self._again: set[int] | None = None
        self._later: dict[tuple[Any, ...], int] | None = None
        self._last: dict[str, dict[str, Any]] = {}

    def refresh(self) -> bool:
        """Looks for what is new; whether there was something."""
        before = self.version
        for _ in range(_LOOKS):
            if self._look():
                break
        if self.version != before:
            self._forget()
        return self.version != before

    def _look(self) -> bool:
        """Takes what is there; false where something of it was sealed or packed before it could be read."""
        is_whole = True
        # Journals are listed before parts: a segment that is sealed in between is then seen in both, never in neither.
        journals = segment_names(self.run)
        for kind, known, opened in (("episodes", self._parts, self._open), ("late", self._late_parts, self._late_open)):
            packed = self._packed if kind == "episodes" else {}  # late parts are never packed
            for segment in self._sealed_names(kind):
                if segment not in packed:
                    is_whole &= self._take_sealed(kind, segment, known, opened)
            for segment in sorted(journals):
                if segment not in known and segment not in packed:
                    is_whole &= self._follow_journal(kind, segment, known, opened)
        return is_whole

    def _sealed_names(self, kind: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.run / kind) as entries:
            # Packed parts first: what they hold is not taken from the parts that they were made of.
            return sorted(
                (entry.name[:-8] for entry in entries if entry.name.endswith(".parquet") and entry.is_file()),
                key=lambda name: (not name.startswith("P-"), name),
            )
        return []

    def _take_sealed(self, kind: str, segment: str, known: dict[str, pa.Table], opened: dict[str, _Open]) -> bool:
        """A sealed part in the place of its journal; false where it is gone."""
        if segment in known:
            return True
        schema = cols.row_schema(is_nested=False) if kind == "episodes" else cols.late_schema()
        path = part_of(self.run, kind, segment)
        try:
            # Threads cost more than they bring for the parts of a few hundred rows that writers make.
            table = read_part(path, schema, use_threads=path.stat().st_size > _LARGE)
        except FileNotFoundError:  # packed since it was listed
            return False
        packed = packed_in(table, path)
        known[segment] = table
        opened.pop(segment, None)
        for inside, row, body in packed:
            self._packed[inside] = (segment, row, body)
            known.pop(inside, None)
            opened.pop(inside, None)
        self.version += 1
        return True

    def _follow_journal(self, kind: str, segment: str, known: dict[str, pa.Table], opened: dict[str, _Open]) -> bool:
        """The new lines of a journal; false where it is gone."""
        lines = opened.get(segment)
        if lines is None:
            path = path_of(self.run, segment, "rows" if kind == "episodes" else "late")
            if not path.exists():  # a journal of the other kind alone, or one that was sealed since it was listed
                return segment in segment_names(self.run) and not part_of(self.run, kind, segment).exists()
            lines = opened[segment] = _Open(Lines(path))
        try:
            new = lines.lines.read()
        except FileNotFoundError:
            return False
        if new:
            lines.rows += new
            self.version += 1
        return True

    # rows

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows that count (`rlenv.runs.schema.ROW`), with what came later in its place.

        Beside them stand `fate`, `why`, `advantage` and `staleness`, null where nothing is known.
        """
        if self._table is None:
            pa = cols.arrow()
            schema = cols.row_schema(is_nested=False)
            live = [row for segment in self._open.values() for row in segment.rows]
            for part, held in self._parts.items():
                if held.schema.names != schema.names:  # a plug-in was imported since it was read
                    self._parts[part] = self._part_columns(part, schema)
            tables = [*self._parts.values(), cols.rows_table(live, schema)]
            facts = {segment: cols.rows_table(one.rows, cols.late_schema()) for segment, one in self._late_open.items()}
            counted = self._counted_rows(pa.concat_tables(tables))
            self._table = cols.with_late_facts(counted, cols.merge_late_facts(facts | self._late_parts))
        return self._table

    def _counted_rows(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        for attempt, step in self.from_steps.items():
            if not attempt:
                continue
            gone = pc.greater(table["step"], step)
            if attempt in self._validated_again():
                held_out = pc.and_(pc.equal(table["step"], step), pc.not_equal(table["mode"], "train"))
                gone = pc.or_(gone, held_out)
            table = table.filter(pc.invert(pc.and_(pc.less(table["attempt"], attempt), gone)))
        if self._played_again():
            held_out = pc.not_equal(table["mode"], "train")
            rows = iter(table.filter(held_out).select(["attempt", *_PLACE]).to_pylist())
            table = table.filter([not (one and self._is_replaced(next(rows))) for one in held_out.to_pylist()])
        return table

    def _played_again(self) -> dict[tuple[Any, ...], int]:
        """By sample of an evaluation that several attempts have played, the last of them."""
        if self._later is None:
            first: dict[tuple[Any, ...], int] = {}
            last: dict[tuple[Any, ...], int] = {}
            for row in self._held_out():
                place, attempt = tuple(map(row.get, _PLACE)), row["attempt"]
                first[place] = min(attempt, first.get(place, attempt))
                last[place] = max(attempt, last.get(place, attempt))
            self._later = {place: attempt for place, attempt in last.items() if first[place] < attempt}
        return self._later

    def _held_out(self) -> Iterator[Mapping[str, Any]]:
        """Attempt and place of the rows that are not training's; none of a run of one attempt."""
        tables = [table.select(["attempt", *_PLACE]) for table in self._parts.values() if len(table)]
        live = [row for one in self._open.values() for row in one.rows]
        numbers = {row["attempt"] for row in live}
        for table in tables:
            numbers.update(table["attempt"].unique().to_pylist())
        if len(numbers) > 1:
            yield from (row for row in live if row["mode"] != "train")
            for table in tables:
                yield from table.filter([mode != "train" for mode in table["mode"].to_pylist()]).to_pylist()

    def _is_replaced(self, row: Mapping[str, Any]) -> bool:
        """True if a later attempt has played the row's sample again."""
        return bool(row["attempt"] < self._played_again().get(tuple(map(row.get, _PLACE)), 0))

    def _validated_again(self) -> set[int]:
        """The attempts that began with the validation of the step that they go on from."""
        if self._again is None:
            columns = ["attempt", "step", "mode"]
            seen = {(row["attempt"], row["step"], row["mode"]) for one in self._open.values() for row in one.rows}
            for table in self._parts.values():
                kinds = table.group_by(columns, use_threads=False).aggregate([])
                seen |= {(row["attempt"], row["step"], row["mode"]) for row in kinds.to_pylist()}
            held_out = [(attempt, step) for attempt, step, mode in seen if mode != "train"]
            self._again = {
                number
                for number, begun in self.from_steps.items()
                if any(attempt >= number and step == begun for attempt, step in held_out)
            }
        return self._again

    def _said_last(self, column: str) -> dict[str, Any]:
        if column not in self._last:
            live = {segment: one.rows for segment, one in self._late_open.items()}
            self._last[column] = cols.latest_values(self._late_parts, live, column)
        return self._last[column]

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """A list of `rlenv.runs.schema.NESTED` of episodes, one row an entry, with the episode's `id` beside; of all
        without `ids`.

        Terms that came later stand in the place of the earlier ones.
        """
        import pyarrow.compute as pc

        pa = cols.arrow()
        whole = pa.concat_tables(self._list_columns(column, None if ids is None else self._held_in(ids), ()))
        asked = self.table["id"].combine_chunks() if ids is None else pa.array(list(ids), pa.string())
        whole = self._with_late_terms(whole.filter(pc.is_in(whole["id"], value_set=asked)), column)
        found = cols.flatten_lists(whole, column)
        return found.set_column(0, "id", whole["id"].take(found["row"]))

    def entries(self, column: str, fields: Sequence[str] = ()) -> pa.Table:
        """The entries of such a list of all rows that count; `row` is the place of an entry's row in `table`.

        Of `fields`, where given, these alone, texts as numbers of words.
        """
        pa = cols.arrow()
        whole = pa.concat_tables(self._list_columns(column, None, fields))
        if len(whole) != len(self.table):  # of attempts that do not count
            import pyarrow.compute as pc

            whole = whole.filter(pc.is_in(whole["id"], value_set=self.table["id"].combine_chunks()))
        return cols.flatten_lists(self._with_late_terms(whole, column), column)

    def _held_in(self, ids: Collection[str]) -> set[str]:
        """The parts and open segments that hold some episodes: an id names its segment."""
        segments = {id.rpartition("-")[0] for id in ids}
        return {self._packed.get(segment, (segment,))[0] for segment in segments}

    def _list_columns(self, column: str, asked: Collection[str] | None, fields: Sequence[str]) -> list[pa.Table]:
        """Ids and lists of `column`, in the order of `table`; of some parts and segments, where `asked`."""
        schema = cols.list_schema(column, tuple(fields))
        parts = [one for one in self._parts if asked is None or one in asked]
        live = [one for segment, one in self._open.items() if asked is None or segment in asked]
        tables = [self._part_columns(part, schema) for part in parts]
        bare = [table.replace_schema_metadata() for table in tables]
        return [*bare, cols.rows_table([row for one in live for row in one.rows], schema)]

    def _with_late_terms(self, whole: pa.Table, column: str) -> pa.Table:
        """Lists of terms with those that came later in their place."""
        if column != "terms" or not (said := self._said_last("terms")):
            return whole
        pa = cols.arrow()
        ids = whole["id"].to_pylist()
        own = [(place, id) for place, id in enumerate(ids) if id in said]
        behind = {place: len(ids) + at for at, (place, _) in enumerate(own)}
        others = cols.rows_table([{"id": id, column: said[id]} for _, id in own], whole.schema)
        order = pa.array([behind.get(place, place) for place in range(len(ids))], pa.int64())
        return pa.concat_tables([whole, others]).take(order)

    def is_counted(self, row: Mapping[str, Any]) -> bool:
        """True if a row is of an attempt that was not gone on from before it, and its sample was not played again."""
        if self._is_replaced(row):
            return False
        later = [(attempt, step) for attempt, step in self.from_steps.items() if attempt > row["attempt"]]
        if any(row["step"] > step for _, step in later):
            return False
        is_begun = [attempt for attempt, step in later if row["step"] == step and row["mode"] != "train"]
        return not is_begun or self._validated_again().isdisjoint(is_begun)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as they were written, null for columns that they lack, in the order of their segments."""
        for segment in sorted({*self._parts, *self._open}):
            if segment in self._open:
                yield from ({**dict.fromkeys(ROW), **row} for row in self._open[segment].rows)
                continue
            yield from self._part_columns(segment, None).to_pylist()

    def _part_columns(self, part: str, schema: pa.Schema | None) -> pa.Table:
        """Columns of the rows of a part as they were when it was taken, wherever they are now; all without a schema."""

        def read(path: Path) -> pa.Table:
            with part_errors(path):  # a list that this part holds as another type is a fault of the part
                return read_part(path, schema or cols.whole_schema(cols.row_schema(), [schema_of(path)]))

        try:
            return read(part_of(self.run, "episodes", part))
        except FileNotFoundError:
            moved, row, _ = self._moved_to(part)
            return read(part_of(self.run, "episodes", moved)).slice(row, len(self._parts[part]))

    def _moved_to(self, segment: str) -> tuple[str, int, int]:
        """The place of a segment's rows and bodies that were packed since the last look. Raises UsageError: nowhere."""
        for part in self._sealed_names("episodes"):
            if segment not in self._moved and part.startswith("P-") and part not in self._parts:
                path = part_of(self.run, "episodes", part)
                held = packed_in(read_part(path, cols.arrow().schema([cols.row_schema().field("id")])), path)
                self._moved |= {inside: (part, row, body) for inside, row, body in held}
        if segment not in self._moved:
            raise UsageError(f"{part_of(self.run, 'episodes', segment)} is not there", hint="its rows are lost")
        return self._moved[segment]

    def facts_of_the_run(self) -> list[bytes]:
        """The events of no kept episode, as they were written."""
        sealed = [row for table in self._late_parts.values() for row in table.select(["events", "blobs"]).to_pylist()]
        live = [row for one in self._late_open.values() for row in one.rows]
        said = [(row["events"].encode(), row.get("blobs") or ()) for row in (*sealed, *live) if row.get("events")]
        return [put_back(self.run, *one) for one in said]

    # bodies

    def has_events(self) -> bool:
        """True if the events of any episode were recorded."""
        kept = (row["id"] for one in self._open.values() for row in one.rows if row["has_body"])
        return any(self._part_has_events(part) for part in self._parts) or any(
            self.body(id).events is not None for id in kept
        )

    def _part_has_events(self, part: str) -> bool:
        try:
            return Sealed(part_of(self.run, "bodies", part)).has_events()
        except FileNotFoundError:
            # Either no body of it was kept, or it was packed since the last look.
            is_there = part_of(self.run, "episodes", part).exists()
            return not is_there and self._part_has_events(self._moved_to(part)[0])

    def body(self, id: str) -> Body:
        """The whole record of an episode.

        Raises:
            UsageError: no episode has the id, or its body was not kept.
        """
        segment, _, number = id.rpartition("-")
        if not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        if segment in self._open:
            return Body(id, *self._open_body(id, segment), self._said_last("ending").get(id, ""))
        part, row, first = self._packed.get(segment, (segment, 0, 0))
        at = row + int(number)
        if part not in self._parts or at >= len(self._parts[part]) or self._parts[part]["id"][at].as_py() != id:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        kept = self._parts[part]["has_body"]
        if not kept[at].as_py():
            raise UsageError(f"the body of '{id}' was not kept")
        index = first + (int(kept.slice(row, at - row).to_numpy().sum()) if at > row else 0)
        return Body(id, *self._sealed_body(part, index), self._said_last("ending").get(id, ""))

    def _open_body(self, id: str, segment: str) -> tuple[bytes, Sequence[Tokens], bytes | None]:
        # Where a line of the journal is left out, the rows behind it are not at their numbers.
        rows = self._open[segment].rows
        at = next((at for at, row in enumerate(rows) if row["id"] == id), None)
        if at is None:
            raise UsageError(f"'{id}' is no episode of {self.run}")
        if not rows[at]["has_body"]:
            raise UsageError(f"the body of '{id}' was not kept")
        path = path_of(self.run, segment, "bodies")
        try:
            with part_errors(path), path.open("rb") as file:
                record, tokens, events = read_body(file.fileno(), rows[at])
            blobs = rows[at].get("blobs") or ()
            return put_back(self.run, bytes(record), blobs), tokens, events and put_back(self.run, events, blobs)
        except FileNotFoundError:  # sealed since the last look, which takes all rows of a journal or none
            return self._sealed_body(segment, sum(row["has_body"] for row in rows[:at]))

    def _sealed_body(self, part: str, index: int) -> tuple[bytes, Sequence[Tokens], bytes | None]:
        """The body at a place of a part, which may have been packed since the last look."""
        try:
            return self._bodies.setdefault(part, Sealed(part_of(self.run, "bodies", part))).body(index)
        except FileNotFoundError as error:
            if part_of(self.run, "episodes", part).exists():
                raise UsageError(f"{error.filename} is not there", hint="the bodies of its rows are lost") from error
        moved, _, first = self._moved_to(part)
        return self._sealed_body(moved, first + index)

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
            elif segment in self._parts:
                for id, record in self._part_records(segment):
                    if counted is None or id in counted:
                        yield id, record

    def _part_records(self, part: str) -> Iterator[tuple[str, bytes]]:
        try:
            yield from Sealed(part_of(self.run, "bodies", part)).records()
        except FileNotFoundError:
            if part_of(self.run, "episodes", part).exists():
                return  # no body of it was kept
            held = set(self._parts[part]["id"].to_pylist())
            yield from (one for one in self._part_records(self._moved_to(part)[0]) if one[0] in held)
