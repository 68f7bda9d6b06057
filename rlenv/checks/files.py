"""Checks of the things that a spec names outside of itself: files for every row, and pinned servers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlenv._base.paths import RefusedPath, finder, is_file, is_folder, names_in
from rlenv._base.text import did_you_mean, nearest
from rlenv.checks.subject import Subject
from rlenv.episodes.compile import bases_of, entry_fault
from rlenv.errors import Finding, UsageError
from rlenv.images import UnreadableImage, image_of, listed, mime_of
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import ToolSpec
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.secrets import redact
from rlenv.tasks.files import task_files
from rlenv.tools.mcp import McpSpec, changes

_MOST_ROWS = 1_000

_KEYS = ("path", "init")
_ROOTS = "take such rows out, or name the folder under the spec's key 'roots'"
_FOLDERS = ("tempdir", "workspace")
_SQLITE_MAGIC = b"SQLite format 3\x00"  # https://www.sqlite.org/fileformat2.html, section 1.2.1


def check_files(subject: Subject) -> Iterator[Finding]:
    """Faults of the files under `resources` and `prompt.images`: the first that is missing for each key."""
    for index, root in enumerate(subject.loaded.roots):
        if not is_folder(root):
            message = f"there is no folder '{subject.loaded.spec.roots[index]}'"
            yield subject.document.fault(f"roots.{index}", message, _near(root, subject.loaded.spec.roots[index]))
    for index, source in enumerate(subject.loaded.spec.prompt.images):
        yield from _image(subject, f"prompt.images.{index}", source)
    for name, spec in subject.loaded.spec.resources.items():
        if name not in subject.resources:
            continue  # it does not compile, which is reported
        for key in _KEYS:
            value = getattr(spec, key, None)
            if isinstance(value, str):
                yield from _file(subject, f"resources.{name}.{key}", value, kind=spec.kind)
    rows = [row for split in subject.splits.values() for row in split.rows]
    for name, one in subject.resources.items():
        check: Any = getattr(one, "check_row", None)
        try:
            for row in rows if check is not None else ():
                check(row, subject.loaded.spec.vars)
        except UsageError as error:
            yield subject.document.fault(f"resources.{name}.image", error.message, error.hint)


def _image(subject: Subject, path: str, source: str) -> Iterator[Finding]:
    """The first image of some row that is no file, no data URL and no image of a resource."""
    try:
        template = compile_template(source)
    except TemplateError:
        return  # reported with the templates
    if "resources" in template.names:
        return  # known only while an episode runs
    constants = subject.loaded.spec.vars
    find = finder(template, base=subject.loaded.base_of(path), roots=subject.loaded.roots, vars=constants)
    rows: list[tuple[Mapping[str, Any], str]] = [({}, "")]
    if "task" in template.names:
        rows = [
            (row, f" (row {index + 1} of split '{split.name}')")
            for split in subject.splits.values()
            for index, row in enumerate(split.rows)
        ]
    seen: set[str] = set()
    for row, where in rows:
        try:
            value = template.value(task=row, vars=subject.loaded.spec.vars)
        except TemplateError:
            return  # reported with the templates
        for one in listed(value):
            if isinstance(one, str):
                if one in seen:
                    continue
                seen.add(one)
            try:
                if isinstance(one, str) and not one.startswith("data:"):
                    mime_of(find(one))
                else:
                    image_of(one, file=None)
            except RefusedPath as error:
                yield subject.document.fault(path, f"a row may not name this image{where}: {error}", _ROOTS)
                return
            except UnreadableImage as error:
                found = f"'{one[:60]}'" if isinstance(one, str) else f"a {type(one).__name__}"
                hint = _near(subject.loaded.base_of(path) / one, one) if isinstance(one, str) and len(one) < 256 else ""
                yield subject.document.fault(path, f"{found} is no image{where}: {error}", hint)
                return


def _file(subject: Subject, path: str, value: str, *, kind: str) -> Iterator[Finding]:
    try:
        template = compile_template(value)
    except TemplateError:
        return  # reported with the templates
    find = finder(
        template, base=subject.loaded.base_of(path), roots=subject.loaded.roots, vars=subject.loaded.spec.vars
    )
    is_folder_key = kind in _FOLDERS
    for written, where in _written(subject, template):
        try:
            file = find(written)
        except RefusedPath as error:
            yield subject.document.fault(path, f"a row may not name this path{where}: {error}", _ROOTS)
            return
        if not (is_folder(file) if is_folder_key else is_file(file)):
            message = f"there is no {'folder' if is_folder_key else 'file'} '{written[:200]}'{where}"
            yield subject.document.fault(path, message, _near(file, written))
            return
        if kind == "sqlite" and path.endswith(".path") and not _is_database(file):
            message = f"'{written}' is no SQLite database{where}"
            yield subject.document.fault(path, message, "name a database; for a file of SQL statements use 'init'")
            return


def _written(subject: Subject, template: Template) -> Iterable[tuple[str, str]]:
    """Each path that some row gives, with the first row that gives it."""
    constants: Mapping[str, Any] = subject.loaded.spec.vars
    found: dict[str, str] = {}
    try:
        if "task" not in template.names:
            return [(template.text(vars=constants), "")]
        for split in subject.splits.values():
            for index, row in enumerate(split.rows):
                written = template.text(task=row, vars=constants)
                found.setdefault(written, f" (row {index + 1} of split '{split.name}')")
    except TemplateError:
        return []  # reported with the templates
    return found.items()


def _is_database(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_SQLITE_MAGIC))
    except OSError:
        return False
    return start in (_SQLITE_MAGIC, b"")


def _near(file: Path, written: str) -> str:
    close = nearest(file.name, names_in(file.parent))
    if close:
        return f"did you mean '{written.removesuffix(file.name)}{close}'?"
    return "paths are relative to the file that names them"


def check_servers(subject: Subject) -> Iterator[Finding]:
    """Faults of `pin`: a tool that is gone, new or different, or a server that does not start.

    Every server with a pin is started once for it.
    """
    loaded = subject.loaded
    for name, spec in loaded.spec.tools.items():
        if not isinstance(spec, McpSpec) or spec.pin is None or subject.lacks("tools", name):
            continue
        path = f"tools.{name}"
        context = CompileContext(
            loaded.base_of(path), loaded.spec.vars, subject.resources, bases_of(loaded, path, spec)
        )
        try:
            found = changes(name, spec, context)
        except UsageError as error:
            yield entry_fault(subject.document, path, error)
            continue
        if found is not None:
            message = f"the server of '{name}' is not as it was pinned: {redact(found)}"
            yield subject.document.fault(f"{path}.pin", message, "look at the change, then: rlenv tools SPEC --pin")


def check_stores(subject: Subject) -> Iterator[Finding]:
    """Warnings of corpora without the columns that are searched, and of folders that hold the tasks themselves."""
    warn, loaded = subject.document.warning, subject.loaded
    for name, spec in loaded.spec.tools.items():
        if spec.kind == "search":
            yield from _corpus(subject, f"tools.{name}", spec)
    sources = {path.absolute() for name in subject.splits for _, path in task_files(loaded, name)}
    for name, resource in loaded.spec.resources.items():
        copied = getattr(resource, "path", None) if resource.kind in _FOLDERS else None
        folder = loaded.base_of(f"resources.{name}.path") / (copied or "")
        held = next((one for one in sources if copied and one.is_relative_to(folder.absolute())), None)
        if held is not None:
            message = f"the model's folder holds {held.name}, the tasks with their answers"
            yield warn(f"resources.{name}.path", message, "copy a folder of its own", "gold-in-prompt")


def _corpus(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """A column that no document has; a title and an id may be missing, but not where the spec names their columns."""
    document, fields = subject.document, getattr(spec, "columns", None)
    try:
        file = subject.loaded.base_of(f"{path}.path") / getattr(spec, "path", "")
        with file.open(encoding="utf-8") as lines:
            read = [json.loads(line) for line in itertools.islice(lines, _MOST_ROWS) if line.strip()]
    except (OSError, ValueError):
        return  # reported where it is compiled, or a template
    columns = {name for one in read if isinstance(one, dict) for name in one}
    for key in ("id", "title", "text"):
        column, place = getattr(fields, key, key), f"{path}.columns.{key}"
        if columns and column not in columns and (key == "text" or document.has(place)):
            hint = did_you_mean(column, columns) or "name one"
            at = place if document.has(place) else f"{path}.corpus"
            yield document.warning(at, f"no document has the column '{column}'", hint, "odd-column")
            return
