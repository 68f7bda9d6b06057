"""The calls or the terms of a run, a column at a time: of a million rows what is not asked for is not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Entries", "numbers_of", "sorted_by", "words_of"]


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
