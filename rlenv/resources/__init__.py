"""Resources that an episode may hold open: databases, folders, and Python's own objects; opened, reset and closed with
it.

Plain data that every episode has a private copy of is here too: `lent` data is nobody's to change, and a `copy_of` it
costs what is read of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

__all__ = ["CopiedDict", "Lent", "LentList", "copy_of", "lent"]

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


class CopiedDict(dict[str, Any]):
    """A copy of a lent mapping, each part of which is copied when it is first read. It is a dict in all else."""

    __slots__ = ("_lent",)

    def __init__(self, source: Mapping[str, Any]) -> None:
        super().__init__(source)
        self._lent = {key for key, part in self.parts() if type(part) in (Lent, LentList)}

    def parts(self) -> Iterable[tuple[str, Any]]:
        """Keys and parts as they stand, those that were never read still the lent ones: not to be changed."""
        return super().items()

    def _own(self, key: Any) -> None:
        if key in self._lent:
            # In this order: another thread that reads the same part may get another copy, and never the lent one.
            super().__setitem__(key, copy_of(super().__getitem__(key)))
            self._lent.discard(key)

    def _own_all(self) -> Self:
        for key in list(self._lent):
            self._own(key)
        return self

    def __getitem__(self, key: str) -> Any:
        self._own(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, part: Any) -> None:
        self._lent.discard(key)
        super().__setitem__(key, part)

    def __delitem__(self, key: str) -> None:
        self._lent.discard(key)
        super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:  # of its own, so that dict(table) and {**table} ask for each part
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self._own(key)
        return super().get(key, default)

    def values(self) -> Any:
        return super(CopiedDict, self._own_all()).values()

    def items(self) -> Any:
        return super(CopiedDict, self._own_all()).items()

    def pop(self, key: str, *default: Any) -> Any:
        self._own(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        return super(CopiedDict, self._own_all()).popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._own(key)
        return super().setdefault(key, default)

    def update(self, *others: Any, **named: Any) -> None:
        for key, part in dict(*others, **named).items():
            self[key] = part

    def clear(self) -> None:
        self._lent.clear()
        super().clear()

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
