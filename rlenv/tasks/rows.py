"""Task rows: one row is one episode. Every row is a mapping with text keys."""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, cast, overload

from rlenv._base.bounded import grouped, size
from rlenv._base.paths import is_file, is_folder, names_in
from rlenv._base.text import did_you_mean
from rlenv.errors import SpecError, UsageError
from rlenv.language.functions import check_positional, failure, import_value, needs
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import DatasetSpec, TaskSource
from rlenv.language.templates import TemplateError, as_template, compile_value
from rlenv.tasks.files import Row, UnfitFile, fill_constants, join_readers, open_rows, task_files
from rlenv.tasks.harbor import HarborTasks
from rlenv.tasks.hub import DatasetFault, dataset_files, dataset_folder, open_generated

__all__ = ["PASS", "SEEDS", "STEP_SEEDS", "UNMEASURED", "Tasks", "harbor_tasks", "load_tasks", "seed_of"]
__all__ += ["shuffled", "spread", "task_files"]

PASS = 1_000
"""So many rows are one pass through a source without an end, where nobody says how many are meant."""

UNMEASURED: Final[Mapping[str, float]] = {"success": 0.0, "reward": 0.0, "episodes": 0}
"""What `order` reads as `measured` of a task that no training has asked yet."""

SEEDS = "run, split, task, sample"
"""The rule of `seed_of`, as a run names it. One that names none gave all tasks the seed `--seed` · 10⁶ + sample."""
STEP_SEEDS = "run, split, task, step"
"""The same of a training run, whose samples of a task share a seed in a step; one that names none had CRC-32 in it."""


