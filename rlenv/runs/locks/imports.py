"""The files that an entry of a spec names, and those that the Python among them would import; nothing is run.

What lies beside a spec's file is found by the rules that run it (`rlenv._base.paths`), and a module on Python's
own path that was not installed by that path. What was installed counts by its version, and its name is told here.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import find_below, is_file, is_meant_beside
from rlenv._base.text import strings_in
from rlenv.errors import RlenvError
from rlenv.language.functions import import_function
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.spec import Spec
from rlenv.language.templates import compile_template
from rlenv.runs.locks.files import Say, file_sha256, path_sha256

_MOST_PATH: Final = 512
_FUNCTION_KEYS: Final = frozenset(("function",))
PATH_KEYS: Final = ("path", "init")
"""Of resources: templates; those that a row fills in are told by `rlenv.runs.locks.parts`."""
_OUTPUT: Final = ("cache", "path")
"""A file that the episodes themselves write; it changes with each of them, and they with none of it."""
_MAY_BE: Final = frozenset("./:")
"""A word without any of these may well name a tool or a term."""
_OURS: Final = frozenset(
    ("rlenv", "rlenv_hosts", "rlenv_inspect", "rlenv_train", "rlenv_trl", "rlenv_verifiers", "rlenv_verl")
)
_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
_CALLS: Final = frozenset(("import_module", "__import__"))


@dataclass(frozen=True, slots=True)
class Imports:
    """`files` by their place below the folder that they are imported from, in the order of these places.

    `installed` are the first names of what was installed; rlenv and Python's own are not among them.
    """

    files: dict[str, Path]
    installed: frozenset[str]


def imported_by(file: Path) -> Imports:
    """The imports of a spec's file, and their imports; without `file` itself.

    A name that is imported from a package may be a file of it and is taken for one. Both sides of a condition count.
    """
    file = file.resolve()
    walk = _Walk(file.parent)
    walk.follow([(file, _Home(file.parent, file.parent))])
    return walk.to_imports(without=file)


def imported_for(name: str, *, names: Sequence[str] = ()) -> Imports:
    """The files that importing the module `name` runs, as `from name import names` would."""
    walk = _Walk(None)
    walk.follow(walk.find_absolute(_Import(0, name, tuple(names)), own=""))
    return walk.to_imports()


@dataclass(frozen=True, slots=True)
class _Import:
    level: int
    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Home:
    """The folder that a file was imported from, and the one above which its relative imports cannot go."""

    folder: Path
    top: Path


_Found = tuple[Path, _Home]


class _Walk:
    def __init__(self, beside: Path | None) -> None:
        self._beside = beside
        self._files: dict[Path, str] = {}
        self._installed: set[str] = set()

    def to_imports(self, *, without: Path | None = None) -> Imports:
        files = {place: path for path, place in self._files.items() if path != without}
        return Imports(dict(sorted(files.items())), frozenset(self._installed))

    def follow(self, found: Iterable[_Found]) -> None:
        waiting = list(found)
        while waiting:
            file, home = waiting.pop()
            if file not in self._files:
                self._files[file] = file.relative_to(home.folder).as_posix()
                for one in _imports_in(file):
                    files_of = self._relative_files if one.level else self._absolute_files
                    waiting += files_of(one, file, home)

    def _relative_files(self, one: _Import, file: Path, home: _Home) -> Iterator[_Found]:
        folder = file.parent
        for _ in range(one.level - 1):
            folder = folder.parent
        if folder.is_relative_to(home.top):  # else Python refuses it
            yield from _files_below([str(folder)], one, home)

    def _absolute_files(self, one: _Import, file: Path, home: _Home) -> Iterator[_Found]:
        if home.folder != self._beside:
            return self.find_absolute(one, own=None)
        parts = file.relative_to(home.folder).with_suffix("").parts
        return self.find_absolute(one, own=parts[0] if parts[1:] in ((), ("__init__",)) else "")

    def find_absolute(self, one: _Import, *, own: str | None) -> Iterator[_Found]:
        """The files that an absolute import runs.

        Args:
            own: the first name of the importing file, which does not mean itself; None where it does not look beside.
        """
        top = one.name.partition(".")[0]
        if own is not None and self._beside is not None and is_meant_beside(top, folder=self._beside, own=own):
            yield from _files_below([str(self._beside)], one, _Home(self._beside, self._beside))
        elif top not in sys.stdlib_module_names and top not in _OURS:
            for place in _module_paths(top):
                if _INSTALLED.isdisjoint(place.parts):
                    yield from _files_below([str(place.parent)], one, _Home(place.parent, place.parent / top))
                else:
                    self._installed.add(top)


def _module_paths(top: str) -> list[Path]:
    """The file or the folders of a module on Python's path, which may be imported already."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):  # it was made by hand, or its finder is not well
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _files_below(folders: Sequence[str], one: _Import, home: _Home) -> Iterator[_Found]:
    """The files that importing `one` from these folders runs: each package on the way, the module, and its names."""
    file = None
    for part in one.name.split(".") if one.name else ():
        spec = find_below(part, folders)
        if spec is None:
            return
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if file is not None:
            yield file, home
        folders = list(spec.submodule_search_locations or ())
    names = [*one.names, *(_exported_names(file) if file is not None and "*" in one.names else ())]
    for name in names if folders else ():
        spec = find_below(name, folders)
        if spec is not None and spec.has_location and spec.origin:
            yield Path(spec.origin), home


