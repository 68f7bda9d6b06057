"""The kind `group`: a term that compares all answers to one task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

from rlenv.errors import EpisodeError, RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.rewards.base import Measured, Term, TermCompileContext
from rlenv.rewards.functions import is_async, load_function, raised
from rlenv.trajectory import Trajectory

__all__ = ["KIND", "GroupSpec", "relative"]

By = Literal["centred", "deviation", "rank", "best"]


class GroupSpec(RewardSpec):
    """Compares an answer with the others to the same task; measured once the whole group has ended.

    Give `of`, the name of another term, or `python`, a function of your own. A single answer has nothing to compare
    with and is skipped.
    """

    kind: Literal["group"]
    of: Text | None = None
    """The term whose values are compared."""
    by: By = "rank"
    """`centred`: value minus the mean; `deviation`: that by the standard deviation; `rank`: the share of the others
    that are below, ties by half; `best`: 1 for the highest value, 0 otherwise."""
    python: Text | None = None
    """`file.py:function`: takes the trajectories of the group and returns a number for each, in order."""


def relative(values: Sequence[float], *, by: By) -> list[float]:
    """Each value compared with the others of its group; `len(result) == len(values)`, at least two."""
    if by == "best":
        top = max(values)
        return [float(value == top) for value in values]
    if by == "rank":
        return [
            sum((other < value) + 0.5 * (other == value) for place, other in enumerate(values) if place != index)
            / (len(values) - 1)
            for index, value in enumerate(values)
        ]
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if by == "centred":
        return centred
    spread = math.sqrt(math.fsum(value * value for value in centred) / (len(values) - 1))
    return [value / spread if spread else 0.0 for value in centred]


def _compile(name: str, spec: GroupSpec, context: TermCompileContext) -> Term:
    if (spec.of is None) == (spec.python is None):
        raise UsageError("give either of or python", hint="name one of them")
    if spec.of == name:
        raise UsageError(f"'{name}' cannot be compared with itself", key="of", hint="name another term")
    if spec.python is not None:
        target = spec.python
        function = load_function(target, key="python", gives=["trajectories"], context=context)
        if is_async(function):
            raise UsageError(
                f"{spec.python} is a coroutine function; a plain one was expected", key="python", hint="write def"
            )

        def own(trajectories: Sequence[Trajectory]) -> list[Measured]:
            try:
                found: list[Any] = list(islice(function(trajectories), len(trajectories) + 1))
            except EpisodeError:
                raise
            except (Exception, SystemExit) as error:
                raise raised(target, error) from error
            return [value if isinstance(value, Measured) else Measured(value) for value in found]

        return Term(name=name, spec=spec, measure_group=own)

    def compare(trajectories: Sequence[Trajectory]) -> list[Measured]:
        assert spec.of is not None
        values: list[float | None] = []
        for trajectory in trajectories:
            term = trajectory.reward.terms.get(spec.of)
            if term is None:
                raise RewardError(f"of: there is no term '{spec.of}'; there are: {', '.join(trajectory.reward.terms)}")
            values.append(term.value)
        known = [value for value in values if value is not None]
        if len(known) < 2:
            return [Measured(None, "no other answer to compare with")] * len(values)
        compared = iter(relative(known, by=spec.by))
        return [
            Measured(None, f"'{spec.of}' has no value")
            if value is None
            else Measured(next(compared), f"{value:g} among {len(known)}", {"value": value, "answers": len(known)})
            for value in values
        ]

    return Term(name=name, spec=spec, measure_group=compare, reads=(spec.of or "",))


KIND = Kind(GroupSpec, _compile)
