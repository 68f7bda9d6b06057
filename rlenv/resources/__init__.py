"""Resources that an episode may hold open: databases, folders, and Python's own objects; opened, reset and closed with
it.

Plain data that every episode has a private copy of is here too: `lent` data is nobody's to change, and a `copy_of` it
costs what is read of it.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, Self

_MOST_DEPTH: Final = 100
_WIDE: Final = 16
"""Entries of a mapping from which on its parts are copied one by one."""


class Lent(dict[str, Any]):
    """A mapping of plain data that episodes share, and so nobody may change.

    Whatever reads past a `CopiedDict` (a library that knows C's dict alone) meets an error here, and no other episode.
    """

    def _refuse(self, *args: Any, **named: Any) -> Any:
        raise TypeError("this part is shared by all episodes: read it from its mapping by its key before it is changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


class LentList(list[Any]):
    """A list of such data."""

    _refuse = Lent._refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = _refuse
    remove = reverse = sort = _refuse


class _Items(ItemsView[str, Any]):
    """Keys with parts that are copied as they are reached, so that a search costs what it looks at."""

    def __reversed__(self) -> Iterator[tuple[str, Any]]:
        yield from reversed(list(self))


class _Values(ValuesView[Any]):
    """Such parts."""

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(list(self))


class CopiedDict(dict[str, Any]):
    """A copy of a lent mapping, each part of which is copied when it is first read. It is a dict in all else."""

    __slots__ = ("_read", "_source")

    def __init__(self, source: Mapping[str, Any]) -> None:
        super().__init__(source)
        self._source = source
        self._read: dict[str, None] = {}  # in this order, and so the same in every process

    def touched(self, other: Mapping[str, Any]) -> Iterable[str]:
        """The keys whose parts may be unlike those of another copy with the same keys."""
        if type(other) is CopiedDict and other._source is self._source:
            return self._read | other._read
        return self._read if other is self._source else self

    def _own(self, key: Any) -> None:
        part = super().get(key)
        if type(part) in (Lent, LentList):
            # Another thread that reads the same part may get another copy, and never the lent one.
            super().__setitem__(key, copy_of(part))
            self._read[key] = None

    def _own_all(self) -> Self:
        for key in self:
            self._own(key)
        return self

    def __getitem__(self, key: str) -> Any:
        self._own(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, part: Any) -> None:
        super().__setitem__(key, part)
        self._read[key] = None

    def __iter__(self) -> Iterator[str]:  # of its own, so that dict(table) and {**table} ask for each part
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self._own(key)
        return super().get(key, default)

    def values(self) -> Any:
        return _Values(self)

    def items(self) -> Any:
        return _Items(self)

    def pop(self, key: str, *default: Any) -> Any:
        self._own(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        return super(CopiedDict, self._own_all()).popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **named: Any) -> None:
        for key, part in dict(*others, **named).items():
            self[key] = part

    def copy(self) -> dict[str, Any]:
        return super(CopiedDict, self._own_all()).copy()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)


def lent(value: Any, at: str = "", depth: int = 0) -> Any:
    """Plain data in a form that nobody can change.

    Raises:
        TypeError: it holds something that JSON has no word for, or itself.
    """
    if depth > _MOST_DEPTH:
        raise TypeError(f"{at[:80]} is nested too deep; 'access: copy' takes data as JSON has it")
    if type(value) is dict and all(type(key) is str for key in value):
        return Lent({key: lent(part, f"{at}.{key}", depth + 1) for key, part in value.items()})
    if type(value) is list:
        return LentList([lent(part, f"{at}[{index}]", depth + 1) for index, part in enumerate(value)])
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"{at or 'it'} is a {type(value).__name__}; 'access: copy' takes data as JSON has it")


def copy_of(value: Any) -> Any:
    """A private copy of lent data: wide mappings as a `CopiedDict`, all else at once."""
    if type(value) is LentList:
        return [copy_of(part) for part in value]
    if type(value) is not Lent:
        return value
    if len(value) >= _WIDE:
        return CopiedDict(value)
    return {key: copy_of(part) for key, part in value.items()}
