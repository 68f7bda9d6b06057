"""Values within bounds, so that no result makes a record larger than its text may be, and as JSON can hold them.

Where true values follow each other, and frozen records made quickly, for the paths that every turn takes.

A frozen dataclass sets each field through `object.__setattr__`, 1 to 2 µs a record. A draft of the same slots is filled
by plain assignment and becomes the record at once, in a third of the time (docs/measurements/performance.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PLAIN = (int, float, type(None))  # bool is an int
_MAX_DEPTH = 100
_KEPT_TEXT = 1_000
_MAX_DIGITS_BITS = 4_096
_HALVES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def cut_middle(text: str, limit: int) -> str:
    """`text` within `limit` characters: its head and its tail, and how much is left out between them."""
    if len(text) <= limit:
        return text
    gap = f"\n… ({len(text) - limit} characters left out) …\n"
    keep = max(limit - len(gap), 0)
    tail = keep // 2
    return text[: keep - tail] + gap + (text[-tail:] if tail else "")


def cut_end(text: str, limit: int) -> str:
    """`text` within `limit` characters: its head, and "…" in place of what is left out."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def abridged(text: str, limit: int) -> str:
    """`text` without the middle where it is longer than `limit` characters: its head, " … " and its tail."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def encodable(text: str) -> str:
    """`text` with U+FFFD for each surrogate, which no UTF-8, no tokenizer and no other process can take."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a codec would take ten times as long: it calls a handler for each
        return text.translate(_HALVES)
    return text


def size(value: Any, limit: int, *, each: int = 0) -> int:
    """About how many characters `value` takes as JSON; looking ends past `limit`, so that it costs no more.

    Each list and mapping counts as `each` more. What is nested deeper than a JSON reader follows counts as
    over the limit.
    """
    total = 0
    rest: list[tuple[Any, int]] = [(value, 0)]
    while rest and total <= limit:
        item, depth = rest.pop()
        if isinstance(item, (str, bytes, bytearray)):
            total += len(item) + 2
        elif isinstance(item, int):
            total += 5 + item.bit_length() // 3
        elif isinstance(item, _PLAIN):
            total += 8
        elif depth >= _MAX_DEPTH:
            return limit + 1
        elif isinstance(item, Mapping):
            total += 2 + each + 4 * len(item)
            if total <= limit:
                for key, held in item.items():
                    total += len(key) if isinstance(key, str) else 8
                    rest.append((held, depth + 1))
        elif isinstance(item, (list, tuple, set, frozenset)):
            total += 2 + each + 2 * len(item)
            if total <= limit:
                rest.extend((held, depth + 1) for held in item)
        else:
            total += 64
    return total


def values_in(value: Any, most: int) -> int:
    """How many values the lists and mappings of a value hold in all; counting ends beyond `most`."""
    rest, total = [value], 0
    while rest and total <= most:
        held = rest.pop()
        total += len(held)
        inner = held if isinstance(held, (list, tuple)) else held.values()
        rest += [one for one in inner if isinstance(one, (dict, list, tuple))] if total <= most else ()
    return total


def bounded(value: Any, limit: int, *, cut: Callable[[str, int], str] = cut_middle) -> Any:
    """`value` where it is within `limit` characters; otherwise what fits of it, with a note at each cut.

    For notes and evidence, of which a part says something. Texts keep their head and tail, lists and objects their
    first entries. `cut` brings a text within a number of characters; every text that is kept of a value over the
    limit goes through it, so that what must not be shown can be taken out before it is torn.
    """
    return value if size(value, limit) <= limit else _Pruner(limit, cut).prune(value, 0)


