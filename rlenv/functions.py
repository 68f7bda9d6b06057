"""Functions that a spec names: `module:function`, or `file.py:function` relative to the spec."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlenv._neighbours import file_module
from rlenv.errors import UsageError
from rlenv.secrets import redact_within
from rlenv.source import nearest

__all__ = ["check_positional", "failure", "import_function", "named_parameters"]

_MAX_FAILURE = 500
_GUARD = "put what runs as a script under: if __name__ == '__main__':"


def import_function(target: str, *, base: Path) -> Callable[..., Any]:
    """The function that `target` names.

    A file is run once per process, whichever specs name it; it may import the files and packages beside it. Relative
    files are relative to `base`.

    Raises:
        UsageError: there is no such file, module or function, it is not callable, or importing it failed.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(f"found '{target}'; expected module:function or file.py:function")
    module = _from_file(base, where) if where.endswith(".py") else _from_name(where)
    try:
        function = getattr(module, name, None)
    except Exception as error:  # a module may have a __getattr__ of its own
        raise UsageError(f"'{name}' of '{where}' cannot be read: {failure(error)}") from error
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"it has: {', '.join(known) or 'no functions'}"
        raise UsageError(f"'{where}' has no function '{name}'; {hint}")
    if not callable(function):
        raise UsageError(f"'{name}' of '{where}' is a {type(function).__name__}; expected a function")
    assert not inspect.ismodule(function)
    return function  # type: ignore[no-any-return]


def failure(error: BaseException) -> str:
    """An author's exception in one short line: `ValueError: no such table`. Nothing is left of a secret that is cut."""
    try:
        text = str(error)
    except Exception:  # an exception of the author's may fail to say what it is
        text = ""
    text = text if len(text) <= _MAX_FAILURE else redact_within(text, _MAX_FAILURE - 1) + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_positional(function: Callable[..., Any], *, target: str, gives: Sequence[str]) -> None:
    """Whether `function` can be called by position with one argument for each name in `gives`.

    Args:
        function: what `target` names.
        target: as the spec names it.
        gives: what each argument is, as a parameter would be called: ["mine", "gold"].

    Raises:
        UsageError: it takes fewer, or cannot do without more; the message says what it is called with. A callable
            whose parameters Python cannot tell passes.
    """
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*gives)
    except TypeError:
        name = target.rpartition(":")[2]
        count = f"{len(gives)} argument{'s' if len(gives) != 1 else ''}" if gives else "nothing"
        raise UsageError(
            f"'{target}' takes {_shown(signature)}, and is called with {count} by position; "
            f"write def {name}({', '.join(gives)})"
        ) from None


def named_parameters(function: Callable[..., Any], *, key: str, offered: Sequence[str]) -> tuple[str, ...]:
    """The names of `offered` that `function` takes, in its order; the others it does without.

    Args:
        function: a function of the spec's author, which is called by name.
        key: the key of the spec that names it, for messages.
        offered: what can be given, by name.

    Raises:
        UsageError: it needs a parameter that nothing gives, or one that cannot be given by name.
    """
    signature = _signature(function)
    if signature is None:
        raise UsageError(f"{key}: the parameters of this function cannot be read; write a function around it")
    names: list[str] = []
    for name, one in signature.parameters.items():
        needed = one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if one.kind is one.POSITIONAL_ONLY and (needed or name in offered):
            raise UsageError(f"{key}: '{name}' can be given by position only; remove the '/' of its parameters")
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or (name not in offered and not needed):
            continue
        if name not in offered:
            raise UsageError(f"{key}: nothing gives '{name}'; it may take: {', '.join(offered)}")
        names.append(name)
    return tuple(names)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a builtin, or a callable that says something odd of itself
        return None


def _shown(signature: inspect.Signature) -> str:
    names = list(signature.parameters)
    return f"{len(names)} parameter{'s' if len(names) != 1 else ''} ({', '.join(names)})" if names else "no parameters"


def _from_file(base: Path, where: str) -> ModuleType:
    try:
        path = (base / where).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links
        raise UsageError(f"there is no file '{where[:80]}': {failure(error)[:200]}") from error
    if not is_file:
        others = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        close = nearest(path.name, others)
        hint = f"did you mean '{close}'?" if close else "the path is relative to the file that names it"
        raise UsageError(f"there is no file '{path.name}' in {path.parent}; {hint}")
    try:
        return file_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's file may fail in any way while it runs
        raise UsageError(f"'{path.name}' cannot be imported: {_import_failure(error)}") from error


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module '{name}'; for a file write file.py:function") from error
        raise UsageError(f"module '{name}' cannot be imported: {failure(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's module may fail in any way while it runs
        raise UsageError(f"module '{name}' cannot be imported: {_import_failure(error)}") from error


def _import_failure(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the program while it is imported ({failure(error)}); {_GUARD}"
    return failure(error)
