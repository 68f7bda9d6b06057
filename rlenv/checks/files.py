"""Checks of the things that a spec names outside of itself: files for every row, pinned servers and functions."""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import os.path
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import RefusedPath, finder, is_file, is_folder, names_in
from rlenv._base.text import did_you_mean, nearest, strings_in
from rlenv.checks.odd_rows import asked_of, odd_documents, odd_ids
from rlenv.checks.subject import MAX_ROWS, PATTERNS, Subject, all_golds, fill_template, gold_columns, gold_term
from rlenv.episodes.compile import bases_of, entry_fault
from rlenv.errors import Finding, UsageError
from rlenv.images import UnreadableImage, image_of, listed, mime_of
from rlenv.language.kinds import CompileContext, gold_in, kind_of
from rlenv.language.spec import ToolSpec
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.secrets import redact
from rlenv.tasks.files import task_files
from rlenv.tools._signature import read_docstring
from rlenv.tools.mcp import McpSpec, describe_changes

_MOST_ROWS = 1_000
_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_ISOLATED: Final = "read the text as what it is, or take a tool of kind code or a command with sandbox: bubblewrap"
_SEEDED: Final = "draw from random.Random(seed), and fix what is told of time"
_BROAD: Final = ("BaseException", "Exception")
_IN_PLACE: Final = frozenset("add append clear discard extend insert pop remove setdefault update".split())

_KEYS = ("path", "init")
_ROOTS = "take such rows out, or name the folder under the spec's key 'roots'"
_FOLDERS = ("tempdir", "workspace")
_SQLITE_MAGIC = b"SQLite format 3\x00"  # https://www.sqlite.org/fileformat2.html, section 1.2.1


def check_files(subject: Subject) -> Iterator[Finding]:
    """Faults of files of `resources`, images and folders of tests: the first that is missing for each key."""
    for index, root in enumerate(subject.loaded.roots):
        if not is_folder(root):
            message = f"there is no folder '{subject.loaded.spec.roots[index]}'"
            yield subject.document.fault(f"roots.{index}", message, _hint(root, subject.loaded.spec.roots[index]))
    for index, source in enumerate(subject.loaded.spec.prompt.images):
        yield from _check_image(subject, f"prompt.images.{index}", source)
    for name, spec in subject.loaded.spec.resources.items():
        if name not in subject.resources:
            continue  # it does not compile, which is reported
        for key in _KEYS:
            value = getattr(spec, key, None)
            if isinstance(value, str):
                yield from _check_file(subject, f"resources.{name}.{key}", value, kind=spec.kind)
    for name, reward in subject.loaded.spec.rewards.items():
        if reward.kind == "workspace" and isinstance(tests := getattr(reward, "tests", None), str):
            yield from _check_file(subject, f"rewards.{name}.tests", tests, kind="workspace")
    for name, one in subject.resources.items():
        check: Any = getattr(one, "check_row", None)
        for row, where in _rows_with_places(subject) if check is not None else ():
            try:
                check(row, subject.loaded.spec.vars)
            except UsageError as error:
                path = f"resources.{name}.{error.key or 'image'}"
                yield subject.document.fault(path, f"{error.message}{where if error.key else ''}", error.hint)
                break


