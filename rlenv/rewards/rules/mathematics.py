"""The rule math_equal: equality in the mathematical sense."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlenv.language.kinds import Kind
from rlenv.language.spec import Float
from rlenv.rewards._math_text import bare, plain_number
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.mathematics import shared_workers
from rlenv.rewards.rule import RuleSpec, gold_text, where_answer
from rlenv.rewards.rules.text import Expected
from rlenv.rewards.templating import compile_accepted

__all__ = ["MATH_EQUAL", "MathEqualSpec"]

_MAX_CHARS = 2_000


class MathEqualSpec(RuleSpec):
    """1 if the answer equals an accepted one as mathematics, 0 otherwise (extra `math`).

    The answer as a whole has to be one expression. Plain numbers are compared exactly; fractions, expressions,
    equations, sets, intervals and tuples are read from LaTeX or plain text by the library math-verify: `0.5` is
    `\\frac{1}{2}`, `x^2+2x+1` is `(x+1)^2`. It runs in a process of its own, with bounded processor time and memory.
    """

    rule: Literal["math_equal"]
    expect: Expected = "{{ task.answer }}"
    """The accepted answer, or several, as LaTeX or plain text; a template may give a list."""
    limit_s: Annotated[Float, Field(gt=0, le=60)] = 5.0
    """Seconds of processor time. An answer that takes more to read and compare is wrong; a gold value is invalid."""


def _math_equal(name: str, spec: MathEqualSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    workers = shared_workers()

    def golds_of(context: RewardContext) -> list[str]:
        return [gold_text(value).strip() for value in accepted(context)]

    def check(context: RewardContext) -> None:
        golds = golds_of(context)
        if any(plain_number(bare(gold)) is None for gold in golds):
            workers.check(golds, limit_s=spec.limit_s)

    async def measure(context: RewardContext) -> Measured:
        golds = golds_of(context)
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        if len(answer) > _MAX_CHARS:
            return Measured(0.0, f"longer than the {_MAX_CHARS} characters that an expression may have")
        is_equal = _as_numbers(answer, golds)
        if is_equal is not None:
            return Measured(float(is_equal), answer)
        verdict = await workers.compare(answer, golds, limit_s=spec.limit_s)
        return Measured(float(verdict.is_equal), answer, {"note": verdict.note} if verdict.note else {})

    return Term(name=name, spec=spec, measure_async=measure, check_gold=check, where=where_answer)


def _as_numbers(answer: str, golds: list[str]) -> bool | None:
    """Whether an answer is one of the accepted ones where all of them are plain numbers; None otherwise."""
    expected = [plain_number(bare(gold)) for gold in golds if len(gold) <= _MAX_CHARS]
    if len(expected) < len(golds) or any(number is None for number in expected):
        return None
    mine = plain_number(bare(answer))
    return None if mine is None else mine in expected


MATH_EQUAL = Kind(MathEqualSpec, _math_equal)
