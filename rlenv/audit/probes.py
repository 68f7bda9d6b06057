"""Calls that anybody can make who has read a tool's schema: wrong ones, empty ones, each flag and each named value."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlenv.audit.subject import Subject
from rlenv.messages import ToolCall, ToolResult
from rlenv.policies.scripted import random_value
from rlenv.tools.base import Tool

__all__ = ["Probe", "filler", "listed_names", "probes", "reading_probes", "schema_text"]

Probe = tuple[str, ToolCall]
"""What a call is, in the same words on every task, and the call."""

_WORDS = ("", "?", ".", "/", "*", "all", "list", "help", "answer", "solution")
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]{1,40})[`'\"]")
_FILE = re.compile(r"[\w./-]*\w\.\w{1,5}\b")
_NAME = re.compile(r"[\w./:-]+")
_MOST_NAMES = 12


def schema_text(tool: Tool) -> dict[str, str]:
    """What a policy reads of a tool before it has called it: its description, and all that its schema says."""
    said = list(_texts(dict(tool.parameters)))
    return {"description": tool.description, "schema": "\n".join(said)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in ("type", "required", "additionalProperties"):
                yield str(key)
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif value is not None:
        yield str(value)


def filler(tool: Tool, value: str = "?") -> dict[str, Any]:
    """Arguments that fit a tool and mean nothing: those it needs, texts as `value`."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    rng = random.Random(0)
    made = {}
    for name in tool.parameters.get("required", ()):
        part = properties.get(name, {})
        plain = part.get("type") == "string" and "enum" not in part and "const" not in part
        flag = part.get("type") == "boolean"
        whole = part.get("type") == "integer" and "enum" not in part
        least = max(int(part.get("minimum", 1)), min(1, int(part.get("maximum", 1)))) if whole else 0
        made[name] = value if plain else False if flag else least if whole else random_value(part, rng)
    return made


def probes(subject: Subject) -> list[Probe]:
    """The calls, without what the oracle itself calls: what that gives is there to be read."""
    found: list[Probe] = []
    own = {(call.name, repr(dict(call.arguments))) for call, _ in subject.oracle_calls()}
    for tool in subject.environment.parts.tools.values():
        if subject.submits(tool.name) or tool.mutates:
            continue
        name = tool.name
        found += [(f"{name}({word!r})", ToolCall(name, filler(tool, word))) for word in _words(tool)]
        found.append((f"{name} without arguments", ToolCall(name, {})))
        found.append((f"{name} with an unknown argument", ToolCall(name, {"zqx": 1})))
        base = filler(tool)
        bases = [("", base)]
        bases += [
            (" of what the oracle asks", dict(call.arguments))
            for call, _ in subject.oracle_calls()[:2]
            if call.name == name
        ]
        for label, arguments in bases:
            for key, value in _choices(tool):
                if arguments.get(key) != value or key not in arguments:
                    found.append((f"{name}({key}={value!r}){label}", ToolCall(name, {**arguments, key: value})))
        for key in base:
            found.append((f"{name}({key}=null)", ToolCall(name, {**base, key: None})))
    if subject.environment.parts.tools:
        found.append(("a tool that is not there", ToolCall("zqx", {})))
    kept = {label: call for label, call in found if (call.name, repr(dict(call.arguments))) not in own}
    return list(kept.items())[:80]


def _words(tool: Tool) -> list[str]:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    if not any(properties.get(name, {}).get("type") == "string" for name in tool.parameters.get("required", ())):
        return ["?"]
    return [*_WORDS, *_QUOTED.findall(tool.description)[:4]]


def _choices(tool: Tool) -> Iterator[tuple[str, Any]]:
    """Each value of each parameter that has but a few, or names some."""
    for name, part in tool.parameters.get("properties", {}).items():
        kinds = part.get("type")
        choices: list[Any] = (
            [True, False] if kinds == "boolean" or (isinstance(kinds, list) and "boolean" in kinds) else []
        )
        for option in part.get("anyOf", ()):
            choices += [True, False] if option.get("type") == "boolean" else option.get("enum", [])
        choices += list(part.get("enum", ()))[:8] + list(part.get("examples", ()))[:4]
        choices += [part["default"]] if "default" in part else []
        if kinds == "integer" and "default" in part:
            choices += [0, 1, 2, 3]
        if kinds == "string" and "enum" not in part:
            choices += _QUOTED.findall(str(part.get("description", "")))[:4]
        for value in choices:
            yield name, value


def listed_names(results: Mapping[str, ToolResult]) -> list[str]:
    """What a listing names: files first, else its first words."""
    texts = [result.text for result in results.values() if result.outcome == "ok" and len(result.text) < 4_000]
    files = dict.fromkeys(name for text in texts for name in _FILE.findall(text))
    names = files or dict.fromkeys(name for text in texts for name in _NAME.findall(text))
    return [name for name in names if 1 < len(name) < 80][:_MOST_NAMES]


def reading_probes(subject: Subject, names: list[str]) -> list[Probe]:
    """Each name that a listing has given, asked of each tool that takes one text."""
    found: list[Probe] = []
    own = {(call.name, repr(dict(call.arguments))) for call, _ in subject.oracle_calls()}
    for tool in subject.environment.parts.tools.values():
        properties: Mapping[str, Any] = tool.parameters.get("properties", {})
        needed = list(tool.parameters.get("required", ()))
        texts = [key for key in needed if properties.get(key, {}).get("type") == "string"]
        if len(needed) == 1 and texts and not tool.mutates and not subject.submits(tool.name):
            for index, name in enumerate(names):
                call = ToolCall(tool.name, {texts[0]: name})
                if (call.name, repr(dict(call.arguments))) not in own:
                    found.append((f"{tool.name}({name!r})", call))
                    found.append((f"{tool.name} of the name {index + 1} that is listed", call))
    return found