def _rows_with_places(subject: Subject) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each row, and where it stands, in words that follow a message."""
    for split in subject.splits.values():
        for index, row in enumerate(split.rows):
            yield row, f" (row {index + 1} of split '{split.name}')"


def _check_image(subject: Subject, path: str, source: str) -> Iterator[Finding]:
    """The first image of some row that is no file, no data URL and no image of a resource."""
    try:
        template = compile_template(source)
    except TemplateError:
        return  # reported with the templates
    if "resources" in template.names:
        return  # known only while an episode runs
    constants = subject.loaded.spec.vars
    find = finder(template, base=subject.loaded.base_of(path), roots=subject.loaded.roots, vars=constants)
    seen: set[str] = set()
    for row, where in _rows_with_places(subject) if "task" in template.names else [({}, "")]:
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
                hint = _hint(subject.loaded.base_of(path) / one, one) if isinstance(one, str) and len(one) < 256 else ""
                yield subject.document.fault(path, f"{found} is no image{where}: {error}", hint)
                return


def _check_file(subject: Subject, path: str, value: str, *, kind: str) -> Iterator[Finding]:
    try:
        template = compile_template(value)
    except TemplateError:
        return  # reported with the templates
    loaded = subject.loaded
    find = finder(template, base=loaded.base_of(path), roots=loaded.roots, vars=loaded.spec.vars)
    is_folder_key = kind in _FOLDERS
    for written, where in _written_paths(subject, template):
        try:
            file = find(written)
        except RefusedPath as error:
            yield subject.document.fault(path, f"a row may not name this path{where}: {error}", _ROOTS)
            return
        if not (is_folder(file) if is_folder_key else is_file(file)):
            message = f"there is no {'folder' if is_folder_key else 'file'} '{written[:200]}'{where}"
            yield subject.document.fault(path, message, _hint(file, written))
            return
        if kind == "sqlite" and path.endswith(".path") and not _is_database(file):
            message = f"'{written}' is no SQLite database{where}"
            yield subject.document.fault(path, message, "name a database; for a file of SQL statements use 'init'")
            return


def _written_paths(subject: Subject, template: Template) -> Iterable[tuple[str, str]]:
    """Each path that some row gives, with the first row that gives it."""
    constants: Mapping[str, Any] = subject.loaded.spec.vars
    found: dict[str, str] = {}
    try:
        if "task" not in template.names:
            return [(template.text(vars=constants), "")]
        for row, where in _rows_with_places(subject):
            found.setdefault(template.text(task=row, vars=constants), where)
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


def _hint(file: Path, written: str) -> str:
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
        bases = bases_of(loaded, path, spec)
        context = CompileContext(loaded.base_of(path), loaded.spec.vars, subject.resources, bases)
        try:
            found = describe_changes(name, spec, context)
        except UsageError as error:
            yield entry_fault(subject.document, path, error)
            continue
        if found is not None:
            message = f"the server of '{name}' is not as it was pinned: {redact(found)}"
            yield subject.document.fault(f"{path}.pin", message, "look at the change, then: rlenv tools SPEC --pin")


def check_stores(subject: Subject) -> Iterator[Finding]:
    """Warnings of corpora without the columns that are searched, and of folders that hold the tasks themselves."""
    loaded = subject.loaded
    for name, spec in loaded.spec.tools.items():
        if spec.kind == "search":
            yield from _check_corpus(subject, f"tools.{name}", spec)
    yield from odd_ids(subject)
    yield from _check_machines(subject)
    sources = {path.absolute() for name in subject.splits for _, path in task_files(loaded, name)}
    for name, resource in loaded.spec.resources.items():
        copied = getattr(resource, "path", None) if resource.kind in _FOLDERS else None
        folder = loaded.base_of(f"resources.{name}.path") / (copied or "")
        held = next((one for one in sources if copied and one.is_relative_to(folder.absolute())), None)
        if held is not None:
            yield subject.say("gold-in-prompt/folder", f"resources.{name}.path", held.name)


def _check_machines(subject: Subject) -> Iterator[Finding]:
    """What tests compare with, in the machine or the folder that the policy works in, and files that they never see."""
    loaded, prompt = subject.loaded, next((one.texts[0][:20_000] for one in asked_of(subject) if one.texts), "")
    for name, one in loaded.spec.resources.items():
        folder = loaded.base_of(f"resources.{name}.path") / str(getattr(one, "path", None) or "?")
        files = itertools.islice(folder.rglob("*"), _MOST_ROWS) if folder.is_dir() else ()
        shown = [file.name for file in files if PATTERNS.solved.fullmatch(file.name) and file.name not in prompt]
        for key, reward in loaded.spec.rewards.items():
            tests = str(getattr(reward, "tests", None) or "").partition("{")[0]
            if tests and (loaded.base_of(f"rewards.{key}.tests") / tests).absolute().is_relative_to(folder.absolute()):
                shown.append(tests)
            command = fill_template(subject, f"{getattr(reward, 'command', '')} {getattr(reward, 'collect', '')}")
            paths = {*PATTERNS.path.findall(str(getattr(one, "setup", None)))} & {*PATTERNS.path.findall(command)}
            shown += sorted(path for path in paths if path not in prompt and PATTERNS.of_tests.search(path))
            if getattr(reward, "kind", "") == "workspace" and getattr(reward, "resource", "") == name:
                yield from _lost_files(subject, key, reward, one, command, prompt)
        if shown:
            yield subject.say("gold-in-prompt/machine", f"resources.{name}", shown[0], at="key")


def _lost_files(subject: Subject, key: str, reward: Any, machine: Any, command: str, prompt: str) -> Iterator[Finding]:
    """A file that the prompt asks for and tests read elsewhere, or where nothing of the episode is kept."""
    cwd, asked = machine.cwd or ("/" if machine.image else "/app"), {*PATTERNS.written_to.findall(prompt)}
    paths, is_plain = PATTERNS.path.findall(command), not (reward.tests or machine.image or "{" in str(machine.cwd))
    loose = {one for one in paths if is_plain and "/" not in one and one not in prompt and f"> {one}" not in command}
    loose = set() if PATTERNS.program.search(command) else {os.path.join(cwd, one) for one in loose}
    read = {*filter(PATTERNS.own_path.fullmatch, [*paths, *loose])}
    told = {*filter(PATTERNS.own_path.fullmatch, PATTERNS.path.findall(prompt))}
    # What the command names without its folder stands where that starts.
    here = {path for path in asked if is_plain and path not in command and "cd " not in command
            and re.search(rf"(?<![\w./-]){re.escape(os.path.basename(path))}(?![\w./-])", command)}  # fmt: skip
    pairs = [(mine, theirs) for mine in sorted(told, key=lambda one: (one not in asked, one)) for theirs in sorted(read)
             if os.path.dirname(mine) == os.path.dirname(theirs) and not PATTERNS.tests.search(theirs)
             and os.path.splitext(mine)[1] == os.path.splitext(theirs)[1]]  # fmt: skip
    pairs += [(one, os.path.join(cwd, os.path.basename(one))) for one in sorted(here) if os.path.dirname(one) != cwd]
    if pairs and not read & told:
        yield subject.say("odd-file/of-tests", f"rewards.{key}", *pairs[0], at="key")
    named = re.search(r"(?i)\b(?:folder|directory) (/(?!usr|etc|opt|tmp|dev|home|root|var)[a-z][\w.-]*)", prompt)
    known = f"{cwd} {machine.setup} {reward.keep} {command}"
    if named is not None and machine.image is None and "{" not in str(cwd) and named[1] not in known:
        yield subject.say("odd-file/folder", "prompt", named[0], cwd, at="key")
    is_of_file = reward.by == "file" and reward.log is None and subject.document.has(f"rewards.{key}.command")
    if is_of_file and not PATTERNS.writes_number.search(str(reward.command)):
        yield subject.say("odd-file/no-number", f"rewards.{key}.command")
    keep = (reward.keep or [cwd]) if reward.collect is None else ["/"]
    if isinstance(keep, (list, tuple)) and not any("{" in path for path in (str(cwd), *keep)):
        for path in sorted((asked & {*paths}) | here):
            if not any(Path(path).is_relative_to(kept) for kept in keep):
                known = ", ".join((*(reward.keep or ()), os.path.dirname(path)))
                yield subject.say("odd-file/not-kept", f"rewards.{key}", path, known, at="key")
                return


def _check_corpus(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """A column that no document has; a title and an id may be missing, but not where the spec names their columns."""
    document, fields = subject.document, getattr(spec, "columns", None)
    try:
        file = subject.loaded.base_of(f"{path}.path") / getattr(spec, "path", "")
        with file.open(encoding="utf-8") as lines:
            read = [json.loads(line) for line in itertools.islice(lines, MAX_ROWS) if line.strip()]
            is_whole = not next(lines, "")
    except (OSError, ValueError):
        return  # reported where it is compiled, or a template
    read = [one for one in read if isinstance(one, dict)]
    columns = {name for one in read for name in one}
    yield from odd_documents(subject, path, fields, read if is_whole else [])
    shown = [one.get(getattr(fields, key, key)) for one in read for key in ("title", "text")]
    term, texts = gold_term(subject), " ".join(map(str, shown)).lower()
    each = [all_golds(subject, term, split)[:200] for split in subject.splits.values()] if term is not None else []
    golds = [*itertools.chain.from_iterable(each)]
    made_of = re.findall(r"\btask\.(\w+)", str(gold_in(term.spec))) if term is not None else []
    parts = [*golds[:50], *{str(row.get(column)) for _, row in subject.each(20) for column in made_of}]
    # A number may be counted, and what another tool knows need not stand here.
    is_sought = is_whole and len(subject.tools) == 1 and all(gold and re.search(r"[^\W\d]", gold) for gold in golds)
    if is_sought and len({*golds}) > 2 and not any(str(one).lower() in texts for one in {*parts}):
        yield subject.say("empty-search/golds", path, len(golds), golds[0], at="key")
    for key in ("id", "title", "text"):
        column, place = getattr(fields, key, key), f"{path}.columns.{key}"
        if columns and column not in columns and (key == "text" or document.has(place)):
            at = place if document.has(place) else f"{path}.path"
            yield subject.say("odd-column/of-corpus", at, column, did_you_mean(column, columns) or "name one")
            return


def _check_function(subject: Subject, name: str, entry: Any) -> Iterator[Finding]:
    """A tool's own Python function beside its entry: parameters, types, what it raises and what it changes."""
    path, inject = f"tools.{name}", tuple(getattr(entry, "inject", ()))
    node = next(iter(_reached_definitions(subject, path, str(getattr(entry, "function", "")))), None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    hints = {one.arg: ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None}
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {"self", "context", *inject}
    is_stub = any(kind_of("rewards", one).of_calls for one in subject.loaded.spec.rewards.values())
    lost = [one for one in names if one not in read and not one.startswith("_")]
    # What reads nothing at all is a pad to write on, or a stub.
    if lost and read.intersection(names) and not is_stub:
        yield subject.say("unread-parameter/of-function", f"{path}.function", lost[0])
    worlds = [one for one in names if one in subject.loaded.spec.resources and one not in inject]
    if lost := [one for one in worlds if hints.get(one, "") not in _TYPES]:
        yield subject.say("unread-parameter/resource", f"{path}.function", lost[0])
    told = [one for one in read_docstring(ast.get_docstring(node))[1] if one not in names]
    if told and not node.args.kwarg:
        yield subject.say("unread-parameter/of-docstring", f"{path}.function", told[0], ", ".join(names))
    tool = subject.tools.get(name)
    for argument, schema in (tool.parameters.get("properties", {}) if tool is not None else {}).items():
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        wanted, kinds = _TYPES.get(hints.get(argument, ""), kind), kind if isinstance(kind, list) else [kind]
        if kind is not None and wanted not in kinds and not (wanted == "number" and "integer" in kinds):
            place = f"{path}.parameters" if subject.document.has(f"{path}.parameters") else path
            yield subject.say("other-type/of-function", place, argument, kind, hints[argument], wanted, at="key")
    golds = {column: key for key, one in subject.loaded.spec.rewards.items() for column in gold_columns(one)}
    # What the oracle calls is the way to the answer, and a passage that holds it is to be read.
    given = [ast.unparse(one.value) for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
    is_way = name in str(subject.document.get("oracle")) or "task" not in inject
    for text in [text for text in given if len(text) < 90 and "==" not in text and not is_way]:
        if gold := next((one for one in PATTERNS.given_back.findall(text) if one in golds), ""):
            yield subject.say("gold-in-tool/returned", f"{path}.function", gold, golds[gold])
            break
    for broad in [one for one in _BROAD if one in entry.errors][:1]:
        yield subject.say("odd-policy/broad-errors", f"{path}.errors", broad, at="key")
    if raises := _undeclared_exception(node, entry.errors):
        yield subject.say("odd-policy/undeclared-error", f"{path}.function", raises)
    changed = {_root_name(part) for statement in ast.walk(node) for part in _changed_expressions(statement)}
    if (shared := sorted(changed & {*inject} & {*subject.loaded.spec.resources})) and not entry.mutates:
        yield subject.say("odd-policy/undeclared-change", f"{path}.function", shared[0])
    usual = dict(zip(reversed(node.args.args), reversed(node.args.defaults), strict=False))
    lasting = {arg.arg for arg, value in usual.items() if isinstance(value, ast.List | ast.Dict | ast.Set)}
    lasting |= {one for part in ast.walk(node) if isinstance(part, ast.Global) for one in part.names}
    own = {*names, *(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))}
    counted = {_root_name(one.target) for one in ast.walk(node) if isinstance(one, ast.AugAssign)}
    # What does not mutate may keep what it has found, and counts nothing.
    kept = sorted((changed | counted if entry.mutates else counted | (changed & lasting)) - (own - lasting) - {""})
    # What the file imports has functions of such names too: os.remove, np.append.
    for one in [one for one in kept if one in lasting or re.search(rf"(?m)^{one}\b[^=\n]*=", subject.code or "")][:1]:
        yield subject.say("shared-state/function", f"{path}.function", one)


def check_code(subject: Subject) -> Iterator[Finding]:
    """Warnings of the author's Python functions: what they draw, run, hide, compare and never read."""
    tools, seen = subject.document.get("tools") or {}, dict[str, str]()
    for name, entry in tools.items():
        key = str({key: value for key, value in entry.items() if key not in ("description", "example")})
        if entry.get("kind") == "python" and seen.setdefault(key, name) != name:
            yield subject.say("same-description/function", f"tools.{name}", seen[key], at="key")
    for name, entry in subject.loaded.spec.tools.items():
        if entry.kind == "python" and name != subject.loaded.spec.answer.tool:  # which is not run
            yield from _check_function(subject, name, entry)
    for path, place in strings_in(subject.document.data, ()):
        if path[0] in ("tools", "resources", "rewards", "user") and path[-1] == "function":
            nodes = _reached_definitions(subject, ".".join(map(str, path[:-1])), place)
            message, hint, code = next(_oddities(subject, str(path[0]), nodes), ("", "", "")) if nodes else ("", "", "")
            if message:
                yield subject.document.warning(path, f"the function {message}", hint, code)


def _oddities(subject: Subject, group: str, nodes: Sequence[_Definition]) -> Iterator[tuple[str, str, str]]:
    """What is odd in a function of that group and in those of its file that it uses: message, hint and code."""
    parts = [part for node in nodes for part in ast.walk(node)]
    calls = [(ast.unparse(one.func), one) for one in parts if isinstance(one, ast.Call)]
    names = {one.id for one in parts if isinstance(one, ast.Name)}
    seeds = any(name == "random.seed" for name, _ in calls)
    for name, call in calls:
        given = " ".join(ast.unparse(one) for one in call.args if not isinstance(one, ast.Constant))
        is_shell = any(one.arg == "shell" and ast.unparse(one.value) == "True" for one in call.keywords)
        written = group == "tools" or re.search(r"answer|message|text|action|said", given)
        if (PATTERNS.runs_text.fullmatch(name) or is_shell) and given and written:
            yield f"runs what the model writes by {name}(), with all rights of the trainer", _ISOLATED, "no-sandbox"
        if PATTERNS.draws.fullmatch(name) and not seeds:
            yield f"calls {name}(): equal calls differ, and no seed repeats an episode", _SEEDED, "unsteady"
    for one in parts:
        broad = ast.unparse(one.type or ast.Name("Exception")) if isinstance(one, ast.ExceptHandler) else ""
        if broad in _BROAD and isinstance(last := one.body[0], ast.Return):  # type: ignore[attr-defined]
            value = last.value
            is_none = value is None or ast.unparse(value) in ("None", "''", "[]", "{}", "()", "0", "False")
            is_paid = isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value > 0
            if is_paid if group == "rewards" else is_none and group != "user":
                yield f"makes a result of every bug (except {broad})", "name what is meant to fail", "odd-policy"
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq) and (column := _non_text(subject, one)):
            message = f"compares the answer, a text, with task['{column}'], which is none: they never are equal"
            yield message, f"write str(task['{column}'])", "never-pays"
    arguments = getattr(nodes[0], "args", ast.arguments([], [], None, [], [], None, []))
    lost = [one.arg for one in arguments.args if one.arg in ("task", "context") and one.arg not in names]
    lost = [] if names & {"seed", "rng"} else lost
    if lost and (group == "resources" or (group == "rewards" and len(arguments.args) == 1)):
        yield f"never reads '{lost[0]}': it is the same for every task", "read it, or take it out", "unread-parameter"


