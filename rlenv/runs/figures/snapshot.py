"""One version of a run's rows, with what lists, filters and figures ask of them.

The calls or the terms of a run, a column at a time: of a million rows what is not asked for is not read.

What the rows of a list have in common: values of a column with how often each stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import drop_oldest, encodable
from rlenv.runs.files import Body

if TYPE_CHECKING:
    import pyarrow as pa


def numbers_of(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A numeric or true/false column as floats; not a number where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    found: NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy()
    return found


def words_of(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """A text column as numbers of words, and the words as they were first seen; -1 where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    coded = coded.unify_dictionaries()
    words: list[str] = coded.chunk(0).dictionary.to_pylist() if coded.num_chunks else []
    codes = np.empty(len(coded), dtype=np.int32)
    at = 0
    for chunk in coded.chunks:
        codes[at : at + len(chunk)] = pc.fill_null(chunk.indices, -1).to_numpy(zero_copy_only=False)
        at += len(chunk)
    # A word of rows that do not count stays in the dictionary of its part.
    used = np.bincount(codes + 1, minlength=len(words) + 1)[1:] > 0
    if used.all():
        return codes, words
    again = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    return again[codes], [word for word, is_used in zip(words, used.tolist(), strict=True) if is_used]


def sorted_by(codes: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of codes below `count`, those of each code together and in order; and where in these each begins."""
    if count < 2**15:
        codes = codes.astype(np.int16)  # numpy sorts those in one pass
    order = np.argsort(codes, kind="stable")
    return order, np.searchsorted(codes, np.arange(count + 1), sorter=order)


class Entries:
    """The entries of a run's lists, in order. Columns are read when they are first asked for, and kept.

    Args:
        read: the table of some fields of all entries, with the place of each one's row as `row`.
    """

    def __init__(self, read: Callable[[tuple[str, ...]], pa.Table]) -> None:
        self._read = read
        self._held: dict[str, Any] = {}
        self._rows: NDArray[np.int32] | None = None

    def load(self, *names: str) -> None:
        """Reads several columns at once: each look at a run opens all of its parts."""
        missing = tuple(name for name in names if name not in self._held)
        if missing:
            table = self._read(missing)
            self._held |= {name: table[name] for name in missing}
            if self._rows is None:
                self._rows = table["row"].to_numpy().astype(np.int32)

    def rows(self, name: str) -> NDArray[np.int32]:
        """For each entry the place of its row; `name` is a column that is asked for beside."""
        self.load(name)
        assert self._rows is not None
        return self._rows

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A numeric or true/false column as floats; not a number where it is null."""
        self.load(name)
        return numbers_of(self._held[name])

    def value(self, name: str, at: int) -> Any:
        """One value of a column that is no text."""
        self.load(name)
        return self._held[name][at].as_py()

    def words(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A text column as numbers of words, and the words; -1 where it is null."""
        self.load(name)
        if not isinstance(self._held[name], tuple):
            self._held[name] = words_of(self._held[name])
        found: tuple[NDArray[np.int32], list[str]] = self._held[name]
        return found


MOST_TERMS: Final = 200
"""Names of terms that lists and figures hold, and terms of one episode in a list: a grader that makes up a name for
each thing it saw must not make every figure take its time as often."""


class Episodes(Protocol):
    """The source of rows and bodies: a run's folder, or a file of an older version."""

    run: Path
    version: int

    @property
    def table(self) -> pa.Table:
        """The flat columns of all rows, one version at a time."""

    def refresh(self) -> bool:
        """Looks for what is new; whether there was something."""

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        """A list of `rlenv.runs.schema.NESTED`, one row an entry, with the episode's `id` beside."""

    def entries(self, column: str, fields: Sequence[str]) -> pa.Table:
        """Some fields of the entries of such a list of all rows, one row an entry, with the place of its row in `table`
        as `row`."""

    def body(self, id: str) -> Body:
        """The whole record of an episode; a UsageError where there is none."""

    def records(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """The records of episodes whose body was kept, as JSON lines."""


class Snapshot:
    """The rows of one version of a run. What is nested is read when it is first asked for, and kept.

    Not safe for two threads at once: whoever shares one holds a lock.
    """

    def __init__(self, episodes: Episodes) -> None:
        self.version = episodes.version
        self.run = episodes.run
        self.table: pa.Table = episodes.table
        self._episodes = episodes
        self._terms: dict[str, tuple[NDArray[np.float64], NDArray[np.object_]]] = {}

    def __len__(self) -> int:
        return len(self.table)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A numeric or true/false column as floats; not a number where it is null."""
        return numbers_of(self.table[name])

    def words(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A text column as numbers of words, and the words; -1 where it is null."""
        return words_of(self.table[name])

    def chosen_mask(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each row whether it is at one of some places."""
        found = np.zeros(len(self), dtype=bool)
        found[places] = True
        return found

    def word_counts(self, name: str, places: NDArray[np.int64]) -> dict[str, int]:
        """The number of rows at some places with each word of a text column, as they were first seen; null is none."""
        codes, words = self.words(name)
        sizes = np.bincount(codes[places] + 1, minlength=len(words) + 1)[1:]
        return {word: size for word, size in zip(words, sizes.tolist(), strict=True) if size}

    def place(self, id: str) -> int | None:
        """The place of an episode's row, None where there is none."""
        import pyarrow.compute as pc

        if encodable(id) is not id:
            return None
        found = int(pc.index(self.table["id"], id).as_py())
        return None if found < 0 else found

    @cached_property
    def calls(self) -> Entries:
        """All calls (`rlenv.runs.schema.CALLS`)."""
        return Entries(lambda names: self._episodes.entries("calls", names))

    @cached_property
    def terms(self) -> Entries:
        """All terms (`rlenv.runs.schema.TERMS`)."""
        return Entries(lambda names: self._episodes.entries("terms", names))

    @cached_property
    def usage(self) -> Entries:
        """The usage of models, by episode, role and model (`rlenv.runs.schema.USAGE`)."""
        return Entries(lambda names: self._episodes.entries("usage", names))

    @cached_property
    def _places_by_term(self) -> tuple[dict[str, int], NDArray[np.int64], NDArray[np.int64]]:
        """Names of terms with their numbers, the places in `terms` by number, and where in these each number begins."""
        codes, words = self.terms.words("name")
        return {name: number for number, name in enumerate(words)}, *sorted_by(codes, len(words))

    @cached_property
    def term_names(self) -> list[str]:
        """The names of terms in the order in which they were first seen, the first `MOST_TERMS` of them."""
        return list(islice(self._places_by_term[0], MOST_TERMS))

    @property
    def terms_more(self) -> int:
        """The number of names of terms that `term_names` leaves out."""
        return len(self._places_by_term[0]) - len(self.term_names)

    def has_term(self, name: str) -> bool:
        """True if an episode has a term of this name, one that `term_names` leaves out too."""
        return name in self._places_by_term[0]

    def places_of(self, name: str) -> NDArray[np.int64]:
        """The places in `terms` of those of one name."""
        names, order, starts = self._places_by_term
        number = names.get(name)
        return order[:0] if number is None else order[starts[number] : starts[number + 1]]

    @cached_property
    def tool_names(self) -> list[str]:
        """The names that were called, the most frequent first."""
        codes, words = self.calls.words("tool")
        sizes = np.bincount(codes[codes >= 0], minlength=len(words))
        return [words[code] for code in np.argsort(-sizes, kind="stable").tolist()]

    def term(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.object_]]:
        """Values of a term, one a row (not a number where it is not valid), and its states (None without the term)."""
        if name not in self._terms:
            self.terms.load("name", "value", "status")
            at = self.places_of(name)
            rows = self.terms.rows("name")[at]
            codes, words = self.terms.words("status")
            values = np.full(len(self), np.nan)
            values[rows] = self.terms.numbers("value")[at]
            states = np.full(len(self), None, dtype=object)
            states[rows] = np.array([*words, None], dtype=object)[codes[at]]
            drop_oldest(self._terms, most=MOST_TERMS - 1)
            self._terms[name] = (values, states)
        return self._terms[name]

    @cached_property
    def _row_table(self) -> pa.Table:
        """The table of the columns that rows show: the others are long, and stand in an episode's record."""
        return self.table.drop_columns(["ending"])

    def rows(self, places: Sequence[int] | NDArray[np.int64]) -> list[dict[str, Any]]:
        """The rows at some places, with their first `MOST_TERMS` `terms`."""
        rows = self._take_rows(np.asarray(places, dtype=np.int64))
        terms = term_lists(self._episodes, [row["id"] for row in rows])
        for row in rows:
            row["terms"] = terms.get(row["id"], [])
        return rows

    def _take_rows(self, places: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Rows at some places. Each is taken of its own chunk: of all at once, Arrow makes one text of a column."""
        ends = np.cumsum([len(chunk) for chunk in self.table["id"].chunks])
        chunk_of = np.searchsorted(ends, places, side="right")
        rows: list[dict[str, Any]] = [{}] * len(places)
        for chunk in np.unique(chunk_of).tolist():
            start = int(ends[chunk - 1]) if chunk else 0
            inside = np.nonzero(chunk_of == chunk)[0]
            part = self._row_table.slice(start, int(ends[chunk]) - start).take(places[inside] - start)
            for at, row in zip(inside.tolist(), part.to_pylist(), strict=True):
                rows[at] = row
        return rows

    def calls_of(self, id: str) -> list[dict[str, Any]]:
        """The calls of one episode."""
        return self._list_of("calls", id)

    def usage_of(self, id: str) -> list[dict[str, Any]]:
        """The usage of models by one episode."""
        return self._list_of("usage", id)

    def _list_of(self, column: str, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._episodes.nested(column, [id]).drop_columns(["id"]).to_pylist()
        return found


def term_lists(episodes: Episodes, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The terms of some episodes by their ids, of each the first `MOST_TERMS`."""
    found: dict[str, list[dict[str, Any]]] = {}
    if not ids:
        return found
    held = episodes.nested("terms", ids)
    seen: dict[str, int] = {}
    kept: list[int] = []
    for place, id in enumerate(held["id"].to_pylist()):
        seen[id] = seen.get(id, 0) + 1
        if seen[id] <= MOST_TERMS:
            kept.append(place)
    for term in (held if len(kept) == len(held) else held.take(kept)).to_pylist():
        found.setdefault(term.pop("id"), []).append(term)
    return found


_WORDS: Final = ("split", "mode", "reason", "failure", "fate", "why")
_MOST_VALUES: Final = 50
"""Values of one column that are given, the most frequent ones."""
_STEPS: Final = 24

Facet = list[dict[str, Any]]


def facets(rows: Snapshot, places: NDArray[np.int64]) -> dict[str, Facet]:
    """For the rows at some places how many have each value, the most frequent first.

    Steps stand in up to 24 ranges of equal width (`0..9`), in order; tools and outcomes count episodes, not calls.
    Values are as `rlenv.runs.figures.query` reads them.
    """
    found = {name: _facet({word: n for word, n in rows.word_counts(name, places).items() if word}) for name in _WORDS}
    success = rows.numbers("success")[places]
    named = (("true", success == 1), ("false", success == 0), ("none", np.isnan(success)))
    found["success"] = _facet({name: int(holds.sum()) for name, holds in named})
    for name, column in (("tool", "tool"), ("outcome", "outcome")):
        found[name] = _call_facet(rows, column, places)
    found["step"] = _step_ranges(rows.numbers("step")[places].astype(np.int64))
    return found


def _facet(counts: dict[str, int]) -> Facet:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [{"value": value, "count": count} for value, count in ordered if count][:_MOST_VALUES]


def _call_facet(rows: Snapshot, column: str, places: NDArray[np.int64]) -> Facet:
    codes, words = rows.calls.words(column)
    if not words:
        return []
    of = rows.calls.rows(column)
    is_chosen = rows.chosen_mask(places)[of] & (codes >= 0)
    of, codes = of[is_chosen], codes[is_chosen]
    # A policy may make up any number of names: of those that were called most the episodes are counted.
    often = np.argsort(-np.bincount(codes, minlength=len(words)), kind="stable")[:_MOST_VALUES]
    found = {}
    for code in often.tolist():
        seen = np.zeros(len(rows), dtype=bool)
        seen[of[codes == code]] = True
        found[words[code]] = int(seen.sum())
    return _facet(found)


def _step_ranges(steps: NDArray[np.int64]) -> Facet:
    if not len(steps):
        return []
    low, high = int(steps.min()), int(steps.max())
    width = max(1, -(-(high - low + 1) // _STEPS))
    sizes = np.bincount((steps - low) // width)
    found = []
    for index, size in enumerate(sizes.tolist()):
        first, last = low + index * width, min(low + (index + 1) * width - 1, high)
        if size:
            found.append({"value": str(first) if first == last else f"{first}..{last}", "count": size})
    return found
