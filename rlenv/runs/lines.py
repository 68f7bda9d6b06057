"""Episodes in a file of JSON lines, as older versions kept them and as they are exported."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.parts import arrow, flattened, late_schema, row_schema, rows_table
from rlenv.runs.reader import Body
from rlenv.runs.schema import LATE, Facts, row_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LinesReader"]


class LinesReader:
    """The rows and bodies of a .jsonl file; `line-N` is the id of line N, from 1.

    Rows are read into memory once, and lines that were added at each `refresh`; bodies stay in the file. Samples of one
    task make a group.

    Raises:
        UsageError: there is no such file, or a line of it is no trajectory.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.run = Path(path)
        self.version = 0
        self._rows: list[dict[str, Any]] = []
        self._places: dict[str, tuple[int, int]] = {}
        self._samples: Counter[tuple[str, int]] = Counter()
        self._at = self._line = 0
        self._table: pa.Table | None = None
        if not self.run.is_file():
            raise UsageError(f"there are no recorded trajectories at {path}")
        self.refresh()

    def refresh(self) -> bool:
        """Looks for lines that were added; whether there were some."""
        if self.run.stat().st_size <= self._at:
            return False
        with self.run.open("rb") as file:
            file.seek(self._at)
            for line in iter(lambda: file.readline(files.MAX_LINE_BYTES + 1), b""):
                self._line += 1
                if line.strip() and not self._take(line, is_last=not line.endswith(b"\n")):
                    self._line -= 1
                    break  # the end of a line that is being written: it is read again when there is more
                self._at += len(line)
        self.version += 1
        self._table = None
        return True

    def _take(self, line: bytes, *, is_last: bool) -> bool:
        try:
            trajectory = files.parse(line)
        except UsageError as error:
            if is_last:
                return False
            raise UsageError(f"{self.run}:{self._line}: {error}") from error
        task = (trajectory.split, trajectory.task_index)
        facts = Facts(sample=self._samples[task], group=f"{task[0]}/{task[1]}" if task[1] >= 0 else "")
        self._samples[task] += 1
        id = f"line-{self._line}"
        self._rows.append(row_of(trajectory, facts, id=id, attempt=0, lock=""))
        self._places[id] = (self._at, len(line))
        return True

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows, and those of what comes later, which are null."""
        if self._table is None:
            pa = arrow()
            table = rows_table(self._rows, row_schema(is_nested=False))
            for name in LATE:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(len(table), late_schema().field(name).type))
            self._table = table
        return self._table

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """`terms` or `calls` of episodes, one row an entry, with the episode's `id` beside; of all without `ids`."""
        pa = arrow()
        asked = None if ids is None else set(ids)
        found = [(row["id"], one) for row in self._rows if asked is None or row["id"] in asked for one in row[column]]
        kind = row_schema().field(column).type.value_type
        schema = pa.schema([pa.field("id", pa.string()), *(kind.field(index) for index in range(kind.num_fields))])
        return rows_table([{"id": id, **one} for id, one in found], schema)

    def entries(self, column: str) -> pa.Table:
        """`terms` or `calls` of all lines, one row an entry, with the place of its row in `table` as `row`."""
        return flattened(rows_table(self._rows, row_schema()).select([column]), column)

    def body(self, id: str) -> Body:
        """The whole record of a line.

        Raises:
            UsageError: there is no such line.
        """
        place = self._places.get(id)
        if place is None:
            raise UsageError(f"'{id}' is no episode of {self.run}", hint="line-1 is the first")
        with self.run.open("rb") as file:
            return Body(id, os.pread(file.fileno(), place[1], place[0]).rstrip(b"\n"), ())

    def records(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """The records (of `ids`, where given) as JSON, with their ids."""
        for id in list(self._places):
            if ids is None or id in ids:
                yield id, self.body(id).record
