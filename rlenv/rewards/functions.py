"""Functions of a spec's author, named under a key of a reward's entry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rlenv.errors import UsageError
from rlenv.functions import import_function
from rlenv.tools.base import CompileContext

__all__ = ["is_async", "load_function"]


def load_function(target: str, *, key: str, context: CompileContext) -> Callable[..., Any]:
    """The function that `target`, written under `key`, names: `file.py:function` or `module:function`.

    Raises:
        UsageError: the file or the function is not there, the import fails, or it is not a function.
    """
    try:
        return import_function(target, base=context.path(key, ""))
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function`, or an object's `__call__`, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