def seed_of(run: int, split: str, task: int, sample: int = 0) -> int:
    """The seed of an episode, from 0 to 2³¹ - 1: another one for each task and sample of a run, equal on every machine.

    Tasks that shared a seed would share what is drawn by it, such as a world or a user, and a hundred of them would be
    one draw. It is the BLAKE2b digest (4 bytes, the first bit cleared) of "RUN/SAMPLE/SPLIT/TASK".

    Args:
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
    by_group = grouped((group, place) for place, group in enumerate(groups))
    rounds = itertools.zip_longest(*by_group.values())
    drawn = (place for places in rounds for place in places if place is not None)
    return sorted(itertools.islice(drawn, count))


class Tasks(Sequence[Row]):
    """The rows of one split, in the order in which they are played.

    Reading a row raises SpecError where its line is broken; the fault names FILE:LINE:COLUMN. A source without an end
    counts and gives the rows of one pass, and has every row behind them too.
    """

    def __init__(
        self,
        read: Callable[[int], Row],
        order: Sequence[int],
        *,
        source: str,
        revision: str = "",
        is_endless: bool = False,
    ) -> None:
        self._read = read
        self._order = order
        self.source = source
        """Where the rows come from, for people."""
        self.revision = revision
        """The commit of a dataset of the hub; "" for rows from elsewhere."""
        self.is_endless = is_endless
        """True where there is a row behind every other."""

    def __len__(self) -> int:
        return len(self._order)

    def has(self, index: int) -> bool:
        """True where there is a row of that number (0-based)."""
        return 0 <= index < len(self) or (self.is_endless and index >= 0)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Tasks(self._read, self._order[index], source=self.source, revision=self.revision)
        return self._read(index if self.is_endless and index >= len(self) else self._order[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._read, self._order)


_UNREAD: Final = object()


def harbor_tasks(loaded: LoadedSpec, split: str) -> HarborTasks:
    """The task folders of a split with `harbor`.

    Raises:
        SpecError: there is no such folder, or it names a task that is not in it.
    """
    key = f"tasks.{split}.harbor"
    shown = fill_constants(loaded, key, loaded.spec.tasks[split].harbor or "")
    folder = loaded.base_of(key) / shown
    if not is_folder(folder) and not is_file(folder):
        hint = did_you_mean(folder.name, names_in(folder.parent), otherwise="name a folder of task folders")
        raise SpecError([loaded.document.fault(key, f"there is no folder '{shown[:200]}'", hint)])
    return HarborTasks(folder, base=loaded.base_of(key))


def load_tasks(loaded: LoadedSpec, split: str) -> Tasks:
    """The rows of a split for which `when` holds: `limit` of them, after `shuffle` and in `order`;
    each once for every player.

    Raises:
        SpecError: the source cannot be read, or gives no row.
        KeyError: no such split.
        MissingExtra: a parquet file without the extra that reads it.
    """
    tasks, roles = _loaded_tasks(loaded, split), getattr(loaded.spec.user, "roles", None)
    if not roles:
        return tasks
    names = tuple(roles)

    def read(index: int) -> Row:
        row, name = tasks[index // len(names)], names[index % len(names)]
        return {**row, **roles[name], "player": name}

    order, revision = range(len(tasks) * len(names)), tasks.revision
    return Tasks(read, order, source=tasks.source, revision=revision, is_endless=tasks.is_endless)


def _loaded_tasks(loaded: LoadedSpec, split: str) -> Tasks:
    source = loaded.spec.tasks[split]
    key = f"tasks.{split}"
    read: Callable[[int], Row]
    revision = ""
    if source.rows is not None:
        rows = source.rows
        read, count, name = rows.__getitem__, len(rows), f"{loaded.path}, {key}.rows"
    elif source.function is not None:
        made = _MadeRows(loaded, split, source)
        (read, count), name = made.rows(), source.function
        if made.is_endless and source.limit is None:
            return Tasks(read, range(count), source=name, is_endless=True)
    elif source.hf is not None:
        read, count, name, revision = _dataset(loaded, f"{key}.hf", source.hf, source.hf.split or split)
    elif source.harbor is not None:
        folders = harbor_tasks(loaded, split)
        read, count, name = folders.__getitem__, len(folders), source.harbor
    elif source.reasoning_gym is not None:
        (read, count), name = open_generated(loaded, f"{key}.reasoning_gym", source.reasoning_gym), "reasoning_gym"
    else:
        places = task_files(loaded, split)
        read, count = join_readers([_open_split(loaded, place, path, source.key, key) for place, path in places])
        name = ", ".join(str(path) for _, path in places[:3]) + (", …" if places[3:] else "")
    if count == 0:
        at = next(
            f"{key}.{part}"
            for part in ("rows", "function", "hf", "harbor", "reasoning_gym", "path")
            if getattr(source, part) is not None
        )
        raise SpecError([loaded.document.fault(at, f"found no rows in {name}; expected at least one", "add rows")])
    order: Sequence[int] = range(count) if source.shuffle is None else shuffled(count, seed=source.shuffle)
    if source.when is not None:
        order = _rows_kept(loaded, f"{key}.when", source.when, read, order)
    if source.order is not None:
        order = _sorted_rows(loaded, f"{key}.order", source.order, read, order)
    return Tasks(read, order[: source.limit], source=name, revision=revision)


def _rows_kept(loaded: LoadedSpec, key: str, when: str, read: Callable[[int], Row], order: Sequence[int]) -> list[int]:
    """The numbers of the rows for which `when` holds; one that cannot be read stays, so that its fault is told."""
    kept = [number for number, holds in zip(order, _row_values(loaded, key, when, read, order), strict=True) if holds]
    if not kept:
        fault = loaded.document.fault(key, f"it holds for none of {len(order)} rows", "write what holds for some row")
        raise SpecError([fault])
    return kept


def _sorted_rows(loaded: LoadedSpec, key: str, by: str, read: Callable[[int], Row], order: Sequence[int]) -> list[int]:
    """The numbers of the rows, the smallest value of `by` first; equal ones, and what cannot be read, as they stood."""
    pairs = [*zip(_row_values(loaded, key, by, read, order, measured=UNMEASURED), order, strict=True)]
    try:
        known = sorted((pair for pair in pairs if pair[0] is not _UNREAD), key=itemgetter(0))
    except TypeError as error:
        fault = loaded.document.fault(key, f"its values cannot be compared: {error}", "give numbers alone, or texts")
        raise SpecError([fault]) from error
    return [number for _, number in known] + [number for value, number in pairs if value is _UNREAD]


def _row_values(
    loaded: LoadedSpec, key: str, text: str, read: Callable[[int], Row], order: Sequence[int], **more: Any
) -> list[Any]:
    """What an expression gives for each row; `_UNREAD` for one that cannot be read."""
    number, row, found = 0, cast(Row, {}), list[Any]()
    try:
        tell = as_template(text).value
        for number in order:
            try:
                row = read(number)
            except SpecError:
                found.append(_UNREAD)
            else:
                found.append(tell(task=row, vars=loaded.spec.vars, **more))
    except TemplateError as error:
        message, hint = f"it fails for row {number + 1}: {error}", f"its columns: {', '.join(map(str, row))}"
        hint = hint if row else "write an expression over task and vars: task.level"
        raise SpecError([loaded.document.fault(key, message, hint)]) from error
    return found


def _dataset(loaded: LoadedSpec, key: str, spec: DatasetSpec, split: str) -> tuple[Callable[[int], Row], int, str, str]:
    name = fill_constants(loaded, f"{key}.path", spec.path)
    try:
        folder = dataset_folder(name, base=loaded.base_of(f"{key}.path"), revision=spec.revision)
        files = dataset_files(folder, config=spec.name, split=split)
    except DatasetFault as error:
        given = error.key if getattr(spec, error.key) is not None else "path"
        raise SpecError([loaded.document.fault(f"{key}.{given}", error.message, error.hint)]) from error
    opened = [_open_split(loaded, f"{key}.path", path) for path in files]
    every, total = join_readers(opened)
    first = opened[0][0](0) if total and opened[0][1] else {}
    for column, theirs in spec.columns.items():
        if first and theirs not in first:
            hint = did_you_mean(theirs, first, otherwise=f"its columns are {', '.join(first)}")
            message = f"the dataset has no column '{theirs}'"
            raise SpecError([loaded.document.fault(f"{key}.columns.{column}", message, hint)])

    def read(index: int) -> Row:
        row = every(index)
        return {column: row[theirs] for column, theirs in spec.columns.items()} if spec.columns else row

    # The hub's cache keeps a commit's files in snapshots/COMMIT.
    revision = folder.name if folder.parent.name == "snapshots" else ""
    return read, total, f"{name}, {split}", revision


def _open_split(
    loaded: LoadedSpec, key: str, path: Path, at: str | None = None, entry: str = ""
) -> tuple[Callable[[int], Row], int]:
    try:
        return open_rows(path, at=at)
    except UnfitFile as error:
        place = f"{entry}.{error.key}" if error.key and at is not None else key
        raise SpecError([loaded.document.fault(place, error.message, error.hint)]) from error
    except OSError as error:
        why = f"'{path.name}' cannot be read: {error.strerror or error}"
        raise SpecError([loaded.document.fault(key, why, "check the file and its rights")]) from error


_MAX_MADE_ROWS = 1_000_000
_MAX_MADE_S = 600.0
_MAX_MADE_CHARS = 2_000_000_000


class _MadeRows:
    """The rows that a function of the author's makes: at once, as they are needed, or each by its number."""

    def __init__(self, loaded: LoadedSpec, split: str, source: TaskSource) -> None:
        assert source.function is not None
        self._loaded, self._source, self._entry = loaded, source, f"tasks.{split}"
        self._target = source.function
        self._made: Any = None
        self._rows: list[Row] = []
        self._drawn: Iterator[Row] = iter(())
        self._lock = threading.Lock()
        self.is_endless = source.endless
        """True where there is a row behind every other."""
        try:
            named = import_value(self._target, base=loaded.base_of(f"{self._entry}.function"))
            self._function: Callable[..., Any] = named if callable(named) else lambda: named
            self._args: dict[str, Any] = compile_value(source.arguments)(vars=loaded.spec.vars)
            self._is_by_index = "index" not in source.arguments and needs(self._function, "index")
            names = (*self._args, *(("index",) if self._is_by_index else ()))
            check_positional(self._function, target=self._target, named=names)
        except UsageError as error:
            hint = error.hint.replace("write def", "add 'arguments', or write def")
            raise self._refusal(error.message, hint) from error
        except TemplateError as error:
            raise self._refusal(f"these cannot be filled: {error}", "they may read vars", "arguments") from error

    def rows(self) -> tuple[Callable[[int], Row], int]:
        """A reader of the rows by their numbers, and how many there are, or are taken.

        Raises:
            SpecError: the function fails, gives no rows, or does not end.
        """
        source = self._source
        if self._is_by_index or source.endless:
            for key, do in {"when": "choose from", "shuffle": "shuffle", "order": "sort"}.items():
                if getattr(source, key) is not None:
                    message = f"a source without an end has no rows to {do}"
                    raise self._refusal(message, "let the function do it", key)
        if self._is_by_index:
            self.is_endless = True
            return self._by_index, source.limit or PASS
        self._in_thread(self._call_function)
        if source.endless:
            return self._drawn_row, source.limit or PASS
        return (
            (self._checked_at, len(self._made)) if _is_lazy(self._made) else (self._rows.__getitem__, len(self._rows))
        )

    def _refusal(self, message: str, hint: str, key: str = "function") -> SpecError:
        return SpecError([self._loaded.document.fault(f"{self._entry}.{key}", message, hint)])

    def _call_function(self) -> Iterator[None]:
        """Calls the function and, where its rows are kept, goes through them."""
        made = self._made = self._function(**self._args)
        if inspect.iscoroutine(made):
            made.close()
            raise self._refusal(
                f"'{self._target}' is a coroutine function; expected one that returns rows", "write def"
            )
        if _is_lazy(made):
            return
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes, Mapping)):
            found = f"'{self._target}' gave a {type(made).__name__}; expected an iterable of mappings"
            raise self._refusal(found, "return a list")
        source = self._source
        is_chosen = (source.shuffle, source.when, source.order) != (None, None, None)
        most = None if is_chosen else source.limit
        self._drawn = self._bound_rows(itertools.islice(made, most), is_whole=most is not None or source.endless)
        for row in () if source.endless else self._drawn:
            self._rows.append(row)
            yield

    def _bound_rows(self, made: Iterable[Any], *, is_whole: bool) -> Iterator[Row]:
        chars = 0
        for index, row in enumerate(made):
            yield self._check_row(index, row)
            chars += size(row, _MAX_MADE_CHARS)
            if (not is_whole and index >= _MAX_MADE_ROWS) or chars > _MAX_MADE_CHARS:
                what = f"{_MAX_MADE_ROWS:,} rows" if chars <= _MAX_MADE_CHARS else f"{_MAX_MADE_CHARS:,} characters"
                hint = "add 'limit: N', 'endless: true' for rows as they are needed, or write them to a .jsonl file"
                raise self._refusal(f"'{self._target}' gives more than {what}, which are kept; does it end?", hint)

    def _check_row(self, index: int, row: Any) -> Row:
        if not isinstance(row, (Mapping, type)):
            dump = getattr(row, "model_dump", partial(asdict, row) if is_dataclass(row) else None)
            row = self._call_author(dump) if callable(dump) else row
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            message = f"row {index} of '{self._target}' is no mapping with text keys"
            raise self._refusal(message, "yield {'question': …}")
        return row

    def _by_index(self, index: int) -> Row:
        return self._check_row(index, self._call_author(lambda: self._function(**self._args, index=index)))

    def _checked_at(self, index: int) -> Row:
        return self._check_row(index, self._call_author(lambda: self._made[index]))

    def _drawn_row(self, index: int) -> Row:
        """The row of that number of an iterable; those before it are drawn first, and all are kept."""
        with self._lock:
            while len(self._rows) <= index:
                row = self._call_author(lambda: next(self._drawn, None))
                if row is None:
                    found = f"'{self._target}' ended after {len(self._rows):,} rows"
                    raise self._refusal(found, "remove 'endless'", "endless")
                self._rows.append(row)
        return self._rows[index]

    def _call_author(self, draw: Callable[[], Any]) -> Any:
        try:
            return draw()
        except (SpecError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an author's function may fail in any way
            hint = "call it by itself to see why"
            raise self._refusal(f"'{self._target}' failed: {failure(error)}", hint) from error

    def _in_thread(self, work: Callable[[], Iterator[None]]) -> None:
        """Goes through `work` in a thread, so that waiting for it ends. It knows what the caller's context holds."""
        failed: list[BaseException] = []
        is_given_up = threading.Event()

        def make() -> None:
            try:
                for _ in work():
                    if is_given_up.is_set():
                        return
            except BaseException as error:  # whoever waits is told
                failed.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(make,), daemon=True, name="rlenv-rows")
        thread.start()
        thread.join(_MAX_MADE_S)
        if thread.is_alive():
            is_given_up.set()
            hint = "write the rows to a .jsonl file once, and name that"
            message = f"'{self._target}' gave {len(self._rows):,} rows in {_MAX_MADE_S:g} s and did not end"
            raise self._refusal(message, hint)
        if failed:
            self._call_author(partial(_raise, failed[0]))


def _raise(error: BaseException) -> None:
    raise error


def _is_lazy(made: Any) -> bool:
    """True for a sequence that makes its rows when it is asked for them, such as a data set of a library."""
    has_places = hasattr(made, "__getitem__") and hasattr(made, "__len__")
    return has_places and not isinstance(made, (list, tuple, str, bytes, Mapping))
