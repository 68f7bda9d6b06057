"""Task rows: one row is one episode. Every row is a mapping with text keys."""

from __future__ import annotations

import bisect
import contextvars
import hashlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from rlenv._base.bounded import size
from rlenv._base.paths import is_file, is_folder, names_in
from rlenv._base.text import did_you_mean, nearest
from rlenv.errors import Finding, SpecError, UsageError
from rlenv.language.functions import check_positional, failure, import_function
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import DatasetSpec
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.tasks.files import KINDS, Row, UnfitFile, open_rows
from rlenv.tasks.hub import DatasetFault, dataset_files, dataset_folder

__all__ = ["SEEDS", "STEP_SEEDS", "Tasks", "load_tasks", "seed_of", "shuffled", "spread"]

SEEDS = "run, split, task, sample"
"""The rule of `seed_of`, as a run names it. One that names none gave all tasks the seed `--seed` · 10⁶ + sample."""
STEP_SEEDS = "run, split, task, step"
"""The same of a training run, whose samples of a task share a seed in a step; one that names none had CRC-32 in it."""


def seed_of(run: int, split: str, task: int, sample: int = 0) -> int:
    """The seed of an episode, from 0 to 2³¹ - 1: another one for each task and sample of a run, equal on every machine.

    Tasks that shared a seed would share what is drawn by it, such as a world or a user, and a hundred of them would be
    one draw. It is the BLAKE2b digest (4 bytes, the first bit cleared) of "RUN/SAMPLE/SPLIT/TASK".

    Args:
        run: the seed of the run.
        task: the row's index in its split (0-based).
        sample: which of the task's episodes: the sample of an evaluation, in training the step.
    """
    place = f"{run}/{sample}/{split}/{task}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(place, digest_size=4).digest()) & 0x7FFFFFFF


def shuffled(count: int, *, seed: int) -> list[int]:
    """The numbers 0 to count-1 in an order that depends on nothing but `seed`.

    They are sorted by the BLAKE2b digest (8 bytes) of "SEED:NUMBER" in decimal. The order is the same on every machine
    and version of Python, and rows that are added at the end leave the order of the others as it is.
    """

    def rank(number: int) -> bytes:
        return hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()

    return sorted(range(count), key=rank)


def spread(groups: Sequence[str], count: int) -> list[int]:
    """The places of `count` entries, drawn evenly over the groups: the first of each, then the second of each, …

    Groups stand in the order in which they first occur; a group that is used up gives its share to the others. The
    places come back in ascending order.
    """
    by_group: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        by_group.setdefault(group, []).append(place)
    rounds = itertools.zip_longest(*by_group.values())
    drawn = (place for places in rounds for place in places if place is not None)
    return sorted(itertools.islice(drawn, count))


