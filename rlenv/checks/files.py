"""Checks of the things that a spec names outside of itself: files for every row, and pinned servers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlenv._base.paths import RefusedPath, finder, is_file, is_folder, names_in
from rlenv._base.text import did_you_mean, nearest
from rlenv.checks.odd_rows import asked_of, gold_term, golds_of
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
_DRAWN = re.compile(
    r"(?i)\b(?:random|randomblob)\(|\b(?:date|datetime|julianday)\('now'|\bcurrent_(?:date|timestamp)\b"
)

_KEYS = ("path", "init", "copy_from")
_ROOTS = "take such rows out, or name the folder under the spec's key 'roots'"
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
                yield from _file(subject, f"resources.{name}.{key}", value, is_database=spec.kind == "sqlite")
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


def _file(subject: Subject, path: str, value: str, *, is_database: bool) -> Iterator[Finding]:
    try:
        template = compile_template(value)
    except TemplateError:
        return  # reported with the templates
    find = finder(
        template, base=subject.loaded.base_of(path), roots=subject.loaded.roots, vars=subject.loaded.spec.vars
    )
    is_folder_key = path.endswith(".copy_from")
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
        if is_database and path.endswith(".path") and not _is_database(file):
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
    """Warnings of corpora, databases and folders: what cannot be found in them, and what gives the answers away."""
    term, warn = gold_term(subject), subject.document.warning
    pairs: list[tuple[str, int, str, str]] = []
    for one in asked_of(subject) if term is not None else ():
        golds = golds_of(subject, term, one) if term is not None else []
        pairs += [(one.split.name, index, user, gold) for index, (user, gold) in
                  enumerate(zip(one.users[:_MOST_ROWS], golds, strict=False))]  # fmt: skip
    for name, spec in subject.loaded.spec.tools.items():
        if spec.kind == "search":
            yield from _corpus(subject, f"tools.{name}", spec, pairs)
    sources = {path.absolute() for name in subject.splits for _, path in task_files(subject.loaded, name)}
    for name, resource in subject.loaded.spec.resources.items():
        copied, init = getattr(resource, "copy_from", None), getattr(resource, "init", None)
        folder = subject.loaded.base_of(f"resources.{name}.copy_from") / (copied or "")
        held = next((one for one in sources if copied and one.is_relative_to(folder.absolute())), None)
        if held is not None:
            message = f"the model's folder holds {held.name}, the tasks with their answers"
            yield warn(f"resources.{name}.copy_from", message, "copy a folder of its own", "gold-in-prompt")
        yield from _given_away(subject, f"resources.{name}.copy_from", copied, pairs)
        try:
            script = (
                (subject.loaded.base_of(f"resources.{name}.init") / init).read_text(encoding="utf-8") if init else ""
            )
        except (OSError, ValueError):
            script = ""
        drawn = _DRAWN.search(script)
        if drawn is not None:
            message = f"it is filled with {drawn[0]}…: each database is another one"
            yield warn(f"resources.{name}.init", message, "write the values out", "unsteady")
        written = re.search(r"(?i)\b(?:insert|copy|create\s+\w*\s*table\s+\w+\s+as|\.import|load|attach)\b", script)
        changes = any(re.search(r"(?i)\b(?:insert|update)\b", text) for text in _texts(subject))
        if re.search(r"(?i)\bcreate\s+table\b", script) and written is None and not changes:
            yield warn(f"resources.{name}.init", "its tables are made and never filled", "add INSERT INTO …", "no-rows")


def _given_away(
    subject: Subject, path: str, copied: str | None, pairs: Sequence[tuple[str, int, str, str]]
) -> Iterator[Finding]:
    """A file of the folder of each episode that holds nothing but the row's right answer."""
    held: Counter[str] = Counter()
    for split, index, _, gold in pairs[:20] if copied else ():
        try:
            part = compile_template(copied or "").text(
                task=subject.splits[split].rows[index], vars=subject.loaded.spec.vars
            )
            files = [one for one in (subject.loaded.base_of(path) / part).iterdir() if one.is_file()]
            held.update(one.name for one in files[:50] if one.stat().st_size < 200 and one.read_text().strip() == gold)
        except (TemplateError, OSError, ValueError):
            return
    for name, count in held.items():
        if count > 1 and 2 * count > len(pairs[:20]):
            message = f"the model's folder holds {name}, which is the right answer of its row"
            yield subject.document.warning(path, message, "take it out of the folder", "gold-in-prompt")
            return


def _texts(subject: Subject) -> Iterator[str]:
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    prompt = subject.loaded.spec.prompt
    yield f"{rows} {subject.document.get('oracle')} {prompt.system} {prompt.user}"


