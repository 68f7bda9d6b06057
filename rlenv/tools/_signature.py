"""From a Python function, with its docstring, to the JSON Schema of its parameters, and from JSON to its arguments."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import JsonSchemaMode

from rlenv._base.text import did_you_mean
from rlenv.errors import ToolFailed, UsageError, told_as

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params)\s*:\s*$")
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Keyword Args|Other Parameters|Returns?|Yields?|Raises|Examples?|Notes?|"
    r"Warnings?|See Also|References|Attributes|Todo)\s*:?\s*$"
)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_SPHINX_ANY = re.compile(r":\w+[^:]*:")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the descriptions of parameters by name; white space is folded.

    Reading never raises; what is not understood is left out.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    head: list[str] = []
    found: dict[str, list[str]] = {}
    index = 0
    in_head = True
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        is_ruled = len(following) >= 3 and not following.strip("-")
        if match := _SPHINX.match(line.strip()):
            in_head = False
            index = _read_sphinx(lines, index, match, found)
        elif _SECTION.match(line) and (is_ruled or line.rstrip().endswith(":")):
            in_head = False
            if is_ruled and line.strip().rstrip(":") in ("Parameters", "Other Parameters", "Args"):
                index = _read_numpy(lines, index + 2, found)
            elif _GOOGLE.match(line):
                index = _read_google(lines, index + 1, found)
            else:
                index += 1
        else:
            if _SPHINX_ANY.match(line.strip()):
                in_head = False
            if in_head:
                head.append(line)
            index += 1
    return _fold_lines(head), {name: " ".join(" ".join(parts).split()) for name, parts in found.items()}


def _fold_lines(lines: list[str]) -> str:
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read_sphinx(lines: list[str], index: int, match: re.Match[str], found: dict[str, list[str]]) -> int:
    parts = found.setdefault(match[1], [])
    parts.append(match[2])
    depth = _indent(lines[index])
    index += 1
    while index < len(lines) and lines[index].strip() and _indent(lines[index]) > depth:
        parts.append(lines[index].strip())
        index += 1
    return index


def _read_google(lines: list[str], index: int, found: dict[str, list[str]]) -> int:
    depth: int | None = None
    parts: list[str] = []
    while index < len(lines):
        line = lines[index]
        if line.strip():
            indent = _indent(line)
            if indent == 0:
                break
            depth = indent if depth is None else depth
            match = _GOOGLE_ITEM.match(line.strip()) if indent <= depth else None
            if match:
                parts = found.setdefault(match[1], [])
                parts.append(match[2])
            else:
                parts.append(line.strip())
        index += 1
    return index


def _read_numpy(lines: list[str], index: int, found: dict[str, list[str]]) -> int:
    current: list[list[str]] = []
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        if line.strip():
            if _indent(line) == 0:
                if len(following) >= 3 and not following.strip("-"):
                    break
                match = _NUMPY_ITEM.match(line.strip())
                if not match:
                    break
                current = [found.setdefault(name.strip(" *"), []) for name in match[1].split(",")]
            else:
                for parts in current:
                    parts.append(line.strip())
        index += 1
    return index


_WORDS: dict[str, str] = {
    **dict.fromkeys(("text", "string", "str"), "string"),
    **dict.fromkeys(("number", "float"), "number"),
    **dict.fromkeys(("integer", "int"), "integer"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("list", "array"), "array"),
    "object": "object",
}
# JSON values that such parameters take as they are.
_AS_THEY_ARE = (str, bool, float, dict, list, Any, object, type(None))
_MODE: JsonSchemaMode = "validation"


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters as JSON Schema, and what makes Python values of fitting arguments, if needed."""

    description: str
    parameters: Mapping[str, Any]
    convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None


