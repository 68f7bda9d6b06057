"""Gold values: every row gives each rule a value that it can compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlenv.checks.subject import Split, Subject
from rlenv.errors import Fault, RewardError
from rlenv.functions import failure
from rlenv.messages import ToolResult
from rlenv.rewards.base import RewardContext, Term

__all__ = ["check_gold"]


async def _no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise RewardError("no tool runs while a spec is validated")


def check_gold(subject: Subject) -> Iterator[Fault]:
    """The first row of each split for which a rule with `expect` cannot be measured, whatever the answer."""
    for term in subject.terms:
        path = f"rewards.{term.name}"
        reads = str(subject.document.get(f"{path}.expect") or "")
        # The author's own function may do anything; a gold value behind a resource needs an episode.
        if term.measure is None or not hasattr(term.spec, "expect") or hasattr(term.spec, "python"):
            continue
        if "resources" in reads:
            continue
        for split in subject.splits.values():
            yield from _measured(subject, term, path, split)


def _measured(subject: Subject, term: Term, path: str, split: Split) -> Iterator[Fault]:
    measure = term.measure
    assert measure is not None
    for index, row in enumerate(split.rows):
        context = RewardContext(
            task=row,
            messages=(),
            turns=(),
            answer="1",
            resources={},
            vars=subject.loaded.spec.vars,
            call=_no_call,
            reason="answer",
        )
        try:
            measure(context)
        except Exception as error:  # a value of any kind meets a rule
            why = str(error) if isinstance(error, RewardError) else failure(error)
            at = f"{path}.expect" if subject.document.has(f"{path}.expect") else path
            message = f"row {index + 1} of split '{split.name}' cannot be scored: {why}"
            fix = "fill the column with what the rule compares with, or drop such rows"
            yield subject.document.fault(at, message, fix, at="value" if at != path else "key")
            return
