"""Functions that a spec names: `module:function`, or `file.py:function` relative to the spec."""

from __future__ import annotations

import errno
import importlib
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rlenv._base.paths import file_module
from rlenv._base.text import did_you_mean
from rlenv.errors import UnknownEntry, UsageError
from rlenv.secrets import logger, redact_within

_MAX_FAILURE = 500
_LOG_EVERY_S = 1.0
# What no file that is left or named fails by: the machine's own, and what a socket does. All else a file can.
_OF_MACHINES = "ENOSPC EDQUOT EMFILE ENFILE ENOMEM ESTALE EROFS EBADF ENOTCONN ENOBUFS ENETDOWN ENETRESET ENETUNREACH "
_OF_MACHINES += "EHOSTDOWN EHOSTUNREACH EADDRINUSE EADDRNOTAVAIL"
_NO_FILE = {None, *(getattr(errno, name, None) for name in _OF_MACHINES.split())}
_OF_DATABASES = {"OperationalError", "InterfaceError", "InternalError"}  # PEP 249: what no statement fails by, but
_OF_LEFT = {"TransactionException", "InFailedSqlTransaction"}  # a transaction that a statement has broken
# SQLite's ERROR, such as no such table, CORRUPT, as a schema that is written over, TOOBIG, CONSTRAINT, MISMATCH, RANGE
_OF_STATEMENTS = {1, 11, 18, 19, 20, 25}
_MEND = "check the file's content"
_GUARD = "put what runs as a script under: if __name__ == '__main__':"


def import_function(target: str, *, base: Path) -> Callable[..., Any]:
    """The function that `target` names; see `import_value`.

    Raises:
        UsageError: as `import_value`, or it is not callable.
    """
    function = import_value(target, base=base)
    if not callable(function):
        where, _, name = target.rpartition(":")
        raise UsageError(
            f"'{name}' of '{where}' is a {type(function).__name__}; expected a function", hint="name a function of it"
        )
    assert not inspect.ismodule(function)
    return function  # type: ignore[no-any-return]


def import_value(target: str, *, base: Path) -> Any:
    """What `target` names in a file or module.

    A file is run once per process, whichever specs name it; it may import the files and packages beside it. Relative
    files are relative to `base`.

    Raises:
        UsageError: there is no such file, module or function, or importing it failed.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(
            f"found '{target}'; expected module:function or file.py:function", hint="write file.py:function"
        )
    module = _from_file(base, where) if where.endswith(".py") else _from_name(where)
    try:
        function = getattr(module, name, None)
    except Exception as error:  # a module may have a __getattr__ of its own
        raise UsageError(f"'{name}' of '{where}' cannot be read: {failure(error)}", hint=_MEND) from error
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = did_you_mean(name, known, otherwise=f"it has: {', '.join(known) or 'no functions'}")
        raise UsageError(f"'{where}' has no function '{name}'", hint=hint)
    return function


def failure(error: BaseException) -> str:
    """An author's exception in one short line: `ValueError: no such table`. Nothing is left of a secret that is cut."""
    try:
        text = str(error)
    except Exception:  # an exception of the author's may fail to say what it is
        text = ""
    text = text if len(text) <= _MAX_FAILURE else redact_within(text, _MAX_FAILURE - 1) + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_outage(error: BaseException | None) -> bool:
    """True for what a machine, a server or a database fails by, and no value, file or statement that is left."""
    if isinstance(error, OSError):
        is_asked = isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__ != "builtins"
        return is_asked or error.errno in _NO_FILE
    if (code := getattr(error, "sqlite_errorcode", None)) is not None:
        return code & 0xFF not in _OF_STATEMENTS
    if type(error).__module__ == "sqlite3":
        return str(error).startswith(("Cannot operate", "SQLite objects"))  # closed, or opened in another thread
    names = {one.__name__ for one in type(error).__mro__}
    return not names.isdisjoint(_OF_DATABASES) and names.isdisjoint(_OF_LEFT)


