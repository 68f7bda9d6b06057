"""A call's arguments: checked by the tool's schema, and filled into the templates of an entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

from rlenv._base.bounded import cut_end
from rlenv._base.paths import RefusedPath, leads_out, real
from rlenv._base.schemas import BoundedValidator
from rlenv._base.text import did_you_mean, parts_of
from rlenv.errors import ToolFailed, UnknownEntry, UsageError
from rlenv.language import templates
from rlenv.resources.base import Folder
from rlenv.secrets import set_aside
from rlenv.tools.base import Tool, ToolContext

_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a text",
}
_MEANT = {"float": "number", "double": "number", "int": "integer", "long": "integer", "str": "string",
          "text": "string", "char": "string", "bool": "boolean", "list": "array", "tuple": "array", "set": "array",
          "dict": "object", "map": "object", "hash": "object", "none": "null", "None": "null"}  # fmt: skip
_SEE = "see https://json-schema.org"
_MAX_SHOWN = 60
_MAX_LISTED = 1_000
_MAX_FAULTS = 3
_MAX_OPTIONS = 100
_NO_RESOURCES: Mapping[str, Any] = {}
# Keywords that can bring in arguments which `properties` does not name.
_OPEN = frozenset(
    ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "unevaluatedProperties")
)


def _no_type(schema: Any) -> str:
    """The first word in a schema that stands for a type and is none, "" where there is none."""
    for _, value in parts_of(schema):
        if wrong := _no_type(value):
            return wrong
    found = schema.get("type") if isinstance(schema, Mapping) else None
    words = found if isinstance(found, list) else [found]
    return next((word for word in words if isinstance(word, str) and word not in _TYPES), "")


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as data sets declare it: `name` as models may call it, and `called` as it stands there."""

    name: str
    called: str
    description: str
    parameters: Mapping[str, Any]


_UNCALLABLE = re.compile(r"[^a-zA-Z0-9_-]")
_OPTIONAL = re.compile(r",\s*optional\b.*", re.DOTALL)


def callable_name(name: str) -> str:
    """The name by which servers let a tool be called: letters, digits, `_` and `-`, at most 64 of them."""
    return _UNCALLABLE.sub("_", name)[:64]


def parse_declared(given: Any) -> DeclaredTool:
    """A tool out of its schema: OpenAI's, with or without `function` around it; MCP's; those of BFCL, ToolACE and xLAM.

    Types of other languages become JSON's (`dict`, `float`, `List[int]`), and a name that servers refuse
    (`spotify.play`) one that they take (`spotify_play`).

    Raises:
        UsageError: it is no mapping with a name.
    """
    body: Any = given.get("function", given) if isinstance(given, Mapping) else given
    if not isinstance(body, Mapping) or not isinstance(called := body.get("name"), str) or not called:
        raise UsageError(f"{cut_end(repr(given), 100)} is no tool", hint="write {name, description, parameters}")
    parameters: Any = next((body[key] for key in ("parameters", "inputSchema", "input_schema") if body.get(key)), {})
    if not isinstance(parameters, Mapping):
        raise UsageError(f"the parameters of '{called}' are no mapping", hint="write a JSON Schema of an object")
    if "properties" not in parameters and not isinstance(parameters.get("type"), str):  # xLAM's: by name
        properties = {name: part for name, part in parameters.items() if isinstance(part, Mapping)}
        required = [name for name, part in properties.items()
                    if "default" not in part and not _OPTIONAL.search(str(part.get("type")))]  # fmt: skip
        parameters = {"type": "object", "properties": properties, "required": required}
    return DeclaredTool(callable_name(called), called, str(body.get("description") or ""), _to_json_types(parameters))


def declared_tool(one: Tool, schema: Mapping[str, Any], *, is_strict: bool) -> Tool:
    """The tool that a schema declares: a call of `one`, which takes `name` and `arguments`."""
    found, run = parse_declared(schema), one.run

    def call(arguments: Mapping[str, Any], context: ToolContext) -> Any:
        return run({"name": found.called, "arguments": dict(arguments)}, context)

    return replace(
        one,
        name=found.name,
        description=found.description,
        parameters=found.parameters,
        identity=one.identity if found.called == found.name else f"{one.identity} {found.called}",  # for what is kept
        run=call,
        is_strict=is_strict,
    )


