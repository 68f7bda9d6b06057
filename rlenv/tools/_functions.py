"""Functions of the author's, by the reference that a spec gives: `tools.py:lookup` or `package.module:function`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from rlenv.errors import UsageError

__all__ = ["load_function", "load_module"]

_lock = threading.RLock()


def load_function(reference: str, *, base: Path) -> Callable[..., Any]:
    """The function that `reference` names; a file is relative to `base` and loaded once per process.

    Raises:
        UsageError: no such file, module or function, or the module fails while it is loaded.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"'{reference}' names no function; expected 'file.py:function' or 'package.module:function'")
    found: Any = load_module(place, base=base)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            close = get_close_matches(part, public, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; it has: {', '.join(public[:10])}" if public else ""
            raise UsageError(f"'{place}' has no function '{name}'{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"'{reference}' is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def load_module(place: str, *, base: Path) -> ModuleType:
    """The module of a file (`tools.py`, relative to `base`) or of a dotted name.

    Raises:
        UsageError: it does not exist, or fails while it is loaded.
    """
    if place.endswith(".py"):
        return _load_file((base / place).resolve(), place)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module '{place}'; a file is named with its ending, as '{place}.py'"
            ) from error
        raise UsageError(f"module '{place}' cannot be loaded: {error}") from error
    except Exception as error:  # the author's module may fail in any way
        raise UsageError(f"module '{place}' cannot be loaded: {type(error).__name__}: {error}") from error


def _load_file(path: Path, shown: str) -> ModuleType:
    # A private name: two specs may both have a tools.py, and neither may shadow an installed module.
    name = f"_rlenv_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    with _lock:
        loaded = sys.modules.get(name)
        if loaded is not None:
            return loaded
        if not path.is_file():
            raise UsageError(f"there is no file '{shown}' in {path.parent}")
        specification = importlib.util.spec_from_file_location(name, path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        # Registered while it loads: dataclasses and pickle look their module up by name.
        sys.modules[name] = module
        try:
            specification.loader.exec_module(module)
        except Exception as error:  # the author's module may fail in any way
            del sys.modules[name]
            raise UsageError(f"'{shown}' cannot be loaded: {type(error).__name__}: {error}") from error
        return module
