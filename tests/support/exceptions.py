"""Every exception class of a library, found by looking, and an instance of each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


def classes(library: str, *modules: str) -> list[type[Exception]]:
    """The exception classes that public modules of a library hold as their own, by name.

    Warnings are left out, and what a leading underscore calls private.
    """
    found: dict[str, type[Exception]] = {}
    for name in modules or (library,):
        for value in vars(importlib.import_module(name)).values():
            if not isinstance(value, type) or not issubclass(value, Exception) or issubclass(value, Warning):
                continue
            own = value.__module__.split(".")[0].lstrip("_") == library and not value.__name__.startswith("_")
            if own:
                found.setdefault(value.__qualname__, value)
    return [found[name] for name in sorted(found)]


def made(kind: type[Exception], **values: Any) -> Exception:
    """An instance, with whatever its constructor asks for; `values` are arguments by name that one library asks for."""
    for arguments in _arguments():
        for named in ({}, *({name: value} for name, value in values.items()), values):
            try:
                error = kind(*arguments, **named)
                str(error)
            except Exception:  # another number of arguments, or of another form
                continue
            return error
    raise AssertionError(f"say in tests/support/exceptions.py how a {kind.__module__}.{kind.__qualname__} is made")


def _arguments() -> Iterator[tuple[Any, ...]]:
    host = SimpleNamespace(host="h", port=1, ssl=None, is_ssl=False)
    yield ("it broke",)
    yield ()
    yield ([],)
    yield ("it broke", 1)
    yield (host, OSError(5, "it broke"))
    yield ("/socket", host, OSError(5, "it broke"))
    yield (SimpleNamespace(real_url="http://h"), ())
    yield (b"a", b"b", "h", 1)
    yield ("it broke", "document", 3)
    yield (1, "it broke")
    yield ("name", 1, 65, "utf-8", "it broke")
    yield ("command", SimpleNamespace(exit_code=1, signal=None, timed_out=False, stderr="it broke"))
