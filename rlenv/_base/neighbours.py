"""Python files of a spec as modules that can import what lies beside them.

Each folder is a package of its own, under a name made from its path, and a file's `import helpers` means
`helpers.py` or `helpers/` in that folder. `sys.path` is not touched and no plain name is taken in `sys.modules`, so
two specs may each have a `helpers.py`. The `import` statement asks the module's own `__builtins__` for `__import__`
(https://docs.python.org/3/reference/import.html), which is where the meaning is changed, for imports inside of
functions too.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["file_module", "find_below", "forget_files", "is_meant_beside"]

_PREFIX = "rlenv_spec_"
_STANDARD = frozenset(sys.stdlib_module_names)


def file_module(path: Path) -> ModuleType:
    """The module of the file at `path` (absolute, without links), which is run once per process.

    What running it raises comes through, and the file is run again when it is asked for the next time.
    """
    package = _package(path.parent)
    if "." not in path.stem:
        return importlib.import_module(f"{package}.{path.stem}")
    name = f"{package}.{path.stem.replace('.', '_')}_{_digest(path.name)}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def forget_files() -> None:
    """Has every file of a spec run anew when it is next asked for; functions that somebody holds stay as they are.

    For a process that outlives an edit of its author's. Not to be called while such a file is being run.
    """
    # The packages stay: a function that somebody holds may import what lies beside its file.
    for name in [name for name in sys.modules if name.startswith(_PREFIX) and "." in name]:
        del sys.modules[name]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def _package(folder: Path) -> str:
    """The name of the package that stands for a folder."""
    name = f"{_PREFIX}{_digest(str(folder))}"
    if name not in sys.modules:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        package = ModuleType(name, f"The Python files of {folder}.")
        package.__path__ = [str(folder)]
        package.__package__ = name
        sys.modules[name] = package
    return name


def find_below(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Where the last part of a module's dotted name is found in these folders; nothing is run."""
    last = name.rpartition(".")[2]
    for folder in map(Path, folders):  # looked up anew each time: the path finder keeps what a folder held
        for file, inside in ((folder / last / "__init__.py", [str(folder / last)]), (folder / f"{last}.py", None)):
            if file.is_file():
                loader = _Loader(name, str(file))
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=inside
                )
    return PathFinder.find_spec(name, folders)  # a compiled module, or a folder without an `__init__.py`


class _Finder:
    """Finds modules below the packages of folders, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(_PREFIX) or path is None:
            return None
        return find_below(name, path)


class _Loader(SourceFileLoader):
    """Runs a file with an `import` that looks beside the spec's file first."""

    def exec_module(self, module: ModuleType) -> None:
        root = ".".join(module.__name__.split(".")[:1])
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(root, module.__name__)}
        super().exec_module(module)


def _importer(root: str, own: str) -> Any:
    (folder,) = sys.modules[root].__path__

    def import_beside(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not is_meant_beside(top, folder=Path(folder), own=own.removeprefix(f"{root}.")):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = builtins.__import__(f"{root}.{name}", globals, locals, fromlist or (), 0)
        return found if fromlist else sys.modules[f"{root}.{top}"]

    return import_beside


def is_meant_beside(name: str, *, folder: Path, own: str) -> bool:
    """Whether `import name` in the module `own` of a folder means what lies in that folder.

    True for a module, or a package with an `__init__.py`: a folder of data takes no name from a library. A file that is
    called as what it wraps (`sympy.py` with `import sympy`) does not mean itself.
    """
    if name in _STANDARD or name == own:
        return False
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
