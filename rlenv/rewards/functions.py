"""Functions of a spec's author, named under a key of a reward's entry."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlenv.errors import RewardError, under
from rlenv.language.functions import check_positional, failure, import_function
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import RewardSpec
from rlenv.secrets import logger

__all__ = ["has_crashed", "is_async", "load_function", "raised"]

_log = logger(__name__)
_CRASHED = re.compile(r"(?:turn \d+: )?[A-Z]\w*(?:Error|Exception)(?::|$)")
_logged: set[tuple[str, str, str]] = set()


def load_function(target: str, *, key: str, gives: Sequence[str], context: CompileContext) -> Callable[..., Any]:
    """The function that `target`, written under `key`, names: `file.py:function` or `module:function`.

    Args:
        target: as the spec names it.
        key: the key that holds it, for messages.
        gives: what it is called with, by position.
        context: where the spec stands.

    Raises:
        UsageError: the file or the function is not there, the import fails, it is not a function, or it cannot be
            called so.
    """
    with under(key):
        function = import_function(target, base=context.path(key, ""))
        check_positional(function, target=target, gives=gives)
    return function


def raised(target: str, error: BaseException) -> RewardError:
    """What an author's function raised, as the reason why nothing was measured: what, and on which line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    if (key := (target, type(error).__name__, place)) not in _logged:  # once: every episode's record has it
        _logged.add(key)
        _log.warning("the reward function %s raised %s%s", target, failure(error), place)
    return RewardError(f"{target} raised {failure(error)}{place}")


def has_crashed(spec: RewardSpec, error: str) -> bool:
    """Whether `error`, why a term of this entry is invalid, is an exception that nobody raised on purpose."""
    if any(f"{target} raised " in error for target in _texts(spec.model_dump())):
        return True
    return _CRASHED.match(error) is not None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function`, or an object's `__call__`, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