class _Pruner:
    def __init__(self, limit: int, cut: Callable[[str, int], str]) -> None:
        self.left = limit
        self.cut = cut

    def prune(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            value = self.cut(value, max(min(_KEPT_TEXT, self.left), 80))
            self.left -= len(value) + 2
            return value
        if isinstance(value, (bytes, bytearray)):
            return f"… ({len(value)} bytes left out) …"
        if isinstance(value, int) and value.bit_length() > _MAX_DIGITS_BITS:
            self.left -= 40
            return f"… (an integer of {value.bit_length()} bits left out) …"
        if isinstance(value, _PLAIN):
            self.left -= 8
            return value
        if depth >= _MAX_DEPTH // 4:
            return "… (nested too deep) …"
        if isinstance(value, Mapping):
            return self._object(value, depth)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._list(value, depth)
        self.left -= 64
        return value

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        kept: dict[Any, Any] = {}
        for key, item in value.items():
            if self.left <= 0:
                kept["…"] = f"{len(value) - len(kept)} more keys left out"
                break
            name = self.cut(key, _KEPT_TEXT) if isinstance(key, str) else key
            self.left -= 4 + (len(name) if isinstance(name, str) else 8)
            kept[name] = self.prune(item, depth + 1)
        return kept

    def _list(self, value: Any, depth: int) -> list[Any]:
        kept: list[Any] = []
        for item in value:
            if self.left <= 0:
                kept.append(f"… ({len(value) - len(kept)} more left out) …")
                break
            self.left -= 2
            kept.append(self.prune(item, depth + 1))
        return kept


def drop_oldest(kept: dict[Any, Any], *, most: int) -> None:
    """Takes out what was put in first until `most` entries are left; another thread may do the same meanwhile."""
    while len(kept) > most:
        kept.pop(next(iter(kept)), None)


UNRECORDED: Final = {"recorded": "never"}
"""Metadata of a dataclass's field that no record holds."""
SPARSE: Final = {"recorded": "where it holds something"}
"""Metadata of a field that a record leaves out where it is empty, so that one without it is written as it was read."""

_MAX_PLAIN_DEPTH = 200
"""Far below what a reader or a writer of JSON follows, and above what any dialect lets a policy write."""
_MAX_BITS = 13_000
"""Python writes and reads integers of at most 4,300 digits."""


@cache
def _recorded_names(record: Any) -> tuple[tuple[str, bool], ...]:
    """The names of the fields that a record holds, and whether each is left out where it is empty."""
    kept = [field for field in dataclasses.fields(record) if field.metadata.get("recorded") != UNRECORDED["recorded"]]
    return tuple((field.name, field.metadata.get("recorded") == SPARSE["recorded"]) for field in kept)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass's instance as a record holds them, with their values as they are."""
    kind: Any = type(record)
    return {name: value for name, sparse in _recorded_names(kind) if (value := getattr(record, name)) or not sparse}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: dataclasses become objects, numbers that are not finite null, anything else text.

    What is nested deeper, or an integer longer, than a reader would take becomes a text that says so.
    """
    return _plain_part(value, 0)


def _plain_part(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else f"… (an integer of {value.bit_length()} bits left out) …"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _MAX_PLAIN_DEPTH:
        return "… (nested too deep) …"
    depth += 1
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain_part(item, depth) for name, item in fields_of(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain_part(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_part(item, depth) for item in value]
    return str(value)


def sendable(value: Any) -> Any:
    """`value` as a strict writer of JSON takes it: plain, lone surrogates as U+FFFD, long integers as text."""
    return _sendable(plain(value))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


_P = ParamSpec("_P")
_T = TypeVar("_T")
_K = TypeVar("_K")


def quick(record: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function with the arguments of `record`, a frozen and slotted dataclass, that makes an equal one.

    Raises:
        TypeError: `record` is not such a class, or has a `__post_init__` that would be left out.
    """
    cls: Any = record
    if not hasattr(cls, "__dataclass_fields__") or "__slots__" not in vars(cls) or hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls!r} is not a slotted dataclass without __post_init__")
    # A class below it with the same slots, which may be written to: the class of what is made is changed at once.
    plain = {name: getattr(object, name) for name in ("__init__", "__setattr__", "__delattr__")}
    values: dict[str, Any] = {"draft": type(f"_{cls.__name__}", (cls,), {"__slots__": (), **plain}), "record": cls}
    values["MISSING"] = dataclasses.MISSING
    arguments: list[str] = []
    # Source as dataclasses itself makes it for __init__: plain assignments are what is quick.
    lines = [" made = draft()"]
    for field in dataclasses.fields(cls):
        name, given = field.name, field.name
        if field.default is not dataclasses.MISSING:
            values[f"default_{name}"] = field.default
            given = f"{name}=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            values[f"factory_{name}"] = field.default_factory
            given = f"{name}=MISSING"
            lines.append(f" if {name} is MISSING: {name} = factory_{name}()")
        arguments.append(given)
        lines.append(f" made.{name} = {name}")
    lines.insert(0, f"def make({', '.join(arguments)}):")
    lines += [" made.__class__ = record", " return made"]
    exec("\n".join(lines), values)
    make: Callable[_P, _T] = values["make"]
    return make


def grouped(pairs: Iterable[tuple[_K, _T]]) -> dict[_K, list[_T]]:
    """The values of each key, in their order; the keys as they first came."""
    found: dict[_K, list[_T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def stretches(values: Iterable[object]) -> list[tuple[int, int]]:
    """Where true values follow each other, as (first, behind the last), in order."""
    found, at = [], 0
    for is_true, group in groupby(values, bool):
        start, at = at, at + sum(1 for _ in group)
        if is_true:
            found.append((start, at))
    return found


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What reads plain values as a type; made on first use, so that an import of rlenv need not pay for it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
