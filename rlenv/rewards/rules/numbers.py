"""The rule numeric_match: exact arithmetic on what the answer writes."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv.errors import RewardError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.normalise import number, numbers
from rlenv.rewards.rule import RuleSpec, where_answer
from rlenv.rewards.rules.text import Expected
from rlenv.rewards.templating import compile_accepted

__all__ = ["NUMERIC_MATCH", "NumericMatchSpec", "is_near"]


class NumericMatchSpec(RuleSpec):
    """1 if the answer writes an accepted number, 0 otherwise.

    The answer must be one number: thousands commas and a currency or percent sign are read, words are not.
    Numbers are compared exactly (0.1 is 0.1, "3,901" is 3901 is 3901.0) unless a tolerance is given.
    """

    rule: Literal["numeric_match"]
    expect: Expected = "{{ task.answer }}"
    """The accepted number, or several, as numbers or as text; a template may give a list."""
    tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this much."""
    relative_tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this share of the accepted number."""


def is_near(mine: Decimal, gold: Decimal, *, tolerance: Decimal, relative: Decimal) -> bool:
    """Whether |mine - gold| <= max(tolerance, relative · |gold|), in arithmetic precise enough to be exact here."""
    if mine == gold:
        return True
    if not tolerance and not relative:
        return False
    with localcontext() as arithmetic:
        arithmetic.prec = 100
        return abs(mine - gold) <= max(tolerance, relative * abs(gold))


def _numeric_match(name: str, spec: NumericMatchSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    tolerance = Decimal(repr(spec.tolerance))
    relative = Decimal(repr(spec.relative_tolerance))

    def measure(context: RewardContext) -> Measured:
        golds = [number for value in accepted(context) for number in _golds(value)]
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        mine = number(answer)
        if mine is None:
            return Measured(0.0, answer)
        for gold in golds:
            if is_near(mine, gold, tolerance=tolerance, relative=relative):
                return Measured(1.0, answer)
        return Measured(0.0, answer)

    return Term(name=name, spec=spec, measure=measure, where=where_answer)


def _golds(value: Any) -> tuple[Decimal, ...]:
    found = numbers(value)
    if not found:
        raise RewardError(f"expect: the gold value {value!r:.80} is not a number")
    return found


NUMERIC_MATCH = Kind(NumericMatchSpec, _numeric_match)