def expand_shorthand(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`{text: string, limit: integer}` as JSON Schema; a mapping that is a schema already is returned as it stands.

    Raises:
        UsageError: a type's name is not known.
    """
    if parameters.get("type") == "object" or isinstance(parameters.get("properties"), Mapping):
        return {"type": "object", **parameters}
    properties: dict[str, Any] = {}
    for name, given in parameters.items():
        if isinstance(given, Mapping):
            properties[name] = dict(given)
        elif isinstance(given, str) and given.rstrip("?") in _WORDS:
            properties[name] = {"type": _WORDS[given.rstrip("?")]}
        else:
            known = ", ".join(dict.fromkeys(_WORDS.values()))
            message = f"parameter '{name}' has type {given!r}; expected one of {known}, or a JSON Schema"
            raise UsageError(message, key=name, hint=did_you_mean(str(given), _WORDS, otherwise="write string"))
    required = [
        name
        for name, given in parameters.items()
        if not (isinstance(given, str) and given.endswith("?"))
        and not (isinstance(given, Mapping) and "default" in given)
    ]
    return {"type": "object", "properties": properties, "required": required}


def read_signature(
    function: Callable[..., Any],
    *,
    name: str,
    injected: Sequence[str],
    parameters: Mapping[str, Any] | None = None,
    injectable: Collection[str] = (),
) -> Signature:
    """The signature of `function` without its injected parameters; `parameters`, where given, replace its types.

    Args:
        injectable: what could be injected, for hints.

    Raises:
        UsageError: a parameter has no type, or one that JSON cannot give; an injected name is not a parameter.
    """
    description, described = read_docstring(inspect.getdoc(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the signature of '{name}' cannot be read ({error})", hint="give its parameters") from error
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    for hidden in injected:
        if hidden not in signature.parameters and not takes_any:
            raise UsageError(
                f"'{name}' has no parameter '{hidden}' to inject", hint=f"it has: {', '.join(signature.parameters)}"
            )
    shown = {key: one for key, one in signature.parameters.items() if key not in injected}
    if parameters is not None:
        schema = expand_shorthand(parameters)
        _check_names(schema, shown, name=name, takes_any=takes_any)
        return Signature(description, schema, None)
    for key, one in shown.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise UsageError(f"'{name}' takes '{one}', which a call by name cannot give", hint="name its parameters")
        if one.annotation is inspect.Parameter.empty:
            hint = "write one, or give the tool's parameters"
            if key in injectable:  # a type would show it to the model
                hint = f"add inject: [{', '.join((*injected, key))}]"
            raise UsageError(f"parameter '{key}' of '{name}' has no type", hint=hint)
    return _signature_from_types(function, shown, name=name, description=description, described=described)


def _check_names(
    schema: Mapping[str, Any], shown: Mapping[str, inspect.Parameter], *, name: str, takes_any: bool
) -> None:
    given = schema.get("properties", {})
    if not takes_any and (unknown := [key for key in given if key not in shown]):
        raise UsageError(f"'{name}' has no parameter '{unknown[0]}'", hint=f"it has: {', '.join(shown) or 'none'}")
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for key, one in shown.items():
        if one.kind in plain and one.default is one.empty and key not in given:
            raise UsageError(f"parameter '{key}' of '{name}' is missing in the tool's parameters")


def _signature_from_types(
    function: Callable[..., Any],
    shown: Mapping[str, inspect.Parameter],
    *,
    name: str,
    description: str,
    described: Mapping[str, str],
) -> Signature:
    with told_as(UsageError, f"the types of '{name}' cannot be read:", NameError, TypeError, AttributeError):
        target = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(target, include_extras=True)
    adapters: dict[str, TypeAdapter[Any]] = {}
    for key in shown:
        try:
            adapters[key] = TypeAdapter(hints[key])
            adapters[key].json_schema(mode=_MODE)
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
            raise UsageError(
                f"parameter '{key}' of '{name}' has a type that JSON cannot give ({_type_name(hints[key])})",
                hint="use a JSON type, or inject it",
            ) from error
    by_key, extra = TypeAdapter.json_schemas([(key, _MODE, adapter) for key, adapter in adapters.items()])
    properties: dict[str, Any] = {}
    for key, one in shown.items():
        schema = {word: value for word, value in by_key[(key, _MODE)].items() if word != "title"}
        if key in described and "description" not in schema:
            schema["description"] = described[key]
        if one.default is not one.empty and one.default is not None and _is_json(one.default):
            schema.setdefault("default", one.default)
        properties[key] = schema
    required = [key for key, one in shown.items() if one.default is one.empty]
    whole: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if extra.get("$defs"):
        whole["$defs"] = extra["$defs"]
    return Signature(description, whole, _make_converter(hints, adapters))


def _make_converter(
    hints: Mapping[str, Any], adapters: Mapping[str, TypeAdapter[Any]]
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]] | None:
    rich = {key: one for key, one in adapters.items() if hints[key] not in _AS_THEY_ARE and hints[key] is not int}
    whole = frozenset(key for key in adapters if hints[key] is int)
    if not rich and not whole:
        return None

    def convert(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        changed: dict[str, Any] | None = None
        for key, value in arguments.items():
            if key in whole:
                if type(value) is not float:
                    continue
                new: Any = int(value)  # JSON Schema takes 3.0 for an integer
            elif key in rich:
                try:
                    new = rich[key].validate_python(value)
                except ValidationError as error:
                    first = error.errors(include_url=False, include_context=False)[0]
                    place = "".join(f"[{step!r}]" for step in first["loc"])
                    raise ToolFailed(f"argument '{key}'{place}: {first['msg']}", reason="bad_arguments") from error
            else:
                continue
            changed = dict(arguments) if changed is None else changed
            changed[key] = new
        return arguments if changed is None else changed

    return convert


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return isinstance(value, (str, int, float, bool, list, dict))


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