@dataclass(slots=True, eq=False)
class FailureLog:
    """What code of an author's raises, to a logger of that name: at most once a second, the others are counted."""

    name: str
    shown_at: float = float("-inf")
    not_shown: int = 0

    def add(self, what: str, error: BaseException) -> None:
        """Shows a failure, or counts it."""
        now = time.monotonic()
        if now - self.shown_at < _LOG_EVERY_S:
            self.not_shown += 1
            return
        also = f" ({self.not_shown} more failures since the last one shown)" if self.not_shown else ""
        logger(self.name).warning("%s raised%s", what, also, exc_info=error)
        self.shown_at, self.not_shown = now, 0


def check_positional(
    function: Callable[..., Any], *, target: str, gives: Sequence[str] = (), named: Sequence[str] = ()
) -> None:
    """Refuses a `function` that cannot be called by position with one argument for each name in `gives`.

    Args:
        gives: what each argument is, as a parameter would be called: ["mine", "gold"].
        named: arguments that are given by name besides.

    Raises:
        UsageError: it takes fewer, or cannot do without more; the message says what it is called with. A callable
            whose parameters Python cannot tell passes.
    """
    signature = signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*gives, **dict.fromkeys(named))
    except TypeError as error:
        name = target.rpartition(":")[2]
        if named:
            message = f"'{target}' takes {_format_signature(signature)}, and is called with {', '.join(named)}: {error}"
            raise UsageError(message, hint=f"it may take: {', '.join(signature.parameters) or 'nothing'}") from None
        count = f"{len(gives)} argument{'s' if len(gives) != 1 else ''}" if gives else "nothing"
        raise UsageError(
            f"'{target}' takes {_format_signature(signature)}, and is called with {count} by position",
            hint=f"write def {name}({', '.join(gives)})",
        ) from None


def named_parameters(function: Callable[..., Any], *, key: str, offered: Sequence[str]) -> tuple[str, ...]:
    """The names of `offered` that `function` takes, in its order; the others it does without.

    Args:
        key: the key of the spec that names it, for messages.

    Raises:
        UsageError: it needs a parameter that nothing gives, or one that cannot be given by name.
    """
    signature = signature_of(function)
    if signature is None:
        raise UsageError("the parameters of this function cannot be read", key=key, hint="write a function around it")
    names: list[str] = []
    for name, one in signature.parameters.items():
        needed = one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if one.kind is one.POSITIONAL_ONLY and (needed or name in offered):
            raise UsageError(
                f"'{name}' can be given by position only", key=key, hint="remove the '/' of its parameters"
            )
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or (name not in offered and not needed):
            continue
        if name not in offered:
            hint = f"it may take: {', '.join(offered)}"
            raise UnknownEntry("resources", name, offered, key=key, message=f"nothing gives '{name}'", hint=hint)
        names.append(name)
    return tuple(names)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a builtin, or a callable that says something odd of itself
        return None


def needs(function: Callable[..., Any], name: str) -> bool:
    """True where a function has a parameter of that name without a default."""
    signature = signature_of(function)
    one = None if signature is None else signature.parameters.get(name)
    return one is not None and one.default is one.empty


def _format_signature(signature: inspect.Signature) -> str:
    names = list(signature.parameters)
    return f"{len(names)} parameter{'s' if len(names) != 1 else ''} ({', '.join(names)})" if names else "no parameters"


def _from_file(base: Path, where: str) -> ModuleType:
    try:
        path = (base / where).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links
        raise UsageError(
            f"there is no file '{where[:80]}': {failure(error)[:200]}", hint="name a file that is there"
        ) from error
    if not is_file:
        others = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, others, otherwise="the path is relative to the file that names it")
        raise UsageError(f"there is no file '{path.name}' in {path.parent}", hint=hint)
    try:
        return file_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's file may fail in any way while it runs
        raise _not_imported(f"'{path.name}'", error) from error


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module '{name}'", hint="for a file write file.py:function") from error
        raise _not_imported(f"module '{name}'", error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's module may fail in any way while it runs
        raise _not_imported(f"module '{name}'", error) from error


def _not_imported(what: str, error: BaseException) -> UsageError:
    if isinstance(error, SystemExit):
        message = f"{what} cannot be imported: it ends the program while it is imported ({failure(error)})"
        return UsageError(message, hint=_GUARD)
    return UsageError(f"{what} cannot be imported: {failure(error)}", hint=_MEND)
