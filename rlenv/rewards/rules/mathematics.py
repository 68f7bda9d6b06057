"""Rules for answers of mathematics: `math_equal`, and the scoring of verl and SkyRL."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from rlenv.language.kinds import Kind
from rlenv.language.spec import Float
from rlenv.rewards._math_text import bare, plain_number
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.mathematics import shared_workers
from rlenv.rewards.normalise import boxed_in_braces, hendrycks_box, hendrycks_equal, minerva
from rlenv.rewards.rule import RuleSpec, compile_accepted, gold_text, where_answer
from rlenv.rewards.rules.text import Expected

__all__ = [
    "MATH_EQUAL",
    "SKYRL_AIME",
    "VERL_DAPO",
    "VERL_MATH",
    "MathEqualSpec",
    "SkyrlAimeSpec",
    "VerlDapoSpec",
    "VerlMathSpec",
    "read_minerva",
]

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


MATH_EQUAL = Kind(MathEqualSpec, _math_equal, values=(0, 1), gold="expect", reads_answer=True, several=True)


_CLIP_CHARS = 300
_BOX_CHARS = 100
_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_LINE_TO_TAG = re.compile(r"(?i)Answer\s*:\s*([^\n<]+)")
_INVALID = "[INVALID]"


class VerlMathSpec(RuleSpec):
    """MATH as verl 0.9.1 scores it: 1 if the last box of the last message holds the gold answer, 0 otherwise.

    `answer:` plays no part. Texts are compared after normalisation; nothing is computed.
    """

    rule: Literal["verl_math"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


class VerlDapoSpec(RuleSpec):
    """DAPO's reward as verl 0.9.1 scores it: 1 if right, -1 otherwise.

    The answer is what follows the last `Answer:` on its line, normalised as in Minerva; without one, the last box in
    the last 100 characters, as it stands.
    """

    rule: Literal["verl_dapo"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


class SkyrlAimeSpec(RuleSpec):
    """AIME as skyrl-gym 0.4.0 scores it: as verl_dapo without the box, and the answer's line ends at a `<`."""

    rule: Literal["skyrl_aime"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


def read_minerva(text: str, *, to_tag: bool = False) -> str:
    """The normalised answer after the last `Answer:` in the last 300 characters, `[INVALID]` where there is none."""
    found = (_LINE_TO_TAG if to_tag else _LINE).findall(text[-_CLIP_CHARS:])
    return minerva(found[-1]) if found else _INVALID


def _verl_math(name: str, spec: VerlMathSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [gold_text(value) for value in accepted(context)]
        found = hendrycks_box(context.final_text)
        if found is None:
            return Measured(0.0, "no box")
        return Measured(float(any(hendrycks_equal(found, gold) for gold in golds)), found)

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


def _dapo(name: str, spec: VerlDapoSpec | SkyrlAimeSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    reads_box = isinstance(spec, VerlDapoSpec)

    def measure(context: RewardContext) -> Measured:
        golds = [gold_text(value) for value in accepted(context)]
        text = context.final_text[-_CLIP_CHARS:]
        found = read_minerva(text, to_tag=not reads_box)
        is_right = any(found == minerva(gold) for gold in golds)
        if found == _INVALID and reads_box:
            boxed = boxed_in_braces(text[-_BOX_CHARS:])
            if boxed is not None:
                found, is_right = boxed, boxed in golds
        return Measured(1.0 if is_right else -1.0, found, {"pred": found})

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


VERL_MATH = Kind(VerlMathSpec, _verl_math)
VERL_DAPO = Kind(VerlDapoSpec, _dapo)
SKYRL_AIME = Kind(SkyrlAimeSpec, _dapo)