def _corpus(
    subject: Subject, path: str, spec: ToolSpec, pairs: Sequence[tuple[str, int, str, str]]
) -> Iterator[Finding]:
    """A search that finds everything or nothing, whose columns are others, or that has the questions themselves."""
    top_k, document = getattr(spec, "top_k", 3), subject.document
    try:
        file = subject.loaded.base_of(f"{path}.path") / getattr(spec, "path", "")
        if file.stat().st_size > 20_000_000:
            return
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return  # reported where it is compiled, or a template
    found = [one for one in found if isinstance(one, dict)]
    if 0 < len(found) <= top_k:
        message = f"the corpus has {len(found)} documents, and each search shows {top_k}"
        yield document.warning(f"{path}.top_k", message, "show fewer", "always-all")
    ids = Counter(str(one["id"]) for one in found if "id" in one)
    if ids and ids.most_common(1)[0][1] > 1:
        message = f"two documents have the id '{ids.most_common(1)[0][0]}'"
        yield document.warning(f"{path}.corpus", message, "mend it", "duplicate-rows")
    fields, place = getattr(spec, "fields", None), f"{path}.corpus"
    names = {key: getattr(fields, key, key) for key in ("id", "title", "text")}
    for key, column in names.items():
        # A title and an id may be missing; not where their columns are named.
        is_named = key == "text" or document.has(f"{path}.fields.{key}")
        if found and is_named and not any(column in one for one in found):
            near = did_you_mean(column, {name for one in found for name in one})
            at = f"{path}.fields.{key}" if document.has(f"{path}.fields.{key}") else place
            yield document.warning(at, f"no document has the column '{column}'", near or "name one", "odd-column")
            return
    texts, titles = ([str(one.get(names[key]) or "").strip() for one in found] for key in ("text", "title"))
    if (empty := sum(not one for one in texts)) * 3 > len(texts):
        message = f"the column '{names['text']}' is empty in {empty} of {len(texts)} documents"
        yield document.warning(place, message, "fill it, or name another one", "odd-column")
    elif sum(map(len, titles)) > 2 * sum(map(len, texts)):
        message = f"titles ('{names['title']}') are longer than texts ('{names['text']}')"
        yield document.warning(path, message, "exchange title and text under 'fields'", "odd-column", at="key")
    yield from _found(subject, path, spec, pairs, [f"{a} {b}" for a, b in zip(titles, texts, strict=True)], texts)


def _found(subject: Subject, path: str, spec: ToolSpec, pairs: Sequence[tuple[str, int, str, str]],
           whole: Sequence[str], texts: Sequence[str]) -> Iterator[Finding]:  # fmt: skip
    """Right answers that stand in no document, in none as it is shown, or beside their very question."""
    warn, most = subject.document.warning, getattr(spec, "max_chars", 2_000)
    worded = [(where, index, _plain(user), _plain(gold)) for where, index, user, gold in pairs
              if re.search(r"[^\W\d_]{3}", gold) and _plain(gold) not in _plain(user)
              and gold.strip().lower() not in ("yes", "no", "true", "false")]  # fmt: skip
    term = gold_term(subject)
    if not worded or getattr(getattr(term, "spec", None), "rule", "") not in ("exact_match", "f1", "contains"):
        return
    plain = [_plain(one) for one in whole]
    everything, cut = " | ".join(plain), " | ".join(_plain(one[:most]) for one in texts)
    lost = [one for one in worded if one[3] not in everything]
    heads = " | ".join(_plain(one[: len(one) - len(text)]) for one, text in zip(whole, texts, strict=True))
    hidden = [one for one in worded if one[3] in everything and one[3] not in f"{cut} | {heads}"]
    alone = sum(one.kind in ("search", "calculator") for one in subject.loaded.spec.tools.values())
    is_only = alone == len(subject.loaded.spec.tools)
    if lost and (3 * len(lost) <= len(worded) or (len(lost) == len(worded) > 3 and is_only)):
        what = "the gold value" if len(lost) < len(worded) else "each gold value, such as that"
        message = f"{what} of row {lost[0][1] + 1} of split '{lost[0][0]}' stands in no document: {lost[0][3][:40]!r}"
        yield warn(f"{path}.corpus", message, "mend it", "odd-gold")
    elif 2 * len(hidden) > len(worded):
        message = f"documents are cut after {most} characters, and {len(hidden)} of {len(worded)} answers stand behind"
        yield warn(f"{path}.max_chars", message, "show more", "cut-answer")
    given = [one for one in worded if len(one[2]) > 20 and any(one[2] in text and one[3] in text for text in plain)]
    if 5 * len(given) >= len(worded) and given:
        message = f"a document holds the question of row {given[0][1] + 1} of split '{given[0][0]}' with its answer"
        yield warn(f"{path}.corpus", message, "take such documents out", "gold-in-prompt")


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()
