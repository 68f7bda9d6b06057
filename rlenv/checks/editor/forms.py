"""Forms for the entries of a group (`tools`, `rewards`, …): the fields of each kind, from the JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlenv.checks.editor.shape import Shape, choices, fields, shapes_at, type_of, types_of
from rlenv.checks.editor.tree import read_tree
from rlenv.errors import UsageError

__all__ = ["form"]


def form(text: str, group: str) -> dict[str, Any]:
    """What a form needs to add or change an entry of a group, of a text that need not be readable as a whole.

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
