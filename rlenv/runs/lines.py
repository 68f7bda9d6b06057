"""Episodes in a file of JSON lines, as older versions kept them and as they are exported."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.columns import arrow, flattened, late_schema, row_schema, rows_table
from rlenv.runs.files import Body
from rlenv.runs.schema import LATE, NESTED, Facts, row_of
from rlenv.secrets import logger

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LinesReader"]

_LOOK: Final = 32_000_000
"""Bytes that one look reads: about a second. Of a larger file a page shows what was read so far."""
_CHUNK: Final = 4_096
"""Rows that are kept as they were read, before they go into a table, which takes a tenth of the memory."""
_KNOWN: Final = 4_096
"""Bytes at the beginning and the end of what was read by which a file is known again."""
_log = logger("rlenv.runs.lines")


class LinesReader:
    """The rows and bodies of a .jsonl file; `line-N` is the id of its trajectory N, from 1, for as long as it grows.

    Each `refresh` reads on, `look` bytes at most; bodies stay in the file. A line that was cut off is left out: at the
    end of the file until the rest of it is there, elsewhere for good, and said. A file that has another content than
    before is read anew. Samples of one task make a group.

    Raises:
        UsageError: there is no such file, or a line of it is no trajectory.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: str | Path, *, look: int = _LOOK) -> None:
        self.run = Path(path)
        self.version = 0
        """Grows whenever there are other rows than before."""
        self._look = look
        self._begin()
        if not self.run.is_file():
            raise UsageError(f"there are no recorded trajectories at {path}")
        self.refresh()

    def _begin(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows: list[dict[str, Any]] = []
        self._schema = row_schema()
        self._starts, self._lengths = array("q"), array("q")
        self._samples: Counter[tuple[str, int]] = Counter()
        self._at = self._line = 0
        self._known = (b"", b"")
        self._seen: tuple[int, ...] = ()
        self._whole: pa.Table | None = None
        self._flat: pa.Table | None = None
        self.is_at_end = False
        """Whether all was read that is there now, but for a last line that is not whole."""

    @property
    def rest(self) -> int:
        """How many bytes of the file, as it was seen last, were not read."""
        return self._seen[0] - self._at

    def refresh(self) -> bool:
        """Reads on; whether there are other rows than before.

        Raises:
            UsageError: a line is no trajectory; those before it were read.
        """
        before = len(self._starts)
        with self.run.open("rb") as file:
            state = os.fstat(file.fileno())
            seen = (state.st_size, state.st_mtime_ns, state.st_ino, state.st_dev)
            is_late = self._schema.names != row_schema().names  # a plug-in was imported since: its columns are read too
            if seen == self._seen and self.is_at_end and not is_late:
                return False
            if is_other := is_late or seen[0] < self._at or self._edges(file) != self._known:
                self._begin()
            self._seen, self.is_at_end = seen, False
            try:
                self._read(file)
            finally:
                self._known = self._edges(file)
                is_new = len(self._starts) != before or (is_other and before > 0)
                if is_new:
                    self.version += 1
                    self._whole = self._flat = None
        return is_new

    def _edges(self, file: IO[bytes]) -> tuple[bytes, bytes]:
        """The first and the last bytes of what was read."""
        count = min(self._at, _KNOWN)
        return os.pread(file.fileno(), count, 0), os.pread(file.fileno(), count, self._at - count)

    def _read(self, file: IO[bytes]) -> None:
        file.seek(self._at)
        until, before = self._at + self._look, len(self._starts)
        while self._at < until or len(self._starts) == before:
            line = file.readline(files.MAX_LINE_BYTES + 1)
            if not line or (line.strip() and not self._take(line)):
                self.is_at_end = True
                return
            self._at += len(line)
            self._line += line.endswith(b"\n")

    def _take(self, line: bytes) -> bool:
        """Whether the line was read, or is to be left out; not where it is the end of a file that is being written."""
        try:
            trajectory = files.parse(line)
        except UsageError as error:
            if not line.endswith(b"\n") and len(line) <= files.MAX_LINE_BYTES:
                return False
            if files.is_torn(line):
                _log.warning("%s:%d: the line was cut off in the middle; it is left out", self.run, self._line + 1)
                return True
            raise UsageError(f"{self.run}:{self._line + 1}: {error}") from error
        task = (trajectory.split, trajectory.task_index)
        is_known = trajectory.task_index >= 0  # rows that were given themselves are no samples of one task
        facts = Facts(sample=self._samples[task], group=f"{task[0]}/{task[1]}") if is_known else Facts()
        self._samples[task] += is_known
        self._starts.append(self._at)
        self._lengths.append(len(line))
        self._rows.append(row_of(trajectory, facts, id=f"line-{len(self._starts)}", attempt=0, lock=""))
        if len(self._rows) == _CHUNK:
            self._tables.append(rows_table(self._rows, self._schema))
            self._rows = []
        return True

    def _all(self) -> pa.Table:
        if self._whole is None:
            self._whole = arrow().concat_tables([*self._tables, rows_table(self._rows, self._schema)])
        return self._whole

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows, and those of what comes later, which are null."""
        if self._flat is None:
            pa = arrow()
            table = self._all().drop_columns([*NESTED])
            for name in LATE:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(len(table), late_schema().field(name).type))
            self._flat = table
        return self._flat

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """A list of `NESTED` of episodes, one row an entry, with the episode's `id` beside; of all without `ids`."""
        whole = self._all().select(["id", column])
        if ids is not None:
            import pyarrow.compute as pc

            whole = whole.filter(pc.is_in(whole["id"], value_set=arrow().array(list(ids), "string")))
        found = flattened(whole, column)
        return found.set_column(0, "id", whole["id"].take(found["row"]))

    def entries(self, column: str, fields: Sequence[str] = ()) -> pa.Table:
        """The entries of such a list of all lines (of `fields`, where given, these alone), with the place of their row
        in `table` as `row`."""
        found = flattened(self._all(), column)
        return found.select(["row", *fields]) if fields else found

    def body(self, id: str) -> Body:
        """The whole record of a line.

        Raises:
            UsageError: there is no such line, or not any more.
        """
        number = id.removeprefix("line-")[:12]
        at = int(number) - 1 if number.isascii() and number.isdecimal() else -1
        if not 0 <= at < len(self._starts) or id != f"line-{at + 1}":
            raise UsageError(f"'{id}' is no episode of {self.run}", hint="line-1 is the first")
        with self.run.open("rb") as file:
            record = os.pread(file.fileno(), self._lengths[at], self._starts[at])
        if len(record) < self._lengths[at]:
            raise UsageError(f"{self.run} does not hold '{id}' any more", hint="it was shortened or replaced just now")
        return Body(id, record.rstrip(b"\n"), ())

    def records(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """The records (of `ids`, where given) as JSON, with their ids."""
        for number in range(1, len(self._starts) + 1):
            if ids is None or f"line-{number}" in ids:
                yield f"line-{number}", self.body(f"line-{number}").record
