"""Functions that a spec names: `module:function`, or `file.py:function` relative to the spec."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlenv.errors import UsageError
from rlenv.source import nearest

__all__ = ["import_function"]


def import_function(target: str, *, base: Path) -> Callable[..., Any]:
    """The function that `target` names.

    A file is run once per process, whichever specs name it. Relative files are relative to `base`.

    Raises:
        UsageError: there is no such file, module or function, it is not callable, or importing it failed.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(f"found '{target}'; expected module:function or file.py:function")
    module = _from_file(base / where) if where.endswith(".py") else _from_name(where)
    function = getattr(module, name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"it has: {', '.join(known) or 'no functions'}"
        raise UsageError(f"'{where}' has no function '{name}'; {hint}")
    if not callable(function):
        raise UsageError(f"'{name}' of '{where}' is a {type(function).__name__}; expected a function")
    assert not inspect.ismodule(function)
    return function  # type: ignore[no-any-return]


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"rlenv_spec_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        others = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        close = nearest(path.name, others)
        hint = f"did you mean '{close}'?" if close else "the path is relative to the file that names it"
        raise UsageError(f"there is no file '{path.name}' in {path.parent}; {hint}")
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:  # an author's file may fail in any way while it runs
        del sys.modules[name]
        raise UsageError(f"'{path.name}' cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module '{name}'; for a file write file.py:function") from error
        raise UsageError(f"module '{name}' cannot be imported: {error}") from error
    except Exception as error:  # an author's module may fail in any way while it runs
        raise UsageError(f"module '{name}' cannot be imported: {type(error).__name__}: {error}") from error
