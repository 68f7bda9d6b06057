"""Recorded episodes, wherever they are: in a run's folder, or in a .jsonl file.

Episodes in a file of JSON lines, as older versions kept them and as they are exported.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rlenv._base.bounded import cut_end
from rlenv._base.paths import names_in
from rlenv._base.text import nearest
from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.columns import arrow, flatten_lists, late_schema, row_schema, rows_table, with_late_facts
from rlenv.runs.events import parse_events
from rlenv.runs.files import Body
from rlenv.runs.folder import is_run, open_run
from rlenv.runs.journal import object_at
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import NESTED, Facts, row_of
from rlenv.secrets import logger
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

_FILE: Final = "trajectories.jsonl"
_LOCK: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_LOCK_BYTES: Final = 8_000_000
_COLUMN: Final = re.compile(r"\{\{\s*task\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)
_MOST_SAID: Final = 2_000


def recorded(name: str | Path) -> list[Trajectory]:
    """The episodes of a run's folder in the order of step, mode, split, task and sample; or of a file, as they stand.

    Args:
        name: a run's folder, a .jsonl file, or a folder with trajectories.jsonl, as older versions wrote it.

    Raises:
        UsageError: there is none, it is empty, or what is there cannot be read.
    """
    return [trajectory for _, trajectory in episodes_with_ids(name)]


def episodes_with_ids(name: str | Path, count: int | None = None) -> list[tuple[str, Trajectory]]:
    """As `recorded`, the first `count` episodes, each with its id; those of a file have none ("").

    Raises:
        UsageError: as `recorded`.
    """
    path = Path(name)
    if is_run(path):
        reader = open_run(path)
        found = [(id, reader.body(id).trajectory()) for id in ordered_ids(reader)[:count]]
    else:
        found = [("", trajectory) for trajectory in files.read(file_of(path))][:count]
    if not found:
        raise UsageError(f"{path} holds no trajectory")
    return found


def episodes_with_facts(name: str | Path) -> list[tuple[Facts | None, Trajectory]]:
    """As `recorded`, each with the step, sample, mode and group of its row; None for those of a file.

    Raises:
        UsageError: as `recorded`.
    """
    known = {
        row["id"]: Facts(step=row["step"], sample=row["sample"], mode=row["mode"], group=row["group"] or "")
        for row in (open_run(name).rows() if is_run(Path(name)) else ())
    }
    return [(known.get(id), trajectory) for id, trajectory in episodes_with_ids(name)]


def whole_groups(name: str | Path, count: int | None = None) -> list[Hashable]:
    """The groups of the same episodes, equal for those of one group; None of which not all members are among them.

    Raises:
        UsageError: as `recorded`.
    """
    path = Path(name)
    if is_run(path):
        reader = open_run(path)
        rows = {row["id"]: row for row in reader.rows() if reader.is_counted(row)}
        of = {id: (row["step"], row["mode"], row["group"], row["split"], row["task"]) for id, row in rows.items()}
        every: list[Hashable] = [*of.values()]
        chosen: list[Hashable] = [of[id] for id in ordered_ids(reader)[:count]]
    else:
        every = [(one.split, one.task_index) for one in files.read(file_of(path))]
        chosen = every[:count]
    sizes, found = Counter(every), Counter(chosen)
    return [group if found[group] == sizes[group] else None for group in chosen]


def machines_of(name: str | Path) -> Callable[[int], Mapping[str, Any]]:
    """What the machines of the same episodes held at their ends, by resource; nothing where that was not recorded."""
    if not is_run(Path(name)):
        return lambda _: {}
    reader = open_run(name)
    ids = ordered_ids(reader)

    def layers_of(index: int) -> Mapping[str, Any]:
        events = parse_events(reader.body(ids[index]).events or b"[]", f"{name}: the body of '{ids[index]}'")
        return {one.name: one.response for one in events if one.kind == "layer" and one.outcome == "ok"}

    return layers_of


def recorded_in(run: Path) -> Iterator[Trajectory]:
    """The episodes of a run's folder whose bodies were kept, in that order.

    Those of an attempt behind the step at which another went on do not count.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    reader = open_run(run)
    for id in ordered_ids(reader):
        yield reader.body(id).trajectory()


def ordered_ids(reader: RunReader) -> list[str]:
    """The ids of the episodes that count and whose bodies were kept, by step, mode, split, task and sample."""
    rows = [row for row in reader.rows() if row["has_body"] and reader.is_counted(row)]
    rows.sort(key=lambda row: (row["step"], row["mode"], row["split"], row["task"], row["sample"], row["seed"]))
    return [row["id"] for row in rows]


def file_of(path: Path) -> Path:
    """The file of trajectories that a name means: itself, or trajectories.jsonl in a folder.

    Raises:
        UsageError: there is none; the message names what is near.
    """
    if path.is_dir() and not (path / _FILE).is_file():
        inside = sorted(item for item in path.glob("*") if is_run(item)) or sorted(path.glob("**/*.jsonl"))
        hint = f"name what is in it, such as {inside[0]}" if inside else ""
        raise UsageError(f"{path} is no run and has no {_FILE}", hint=hint)
    path = path / _FILE if path.is_dir() else path
    if not path.is_file():
        beside = [path.parent / name for name in names_in(path.parent)]
        close = nearest(path.name, [one.name for one in beside if one.suffix == ".jsonl" or is_run(one)])
        hint = f"did you mean {path.parent / close}?" if close else ""
        raise UsageError(f"there are no recorded trajectories at {path}", hint=hint)
    return path


