"""Hovers over the keys of a spec, its outline, and completions.

What can stand at a place of a spec: its keys, their values and the names that it may refer to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from rlenv._base.text import KeyPath, parts_of
from rlenv.checks.editor import shape as known
from rlenv.checks.editor.shape import Item
from rlenv.checks.editor.tree import Cursor, CursorReadings, LineIndex, find_cursor, read_tree
from rlenv.errors import SpecError
from rlenv.language.document import read_source
from rlenv.language.yamltree import Node, Span


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions, the likeliest first. `line` and `column` (from 1) are where the word begins that each item
    replaces, up to the cursor.
    """

    line: int
    column: int
    items: tuple[Item, ...]


def complete(text: str, line: int, column: int, *, path: str | os.PathLike[str]) -> Completions:
    """The completions at a line and column (from 1, in characters) of a text that need not be readable.

    Nothing of the author's is imported. Items are not chosen by what is typed already: an editor does that.

    Args:
        path: where the text would be saved; what it extends and its rows are read relative to it.
    """
    lines = LineIndex(text)
    found = find_cursor(text, lines.offset(line, column))
    data = content(text, found.data, path=path)
    names = known.SpecNames(data, Path(path).parent)
    items: dict[str, Item] = {}
    for cursor in found.cursors:
        for item in _items(cursor, found, data, names):
            items.setdefault(item.label, item)
    return Completions(*lines.place(found.start), tuple(items.values()))


def content(text: str, own: Mapping[str, Any], *, path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The text's content together with what it extends, as far as that can be read."""
    if not isinstance(own.get("extends"), (str, list)):
        return own
    try:
        below = read_source(path, text=json.dumps({"extends": own["extends"]})).data
    except (SpecError, ValueError):
        return own
    both: Mapping[str, Any] = _merged(below, own)
    return both


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    if above.get("kind") not in (None, below.get("kind")):
        return above
    both = {key: _merged(below[key], value) if key in below else value for key, value in above.items()}
    return {**below, **both}


def _items(cursor: Cursor, found: CursorReadings, data: Mapping[str, Any], names: known.SpecNames) -> Iterator[Item]:
    shapes = known.shapes_at(data, cursor.path)
    if cursor.is_key:
        colon = "" if found.has_colon else ": "
        taken = reduce(known.child, cursor.path, found.data)
        keys = [*known.fields(shapes).items()]
        for key, (shape, is_required) in sorted(keys, key=lambda item: not item[1][1]):
            if not (isinstance(taken, Mapping) and key in taken):
                yield Item(key, ", ".join(_words(shape, is_required)), _doc(shape), f"{key}{colon}", "key")
        yield from (replace(name, insert=f"{name.label}{colon}") for name in names.keys(cursor.path))
        return
    expression = known.in_template(cursor.before)
    found_names = names.values(cursor.path) if expression is None else names.expression(cursor.path, expression)
    yield from (replace(name, insert=name.insert or name.label) for name in found_names)
    if expression is None and not cursor.before.strip():
        for value in known.choices(shapes):
            text = json.dumps(value) if not isinstance(value, str) else value
            yield Item(text, insert=text, kind="value")


def _words(shape: known.Shape, is_required: bool, *, mark: str = "") -> list[str]:
    words = [known.type_of(shape)]
    if is_required:
        words.append("required")
    elif (default := default_of(shape)) is not None:
        words.append(f"default {mark}{default}{mark}")
    return [word for word in words if word]


def default_of(shape: known.Shape) -> str | None:
    """A key's default as a spec would write it, None where it is nothing that is worth a word."""
    default = shape.get("default")
    if default is None or default == "" or isinstance(default, (list, dict)):
        return None
    return default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)


def _doc(shape: known.Shape) -> str:
    text: str = shape.get("description", "")
    return text


_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Hover:
    """The hover over a text from one column to another of a line (from 1, the last one excluded), in Markdown."""

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
    """The meaning of the key or the kind at a line and column (from 1, in characters); None where there is none.

    Any text is taken; what cannot be read of it is passed over.
    """
    lines = LineIndex(text)
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


def _nodes(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node, bool]]:
    """All keys and the scalars among the values, with their paths."""
    if not isinstance(node.value, (dict, list)):
        yield path, node, False
    for key, child in parts_of(node.value):
        if isinstance(key, str):
            yield (*path, key), child, True
        yield from _nodes(child, (*path, key))


def _key(at: KeyPath, tree: Node, text: str, path: str | os.PathLike[str]) -> str:
    data = content(text, tree.plain(), path=path)
    name = str(at[-1])
    found = known.fields(known.shapes_at(data, at[:-1])).get(name)
    if found is None:
        return _entry(at, data)
    shape, is_required = found
    said = " · ".join([f"**{name}**", *_words(shape, is_required, mark="`")])
    return "\n\n".join(part for part in (said, shape.get("description")) if part)


def _entry(at: KeyPath, data: Mapping[str, Any]) -> str:
    """A name that the author gave: the entry's kind and what that is."""
    section = data.get(str(at[0]))
    entry = section.get(str(at[1])) if isinstance(section, Mapping) and len(at) == 2 else None
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    if not isinstance(kind, str):
        return ""
    rule = entry.get("rule") if isinstance(entry, Mapping) and kind == "rule" else None
    said = known.description_of("rules", rule) if isinstance(rule, str) else known.description_of(str(at[0]), kind)
    return "\n\n".join(part for part in (f"**{at[1]}** · {kind}{f' {rule}' if rule else ''}", said) if part)


def _value(at: KeyPath, value: Any) -> str:
    group = known.kind_group(at)
    said = known.description_of(group, value) if group is not None and isinstance(value, str) else ""
    return f"**{value}**\n\n{said}" if said else ""


def outline(text: str) -> tuple[Symbol, ...]:
    """The sections of a spec with their entries, as far as the text can be read; any text is taken."""
    return tuple(_symbols(read_tree(text), LineIndex(text), 1))


def _symbols(node: Node, lines: LineIndex, depth: int) -> Iterator[Symbol]:
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


def _end(key: Span, node: Node, lines: LineIndex) -> tuple[int, int]:
    """The end of an entry: an alias ends with its key, since its value stands elsewhere."""
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
