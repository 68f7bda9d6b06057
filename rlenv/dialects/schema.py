"""The types of values in a tool's JSON schema: references followed, alternatives joined, once a schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

_ORDER: Final = ("null", "integer", "number", "boolean", "object", "array", "any", "string")
"""In which order a text is tried; a text is a string where it is nothing else."""
_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in _ORDER},
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("bool", "binary"), "boolean"),
    **dict.fromkeys(("double", "decimal"), "number"),
    **dict.fromkeys(("dict", "map", "mapping"), "object"),
    **dict.fromkeys(("list", "arr", "sequence", "tuple", "set"), "array"),
    **dict.fromkeys(("none", "nonetype"), "null"),
}
_BEGINNINGS: Final = (
    ("int", "integer"), ("uint", "integer"), ("long", "integer"), ("short", "integer"), ("unsigned", "integer"),
    ("num", "number"), ("float", "number"),
)  # fmt: skip
_MOST_SCHEMAS: Final = 256
"""How many schemas one value's type is made of at most; a schema that goes on says nothing more."""
_MOST_LEVELS: Final = 32
_MOST_KNOWN: Final = 2048


class Shape:
    """The types that a schema allows, and the shapes of what is inside; total, whatever the schema holds.

    Type names that people write (`float`, `int`, `dict`, …) stand for JSON's; one that is not known is "any".

    Args:
        schema: the schema of a value.
        root: where its references begin; the schema itself where it is not given.
    """

    __slots__ = ("_inside", "_parts", "_root", "kinds", "schema")

    kinds: tuple[str, ...]
    """The types that it allows, in the order in which a text is read as them; () where it does not say."""

    def __init__(self, schema: Any, root: Any = None) -> None:
        self.schema = schema
        self._root = schema if root is None else root
        self._parts: list[Mapping[str, Any]] = []
        """The schemas that say something of the same value."""
        self._inside: dict[Any, Shape | None] = {}
        found = self._collect(schema, set(), 0)
        self.kinds = tuple(kind for kind in _ORDER if kind in found) if found else ()

    def at_key(self, key: str) -> Shape | None:
        """The shape under a key of an object; None where the schema does not say."""
        for part in self._parts:
            properties = part.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                return self._shape_of(key, properties[key])
        for part in self._parts:
            if isinstance(part.get("additionalProperties"), Mapping):
                return self._shape_of(("more", key), part["additionalProperties"])
        return None

    def at_index(self, index: int) -> Shape | None:
        """An item of a list; None where the schema does not say."""
        for part in self._parts:
            first = part.get("prefixItems")
            if isinstance(first, (list, tuple)) and index < len(first):
                return self._shape_of(index, first[index])
            if "items" in part:
                return self._shape_of("items", part["items"])
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that an object of this shape may have by name."""
        found: dict[str, None] = {}
        for part in self._parts:
            if isinstance(part.get("properties"), Mapping):
                found.update(dict.fromkeys(map(str, part["properties"])))
        return tuple(found)

    @property
    def required(self) -> tuple[str, ...]:
        """The keys that it has to have."""
        lists = [part.get("required") for part in self._parts]
        named = [key for keys in lists if isinstance(keys, (list, tuple)) for key in keys if isinstance(key, str)]
        return tuple(dict.fromkeys(named))

    def _shape_of(self, key: Any, schema: Any) -> Shape:
        known = self._inside.get(key)
        if known is None or known.schema is not schema:
            known = self._inside[key] = Shape(schema, self._root)
        return known

    def _collect(self, schema: Any, seen: set[int], level: int) -> frozenset[str]:
        """The types that `schema` allows, none where it does not say; each schema is looked at once."""
        if not isinstance(schema, Mapping) or id(schema) in seen:
            return frozenset()
        if len(seen) >= _MOST_SCHEMAS or level >= _MOST_LEVELS:
            return frozenset()
        seen.add(id(schema))
        self._parts.append(schema)
        found = _named_types(schema.get("type")) or _value_types(schema)
        if "$ref" in schema:
            found = _common_types(found, self._collect(_resolve(self._root, schema["$ref"]), seen, level + 1))
        for key in ("anyOf", "oneOf", "allOf"):
            options = schema.get(key)
            if not isinstance(options, (list, tuple)):
                continue
            each = [self._collect(option, seen, level + 1) for option in options]
            if key == "allOf":
                for kinds in each:
                    found = _common_types(found, kinds)
            else:
                found = _common_types(found, frozenset().union(*each))
        if not found:
            found = _implied_type(schema)
        enum = schema.get("enum")
        if found and (schema.get("nullable") is True or (isinstance(enum, (list, tuple)) and None in enum)):
            found |= {"null"}
        return found


def _named_types(kind: Any) -> frozenset[str]:
    names = kind if isinstance(kind, (list, tuple)) else (kind,)
    return frozenset(_name(name) for name in names if isinstance(name, str))


def _name(name: str) -> str:
    name = name.strip().lower()
    known = _NAMES.get(name)
    return known or next((kind for beginning, kind in _BEGINNINGS if name.startswith(beginning)), "any")


def _value_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of the values that `enum` or `const` lists."""
    values = schema.get("enum")
    if not isinstance(values, (list, tuple)):
        values = (schema["const"],) if "const" in schema else ()
    kinds = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
    return frozenset(kinds.get(type(value), "array") for value in values)


