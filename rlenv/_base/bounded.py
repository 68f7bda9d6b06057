"""What is kept of a call, within bounds: no result makes a record larger than its text may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["abridged", "bounded", "cut_end", "cut_middle", "drop_oldest", "encodable", "size"]

_PLAIN = (int, float, type(None))  # bool is an int
_MAX_DEPTH = 100
_KEPT_TEXT = 1_000
_MAX_DIGITS_BITS = 4_096


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
    """`text` with U+FFFD for each lone surrogate, which no UTF-8, no tokenizer and no other process can take."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def size(value: Any, limit: int) -> int:
    """About how many characters `value` takes as JSON; looking ends past `limit`, so that it costs no more.

    What is nested deeper than a JSON reader follows counts as over the limit.
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
            total += 2 + 4 * len(item)
            if total <= limit:
                for key, held in item.items():
                    total += len(key) if isinstance(key, str) else 8
                    rest.append((held, depth + 1))
        elif isinstance(item, (list, tuple, set, frozenset)):
            total += 2 + 2 * len(item)
            if total <= limit:
                rest.extend((held, depth + 1) for held in item)
        else:
            total += 64
    return total


def bounded(value: Any, limit: int, *, cut: Callable[[str, int], str] = cut_middle) -> Any:
    """`value` where it is within `limit` characters; otherwise what fits of it, with a note at each cut.

    For notes and evidence, of which a part says something. Texts keep their head and tail, lists and objects their
    first entries. `cut` brings a text within a number of characters; every text that is kept of a value over the
    limit goes through it, so that what must not be shown can be taken out before it is torn.
    """
    if size(value, limit) <= limit:
        return value
    return _Pruner(limit, cut).prune(value, 0)


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
