"""What can stand at a place of a spec: its keys, their values and the names that it may refer to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.checks.editor.lines import Lines
from rlenv.checks.editor.names import Name, Names, in_template
from rlenv.checks.editor.shape import Shape, choices, fields, shapes_at, type_of
from rlenv.checks.editor.tree import Cursor, Found, find_cursor
from rlenv.errors import SpecError
from rlenv.language.loader import load_document

__all__ = ["Completions", "Item", "complete", "content", "default_of"]


@dataclass(frozen=True, slots=True)
class Item:
    """One completion: `insert` replaces what is typed of it. `kind` is `key`, `value` or `name`."""

    label: str
    kind: str
    detail: str = ""
    doc: str = ""
    insert: str = ""


@dataclass(frozen=True, slots=True)
class Completions:
    """What fits, the likeliest first. `line` and `column` (from 1) are where the word begins that each item replaces,
    up to the cursor."""

    line: int
    column: int
    items: tuple[Item, ...]


def complete(text: str, line: int, column: int, *, path: str | os.PathLike[str]) -> Completions:
    """What can stand at a line and column (from 1, in characters) of a text that need not be readable.

    Nothing of the author's is imported. Items are not chosen by what is typed already: an editor does that.

    Args:
        path: where the text would be saved; what it extends and its rows are read relative to it.
    """
    lines = Lines(text)
    found = find_cursor(text, lines.offset(line, column))
    data = content(text, found.data, path=path)
    names = Names(data, Path(path).parent)
    items: dict[str, Item] = {}
    for cursor in found.cursors:
        for item in _items(cursor, found, data, names):
            items.setdefault(item.label, item)
    return Completions(*lines.place(found.start), tuple(items.values()))


def content(text: str, own: Mapping[str, Any], *, path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """What the text says together with what it extends, as far as that can be read."""
    if not isinstance(own.get("extends"), str):
        return own
    try:
        below = load_document(path, text=json.dumps({"extends": own["extends"]})).data
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


def _items(cursor: Cursor, found: Found, data: Mapping[str, Any], names: Names) -> Iterator[Item]:
    shapes = shapes_at(data, cursor.path)
    if cursor.is_key:
        colon = "" if found.has_colon else ": "
        taken = _at(found.data, cursor.path)
        keys = [*fields(shapes).items()]
        for key, (shape, is_required) in sorted(keys, key=lambda item: not item[1][1]):
            if not (isinstance(taken, Mapping) and key in taken):
                yield Item(key, "key", _detail(shape, is_required), _doc(shape), f"{key}{colon}")
        for name in names.keys(cursor.path):
            yield Item(name.label, "name", name.detail, name.doc, f"{name.label}{colon}")
        return
    expression = in_template(cursor.before)
    if expression is not None:
        yield from map(_named, names.expression(cursor.path, expression))
        return
    yield from map(_named, names.values(cursor.path))
    if not cursor.before.strip():
        for value in choices(shapes):
            text = json.dumps(value) if not isinstance(value, str) else value
            yield Item(text, "value", insert=text)


def _named(name: Name) -> Item:
    return Item(name.label, "name", name.detail, name.doc, name.insert or name.label)


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        if isinstance(data, Mapping):
            data = data.get(str(key))
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data


def _detail(shape: Shape, is_required: bool) -> str:
    words = [type_of(shape)]
    if is_required:
        words.append("required")
    elif (default := default_of(shape)) is not None:
        words.append(f"default {default}")
    return ", ".join(word for word in words if word)


def default_of(shape: Shape) -> str | None:
    """A key's default as a spec would write it, None where it is nothing that is worth a word."""
    default = shape.get("default")
    if default is None or default == "" or isinstance(default, (list, dict)):
        return None
    return default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)


def _doc(shape: Shape) -> str:
    text: str = shape.get("description", "")
    return text