def _non_text(subject: Subject, node: ast.Compare) -> str:
    """The column of no texts that the answer is compared with as it is; "" for none."""
    sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
    column = next((match[1] for side in sides if (match := PATTERNS.of_task.fullmatch(side))), "")
    values = [row[column] for _, row in subject.each() if column in row]
    is_answer = any(re.fullmatch(r"\w+\.answer", side) for side in sides)
    return column if is_answer and values and not any(isinstance(value, str) for value in values) else ""


def _reached_definitions(subject: Subject, path: str, place: str) -> list[_Definition]:
    """The function or class behind `file.py:name` and those of its file that it names; [] where it cannot be read."""
    file, _, name = place.partition(":")
    try:
        module = ast.parse((subject.loaded.base_of(f"{path}.function") / file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []  # reported where it is compiled
    defined = {one.name: one for one in module.body if isinstance(one, _Definition)}
    reached = [name] if name in defined else []
    for one in reached:
        used = {part.id for part in ast.walk(defined[one]) if isinstance(part, ast.Name)}
        reached += [other for other in defined if other in used and other not in reached]
    return [defined[one] for one in reached]


def _undeclared_exception(node: ast.AST, declared: Iterable[str]) -> str:
    """A built-in exception that a function raises, does not catch, and its entry does not declare; "" for none."""
    tried = [one for one in ast.walk(node) if isinstance(one, ast.Try) and one.handlers]
    caught = {part for one in tried for statement in one.body for part in ast.walk(statement)}
    types = tuple(getattr(builtins, one, Exception) for one in declared)
    for one in ast.walk(node):
        if isinstance(one, ast.Raise) and one.exc is not None and one not in caught:
            name = ast.unparse(getattr(one.exc, "func", one.exc))
            raises = getattr(builtins, name, None)
            if isinstance(raises, type) and not issubclass(raises, types):
                return name
    return ""


def _changed_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement changes in place."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        yield from (one for one in node.targets if isinstance(one, (ast.Subscript, ast.Attribute)))
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, (ast.Subscript, ast.Attribute)):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
        yield node.func.value


def _root_name(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
