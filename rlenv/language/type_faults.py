"""pydantic's errors as faults in plain words: what was found, what was expected, the nearest fix."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlenv._base.text import KeyPath, did_you_mean
from rlenv.errors import Finding
from rlenv.language.document import SourceDocument
from rlenv.language.spec import PolicySpec, Spec
from rlenv.language.yamlwords import WORDS

_MOST = 200


def describe(value: Any) -> str:
    """A value as a person would name it: `the text "3"`, `3`, `a list`."""
    if isinstance(value, str):
        shown = json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
        return f"the text {shown}"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    return str(value)


def join_options(options: Iterable[str], *, most: int = 12) -> str:
    """Options for a message: `a, b or c`; at most `most` of them."""
    names = list(options)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def keys_of(model: type[Spec]) -> tuple[str, ...]:
    """The keys that a mapping of the language takes, as they are written: its own before those around its calls."""
    # A base class's fields come first, and those that every tool takes are seldom the ones that are looked for.
    fields = sorted(model.model_fields.items(), key=lambda item: item[0] in PolicySpec.model_fields)
    return tuple(field.alias or name for name, field in fields)


ELSEWHERE: Final[Mapping[str, str]] = WORDS["elsewhere"]
"""Keys that other libraries have on top, or of each entry, and where this language says the same."""


def unknown_key(document: SourceDocument, path: KeyPath, known: Iterable[str]) -> Finding:
    """A fault at a key that its mapping does not take."""
    names = tuple(known)
    key = ELSEWHERE.get(".".join(map(str, (*path[:-1:2], path[-1]))), "")
    near = did_you_mean(str(path[-1]), names, otherwise=f"known keys: {join_options(names, most=20)}")
    hint = f"write it under '{key}'" if key.partition(".")[0] in names else near
    if "endpoint" in names and path[-1] in ("model", "base_url", "api_key"):
        hint = "it belongs to a server: endpoints: {NAME: {base_url: …, model: …}}, and here endpoint: NAME"
    return document.fault(path, "unknown key", hint, at="key")


@dataclass(slots=True)
class _Expectation:
    """All that was expected of one value: a union names several things. `said` is what a validator said, in words."""

    value: Any
    wanted: list[str]
    hints: list[str]
    said: str = ""


def from_pydantic(error: ValidationError, document: SourceDocument, base: KeyPath, model: type[Spec]) -> list[Finding]:
    """The faults behind an error in the mapping at `base`, which should have been a `model`."""
    faults: list[Finding] = []
    wrong: dict[KeyPath, _Expectation] = {}
    details = error.errors(include_url=False)
    if len(details) > _MOST:
        more = f"there are {len(details) - _MOST:,} more faults in this mapping"
        faults.append(document.fault(base, more, f"mend the first {_MOST} of them", at="key"))
    for detail in details[:_MOST]:
        path = _locate(document, base, detail["loc"])
        kind = detail["type"]
        if kind == "missing":
            name = str(detail["loc"][-1])
            if isinstance(items := document.get(path), list):
                message = f"found a list of {len(items)}; expected one that is longer"
                faults.append(document.fault(path, message, f"write item {len(items) + 1} too, as in [0, 1]"))
                continue
            shown = ".".join(map(str, (*path, name)))
            hint = f"add '{name}: …'"
            faults.append(document.fault(path, f"the key '{name}' is missing", hint, at="key", shown=shown))
        elif kind == "extra_forbidden":
            owner = _owner(model, path[len(base) : -1], document, base)
            faults.append(unknown_key(document, path, keys_of(owner) if owner is not None else ()))
        else:
            entry = wrong.setdefault(path, _Expectation(document.get(path), [], []))
            if kind == "by_row":  # what else it may be is said
                continue
            if kind in ("value_error", "assertion_error"):
                entry.said = entry.said or str(detail.get("ctx", {}).get("error", detail["msg"]))
                continue
            wanted, hint = _expectation(detail, entry.value)
            hint = WORDS["instead"].get(f"{path[-1] if path else ''}: {wanted}", hint)
            if not hint and wanted == "a mapping":
                at = path[len(base) :]
                owner, is_named = _owner(model, at, document, base), _owner(model, (*at, "NAME"), document, base)
                hint = _mapping_of(entry.value, str(path[-1]), keys_of(owner)) if owner else ""
                hint = f"write {{NAME: {{{keys_of(is_named)[0]}: …}}}}" if is_named else hint or "write {NAME: …}"
            if wanted not in entry.wanted:
                entry.wanted.append(wanted)
                entry.hints.append(hint)
    deeper = {fault.path for fault in faults} | {".".join(map(str, path)) for path in wrong}
    for path, entry in wrong.items():
        dotted = ".".join(map(str, path))
        if isinstance(entry.value, (Mapping, list)) and any(other.startswith(f"{dotted}.") for other in deeper):
            continue  # it may be a mapping: what is wrong in it is said
        if entry.said:
            faults.append(document.fault(path, entry.said))
            continue
        message = f"found {describe(entry.value)}; expected {' or '.join(entry.wanted)}"
        faults.append(document.fault(path, message, next((hint for hint in entry.hints if hint), "")))
    return faults


def _mapping_of(value: Any, name: str, keys: tuple[str, ...]) -> str:
    """What to write where a mapping with these keys is called `name`, and is only a text."""
    if name in keys:  # the mapping that holds it takes names, and this is a key of what each name has
        return f"write it below a name: {{NAME: {{{name}: …}}}}"
    key = next((one for one in WORDS["first_keys"] if one in keys), "") if isinstance(value, str) else ""
    if not key:
        return f"write a mapping with keys such as: {join_options(keys, most=4)}"
    return f"write {{{key}: {value}}}" if re.fullmatch(r"[\w./-]{1,60}", value) else f"write {{{key}: …}}"


def _locate(document: SourceDocument, base: KeyPath, loc: tuple[int | str, ...]) -> KeyPath:
    """The part of a location that is there in the document. Names of union branches are no keys and are left out."""
    path = base
    for part in loc:
        if document.has((*path, part)):
            path = (*path, part)
    return path


def _owner(model: type[Spec], path: KeyPath, document: SourceDocument, base: KeyPath) -> type[Spec] | None:
    """The class of the mapping at `path` below a `model`, which stands at `base`."""
    current: Any = model
    is_key = False
    at = base
    for part in path:
        at = (*at, part)
        if is_key or isinstance(part, int):  # a name that the author chose, or a place, in what holds specs
            is_key = False
            continue
        if isinstance(current, type) and issubclass(current, Spec):
            field = next((f for name, f in current.model_fields.items() if part in (name, f.alias)), None)
            if field is None:
                return None
            current = field.annotation
            is_key = get_origin(current) is Mapping
        specs = _specs_in(current)
        current = _chosen_class(specs, document.get(at)) if specs else None
    return current if isinstance(current, type) and issubclass(current, Spec) else None


def _chosen_class(specs: list[type[Spec]], value: Any) -> type[Spec]:
    """The one of several classes that a mapping says it is, by a key with one word for each (`by: number`)."""
    if isinstance(value, Mapping):
        for spec in specs:
            for name, field in spec.model_fields.items():
                if get_origin(field.annotation) is Literal and value.get(name) in get_args(field.annotation):
                    return spec
    return specs[0]


def _specs_in(annotation: Any) -> list[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec for inner in get_args(annotation) for spec in _specs_in(inner)]


def _expectation(detail: ErrorDetails, value: Any) -> tuple[str, str]:
    """The expected value, and the nearest fix."""
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind in WORDS["expected"]:
        return WORDS["expected"][kind], _retype(kind, value)
    if kind in WORDS["bounds"]:
        name, words = WORDS["bounds"][kind]
        return words.format(context[name]), _bound_hint(kind, context[name])
    if kind in ("literal_error", "enum"):
        options = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        if not options:
            wanted = str(context.get("expected", detail["msg"]))
            return wanted, f"write {wanted}"
        near = did_you_mean(value, options) if isinstance(value, str) else ""
        return join_options(options, most=30), near or f"write {options[0]}"
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern", ""))
        plain = unicodedata.normalize("NFKD", str(value).lower()).encode("ascii", "ignore").decode()
        slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
        fits = bool(slug) and re.fullmatch(pattern.strip("^$"), slug) is not None
        return f"text that matches {pattern}", f"write '{slug}'" if fits else ""
    if kind in ("too_short", "string_too_short"):
        least = context.get("min_length", 1)
        unit = "characters" if kind.startswith("string") else "entries"
        return (
            f"at least {least} {unit if least != 1 else unit[:-3] + 'y' if unit == 'entries' else 'character'}",
            "add one",
        )
    if kind in ("too_long", "string_too_long"):
        most = context.get("max_length")
        return f"at most {most} {'characters' if kind.startswith('string') else 'entries'}", "remove some"
    return detail["msg"][:1].lower() + detail["msg"][1:], ""


def _retype(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return "put it in quotes"
    if kind == "string_type" and isinstance(value, Mapping):
        return 'put a template in quotes: "{{ … }}"' if not value else "write one text"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return "remove the quotes"
    if kind in ("int_type", "int_from_float") and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind == "bool_type" and isinstance(value, str):
        truth = {"yes": "true", "on": "true", "no": "false", "off": "false", "true": "true", "false": "false"}
        return f"write {truth[value.lower()]}" if value.lower() in truth else ""
    if kind in ("list_type", "tuple_type") and isinstance(value, (str, int, float)):
        words = re.findall(r"(?:\{\{.*?\}\}|\S)+", str(value))  # a program and its arguments
        words = [json.dumps(one) if re.search(r"[{}'\"#:|&>]", one) else one for one in words]
        return f"put it in brackets: [{', '.join(words) if len(words) <= 8 and ',' not in str(value) else ' … '}]"
    if value is None:
        return "write a value, or remove the key"
    written = {"int_type": "8", "float_type": "1.5", "finite_number": "0.01"}
    return f"write a number such as {written[kind]}" if kind in written else ""


def _bound_hint(kind: str, bound: Any) -> str:
    if kind == "greater_than_equal":
        return f"write {bound} or more"
    if kind == "less_than_equal":
        return f"write {bound} or less"
    return f"write {bound + 1}" if kind == "greater_than" else f"write {bound - 1}"
