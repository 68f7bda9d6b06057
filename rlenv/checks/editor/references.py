"""Where a spec's text names one of its own entries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlenv.language.yamltree import Node

__all__ = ["Path_", "Reference", "dotted", "mentions", "references"]

Path_ = tuple[str | int, ...]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("tool", "tools"),
    "resources": ("resource", "inject"),
    "endpoints": ("endpoint",),
}
_DATA: Final = frozenset(("tasks", "vars", "dialect"))
_OTHERS: Final = frozenset(("kind", "rule", "pattern", "parameters"))
_HEAD: Final = frozenset(("name", "extends", "roots"))
_TEMPLATE: Final = re.compile(r"\{\{|\{%")


@dataclass(frozen=True, slots=True)
class Reference:
    """A place that names an entry: a key, a whole text, or a part of a text that `pattern` finds.

    The pattern's only match in a text is the name itself.
    """

    path: Path_
    node: Node
    is_key: bool = False
    pattern: re.Pattern[str] | None = None


def dotted(path: Path_) -> str:
    """A path as messages show it: `rewards.calls.tools.0`."""
    return ".".join(map(str, path))


def references(root: Node, *, group: str, name: str) -> Iterator[Reference]:
    """The places that name the entry and would name nothing without it; the entry's own key is none of them."""
    word = re.escape(name)
    in_expression = re.compile(rf"(?<![\w.]){word}(?!\w)")
    in_template = re.compile(rf"(?<=\bresources\.){word}(?!\w)")
    for path, node in _places(root):
        is_call = group == "tools" and path[0] == "oracle" and len(path) in (4, 5) and path[2] == "call"
        if is_call and path[-1] == name and node.key is not None:
            yield Reference(path, node, is_key=True)
        if not isinstance(node.value, str) or path[0] in _DATA or not _OTHERS.isdisjoint(map(str, path)):
            continue
        last = next((part for part in reversed(path) if isinstance(part, str)), "")
        if node.value == name and path[0] != "oracle" and _names(group, path, last):
            yield Reference(path, node)
        elif group == "rewards" and (path == ("success",) or last == "gate") and in_expression.search(node.value):
            yield Reference(path, node, pattern=in_expression)
        elif group == "resources" and _TEMPLATE.search(node.value) and in_template.search(node.value):
            yield Reference(path, node, pattern=in_template)


def _names(group: str, path: Path_, last: str) -> bool:
    return (last in _KEYS.get(group, ()) and len(path) > 1) or (path[-2:-1] == ("inject",) and group == "resources")


def mentions(root: Node, *, name: str) -> Iterator[Path_]:
    """The texts outside of the data in which the name stands as a word: prompts, descriptions, other templates."""
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    for path, node in _places(root):
        is_looked_at = path[0] not in _DATA | _HEAD and path[-1] not in _OTHERS
        if is_looked_at and isinstance(node.value, str) and word.search(node.value):
            yield path


def _places(node: Node, path: Path_ = ()) -> Iterator[tuple[Path_, Node]]:
    if path:
        yield path, node
    inside: Any = node.value
    items = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list) else ()
    for key, child in items:
        yield from _places(child, (*path, key))