def _parse_file(file: Path) -> ast.AST:
    try:
        return ast.parse(file.read_bytes()) if file.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _imports_in(file: Path) -> Iterator[_Import]:
    for node in ast.walk(_parse_file(file)):
        if isinstance(node, ast.Import):
            yield from (_Import(0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.level, node.module or "", tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and node.args and _name_of(node.func) in _CALLS:
            given = getattr(node.args[0], "value", None)
            if isinstance(given, str) and (name := given.lstrip(".")):
                yield _Import(len(given) - len(name), name)


def _name_of(function: ast.AST) -> Any:
    return getattr(function, "attr", getattr(function, "id", None))


def _exported_names(file: Path) -> list[str]:
    """The names in a package's `__all__`, as far as they are written out: a star imports the modules among them."""
    lists = [
        node.value
        for node in ast.walk(_parse_file(file))
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and "__all__" in map(_name_of, _targets(node))
    ]
    return [one.value for held in lists if held for one in ast.walk(held) if _is_text(one)]  # type: ignore[attr-defined]


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def entry_files(loaded: LoadedSpec, path: str, entry: Any, *, say: Say | None = None) -> dict[str, str]:
    """The SHA-256 of every file that an entry of a spec names, by the words in which it names it.

    Functions and scripts count by their file and by the author's own files that this one imports (see
    `imported_by`); an agent's spec by its content and its own files. Paths that rows fill in are not among
    them.
    """
    found: dict[str, str] = {}
    for keys, text, base in _named_texts(loaded, path, entry):
        imports = _imports_of(keys, text, base)
        if imports is not None:
            _, where = _split_target(keys, text)
            found |= _target_file(text, where, base) if where else {}
            found |= {
                f"{place} (imported by {where or text})": file_sha256(file, say=say)
                for place, file in imports.files.items()
            }
        if keys[-1] in PATH_KEYS and path.startswith("resources."):
            found |= {text: sha256} if (sha256 := path_sha256(base / text, say=say)) else {}
        elif is_file(base / text):
            found[text] = file_sha256(base / text, say=say)
            if getattr(entry, "kind", "") == "agent" and keys == ("spec",):
                found |= _nested_files(text, base / text, say)
    return found


def installed_by(loaded: LoadedSpec, path: str, entry: Any) -> set[str]:
    """The first names of the installed modules that the functions and scripts of an entry import."""
    found = (_imports_of(keys, text, base) for keys, text, base in _named_texts(loaded, path, entry))
    return {name for one in found if one is not None for name in one.installed}


def _named_texts(loaded: LoadedSpec, path: str, entry: Any) -> Iterator[tuple[tuple[str, ...], str, Path]]:
    """The texts of an entry that may name a file, with their keys and the folder that they are relative to."""
    content = entry.model_dump(by_alias=True) if isinstance(entry, Spec) else entry
    for keys, text in ((tuple(map(str, at)), text) for at, text in strings_in(content, ()) if at):
        is_path = keys[-1] in PATH_KEYS and path.startswith("resources.")
        if is_path:
            template = compile_template(text)
            text = template.text(vars=loaded.spec.vars) if template.is_constant else ""
        may_be = len(text) <= _MOST_PATH and "\n" not in text and (is_path or not _MAY_BE.isdisjoint(text))
        if text and may_be and keys[-2:] != _OUTPUT:
            yield keys, text, loaded.base_of(".".join((path, *keys)))


def _nested_files(written: str, path: Path, say: Say | None) -> dict[str, str]:
    """The content of an agent's spec, and the files that its entries name."""
    inner = load_spec(path)
    found = {f"{written} (content)": inner.digest}
    for group in ("tools", "resources", "rewards"):
        for name, entry in getattr(inner.spec, group).items():
            for file, sha256 in entry_files(inner, f"{group}.{name}", entry, say=say).items():
                found[f"{file} (of {written})"] = sha256
    return found


def _split_target(keys: tuple[str, ...], text: str) -> tuple[str, str]:
    """The function and the file or module of `file.py:function` or `module:function`; both "" where it is neither."""
    where, _, name = text.rpartition(":")
    is_one = name.isidentifier() and (where.endswith(".py") or (keys[-1] in _FUNCTION_KEYS and " " not in where))
    return (name, where) if is_one else ("", "")


def _imports_of(keys: tuple[str, ...], text: str, base: Path) -> Imports | None:
    """The imports of a function or a script; None where a text names neither."""
    name, where = _split_target(keys, text)
    if where and not where.endswith(".py"):
        return imported_for(where, names=(name,))
    file = base / (where or text)
    return imported_by(file) if file.suffix == ".py" and is_file(file) else None


def _target_file(target: str, where: str, base: Path) -> dict[str, str]:
    if where.endswith(".py"):
        return {target: file_sha256(base / where)}
    try:
        function = import_function(target, base=base)  # compiled already, so imported already
        source = inspect.getsourcefile(inspect.unwrap(function)) or getattr(sys.modules.get(where), "__file__", None)
    except (RlenvError, TypeError, ValueError):  # a callable object, or a compiled module
        source = getattr(sys.modules.get(where), "__file__", None)
    return {target: file_sha256(Path(source))} if source else {}
