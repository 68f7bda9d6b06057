"""What a key of a spec means, and what the spec holds: hovers and an outline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlenv.checks.editor.complete import content, default_of
from rlenv.checks.editor.lines import Lines
from rlenv.checks.editor.names import kind_group
from rlenv.checks.editor.shape import description_of, fields, shapes_at, type_of
from rlenv.checks.editor.tree import read_tree
from rlenv.language.yamltree import Node, Span

__all__ = ["Hover", "Symbol", "hover", "outline"]

Path_ = tuple[str | int, ...]

_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Hover:
    """What is said of the text from one column to another of a line (from 1, the last one excluded), in Markdown."""

    markdown: str
    line: int
    column: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of the outline: its name, its kind or value in a word, where it begins and ends, and what is in it.

    All places are lines and columns from 1; the end is excluded. The name stands from (`line`, `column`) to
    (`line`, `name_end`).
    """

    name: str
    detail: str
    line: int
    column: int
    name_end: int
    end_line: int
    end_column: int
    children: tuple[Symbol, ...] = ()


def hover(text: str, line: int, column: int, *, path: str | os.PathLike[str]) -> Hover | None:
    """What the key or the kind at a line and column (from 1, in characters) means; None where nothing is to be said.

    Any text is taken; what cannot be read of it is passed over.
    """
    lines = Lines(text)
    offset = lines.offset(line, column)
    tree = read_tree(text)
    for at, node, is_key in _nodes(tree, ()):
        span = node.key if is_key else node.span
        if span is None or not span.start <= offset < span.end:
            continue
        said = _key(at, tree, text, path) if is_key else _value(at, node.value)
        if said:
            first, start = lines.place(span.start)
            return Hover(said, first, start, start + span.end - span.start)
    return None


def _nodes(node: Node, path: Path_) -> Iterator[tuple[Path_, Node, bool]]:
    """All keys and the scalars among the values, with their paths."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield (*path, key), child, True
            yield from _nodes(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _nodes(child, (*path, index))
    else:
        yield path, node, False


def _key(at: Path_, tree: Node, text: str, path: str | os.PathLike[str]) -> str:
    data = content(text, tree.plain(), path=path)
    name = str(at[-1])
    found = fields(shapes_at(data, at[:-1])).get(name)
    if found is None:
        return _entry(at, data)
    shape, is_required = found
    words = [f"**{name}**", type_of(shape)]
    if is_required:
        words.append("required")
    elif (default := default_of(shape)) is not None:
        words.append(f"default `{default}`")
    return "\n\n".join(part for part in (" · ".join(word for word in words if word), shape.get("description")) if part)


def _entry(at: Path_, data: Mapping[str, Any]) -> str:
    """A name that the author gave: the entry's kind and what that is."""
    section = data.get(str(at[0]))
    entry = section.get(str(at[1])) if isinstance(section, Mapping) and len(at) == 2 else None
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    if not isinstance(kind, str):
        return ""
    rule = entry.get("rule") if isinstance(entry, Mapping) and kind == "rule" else None
    said = description_of("rules", rule) if isinstance(rule, str) else description_of(str(at[0]), kind)
    return "\n\n".join(part for part in (f"**{at[1]}** · {kind}{f' {rule}' if rule else ''}", said) if part)


def _value(at: Path_, value: Any) -> str:
    group = kind_group(at)
    said = description_of(group, value) if group is not None and isinstance(value, str) else ""
    return f"**{value}**\n\n{said}" if said else ""


def outline(text: str) -> tuple[Symbol, ...]:
    """The sections of a spec with their entries, as far as the text can be read; any text is taken."""
    lines = Lines(text)
    return tuple(_symbols(read_tree(text), lines, 1))


def _symbols(node: Node, lines: Lines, depth: int) -> Iterator[Symbol]:
    children: list[tuple[str, Node]] = []
    if isinstance(node.value, dict):
        children = list(node.value.items())
    for name, child in children:
        key = child.key
        if key is None or not name:
            continue
        end_line, end_column = _end(key, child, lines)
        inner = tuple(_symbols(child, lines, depth + 1)) if depth < _DEPTH else ()
        name_end = key.column + key.end - key.start
        yield Symbol(name, _detail(child.value), key.line, key.column, name_end, end_line, end_column, inner)


def _end(key: Span, node: Node, lines: Lines) -> tuple[int, int]:
    """Where an entry ends: what is an alias ends with its key, since its value stands elsewhere."""
    end = node.span.end if node.span.start >= key.end else key.end
    while end > key.end and lines.text[end - 1 : end].isspace():
        end -= 1
    return lines.place(end)


def _detail(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("kind")
        return str(kind.value) if kind is not None and isinstance(kind.value, str) else ""
    if isinstance(value, list):
        return f"{len(value)}"
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"