def _implied_type(schema: Mapping[str, Any]) -> frozenset[str]:
    """The type that keywords stand for which only one type has."""
    if isinstance(schema.get("properties"), Mapping) or isinstance(schema.get("additionalProperties"), Mapping):
        return frozenset(("object",))
    is_list = isinstance(schema.get("items"), Mapping) or isinstance(schema.get("prefixItems"), (list, tuple))
    return frozenset(("array",)) if is_list else frozenset()


def _common_types(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """The types that two schemas of one value allow together."""
    if not one or not other:
        return one or other
    both = one & other
    if "number" in one | other and "integer" in one | other:
        both |= {"integer"}
    return both or one | other


def _resolve(root: Any, pointer: Any) -> Any:
    """The target of a reference inside the same schema (JSON Pointer, RFC 6901); None where there is none."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    found = root
    for part in unquote(pointer[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, (list, tuple)) and part.isdecimal() and len(part) < 5 and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def by_name(tools: Any) -> Mapping[str, Any]:
    """Tools by name, from such a mapping or from a list as OpenAI's interface has it; what is no tool is left out."""
    if isinstance(tools, Mapping):
        return tools
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes)):
        return {}
    found: dict[str, Any] = {}
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else tool
        name = inner.get("name") if isinstance(inner, Mapping) else getattr(inner, "name", None)
        if isinstance(name, str):
            found.setdefault(name, tool)
    return found


def parameters_of(tool: Any) -> Any:
    """The schema of a tool's parameters: of an object with `parameters`, an OpenAI schema, or the schema itself."""
    schema = getattr(tool, "parameters", tool)
    for key in ("function", "parameters"):
        if isinstance(schema, Mapping) and isinstance(schema.get(key), Mapping):
            schema = schema[key]
    return schema


_known: dict[int, Shape] = {}


def shape_of(schema: Any) -> Shape:
    """The shape of a schema, made once for each; the schema is not to be changed any more.

    A schema is known by its identity. Each shape holds its schema, so that no other can come to have the same one.
    """
    shape = _known.get(id(schema))
    if shape is None or shape.schema is not schema:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        shape = _known[id(schema)] = Shape(schema)
    return shape


def schema_of(value: Any) -> dict[str, Any]:
    """A schema that says of what type each part of a value is; its depth is that of the value."""
    if isinstance(value, Mapping):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"type": "array", "prefixItems": [schema_of(item) for item in value]}
    kinds = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {"type": kinds.get(type(value), "string")}
