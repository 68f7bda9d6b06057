"""What the checks look at: a typed spec with its rows and with every part of it that compiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlenv import registry
from rlenv._nearest import nearest
from rlenv.calls.attach import governed
from rlenv.compile import nester
from rlenv.endpoints import Endpoint, compile_endpoint
from rlenv.errors import Fault, RlenvError, SpecError
from rlenv.functions import failure
from rlenv.loader import LoadedSpec
from rlenv.paths import is_file, is_folder, names_in
from rlenv.resources.base import Resource
from rlenv.rewards.base import Term, TermCompileContext
from rlenv.secrets import redact
from rlenv.source import SourceDocument
from rlenv.spec import Spec
from rlenv.tasks import load_tasks
from rlenv.tools.base import CompileContext, Tool

__all__ = ["MAX_BROKEN", "MAX_ROWS", "Split", "Subject", "split_message", "subject_of"]

MAX_ROWS = 10_000
"""So many rows of a split are looked at."""
MAX_BROKEN = 20
"""So many broken lines of a split are listed."""

_KEYED = re.compile(r"([a-z_]+(?:\.[\w-]+)*): (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of a split that were read; `columns` counts in how many of them each column is."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, int]


@dataclass(slots=True)
class Subject:
    """A spec under validation. Parts that do not compile are absent and have their faults in `faults`."""

    loaded: LoadedSpec
    splits: dict[str, Split] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    tools_are_known: bool = True
    """False where a tool does not compile, so that the names of all tools are not known."""

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of tools for hints: those that compile, and the entries that do not."""
        return tuple(dict.fromkeys((*self.tools, *self.loaded.spec.tools)))

    @property
    def document(self) -> SourceDocument:
        """The document behind the spec."""
        return self.loaded.document


def split_message(text: str) -> tuple[str, str]:
    """A message of the form `what is wrong; the nearest fix` in its two parts."""
    message, _, hint = text.rpartition("; ")
    return (message, hint) if message else (text, "")


def subject_of(loaded: LoadedSpec) -> Subject:
    """Reads the rows and compiles every part by itself, so that one broken entry does not hide the others."""
    subject = Subject(loaded)
    for name in loaded.spec.tasks:
        _read_split(subject, name)
    _compile(subject)
    return subject


def _read_split(subject: Subject, name: str) -> None:
    try:
        tasks = load_tasks(subject.loaded, name)
    except SpecError as error:
        subject.faults.extend(error.faults)
        return
    except RlenvError as error:
        subject.faults.append(subject.document.fault(f"tasks.{name}", *split_message(str(error))))
        return
    except Exception as error:  # a file of any content
        message = f"its rows cannot be read: {failure(error)}"
        subject.faults.append(subject.document.fault(f"tasks.{name}", message, "look at the file", at="key"))
        return
    rows: list[Mapping[str, Any]] = []
    broken = 0
    for index in range(min(len(tasks), MAX_ROWS)):
        try:
            rows.append(tasks[index])
        except SpecError as error:
            broken += 1
            if broken <= MAX_BROKEN:
                subject.faults.extend(error.faults)
    if broken > MAX_BROKEN:
        subject.not_checked.append(f"split {name}: {broken - MAX_BROKEN} more broken rows are not listed")
    if len(tasks) > MAX_ROWS:
        subject.not_checked.append(f"split {name}: only the first {MAX_ROWS:,} of {len(tasks):,} rows were looked at")
    columns = Counter(column for row in rows for column in row)
    if rows:
        subject.splits[name] = Split(name, rows, columns)


