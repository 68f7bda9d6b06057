"""The language as JSON Schema (draft 2020-12), generated from the typed spec, for editors and other tools.

The kinds under tools, resources and rewards are branches of `allOf: [{if: {kind: X}, then: {$ref}}]` rather than of
`oneOf`: an editor then completes the keys of the kind that is named, and a validator points at the key at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from rlenv.language import kinds as registry
from rlenv.language.spec import EnvSpec, OracleFunction, OracleStep, Spec

FILE_NAME = "env.schema.json"

_TASK_SOURCES = ("path", "function", "hf", "harbor", "rows")
_SECTIONS: tuple[registry.Group, ...] = ("tools", "resources", "rewards")


def json_schema() -> dict[str, Any]:
    """The schema of a whole spec file, built-in kinds included.

    Kinds of plug-ins are left out, so that the schema is the same on every machine: an unknown kind is left to
    `rlenv validate`.
    """
    definitions: dict[str, Any] = {}
    schema = _model_schema(EnvSpec, definitions)
    properties = schema["properties"]
    for group in _SECTIONS:
        definitions[group] = _entry_schema(group, definitions)
        properties[group]["additionalProperties"] = {"$ref": f"#/$defs/{group}"}
    definitions["users"] = _entry_schema("users", definitions)
    user = {"description": properties["user"].get("description", ""), "default": None}
    properties["user"] = {**user, "if": {"type": "object"}, "then": {"$ref": "#/$defs/users"}, "else": {"type": "null"}}
    properties["oracle"] = _oracle(properties["oracle"], definitions)
    properties["tasks"]["additionalProperties"] = {"$ref": "#/$defs/TaskSource"}
    definitions["TaskSource"]["oneOf"] = [
        {"required": [key], "properties": {key: {"not": {"type": "null"}}}, **_without(key)} for key in _TASK_SOURCES
    ]
    definitions["TaskSource"]["properties"]["rows"]["minItems"] = 1
    if "extends" in properties:
        # What a file leaves to the one that it extends is known only when both are read.
        schema["if"] = {"required": ["extends"], "properties": {"extends": {"type": ["string", "array"]}}}
        schema["else"] = {"required": schema.pop("required")}
    for unused in ("ToolSpec", "ResourceSpec", "RewardSpec", "UserSpec"):
        if f'"#/$defs/{unused}"' not in orjson.dumps([schema, definitions]).decode():
            definitions.pop(unused, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlenv environment",
        **{key: value for key, value in schema.items() if key != "title"},
        "$defs": dict(sorted(definitions.items())),
    }


def _without(key: str) -> dict[str, Any]:
    others = [other for other in _TASK_SOURCES if other != key]
    return {"not": {"anyOf": [{"required": [o], "properties": {o: {"not": {"type": "null"}}}} for o in others]}}


def _model_schema(model: type[Spec], definitions: dict[str, Any]) -> dict[str, Any]:
    """A class's schema; what it refers to is added to `definitions`."""
    schema = model.model_json_schema(by_alias=True)
    for name, inner in schema.pop("$defs", {}).items():
        known = definitions.setdefault(name, _without_titles(inner))
        assert known == inner, f"two classes of the language are called {name}; rename one"
    return _without_titles(schema)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Drops the titles that pydantic makes of names: they say nothing that the key does not."""
    schema.pop("title", None)
    for value in schema.get("properties", {}).values():
        if isinstance(value, dict):
            value.pop("title", None)
    return schema


def _entry_schema(group: registry.Group, definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = [name for name in registry.names(group) if name in registry.BUILT_IN[group]]
    branches: list[dict[str, Any]] = []
    for name in kinds:
        if group == "rewards" and name == "rule":
            branches.extend(_rules(definitions))
            continue
        key = f"{group}.{name}"
        definitions[key] = _model_schema(registry.get(group, name).spec, definitions)
        branches.append({"if": _is_kind("kind", name), "then": {"$ref": f"#/$defs/{key}"}})
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"description": "Which kind this is.", **_open_choice(kinds)}},
        "allOf": branches,
    }


def _rules(definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rules = [name for name in registry.names("rules") if name in registry.BUILT_IN["rules"]]
    for name in rules:
        key = f"rules.{name}"
        definitions[key] = _model_schema(registry.get("rules", name).spec, definitions)
        chosen: dict[str, Any] = {"allOf": [_is_kind("kind", "rule"), _is_kind("rule", name)]}
        if name == "python":
            no_rule = {"not": {"required": ["rule"]}, "required": ["function"]}
            chosen = {"anyOf": [chosen, {"allOf": [_is_kind("kind", "rule"), no_rule]}]}
        yield {"if": chosen, "then": {"$ref": f"#/$defs/{key}"}}
    yield {
        "if": _is_kind("kind", "rule"),
        "then": {
            "anyOf": [{"required": ["rule"]}, {"required": ["function"]}],
            "properties": {"rule": {"description": "Which rule this is.", **_open_choice(rules)}},
        },
    }


def _open_choice(names: list[str]) -> dict[str, Any]:
    """Names that an editor offers; others are let through, since plug-ins bring them."""
    return {"anyOf": [{"enum": names}, {"type": "string"}]}


def _is_kind(key: str, value: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"const": value}}}


def _oracle(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    step = definitions["OracleStep"] = _model_schema(OracleStep, definitions)
    definitions["OracleFunction"] = _model_schema(OracleFunction, definitions)
    arguments = {"anyOf": [{"type": "object"}, {"type": "string", "pattern": r"\{"}]}
    named = {"anyOf": [{"required": ["name"]}, {"required": ["function"]}]}  # a data set's form
    definitions["OracleCalls"] = {
        "type": ["object", "array", "string"],
        "minProperties": 1,
        "minLength": 1,
        "items": {"$ref": "#/$defs/OracleCalls"},
        "if": named,
        "else": {"additionalProperties": arguments},
    }
    shown = {"description": step["properties"]["call"].get("description", "")}
    step["properties"]["call"] = {**shown, "$ref": "#/$defs/OracleCalls"}
    step["anyOf"] = [{"required": ["call"]}, {"required": ["say"]}]
    step["dependentRequired"] = {"expect": ["call"]}
    return {
        "description": schema.get("description", ""),
        "type": ["array", "object", "string", "null"],
        "if": {"type": "object"},
        "then": {"$ref": "#/$defs/OracleFunction"},
        "else": {"items": {"$ref": "#/$defs/OracleStep"}},
        "default": None,
    }


def as_text(schema: dict[str, Any]) -> str:
    """The schema as it is written to its file: two spaces, keys in the order of the language, a last newline."""
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"


def write(folder: Path) -> Path:
    """Writes the schema into `folder` and returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    path.write_text(as_text(json_schema()), encoding="utf-8")
    return path


def is_fresh(folder: Path) -> bool:
    """True where the file in `folder` is what `write` would write."""
    path = folder / FILE_NAME
    return path.is_file() and path.read_text(encoding="utf-8") == as_text(json_schema())
