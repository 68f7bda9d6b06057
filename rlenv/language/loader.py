"""A document to a typed spec, or every fault in it at once.

Entries under `tools`, `resources` and `rewards` and the steps of the oracle are dispatched to their own classes by
hand: pydantic's own unions report a mistake once for each branch, and never at the right place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rlenv._base.text import KeyPath, did_you_mean, nearest
from rlenv.errors import Finding, SpecError, UsageError
from rlenv.language import kinds as registry
from rlenv.language import spec as specs
from rlenv.language.dialect import CallSpec, ChatTemplateSpec, DialectSpec
from rlenv.language.document import SourceDocument, read_source
from rlenv.language.type_faults import describe, from_pydantic, join_options, keys_of
from rlenv.language.yamlwords import WORDS

__all__ = ["LoadedSpec", "load_spec", "loaded_of", "type_document"]

_Spec = TypeVar("_Spec", bound=specs.Spec)
_BASES: dict[registry.Group, type[specs.Spec]] = {
    "tools": specs.ToolSpec,
    "resources": specs.ResourceSpec,
    "rewards": specs.RewardSpec,
}


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A typed spec with the document that it came from.

    `digest` is the SHA-256 (hexadecimal) of the spec's content after `extends` and overrides, as JSON with sorted
    keys: equal content gives an equal digest, wherever the files stand.
    """

    spec: specs.EnvSpec
    document: SourceDocument
    path: Path
    digest: str

    def base_of(self, path: str) -> Path:
        """The folder that a relative path under the dotted key refers to; see `SourceDocument.base_of`."""
        return self.document.base_of(path)

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of `roots`: rows may name paths below them."""
        return tuple(self.base_of(f"roots.{index}") / root for index, root in enumerate(self.spec.roots))


def load_spec(path: str | os.PathLike[str], *, set: Mapping[str, Any] | None = None) -> LoadedSpec:
    """A spec file to its typed form.

    Args:
        set: overrides by dotted path (`{"limits.turns": 4}`); relative paths in them refer to the working directory.

    Raises:
        SpecError: with every fault of the document, in order of place. Templates, functions and files are not looked
            at yet: see `rlenv.checks.validate`.
    """
    return loaded_of(read_source(path, set=set))


def loaded_of(document: SourceDocument) -> LoadedSpec:
    """A document to its typed form; see `load_spec`.

    Raises:
        SpecError: with every fault of the document, in order of place.
    """
    spec = type_document(document)
    content = {key: value for key, value in document.written().items() if key != "extends"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return LoadedSpec(spec, document, document.path, hashlib.sha256(text.encode()).hexdigest())


class _Reading:
    """A document while it is typed, with the faults that were found in it; `cause` is pydantic's first error."""

    def __init__(self, document: SourceDocument) -> None:
        self.document, self.get = document, document.get
        self.faults: list[Finding] = []
        self.cause: ValidationError | None = None

    def fault(self, path: str | KeyPath, message: str, hint: str, **more: Any) -> None:
        """Adds a fault, as `SourceDocument.fault` makes it."""
        self.faults.append(self.document.fault(path, message, hint, **more))

    def typed(self, model: type[_Spec], value: Any, path: KeyPath) -> _Spec | None:
        """The value at `path` as an instance of its class; None where it is none, and `faults` has the reasons."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            self.cause = self.cause or error
            self.faults += from_pydantic(error, self.document, path, model)
            return None


def type_document(document: SourceDocument) -> specs.EnvSpec:
    """A document to a typed spec.

    Raises:
        SpecError: with every fault, in order of place.
    """
    reading = _Reading(document)
    data = dict(document.data)
    for group, placeholder in _BASES.items():
        section = data.get(group)
        if isinstance(section, Mapping):
            data[group] = {
                # A stand-in for a broken entry keeps the rest of the document checkable.
                name: _read_entry(reading, group, name) or placeholder.model_construct(kind="")
                for name in section
            }
    if isinstance(data.get("user"), Mapping):
        data["user"] = _user(reading) or specs.UserSpec.model_construct(kind="")
    if data.get("oracle") is not None:
        data["oracle"] = _oracle(reading, data["oracle"])
    if "dialect" in data:
        data["dialect"] = _dialect(reading)
    spec = reading.typed(specs.EnvSpec, data, ())
    version = document.get("rlenv")
    if version == 1 and type(version) is not int:  # pydantic takes true for 1
        reading.fault("rlenv", f"found {describe(version)}; expected 1", "write 1")
    reading.faults += (*_task_sources(document), *_unasked(document))
    if reading.faults or spec is None:
        raise SpecError(in_order(reading.faults, document)) from reading.cause
    return spec


def in_order(faults: Iterable[Finding], document: SourceDocument) -> list[Finding]:
    """Faults by file (overrides first, then the document's own), then by place, without repeats."""
    ranks = {os.fspath(file): rank for rank, file in enumerate(document.files)}
    unique = dict.fromkeys(faults)

    def place(fault: Finding) -> tuple[int, str, int, int]:
        # What was given on the command line is most likely what is wrong.
        rank = -1 if fault.file.startswith("--set ") else ranks.get(fault.file, len(ranks))
        return (rank, fault.file, fault.line, fault.column)

    return sorted(unique, key=place)


def _dialect(reading: _Reading) -> str | DialectSpec:
    """The name of a dialect, or the mapping that defines one."""
    value = reading.get("dialect")
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        message = f"found {describe(value)}; expected the name of a dialect, or a mapping that defines one"
        reading.fault("dialect", message, "write dialect: hermes")
        return "hermes"
    data = dict(value)
    calls = value.get("calls")
    if isinstance(calls, (list, tuple)):
        read = [_call_form(reading, ("dialect", "calls", index)) for index in range(len(calls))]
        data["calls"] = tuple(read) or calls
    elif isinstance(calls, Mapping):
        data["calls"] = _call_form(reading, ("dialect", "calls"))
    if "chat_template" in data:
        data["chat_template"] = _chat_template(reading)
    return reading.typed(DialectSpec, data, ("dialect",)) or "hermes"


def _chat_template(reading: _Reading) -> str | ChatTemplateSpec | None:
    """The template's file, or the mapping that names it."""
    path = ("dialect", "chat_template")
    value = reading.get(path)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        message = f"found {describe(value)}; expected the name of a .jinja file, or a mapping with it"
        reading.fault(path, message, "write {file: chat_template.jinja}")
        return None
    return reading.typed(ChatTemplateSpec, value, path)


def _call_form(reading: _Reading, path: KeyPath) -> CallSpec:
    value = reading.get(path)
    if not isinstance(value, Mapping):
        message = f"found {describe(value)}; expected a mapping that says how a call is written"
        reading.fault(path, message, "write {open: <call>, close: </call>}")
        return CallSpec()
    return reading.typed(CallSpec, value, path) or CallSpec()


def _read_entry(reading: _Reading, group: registry.Group, name: str) -> specs.Spec | None:
    path = (group, name)
    value = reading.get(path)
    if not isinstance(value, Mapping):
        close = nearest(value, registry.names(group)) if isinstance(value, str) else None
        hint = f"write {{kind: {close}}}" if close else "write {kind: …}"
        if isinstance(value, str) and (".py:" in value or value in registry.BUILT_IN["rules"]):
            kind = WORDS["told_kind"][group]["function"]
            key = "function" if ".py:" in value else "rule"
            hint = f'write {{kind: {kind}, {key}: "{value}"}}' if group == "rewards" or key == "function" else hint
        if value is None:  # it takes nothing out
            others = [other for other in reading.get(group) if other != name]
            hint = did_you_mean(name, others, otherwise="null takes out what a spec extends, and that has none such")
        reading.fault(path, f"found {describe(value)}; expected a mapping with a 'kind'", hint)
        return None
    kind = _read_kind(reading, group, path, "kind", value.get("kind"))
    if kind is not None and group == "rewards" and value["kind"] == "rule":
        is_own = "rule" not in value and "function" in value
        rule = value.get("rule")
        kind = registry.get("rules", "python") if is_own else _read_kind(reading, "rules", path, "rule", rule)
    return None if kind is None else reading.typed(kind.spec, value, path)


def _user(reading: _Reading) -> specs.Spec | None:
    value = reading.get("user")
    kind = _read_kind(reading, "users", ("user",), "kind", value.get("kind"))
    return None if kind is None else reading.typed(kind.spec, value, ("user",))


def _read_kind(
    reading: _Reading, group: registry.Group, path: tuple[str, ...], key: str, name: Any
) -> registry.Kind | None:
    if isinstance(name, str) and name in registry.BUILT_IN[group]:
        return registry.get(group, name)
    known = registry.names(group)  # asks every distribution that is installed: 2 ms
    if key not in reading.get(path):
        wrong = next((other for other in reading.get(path) if nearest(other, [key])), None)
        if wrong is not None and isinstance(reading.get((*path, wrong)), str):
            reading.fault((*path, wrong), "unknown key", f"did you mean '{key}'?", at="key")
        else:
            message = f"the key '{key}' is missing; expected one of {join_options(known, most=30)}"
            others = [name for name in reading.get(path[:-1]) if name != path[-1]]
            is_set = reading.document.key_span(path).file.startswith("--set ")
            close = nearest(str(path[-1]), others) if is_set else None
            if close is not None:  # a part of an entry was set, and there is no such entry
                message = f"there is no '{path[-1]}' under '{path[0]}'"
                reading.fault(path, message, f"did you mean '{path[0]}.{close}'?", at="key")
                return None
            likely = _infer_kind(group, reading.get(path)) or nearest(str(path[-1]), known)  # often its kind's name
            reading.fault(path, message, f"add '{key}: {likely or '…'}'", at="key", shown=".".join((*path, key)))
        return None
    if isinstance(name, str):
        try:
            return registry.get(group, name)
        except KeyError:
            told = _infer_kind(group, reading.get(path)) if key == "kind" else ""
            meant = f"write kind: {told}" if told else f"known: {join_options(known, most=30)}"
            if group == "rewards" and name in registry.names("rules"):
                meant = f"write kind: rule, rule: {name}"
            hint = did_you_mean(name, known, otherwise=meant)
            message = f"found '{name}'; expected a known {key}"
            reading.fault((*path, key), message, hint)
            return None
        except UsageError as error:
            reading.fault((*path, key), error.message, "reinstall or remove that distribution")
            return None
    reading.fault((*path, key), f"found {describe(name)}; expected text", f"write one of {join_options(known)}")
    return None


def _infer_kind(group: registry.Group, entry: Mapping[str, Any]) -> str:
    """The kind that the other keys of an entry tell, "" where none does."""
    return next((kind for key, kind in WORDS["told_kind"].get(group, {}).items() if key in entry), "")


_STEP = "write {say: …} or {call: {TOOL: {ARGUMENT: …}}}"


def _oracle(reading: _Reading, value: Any) -> Any:
    """The oracle in one of its forms; what stands in for a faulty one keeps the rest of the document checkable."""
    if isinstance(value, list):
        return [_oracle_step(reading, ("oracle", index)) or specs.OracleStep() for index in range(len(value))]
    if isinstance(value, Mapping) and not {"call", "say"}.intersection(value):
        return reading.typed(specs.OracleFunction, value, ("oracle",))
    if not isinstance(value, str):
        message = f"found {describe(value)}; expected a list of steps, {{function: …}} or a template"
        reading.fault("oracle", message, "write - before each step")
        return None
    return value


def _oracle_step(reading: _Reading, path: KeyPath) -> specs.Spec | None:
    step = reading.get(path)
    if not isinstance(step, Mapping):
        reading.fault(path, f"found {describe(step)}; expected a mapping with 'call' or 'say'", _STEP)
        return None
    if "call" not in step and "say" not in step:
        first = next(iter(step), "")
        hint = did_you_mean(first, dict.fromkeys(keys_of(specs.OracleStep)), otherwise=_STEP)
        if reading.document.has(("tools", first)):
            hint = f"write {{call: {{{first}: {{ARGUMENT: …}}}}}}"
        target = (*path, first) if step else path
        reading.fault(target, "expected a step with 'call' or 'say'", hint, at="key" if step else "value")
        return None
    before = len(reading.faults)
    if "call" in step:
        _check_calls(reading, (*path, "call"))
    if "expect" in step and "call" not in step:
        message = "found 'expect' in a step without a call, so that there is no result to look at"
        reading.fault((*path, "expect"), message, "move it to the step with the call", at="key")
    return reading.typed(specs.OracleStep, step, path) if len(reading.faults) == before else None


def _check_calls(reading: _Reading, path: KeyPath) -> None:
    value = reading.get(path)
    if isinstance(value, list):
        for index in range(len(value)):
            _check_calls(reading, (*path, index))
        return
    hint = "write {TOOL: {ARGUMENT: …}}"
    if not isinstance(value, (Mapping, str)) or not value:
        reading.fault(path, f"found {describe(value)}; expected {{tool: {{argument: value}}}}", hint)
        return
    is_named = isinstance(value, Mapping) and ("name" in value or "function" in value)  # a data set's form
    for tool, arguments in value.items() if isinstance(value, Mapping) and not is_named else ():
        if not isinstance(arguments, Mapping) and not (isinstance(arguments, str) and "{" in arguments):
            message = f"found {describe(arguments)}; expected a mapping of arguments"
            reading.fault((*path, tool), message, f"write {{{tool}: {{ARGUMENT: …}}}}")


def _unasked(document: SourceDocument) -> Iterator[Finding]:
    """A prompt that asks nothing, where no simulated user does either."""
    prompt = document.get("prompt")
    if not isinstance(prompt, Mapping) or "user" in prompt:
        return
    if not prompt.get("messages") and not isinstance(document.get("user"), Mapping):
        near = next((key for key in prompt if nearest(key, ["user"])), None)
        if near is None or near in keys_of(specs.PromptSpec):  # a misspelt key is reported already
            message = "the key 'user' is missing"
            yield document.fault("prompt", message, "add 'user: …'", at="key", shown="prompt.user")
    elif prompt.get("images"):
        message = "images stand in the user's message, and the prompt has none"
        yield document.fault("prompt.images", message, "add 'user: TEXT'", at="key")


_TASK_SOURCES = ("path", "function", "hf", "harbor", "reasoning_gym", "rows")
_OF_A_SOURCE = {"key": "path", "arguments": "function", "endless": "function"}


def _task_sources(document: SourceDocument) -> Iterator[Finding]:
    """Each split names exactly one source."""
    splits = document.get("tasks")
    for split in splits if isinstance(splits, Mapping) else ():
        source = splits[split]
        if not isinstance(source, Mapping):
            continue
        given = [key for key in _TASK_SOURCES if source.get(key) is not None]
        path = ("tasks", split)
        if not given:
            unknown = any(key not in specs.TaskSource.model_fields for key in source)
            if not unknown:  # a misspelt key is reported already
                hint = "add 'path: FILE.jsonl'"
                message = "expected 'path', 'function', 'hf', 'harbor', 'reasoning_gym' or 'rows'; found none"
                yield document.fault(path, message, hint, at="key")
        elif len(given) > 1:
            message = f"found {join_options(given).replace(' or ', ' and ')}; expected one of them"
            yield document.fault((*path, given[1]), message, f"remove '{given[1]}'", at="key")
        for key in ("rows", "path"):
            if source.get(key) == []:
                yield document.fault((*path, key), f"found no {key}; expected at least one", "add one")
        for key, needed in _OF_A_SOURCE.items():
            if source.get(key) and len(given) == 1 and given[0] != needed:
                message = f"'{key}' is read with '{needed}' only; found '{given[0]}'"
                yield document.fault((*path, key), message, f"remove '{key}'", at="key")
