"""Gold values: every row gives each rule a value that it can compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlenv.checks.subject import Split, Subject
from rlenv.errors import Fault, RewardError
from rlenv.language.functions import failure
from rlenv.messages import ToolResult
from rlenv.rewards.base import RewardContext, Term

__all__ = ["check_gold", "gold_fault"]

# Reading mathematics takes some milliseconds a value.
_MAX_READ = 1_000


async def _no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise RewardError("no tool runs while a spec is validated")


def check_gold(subject: Subject) -> Iterator[Fault]:
    """The first row of each split for which a rule with `expect` cannot be measured, whatever the answer."""
    for term in subject.terms:
        path = f"rewards.{term.name}"
        reads = str(subject.document.get(f"{path}.expect") or "")
        # The author's own function may do anything; a gold value behind a resource needs an episode.
        if not hasattr(term.spec, "expect") or hasattr(term.spec, "python") or "resources" in reads:
            continue
        for split in subject.splits.values():
            if term.measure is not None:
                yield from _asked(subject, _measured(term.measure), path, split, len(split.rows))
            if term.check_gold is not None:
                yield from _asked(subject, term.check_gold, path, split, _most(subject, term, split))


def _measured(measure: Callable[[RewardContext], object]) -> Callable[[RewardContext], None]:
    def ask(context: RewardContext) -> None:
        measure(context)

    return ask


def _most(subject: Subject, term: Term, split: Split) -> int:
    """How many rows are looked at; says so where that is not all of them."""
    total = len(split.rows)
    if term.measure is not None or total <= _MAX_READ:
        return total
    subject.not_checked.append(
        f"rewards.{term.name}: the gold values of split '{split.name}' after row {_MAX_READ} were not read"
    )
    return _MAX_READ


def gold_fault(term: Term, row: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    """Why a rule cannot compare with the gold values of a row, "" where it can."""
    ask = term.check_gold or (term.measure and _measured(term.measure))
    return _fault(ask, row, constants) if ask is not None else ""


def _fault(ask: Callable[[RewardContext], None], row: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    context = RewardContext(
        task=row,
        messages=(),
        turns=(),
        answer="1",
        resources={},
        vars=constants,
        call=_no_call,
        reason="answer",
    )
    try:
        ask(context)
    except Exception as error:  # a value of any kind meets a rule
        return str(error) if isinstance(error, RewardError) else failure(error)
    return ""


def _asked(
    subject: Subject, ask: Callable[[RewardContext], None], path: str, split: Split, most: int
) -> Iterator[Fault]:
    for index, row in enumerate(split.rows[:most]):
        if why := _fault(ask, row, subject.loaded.spec.vars):
            at = f"{path}.expect" if subject.document.has(f"{path}.expect") else path
            message = f"row {index + 1} of split '{split.name}' cannot be scored: {why}"
            fix = "fill the column with what the rule compares with, or drop such rows"
            yield subject.document.fault(at, message, fix, at="value" if at != path else "key")
            return