def reader_of(name: str) -> RunReader | LinesReader:
    """The episodes of a run's folder, or all of a file of trajectories.

    Raises:
        UsageError: there is none.
        MissingExtra: pyarrow is not installed, without which no such file is read.
    """
    if is_run(name):
        return open_run(name)
    reader = LinesReader(file_of(Path(name)))
    while not reader.is_at_end:
        reader.refresh()
    return reader


def expected_of(run: Path, lock: str, task: Mapping[str, Any]) -> dict[str, str]:
    """By term, what its rule asked of a task, such as `10` or `at most 4`, from what the run's lock says of the rule.

    Terms of which that is not known are left out: those of runs without a lock, and rules whose template is more than
    columns of the task. No template is computed, whoever wrote the lock.
    """
    if not _LOCK.fullmatch(lock):
        return {}
    terms = (object_at(run / "locks" / f"{lock}.json", most=_LOCK_BYTES) or {}).get("rewards")
    found = {}
    for name, term in terms.items() if isinstance(terms, Mapping) else ():
        asks = term.get("asks") if isinstance(term, Mapping) else None
        if isinstance(asks, Mapping) and (said := _expected_text(asks, task)):
            found[name] = cut_end(said, _MOST_SAID)
    return found


def _expected_text(asks: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    if "expect" in asks:
        golds = _gold_values(asks["expect"], task)
        joined = " and " if asks.get("mode", asks.get("match")) == "all" else " or "
        return joined.join(one if isinstance(one, str) else json.dumps(one, default=str) for one in golds)
    if isinstance(asks.get("pattern"), str):
        return f"a match of {asks['pattern']}"
    return " and ".join(
        f"{words} {asks[key]}"
        for words, key in (("at least", "min"), ("at most", "max"))
        if isinstance(asks.get(key), (int, float))
    )


def _gold_values(value: Any, task: Mapping[str, Any]) -> list[Any]:
    """The accepted values; empty where one of them is not known."""
    if isinstance(value, list):
        each = [_gold_values(one, task) for one in value]
        return [one for some in each for one in some] if all(each) else []
    if not isinstance(value, str):
        return [value]
    if whole := _COLUMN.fullmatch(value.strip()):
        gold = task.get(whole[1])
        return [] if gold is None else list(gold) if isinstance(gold, (list, tuple)) else [gold]
    if any(column not in task for column in _COLUMN.findall(value)):
        return []
    filled = _COLUMN.sub(lambda found: str(task[found[1]]), value)
    return [] if "{{" in _COLUMN.sub("", value) or "{%" in value else [filled]


_LOOK: Final = 32_000_000
"""Bytes that one look reads: about a second. Of a larger file a page shows what was read so far."""
_CHUNK: Final = 4_096
"""Rows that are kept as they were read, before they go into a table, which takes a tenth of the memory."""
_KNOWN: Final = 4_096
"""Bytes at the beginning and the end of what was read, by which the file is recognised later."""
_log = logger("rlenv.runs.recorded")


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
    def unread_bytes(self) -> int:
        """The number of bytes of the file, as it was seen last, that were not read."""
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
            if is_other := is_late or seen[0] < self._at or self._edge_bytes(file) != self._known:
                self._begin()
            self._seen, self.is_at_end = seen, False
            try:
                self._read(file)
            finally:
                self._known = self._edge_bytes(file)
                is_new = len(self._starts) != before or (is_other and before > 0)
                if is_new:
                    self.version += 1
                    self._whole = self._flat = None
        return is_new

    def _edge_bytes(self, file: IO[bytes]) -> tuple[bytes, bytes]:
        """The first and the last bytes of what was read."""
        count = min(self._at, _KNOWN)
        return os.pread(file.fileno(), count, 0), os.pread(file.fileno(), count, self._at - count)

    def _read(self, file: IO[bytes]) -> None:
        file.seek(self._at)
        until, before = self._at + self._look, len(self._starts)
        while self._at < until or len(self._starts) == before:
            line = file.readline(files.MAX_LINE_BYTES + 1)
            if not line or (line.strip() and not self._take_line(line)):
                self.is_at_end = True
                return
            self._at += len(line)
            self._line += line.endswith(b"\n")

    def _take_line(self, line: bytes) -> bool:
        """True if the line was read, or is to be left out; not where it is the end of a file that is being written."""
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

    def _whole_table(self) -> pa.Table:
        if self._whole is None:
            self._whole = arrow().concat_tables([*self._tables, rows_table(self._rows, self._schema)])
        return self._whole

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows, and those of what comes later, which are null."""
        if self._flat is None:
            self._flat = with_late_facts(self._whole_table().drop_columns([*NESTED]), late_schema().empty_table())
        return self._flat

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """A list of `NESTED` of episodes, one row an entry, with the episode's `id` beside; of all without `ids`."""
        whole = self._whole_table().select(["id", column])
        if ids is not None:
            import pyarrow.compute as pc

            whole = whole.filter(pc.is_in(whole["id"], value_set=arrow().array(list(ids), "string")))
        found = flatten_lists(whole, column)
        return found.set_column(0, "id", whole["id"].take(found["row"]))

    def entries(self, column: str, fields: Sequence[str] = ()) -> pa.Table:
        """The entries of such a list of all lines (of `fields`, where given, these alone), with the place of their row
        in `table` as `row`."""
        found = flatten_lists(self._whole_table(), column)
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
