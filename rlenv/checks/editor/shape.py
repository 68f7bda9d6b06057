"""The language at a place of a spec: its keys and values by the JSON Schema, and the names that the spec gives itself.

Forms for the entries of a group (`tools`, `rewards`, …): the fields of each kind, from the JSON Schema.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema_rs

from rlenv._base.bounded import cut_end
from rlenv._base.text import KeyPath
from rlenv.checks.editor.tree import read_tree
from rlenv.checks.sites import names_at
from rlenv.dialects.built_in import ALIASES
from rlenv.errors import SpecError, UsageError
from rlenv.language import kinds as registry
from rlenv.language.schema import json_schema
from rlenv.language.shipped import shipped
from rlenv.language.templates import TemplateError, compile_template
from rlenv.tasks.files import open_rows

Shape = Mapping[str, Any]

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "array": "list",
    "null": "nothing",
}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


_schema = cache(json_schema)


def description_of(group: str, name: str) -> str:
    """The description of a built-in kind, "" for another."""
    text: str = _schema()["$defs"].get(f"{group}.{name}", {}).get("description", "")
    return text


def shapes_at(data: Any, path: Iterable[str | int]) -> tuple[Shape, ...]:
    """The parts of the schema that say something of the value at `path`, in `data` as it stands."""
    current = tuple(_flat(_schema(), data))
    for key in path:
        data = child(data, key)
        below = [inner for shape in current for inner in _below(shape, key)]
        current = tuple(flat for inner in below for flat in _flat(inner, data))
    return current


def fields(shapes: Iterable[Shape]) -> dict[str, tuple[Shape, bool]]:
    """The keys that a mapping takes, with the schema of each and whether it is required; in the order of the
    language."""
    found: dict[str, tuple[Shape, bool]] = {}
    for shape in shapes:
        required = shape.get("required", ())
        for key, inner in shape.get("properties", {}).items():
            before = found.get(key)
            # A kind is named twice: by its group, with the choices, and by its class.
            if before is None or not choices([before[0]]):
                found[key] = (inner, key in required or (before is not None and before[1]))
    return found


def choices(shapes: Iterable[Shape]) -> tuple[Any, ...]:
    """The values that a place can have, where they can be listed; () otherwise."""
    found: dict[Any, None] = {}
    for shape in shapes:
        for flat in _flat(shape, None):
            found.update(dict.fromkeys(flat.get("enum", ())))
            if "const" in flat:
                found[flat["const"]] = None
            if flat.get("type") == "boolean":
                found.update({True: None, False: None})
    return tuple(found)


def type_of(shape: Shape) -> str:
    """A type in a few words: `text`, `whole number ≥ 1`, `process | episode | none`."""
    words: dict[str, None] = {}
    for flat in _flat(shape, None):
        if "enum" in flat:
            words[" | ".join(map(str, flat["enum"]))] = None
        elif "const" in flat:
            words[str(flat["const"])] = None
        elif "$ref" not in flat and "type" in flat and flat["type"] != "null":
            named = flat["type"] if isinstance(flat["type"], list) else [flat["type"]]
            bounds = " ".join(f"{sign} {flat[key]}" for key, sign in _BOUNDS.items() if key in flat)
            word = " or ".join(_TYPES.get(str(one), str(one)) for one in named if one != "null")
            words[f"{word} {bounds}".rstrip()] = None
    if len(words) > 1 and any("|" in word for word in words):
        words.pop("text", None)  # names that plug-ins bring
    return " or ".join(words)


def types_of(shape: Shape) -> set[str]:
    """The types of JSON that a place takes, without `null`; empty where it takes any."""
    found: set[str] = set()
    for flat in _flat(shape, None):
        named = flat.get("type", ())
        found.update([named] if isinstance(named, str) else named)
    return found - {"null"}


def child(data: Any, key: str | int) -> Any:
    """What stands at a key or a place of it, None where it has none."""
    if isinstance(data, Mapping):
        return data.get(str(key))
    return data[key] if isinstance(data, list) and isinstance(key, int) and key < len(data) else None


def _below(shape: Shape, key: str | int) -> Iterator[Shape]:
    if isinstance(key, int):
        before = shape.get("prefixItems", ())
        inner = before[key] if key < len(before) else shape.get("items")
    else:
        inner = shape.get("properties", {}).get(key)
        if inner is None:
            inner = shape.get("additionalProperties")
    if isinstance(inner, Mapping):
        yield inner


def _flat(shape: Shape, data: Any) -> Iterator[Shape]:
    """A schema and all that it refers to for this value."""
    yield shape
    if "$ref" in shape:
        yield from _flat(_schema()["$defs"][shape["$ref"].removeprefix("#/$defs/")], data)
    for key in ("allOf", "anyOf", "oneOf"):
        for inner in shape.get(key, ()):
            yield from _flat(inner, data)
    if "if" in shape:
        branch = "then" if _holds(shape["if"], data) else "else"
        if branch in shape:
            yield from _flat(shape[branch], data)


def _holds(condition: Shape, data: Any) -> bool:
    try:
        return jsonschema_rs.is_valid(dict(condition), data)
    except ValueError:  # what JSON has no word for, such as a number that is not finite
        return False


def form(text: str, group: str) -> dict[str, Any]:
    """The data of a form that adds or changes an entry of a group, in a text that need not be readable as a whole.

    `entries` are the values by name, as far as they can be read. `kinds` are by name what the kind is (`doc`) and its
    `fields` in the language's order, each with `name`, `doc`, `type` in words, `input` (`choice`, `integer`, `number`,
    `text`, `any` for JSON or else a text, `json`), `choices`, `default`, `required`, and `shared`: every kind has it.

    Raises:
        UsageError: the group's entries have no kinds.
    """
    named = fields(shapes_at({group: {"entry": {}}}, (group, "entry"))).get("kind")
    kinds = [str(one) for one in choices([named[0]])] if named is not None else []
    if not kinds:
        raise UsageError(f"the entries of '{group[:40]}' have no kinds", key="group", hint="such as tools")
    by_kind = {kind: fields(shapes_at({group: {"entry": {"kind": kind}}}, (group, "entry"))) for kind in kinds}
    shared = set.intersection(*(set(found) for found in by_kind.values()))
    held = read_tree(text).plain().get(group)
    entries = held.items() if isinstance(held, Mapping) else ()
    return {
        "entries": {name: value for name, value in entries if isinstance(value, Mapping)},
        "kinds": {
            kind: {
                "doc": _doc(group, kind),
                "fields": [
                    _field(name, shape, required=required, shared=name in shared)
                    for name, (shape, required) in found.items()
                    if name != "kind"
                ],
            }
            for kind, found in by_kind.items()
        },
    }


def _doc(group: str, kind: str) -> str:
    shapes = shapes_at({group: {"entry": {"kind": kind}}}, (group, "entry"))
    return next((str(one["description"]) for one in reversed(shapes) if "description" in one), "")


def _field(name: str, shape: Shape, *, required: bool, shared: bool) -> dict[str, Any]:
    types = types_of(shape)
    listed = choices([shape])
    if listed and types <= {"string", "boolean"}:
        kind = "choice"
    elif len(types) == 1 and types <= {"integer", "number", "string"}:
        kind = next(iter(types)).replace("string", "text")
    else:
        kind = "any" if not types or "string" in types else "json"
    return {
        "name": name,
        "doc": str(shape.get("description", "")),
        "type": type_of(shape),
        "input": kind,
        "choices": list(listed) if kind == "choice" else [],
        "default": shape.get("default"),
        "required": required,
        "shared": shared,
    }


_MAX_LINE = 1_000_000


def first_row(data: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
    """The columns of the first split whose first row can be read without running anything; {} where there is none.

    Rows of a function are not looked at. A column whose value is not read (Parquet) is None.
    """
    splits = data.get("tasks")
    constants = data.get("vars")
    for source in splits.values() if isinstance(splits, Mapping) else ():
        if isinstance(source, Mapping):
            row = _first(source, constants if isinstance(constants, Mapping) else {}, folder)
            if row:
                return row
    return {}


def _first(source: Mapping[str, Any], constants: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    rows, path, dataset = source.get("rows"), source.get("path"), source.get("hf")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        return rows[0]
    if isinstance(dataset, Mapping) and isinstance(dataset.get("columns"), Mapping):
        return dict.fromkeys(map(str, dataset["columns"]))
    path = path[0] if isinstance(path, list) and path else path
    if not isinstance(path, str):
        return {}
    try:
        place = os.path.join(folder, compile_template(path).text(vars=constants))
        return _of_file(Path(min(glob.glob(place, recursive=True), default=place)), source.get("key"))
    except (OSError, ValueError, TemplateError, RecursionError, csv.Error):
        return {}


def _of_file(path: Path, at: str | None) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ModuleNotFoundError:
            return {}
        return dict.fromkeys(parquet.read_schema(path).names)
    if path.suffix.lower() in (".gz", ".json"):
        return _of_whole(path, at)
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            header, row = [*itertools.islice(csv.reader(file), 2), [], []][:2]
            return dict(itertools.zip_longest(header, row[: len(header)]))
        line = next((line for line in iter(lambda: file.readline(_MAX_LINE), "") if line.strip()), "")
        row = json.loads(line) if line else {}
        return row if isinstance(row, dict) else {}


def _of_whole(path: Path, at: str | None) -> dict[str, Any]:
    """Of a file that is read as a whole, if it is a small one."""
    if path.stat().st_size > _MAX_LINE:
        return {}
    try:
        read, count = open_rows(path, at=at)
        return dict(read(0)) if count else {}
    except (SpecError, UsageError):
        return {}


_OPEN = re.compile(r"\{\{|\{%")
_CLOSED = re.compile(r"\}\}|%\}")
_DOTTED = re.compile(r"((?:[A-Za-z_]\w*\.)*)\Z")
_REFERS: Mapping[str, str] = {"resource": "resources", "endpoint": "endpoints", "tool": "tools"}
_GROUPS: Mapping[str, registry.Group] = {"tools": "tools", "resources": "resources", "rewards": "rewards"}


@dataclass(frozen=True, slots=True)
class Item:
    """One completion: `insert`, the label where it is "", replaces what is typed of it.

    `kind` is `key`, `value` or `name`; `detail` says what it is in a word or two, and `doc` what it stands for.
    """

    label: str
    detail: str = ""
    doc: str = ""
    insert: str = ""
    kind: str = "name"


def kind_group(path: KeyPath) -> registry.Group | None:
    """The group of kinds that the value at `path` names one of."""
    if len(path) == 3 and path[2] == "kind":
        return _GROUPS.get(str(path[0]))
    if len(path) == 3 and path[0] == "rewards" and path[2] == "rule":
        return "rules"
    return "users" if path == ("user", "kind") else None


def in_template(before: str) -> str | None:
    """The text before the cursor in the expression of a template, None where it is in none."""
    opened = [found.end() for found in _OPEN.finditer(before)]
    return None if not opened or _CLOSED.search(before, opened[-1]) else before[opened[-1] :]


@dataclass(frozen=True)
class SpecNames:
    """The names in `data`, the content of a spec whose folder is `folder`."""

    data: Mapping[str, Any]
    folder: Path

    @cached_property
    def row(self) -> dict[str, Any]:
        """The first row of the tasks; see `first_row`."""
        return first_row(self.data, folder=self.folder)

    def entries(self, group: str) -> Iterator[Item]:
        """The entries of a section, each with its kind."""
        section = self.data.get(group)
        for name, entry in section.items() if isinstance(section, Mapping) else ():
            kind = str(entry.get("kind") or "") if isinstance(entry, Mapping) else ""
            named = group if group in _GROUPS else ""
            word = {"rewards": "term"}.get(group, group.removesuffix("s"))
            yield Item(str(name), f"{word} of kind {kind}" if kind else word, description_of(named, kind))

    def keys(self, path: KeyPath) -> Iterator[Item]:
        """The names that can be keys of the mapping at `path`: the tools that a step of the oracle calls."""
        if len(path) in (3, 4) and path[0] == "oracle" and path[2] == "call":
            yield from self.entries("tools")

    def values(self, path: KeyPath) -> Iterator[Item]:
        """The names that can be the value at `path`."""
        last = next((part for part in reversed(path) if isinstance(part, str)), "")
        group = kind_group(path)
        if group is not None:
            for name in registry.names(group):
                yield Item(name, group.removesuffix("s"), description_of(group, name))
        elif path == ("dialect",) or path == ("dialect", "base"):
            yield from (Item(name, "dialect") for name in registry.names("dialects"))
            yield from (Item(name, f"dialect, the same as {of}") for name, of in ALIASES.items())
        elif path == ("success",) or last == "gate":
            yield from self.entries("rewards")
            yield from (Item(word, "operator") for word in ("and", "or", "not"))
        elif path == ("extends",):
            for name, file in shipped().items():
                yield Item(name, "ships with rlenv", insert=os.path.relpath(file, self.folder))
        elif path[0] != "dialect":
            yield from self._referred(path, last)

    def _referred(self, path: KeyPath, last: str) -> Iterator[Item]:
        if last in _REFERS:
            yield from self.entries(_REFERS[last])
        elif last == "inject":
            yield from self.entries("resources")
            yield Item("task", "the row")
            yield Item("context", "the episode's context")
        elif last == "tools" and len(path) > 2:
            yield from self.entries("tools")
        elif last == "report_by":
            yield from (Item(column, "column", _shown(value)) for column, value in self.row.items())

    def expression(self, path: KeyPath, before: str) -> Iterator[Item]:
        """The names that fit behind `before` in the expression of a template at `path`."""
        found = _DOTTED.search(before)
        dotted = found.group(1) if found is not None else ""
        if not dotted:
            if not before.rstrip().endswith("|"):
                for name in names_at(path, kind=self._kind(path)):
                    yield Item(name, "name of a template")
            return
        value: Any = {"task": self.row, "vars": self.data.get("vars"), "resources": self.data.get("resources")}
        *parents, last = dotted[:-1].split(".")
        if parents and parents[0] == "resources":
            return
        for part in (*parents, last):
            value = value.get(part) if isinstance(value, Mapping) else None
        for key, item in value.items() if isinstance(value, Mapping) else ():
            word = {"task": "column", "vars": "constant", "resources": "resource"}.get(last, "key")
            yield Item(str(key), word, _shown(item))

    def _kind(self, path: KeyPath) -> str:
        section = self.data.get(str(path[0]))
        entry = section.get(str(path[1])) if isinstance(section, Mapping) and len(path) > 1 else None
        return str(entry.get("kind") or "") if isinstance(entry, Mapping) else ""


def _shown(value: Any) -> str:
    return "" if value is None else cut_end(str(value), 200)