def _to_json_types(schema: Any) -> Any:
    """A schema with the types that JSON knows; values of its own (`default`, `enum`) stay as they are."""
    if isinstance(schema, list):
        return [_to_json_types(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            made[key] = {name: _to_json_types(part) for name, part in value.items()}
        elif key == "type" and isinstance(value, str) and value not in _TYPES:
            word = _OPTIONAL.sub("", value).partition("[")[0].strip().lower()
            if (known := _MEANT.get(word, word)) in _TYPES:  # any other word stands for any value
                made[key] = known
        elif key == "required" and not isinstance(value, list):
            continue
        elif key in ("default", "enum", "const", "examples"):
            made[key] = value
        else:
            made[key] = _to_json_types(value)
    return made


class ArgumentCheck:
    """A tool's schema, compiled once.

    Arguments that the schema does not name are refused, unless it says what to do with them
    (`additionalProperties`, `patternProperties` or a combination of schemas).

    Raises:
        UsageError: the schema is not valid JSON Schema, or is not one of an object.
    """

    __slots__ = ("_schema", "_validator", "fits")

    def __init__(self, schema: Mapping[str, Any], *, tool: str) -> None:
        strict = dict(schema)
        if strict.setdefault("type", "object") != "object":
            raise UsageError(
                f"the parameters of tool '{tool}' have type {schema['type']!r}; expected 'object'", hint=_SEE
            )
        if not _OPEN & strict.keys():
            strict["additionalProperties"] = False
        try:
            self._validator = BoundedValidator(strict)
        except ValueError as error:
            wrong = _no_type(strict)
            said = f"'{wrong}' is no type" if wrong else str(error).partition("\n")[0]
            hint = f"write {_MEANT[wrong]}" if wrong in _MEANT else _SEE
            raise UsageError(
                f"the parameters of tool '{tool}' are not a valid JSON Schema: {said}", hint=hint
            ) from error
        self._schema = strict
        self.fits: Callable[[Any], bool] = self._validator.is_valid

    def explain(self, arguments: Mapping[str, Any]) -> str:
        """The fault of arguments that do not fit: the argument, the found value, the expected one."""
        lines: list[str] = []
        for error in self._validator.errors(arguments):
            lines.extend(self._describe_error(error, arguments))
            if len(lines) >= _MAX_FAULTS:
                break
        return "; ".join(dict.fromkeys(lines[:_MAX_FAULTS])) or "they have too many parts to say which does not fit"

    def type_faults(self, arguments: Mapping[str, Any]) -> list[tuple[list[Any], list[str]]]:
        """The places at which a value's type is refused, with the JSON types allowed there; nothing else is listed."""
        found: list[tuple[list[Any], list[str]]] = []
        for error in self._validator.errors(arguments):
            if error.schema_path and str(error.schema_path[-1]) == "type":
                types = getattr(error.kind, "types", None) or self._types_at(error) or []
                listed = [types] if isinstance(types, str) else [str(name) for name in types]
                found.append((list(error.instance_path), listed))
        return found

    def _describe_error(self, error: jsonschema_rs.ValidationError, arguments: Mapping[str, Any]) -> list[str]:
        known = list(self._schema.get("properties", {}))
        place = _argument_place(list(error.instance_path))
        keyword = str(error.schema_path[-1]) if error.schema_path else ""
        if not error.instance_path and keyword == "additionalProperties":
            listed = f"expected: {cut_end(', '.join(known), _MAX_LISTED)}" if known else "the tool takes no arguments"
            extra = islice((name for name in arguments if name not in known), _MAX_FAULTS)
            return [
                f"unknown argument '{cut_end(name, _MAX_SHOWN)}'; {did_you_mean(name, known, otherwise=listed)}"
                for name in extra
            ]
        if keyword == "required":
            missing = str(getattr(error.kind, "property", "?"))
            inside = f" in {place}" if place else ""
            return [f"missing argument '{missing}'{inside}{self._expected_of(missing) if not place else ''}"]
        found = f"{place or 'the arguments'}: found {_show_value(error.instance)}"
        if keyword == "type":
            return [f"{found}, expected {_type_words(getattr(error.kind, 'types', None) or self._types_at(error))}"]
        if keyword == "enum":
            options = getattr(error.kind, "options", None) or []
            words = " or ".join(_show_value(option) for option in options[:_MAX_OPTIONS])
            return [f"{found}, expected {cut_end(words, 200)}" if words else f"{found}: {cut_end(error.message, 160)}"]
        return [f"{found}: {cut_end(error.message, 160)}"]

    def _expected_of(self, name: str) -> str:
        schema = self._schema.get("properties", {}).get(name, {})
        types = schema.get("type") if isinstance(schema, Mapping) else None
        return f" ({_type_words(types)})" if types else ""

    def _types_at(self, error: jsonschema_rs.ValidationError) -> Any:
        node: Any = self._schema
        for step in error.schema_path:
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                return None
        return node


def _type_words(types: Any) -> str:
    listed = [types] if isinstance(types, str) else list(types or [])
    return " or ".join(_TYPES.get(str(name), str(name)) for name in listed) or "another type"


def _argument_place(path: list[Any]) -> str:
    if not path:
        return ""
    name, *rest = path
    return f"argument '{cut_end(str(name), _MAX_SHOWN)}'" + cut_end("".join(f"[{step!r}]" for step in rest), 200)


def _show_value(value: Any) -> str:
    if isinstance(value, str):  # cut before rendering: a model may send megabytes
        value = cut_end(value, _MAX_SHOWN)
    elif isinstance(value, list):
        return f"a list of {len(value)}"
    elif isinstance(value, dict):
        return "an object"
    try:
        return cut_end(orjson.dumps(value).decode(), _MAX_SHOWN)
    except TypeError:
        return cut_end(repr(value), _MAX_SHOWN)


_NAMES = ("args", "task", "resources", "vars")

Filling = Callable[..., Any]
"""Filled by `filling(args=…, task=…)`."""


def read_parameters(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """From a call's arguments to what templates read as `args`.

    Every name of the schema is there: one that the call left out has its `default`, or None.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    defaults = {name: one.get("default") if isinstance(one, Mapping) else None for name, one in properties.items()}
    return lambda arguments: {**defaults, **arguments}


def compile_filling(
    value: Any,
    *,
    key: str,
    parameters: Mapping[str, Any],
    vars: Mapping[str, Any],
    resources: Collection[str] = (),
    write: Callable[[Any], str] | None = None,
) -> Filling:
    """Compiles `value`, in which every string is a template; secrets named in it are put in.

    Args:
        parameters: the tool's parameters, whose names `args` has.
        write: how what is filled into a text is written, but for `vars`; as it is without it.

    Raises:
        UsageError: a template cannot be read, or reads a name that is not there; a secret is not set.
        UnknownEntry: it reads a resource that is not there.
    """
    for place, text in templates.texts_at(key, value):
        _check_template(text, key=place, parameters=parameters)
        check_resources(text, key=place, resources=resources)
    marked, with_secrets = set_aside(value)
    fill = templates.compile_written(marked, write) if write is not None else templates.compile_value(marked)
    read = [templates.compile_template(text) for text in templates.texts_in(value)]
    names = {name for template in read for name in template.names}

    def fill_checked(*, args: Any, task: Any, resources: Any = _NO_RESOURCES) -> Any:
        try:
            return with_secrets(fill(args=args, task=task, resources=resources, vars=vars))
        except templates.TemplateError as error:
            if not (error.is_unfit and names & {"args", "resources"}):
                raise  # what earlier calls have left in resources is the policy's too
            is_long = isinstance(error.__cause__, OverflowError)
            said = f": {error.__cause__}" if is_long else ""
            reason = "too_large" if is_long else "bad_arguments"
            raise ToolFailed(f"the request cannot be written with these arguments{said}", reason=reason) from error

    return fill_checked


def is_dynamic(value: Any) -> bool:
    """True if a template in `value` reads what a call or a row fills in."""
    return any(templates.compile_template(text).names & {"args", "task"} for text in templates.texts_in(value))


def is_of_episode(value: Any) -> bool:
    """True if a template in `value` reads what differs from episode to episode."""
    return any(templates.compile_template(text).names & {"task", "resources"} for text in templates.texts_in(value))


def check_resources(text: str, *, key: str, resources: Collection[str]) -> None:
    """Raises UnknownEntry: a template reads a resource that is not there."""
    for path in sorted(templates.template_of(text, key=key).paths):
        if path[0] == "resources" and len(path) > 1 and path[1] not in resources:
            raise UnknownEntry("resources", path[1], tuple(resources), key=key)


def _check_template(text: str, *, key: str, parameters: Mapping[str, Any]) -> None:
    template = templates.template_of(text, key=key)
    named = list(parameters.get("properties", {}))
    for name in sorted(template.names - set(_NAMES)):
        listed = f"did you mean 'args.{name}'?" if name in named else f"known names: {', '.join(_NAMES)}"
        hint = did_you_mean(name, _NAMES, otherwise=listed)
        raise templates.UnfitTemplate(f"'{name}' is not known here", key=key, hint=hint, find=name)
    for path in sorted(template.paths):
        if path[0] == "args" and len(path) > 1 and path[1] not in named:
            hint = did_you_mean(path[1], named, otherwise="name it under 'parameters'", prefix="args.")
            found = ".".join(path[:2])
            raise templates.UnfitTemplate(f"there is no argument '{path[1]}'", key=key, hint=hint, find=found)


def folder_inside(path: Path, resources: Mapping[str, Any]) -> Path:
    """A folder that a call works in, without links.

    Raises:
        ToolFailed: it is none, or a link of the policy's making leads out of the episode's folder that it stands in.
    """
    own = [one.path for one in resources.values() if isinstance(one, Folder) and path.is_relative_to(one.path)]
    try:
        if (not own or not leads_out(path, own)) and path.is_dir():
            return real(path)
    except RefusedPath:
        pass
    raise ToolFailed("the folder that the tool works in is not there")
