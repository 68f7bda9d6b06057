"""The kind `rule`: a term that is computed from the trajectory alone. Each rule is an entry of the group `rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from rlenv.errors import RewardError, UsageError
from rlenv.language import kinds as registry
from rlenv.language.kinds import Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.trajectory import Where

__all__ = [
    "KIND",
    "NO_ANSWER",
    "Reads",
    "RuleSpec",
    "check_range",
    "compile_rule",
    "read",
    "scored",
    "where_answer",
    "where_of",
]

Reads = Literal["answer", "message"]
NO_ANSWER: Final = Measured(0.0, "no answer")


class RuleSpec(RewardSpec):
    """What every rule takes."""

    kind: Literal["rule"]
    rule: Text
    """Which rule; `python: file.py:function` stands for a rule of your own."""


def compile_rule(name: str, spec: RuleSpec, context: TermCompileContext) -> Term:
    """Compiles a rule by its name.

    Raises:
        UsageError: no rule has that name, or the rule's own factory refuses the entry.
    """
    try:
        kind = registry.get("rules", spec.rule)
    except KeyError:
        raise UsageError(
            f"no rule is called '{spec.rule}'", hint=f"there are: {', '.join(registry.names('rules'))}"
        ) from None
    if not isinstance(spec, kind.spec):
        raise UsageError(f"rule '{spec.rule}' takes a {kind.spec.__name__}, not a {type(spec).__name__}")
    term = kind.factory(name, spec, context)
    assert isinstance(term, Term)
    return term


def read(context: RewardContext, reads: Reads) -> str | None:
    """What a rule measures: the answer (None where the policy gave none) or all of the last message."""
    return context.answer if reads == "answer" else context.final_text


def where_of(reads: Reads) -> Callable[[RewardContext], Where]:
    """Where that stands."""
    return where_answer if reads == "answer" else RewardContext.where_final


def where_answer(context: RewardContext) -> Where:
    """Where the answer stands."""
    return context.answer_at


def scored(text: str | None, score: Callable[[str], Measured], *, most: int, that: str) -> Measured:
    """What `score` makes of a text; 0 without one, and for one of more than the `most` characters `that` are looked at.

    `that` goes on with the sentence `longer than the 1000 characters …`.
    """
    if text is None:
        return NO_ANSWER
    if len(text) > most:
        return Measured(0.0, f"longer than the {most} characters {that}")
    return score(text)


def check_range(least: Any, most: Any, *, keys: str) -> None:
    """Checks that a range is open at one end at most and not upside down.

    Raises:
        UsageError: it is.
    """
    if least is None and most is None:
        raise UsageError("nothing is asked for", hint=f"give {keys} or both")
    if least is not None and most is not None and least > most:
        raise UsageError(f"the least ({least}) is above the most ({most})", key="min", hint="the least comes first")


def gold_text(value: Any) -> str:
    """A gold value as text: text as it stands, whole and other numbers as they are written.

    Raises:
        RewardError: it is neither text nor a number.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise RewardError(f"the gold value {value!r:.80} is a {type(value).__name__}; expected text, a number or a list")


KIND = Kind(RuleSpec, compile_rule)
