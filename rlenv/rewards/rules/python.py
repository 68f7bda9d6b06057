"""The rule `python`: a function of the author's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from rlenv._base.bounded import bounded
from rlenv.errors import EpisodeError, RewardError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.functions import is_async, load_function, raised
from rlenv.rewards.rule import RuleSpec

__all__ = ["PYTHON", "PythonSpec"]

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