class Tasks(Sequence[Row]):
    """The rows of one split, in the order in which they are played.

    Reading a row raises SpecError where its line is broken; the fault names FILE:LINE:COLUMN.
    """

    def __init__(self, read: Callable[[int], Row], order: Sequence[int], *, source: str, revision: str = "") -> None:
        self._read = read
        self._order = order
        self.source = source
        """Where the rows come from, for people."""
        self.revision = revision
        """The commit of a dataset of the hub; "" for rows from elsewhere."""

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Tasks(self._read, self._order[index], source=self.source, revision=self.revision)
        return self._read(self._order[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._read, self._order)


def load_tasks(loaded: LoadedSpec, split: str) -> Tasks:
    """The rows of a split: `limit` of them, after `shuffle`.

    Raises:
        SpecError: the source cannot be read, or gives no row.
        KeyError: no such split.
        MissingExtra: a parquet file without the extra that reads it.
    """
    source = loaded.spec.tasks[split]
    key = f"tasks.{split}"
    read: Callable[[int], Row]
    revision = ""
    if source.rows is not None:
        rows = source.rows
        read, count, name = rows.__getitem__, len(rows), f"{loaded.path}, {key}.rows"
    elif source.python is not None:
        most = source.limit if source.shuffle is None else None
        made = _from_python(loaded, f"{key}.python", source.python, most)
        read, count, name = made.__getitem__, len(made), source.python
    elif source.hf is not None:
        read, count, name, revision = _dataset(loaded, f"{key}.hf", source.hf, source.hf.split or split)
    else:
        assert source.path is not None
        path = _file(loaded, f"{key}.path", source.path)
        read, count = _open(loaded, f"{key}.path", path)
        name = str(path)
    if count == 0:
        at = next(f"{key}.{part}" for part in ("rows", "python", "hf", "path") if getattr(source, part) is not None)
        raise SpecError([loaded.document.fault(at, f"found no rows in {name}; expected at least one", "add rows")])
    order: Sequence[int] = range(count) if source.shuffle is None else shuffled(count, seed=source.shuffle)
    return Tasks(read, order[: source.limit], source=name, revision=revision)


def _dataset(loaded: LoadedSpec, key: str, spec: DatasetSpec, split: str) -> tuple[Callable[[int], Row], int, str, str]:
    name = _filled(loaded, f"{key}.dataset", spec.dataset)
    try:
        folder = dataset_folder(name, base=loaded.base_of(f"{key}.dataset"), revision=spec.revision)
        files = dataset_files(folder, config=spec.config, split=split)
    except DatasetFault as error:
        given = error.key if getattr(spec, error.key) is not None else "dataset"
        raise SpecError([loaded.document.fault(f"{key}.{given}", error.message, error.hint)]) from error
    opened = [_open(loaded, f"{key}.dataset", path) for path in files]
    ends = list(itertools.accumulate(count for _, count in opened))
    total = ends[-1] if ends else 0
    first = opened[0][0](0) if total and opened[0][1] else {}
    for column, theirs in spec.columns.items():
        if first and theirs not in first:
            hint = did_you_mean(theirs, first, otherwise=f"its columns are {', '.join(first)}")
            message = f"the dataset has no column '{theirs}'"
            raise SpecError([loaded.document.fault(f"{key}.columns.{column}", message, hint)])

    def read(index: int) -> Row:
        part = bisect.bisect_right(ends, index)
        row = opened[part][0](index - (ends[part - 1] if part else 0))
        return {column: row[theirs] for column, theirs in spec.columns.items()} if spec.columns else row

    # The hub's cache keeps a commit's files in snapshots/COMMIT.
    revision = folder.name if folder.parent.name == "snapshots" else ""
    return read, total, f"{name}, {split}", revision


def _file(loaded: LoadedSpec, key: str, value: str) -> Path:
    shown = _filled(loaded, key, value)
    path = loaded.base_of(key) / shown
    if is_file(path):
        return path
    if is_folder(path):
        found = f"'{shown}' is a folder; expected a .jsonl, .csv or .parquet file"
        inside = [name for name in names_in(path) if name.endswith(KINDS)]
        hint = f"did you mean '{value.rstrip('/')}/{inside[0]}'?" if inside else "name a file in it"
        raise SpecError([loaded.document.fault(key, found, hint)])
    folder = path.parent
    while not is_folder(folder) and folder != folder.parent:
        folder = folder.parent
    wanted = next(iter(path.relative_to(folder).parts), "")
    close = nearest(wanted, names_in(folder)) if wanted else None
    hint = "paths are relative to the file that names them"
    if close:
        hint = f"did you mean '{value.replace(wanted, close) if wanted in value else close}'?"
    base = loaded.base_of(key)
    where = f" in {base}" if base != Path() else ""
    raise SpecError([loaded.document.fault(key, f"there is no file '{shown[:200]}'{where}", hint)])


def _filled(loaded: LoadedSpec, key: str, value: str) -> str:
    """A path or name with its constants filled in."""
    try:
        template = compile_template(value)
        faults = list(_path_names(loaded, key, template))
        if faults:
            raise SpecError(faults)
        shown = template.text(vars=loaded.spec.vars)
    except TemplateError as error:
        hint = "a path may read vars only"
        raise SpecError([loaded.document.fault(key, f"the path cannot be filled: {error}", hint)]) from error
    return shown


def _path_names(loaded: LoadedSpec, key: str, template: Template) -> Iterator[Finding]:
    for name in sorted(template.names - {"vars"}):
        yield loaded.document.fault(key, f"'{name}' is not known here", "a path may read vars only", find=name)
    for path in sorted(template.paths):
        if path[0] == "vars" and len(path) > 1 and path[1] not in loaded.spec.vars:
            hint = did_you_mean(path[1], loaded.spec.vars, otherwise="add it under 'vars:'", prefix="vars.")
            found = ".".join(path[:2])
            yield loaded.document.fault(key, f"there is no constant '{path[1]}'", hint, find=found)


def _open(loaded: LoadedSpec, key: str, path: Path) -> tuple[Callable[[int], Row], int]:
    try:
        return open_rows(path)
    except UnfitFile as error:
        raise SpecError([loaded.document.fault(key, error.message, error.hint)]) from error
    except OSError as error:
        why = f"'{path.name}' cannot be read: {error.strerror or error}"
        raise SpecError([loaded.document.fault(key, why, "check the file and its rights")]) from error


_MAX_MADE_ROWS = 1_000_000
_MAX_MADE_S = 600.0
_MAX_MADE_CHARS = 2_000_000_000


def _from_python(loaded: LoadedSpec, key: str, target: str, most: int | None) -> list[Row]:
    def refuse(message: str, hint: str) -> SpecError:
        return SpecError([loaded.document.fault(key, message, hint)])

    try:
        function = import_function(target, base=loaded.base_of(key))
        check_positional(function, target=target, gives=())
    except UsageError as error:
        raise refuse(error.message, error.hint) from error
    rows: list[Row] = []
    failed: list[BaseException] = []
    is_given_up = threading.Event()

    def make() -> None:
        try:
            for row in _made(function, target, most, refuse):
                if is_given_up.is_set():
                    return
                rows.append(row)
        except BaseException as error:  # an author's function may fail in any way; whoever waits is told
            failed.append(error)

    # In a thread, so that waiting for it ends. It knows what the caller's context holds.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(make,), daemon=True, name="rlenv-rows")
    thread.start()
    thread.join(_MAX_MADE_S)
    if thread.is_alive():
        is_given_up.set()
        hint = "write the rows to a .jsonl file once, and name that"
        raise refuse(f"'{target}' gave {len(rows):,} rows in {_MAX_MADE_S:g} s and did not end", hint)
    if failed and isinstance(failed[0], (SpecError, KeyboardInterrupt)):
        raise failed[0]
    if failed:
        raise refuse(f"'{target}' failed: {failure(failed[0])}", "call it by itself to see why") from failed[0]
    return rows


def _made(
    function: Callable[..., Any], target: str, most: int | None, refuse: Callable[[str, str], SpecError]
) -> Iterator[Row]:
    made = function()
    if inspect.iscoroutine(made):
        made.close()
        raise refuse(f"'{target}' is a coroutine function; expected one that returns rows", "write def")
    if not isinstance(made, Iterable) or isinstance(made, (str, bytes, Mapping)):
        raise refuse(f"'{target}' gave a {type(made).__name__}; expected an iterable of mappings", "return a list")
    chars = 0
    for index, row in enumerate(itertools.islice(made, most)):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise refuse(f"row {index} of '{target}' is no mapping with text keys", "yield {'question': …}")
        yield row
        chars += size(row, _MAX_MADE_CHARS)
        if (most is None and index >= _MAX_MADE_ROWS) or chars > _MAX_MADE_CHARS:
            what = f"{_MAX_MADE_ROWS:,} rows" if chars <= _MAX_MADE_CHARS else f"{_MAX_MADE_CHARS:,} characters"
            hint = "add 'limit: N', or write the rows to a .jsonl file, which is read as it is needed"
            raise refuse(f"'{target}' gives more than {what}, which are kept in memory; does it end?", hint)
