"""Presets: the rewards of published work under their own names, on the policy's own text.

The originals score the decoded prompt and response together, tool output included; here only the policy's last
message, outside thinking and calls, is read, which gives the same score without what others wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from rlenv.language.kinds import Kind
from rlenv.language.spec import Int
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.normalise import qa
from rlenv.rewards.rule import RuleSpec, gold_text, where_answer
from rlenv.rewards.rules.text import MAX_CHARS, Expected, check_qa
from rlenv.rewards.templating import compile_accepted

__all__ = ["GSM8K", "SEARCH_R1", "Gsm8kSpec", "SearchR1Spec", "check_qa", "equals", "read_gsm8k"]

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[0-9.,]+")


class SearchR1Spec(RuleSpec):
    """Search-R1's exact match: 1 if the answer equals a gold answer after `qa` normalisation, 0 otherwise."""

    rule: Literal["search_r1"]
    expect: Expected = "{{ task.golden_answers }}"
    """The gold answers; a template may give a list."""


class Gsm8kSpec(RuleSpec):
    """GSM8K as verl 0.9.1 scores it: 1 if the last message ends on the gold number, 0 otherwise.

    `answer:` plays no part: the number is read from the last message, outside thinking and calls.
    """

    rule: Literal["gsm8k"]
    expect: Expected = "{{ task.answer }}"
    """The gold number, or a GSM8K solution that ends on `#### number`."""
    method: Literal["strict", "flexible"] = "strict"
    """`strict`: the number after the last `#### `; `flexible`: the last number of any form."""
    clip_chars: Annotated[Int, Field(ge=1)] = 300
    """Read only this many characters from the end, as the original does."""


def read_gsm8k(text: str, *, method: Literal["strict", "flexible"], clip_chars: int = 300) -> str | None:
    """The number that a solution ends on, as text, None where there is none.

    Source: `extract_solution` of verl 0.9.1 `reward_score/gsm8k.py`. Thousands commas are dropped by `strict` only,
    and a full stop after the number stays on it, there as here.
    """
    text = text[-clip_chars:]
    if method == "strict":
        found = _STRICT.findall(text)
        return found[-1].replace(",", "") if found else None
    for candidate in reversed(_FLEXIBLE.findall(text)):
        if candidate != ".":
            return str(candidate)
    return None


def _gsm8k(name: str, spec: Gsm8kSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [_gold(gold_text(value)) for value in accepted(context)]
        found = read_gsm8k(context.final_text, method=spec.method, clip_chars=spec.clip_chars)
        if found is None:
            return Measured(0.0, "no number")
        return Measured(float(found in golds), found)

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


def _gold(text: str) -> str:
    # The dataset's own column holds the whole solution; its number stands after the last marker.
    return text.rpartition("####")[2].replace(",", "").strip()


def _search_r1(name: str, spec: SearchR1Spec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [qa(gold_text(value)) for value in accepted(context)]
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        return Measured(float(equals(answer, golds)), answer)

    return Term(name=name, spec=spec, measure=measure, check_gold=check_qa(accepted), where=where_answer)


def equals(answer: str | None, golds: Sequence[str]) -> bool:
    """Whether an answer is one of the accepted ones, which are in `qa` form already; a very long one is none."""
    return answer is not None and len(answer) <= MAX_CHARS and qa(answer) in golds


SEARCH_R1 = Kind(SearchR1Spec, _search_r1)
GSM8K = Kind(Gsm8kSpec, _gsm8k)