def _compile(subject: Subject) -> None:
    loaded, spec = subject.loaded, subject.loaded.spec

    def attempt(path: str, entry: Spec, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except SpecError as error:
            subject.faults.extend(error.faults)
        except RlenvError as error:
            # What only lacks an entry that is itself at fault is not at fault.
            if not any(f"'{name}'" in str(error) for name in broken):
                subject.faults.append(_entry_fault(subject.document, path, redact(str(error))))
        except Exception as error:  # a factory of a plug-in may fail in any way, and so may a signature
            message = f"it cannot be compiled: {redact(failure(error))}"
            subject.faults.append(subject.document.fault(path, message, "look at its values", at="key"))
        broken.add(path.partition(".")[2] or path)
        return None

    broken: set[str] = set()

    def bases(path: str, entry: Spec) -> dict[str, Path]:
        return {key: loaded.base_of(f"{path}.{key}") for key in type(entry).model_fields}

    endpoints: dict[str, Endpoint] = {}
    for name, endpoint_spec in spec.endpoints.items():
        path = f"endpoints.{name}"
        endpoint = attempt(path, endpoint_spec, lambda n=name, s=endpoint_spec: compile_endpoint(n, s))  # type: ignore[misc]
        if endpoint is not None:
            endpoints[name] = endpoint
    more: dict[str, Any] = {"endpoints": endpoints, "nest": nester(loaded.path), "roots": loaded.roots}
    for name, resource_spec in spec.resources.items():
        path = f"resources.{name}"
        context = CompileContext(loaded.base_of(path), spec.vars, {}, bases(path, resource_spec), **more)
        factory = registry.get("resources", resource_spec.kind).factory
        built = attempt(path, resource_spec, lambda f=factory, n=name, s=resource_spec, c=context: f(n, s, c))  # type: ignore[misc]
        if built is not None:
            subject.resources[name] = built
    for name, tool_spec in spec.tools.items():
        path = f"tools.{name}"
        context = CompileContext(
            loaded.base_of(path),
            spec.vars,
            subject.resources,
            bases(path, tool_spec),
            tools=dict(subject.tools),
            **more,
        )
        factory = registry.get("tools", tool_spec.kind).factory
        made = attempt(path, tool_spec, lambda f=factory, n=name, s=tool_spec, c=context: f(n, s, c))  # type: ignore[misc]
        if made:
            made = attempt(path, tool_spec, lambda m=made, n=name, s=tool_spec: governed(m, n, s, loaded))  # type: ignore[misc]
        if made is None:
            subject.tools_are_known = False
        for tool in made or ():
            if tool.name in subject.tools:
                fault = subject.document.fault(path, f"two tools are called '{tool.name}'", "rename one", at="key")
                subject.faults.append(fault)
            subject.tools[tool.name] = tool
    for name, reward_spec in spec.rewards.items():
        path = f"rewards.{name}"
        wanted = getattr(reward_spec, "tool", None)
        if isinstance(wanted, str) and wanted not in subject.tools:
            broken.add(name)
            continue  # reported at its own place, or the tool itself is at fault
        term_context = TermCompileContext(
            loaded.base_of(path),
            spec.vars,
            subject.resources,
            bases(path, reward_spec),
            subject.tools,
            spec.answer,
            **more,
        )
        factory = registry.get("rewards", reward_spec.kind).factory
        term = attempt(path, reward_spec, lambda f=factory, n=name, s=reward_spec, c=term_context: f(n, s, c))  # type: ignore[misc]
        if term is not None:
            subject.terms.append(term)
    if spec.user is not None:
        user_spec = spec.user
        context = CompileContext(loaded.base_of("user"), spec.vars, subject.resources, bases("user", user_spec), **more)
        user_factory = registry.get("users", user_spec.kind).factory
        attempt("user", user_spec, lambda: user_factory(user_spec, context))


def _named_by(value: str) -> tuple[str, ...]:
    """What a message may quote of a value such as `folder/file.py:function`."""
    where, _, function = value.rpartition(":")
    return (value, where, Path(where).name, function, Path(value).name)


def _entry_fault(document: SourceDocument, path: str, text: str) -> Fault:
    """A factory's message at the key that it names (`inject: there is no …`), at the entry otherwise."""
    match = _KEYED.fullmatch(text)
    message, hint = split_message(text)
    if match is not None and document.has(f"{path}.{match[1]}"):
        message, hint = split_message(match[2])
        place = f"{path}.{match[1]}"
        return document.fault(place, message, hint or _fix(document, place))
    for key in ("function", "factory", "python", "path", "corpus", "resource", "pattern"):
        value = document.get(f"{path}.{key}")
        if isinstance(value, str) and value and any(name and name in text for name in _named_by(value)):
            place = f"{path}.{key}"
            return document.fault(place, message, hint or _fix(document, place))
    return document.fault(path, message, hint, at="key")


def _fix(document: SourceDocument, place: str) -> str:
    """A fix for a factory's message that offers none: the nearest resource or file."""
    value = document.get(place)
    if not isinstance(value, str):
        return ""
    if place.rpartition(".")[2] in ("resource", "inject"):
        known = list(document.get("resources") or ())
        close = nearest(value, known)
        return f"did you mean '{close}'?" if close else f"resources: {', '.join(known) or 'none'}"
    if "{{" in value:
        return "set scope: episode" if document.get(f"{place.rpartition('.')[0]}.scope") == "process" else ""
    file = document.base_of(place) / value.partition(":")[0]
    if is_file(file) or not is_folder(file.parent):
        return "check the file's content" if is_file(file) else "paths are relative to the file that names them"
    close = nearest(file.name, names_in(file.parent))
    return f"did you mean '{value.replace(file.name, close)}'?" if close else "name a file that is there"
