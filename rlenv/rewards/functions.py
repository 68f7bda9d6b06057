"""Functions of a spec's author: how they are named and called, and the rule `python`."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlenv._base.bounded import bounded
from rlenv.errors import EpisodeError, RewardError, under
from rlenv.language.functions import check_positional, failure, import_function
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import RuleSpec
from rlenv.secrets import logger

__all__ = ["PYTHON", "PythonSpec", "has_crashed", "is_async", "load_function", "raised"]

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


_MAX_DETAILS = 65_536


class PythonSpec(RuleSpec):
    """What a function of your own returns for an episode (or a turn, with `when: turn`).

    It takes one `rlenv.rewards.base.RewardContext` and returns a number, a `Measured`, or a number with the text
    that it was read from. It may be a coroutine function; one that is not runs on the event loop and must be quick.
    """

    rule: Literal["python"] = "python"
    python: Text
    """`file.py:function`, relative to the spec, or `module:function`."""


def _python(name: str, spec: PythonSpec, context: TermCompileContext) -> Term:
    function = load_function(spec.python, key="python", gives=["context"], context=context)
    if not is_async(function):

        def measure(context: RewardContext) -> Measured:
            with _told(spec.python):
                found = function(context)
            return _measured(found, spec.python)

        return Term(name=name, spec=spec, measure=measure)

    async def measure_async(context: RewardContext) -> Measured:
        with _told(spec.python):
            found = await function(context)
        return _measured(found, spec.python)

    return Term(name=name, spec=spec, measure_async=measure_async)


@contextmanager
def _told(function: str) -> Iterator[None]:
    """Within it, what the author's function raises is told as its fault."""
    try:
        yield
    except EpisodeError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(function, error) from error


def _measured(value: Any, function: str) -> Measured:
    if isinstance(value, Measured):
        if type(value.evidence) is not str or not isinstance(value.details, Mapping):
            raise RewardError(f"{function} returned a Measured whose evidence is no text, or whose details no mapping")
        return replace(value, details=bounded(dict(value.details), _MAX_DETAILS)) if value.details else value
    if value is None:
        # Often a forgotten return; a function with nothing to measure says so by Measured(None).
        raise RewardError(f"{function} returned None; expected a number, or Measured(None) for nothing to measure")
    if isinstance(value, tuple):
        if len(value) != 2 or not isinstance(value[1], str):
            raise RewardError(f"{function} returned {value!r:.80}; a tuple must be (number, evidence)")
        return Measured(value[0], value[1])
    # Scoring refuses what is not a finite number and says what it found.
    return Measured(value)


PYTHON = Kind(PythonSpec, _python)
