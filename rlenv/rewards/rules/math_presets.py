"""Presets for mathematics: verl_math, verl_dapo and skyrl_aime, on the policy's last message."""

from __future__ import annotations

import re
from typing import Literal

from rlenv.language.kinds import Kind
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.latex import boxed_in_braces, hendrycks_box, hendrycks_equal, minerva
from rlenv.rewards.rule import RuleSpec, gold_text
from rlenv.rewards.rules.text import Expected
from rlenv.rewards.templating import compile_accepted

__all__ = ["SKYRL_AIME", "VERL_DAPO", "VERL_MATH", "SkyrlAimeSpec", "VerlDapoSpec", "VerlMathSpec", "read_minerva"]

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
