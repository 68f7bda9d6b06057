"""Reward terms: something is rewarded, gates and `success` can hold, `success` can fail, every row has a gold value."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlenv.checks.subject import Split, Subject
from rlenv.errors import Finding, RewardError
from rlenv.language.expressions import ExpressionError, compile_expression
from rlenv.language.functions import failure
from rlenv.language.kinds import kind_of
from rlenv.language.spec import RewardSpec
from rlenv.messages import ToolResult
from rlenv.rewards.base import RewardContext, Term

__all__ = ["check_gold", "check_rewards", "gold_fault", "no_call"]


def check_rewards(subject: Subject) -> Iterator[Finding]:
    """Faults of `rewards` and `success` that compiling does not meet: nothing is rewarded, or a gate never opens."""
    spec = subject.loaded.spec
    if not any(reward.weight > 0 for reward in spec.rewards.values()):
        hint = f"give '{next(iter(spec.rewards))}' a weight above 0"
        yield subject.document.fault("rewards", "no term has a positive weight, so nothing is rewarded", hint, at="key")
    for name, reward in spec.rewards.items():
        if reward.gate is not None:
            yield from _impossible(subject, f"rewards.{name}.gate", reward.gate)
    if spec.success is not None:
        yield from _impossible(subject, "success", spec.success, may_fail=True)


_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MOST_COMBINATIONS = 20_000


def _interval(reward: RewardSpec) -> tuple[float, float]:
    """Between which values a term lies, as far as its entry tells."""
    low, high = -math.inf, math.inf
    values = kind_of("rewards", reward).values
    if reward.kind == "verify" and isinstance(getattr(reward, "compare", None), str):
        values = (0.0, 1.0)
    if values is not None:
        low, high = values
        if reward.when == "turn" and reward.over_turns == "sum":
            low, high = -math.inf if low < 0 else 0.0, math.inf if high > 0 else 0.0
    if reward.range is not None and reward.range[0] < reward.range[1]:
        low, high = ((end - reward.range[0]) / (reward.range[1] - reward.range[0]) for end in (low, high))
    if reward.clip is not None and reward.clip[0] < reward.clip[1] and reward.when == "episode":
        low, high = (min(max(end, reward.clip[0]), reward.clip[1]) for end in (low, high))
    return low, high


def _impossible(subject: Subject, path: str, source: str, *, may_fail: bool = False) -> Iterator[Finding]:
    """A comparison that holds for no values that its terms can have; with `may_fail`, one that holds for all too."""
    terms = subject.loaded.spec.rewards
    try:
        expression = compile_expression(source, names=terms)
    except ExpressionError:
        return  # reported already
    constants = {float(number) for number in _NUMBER.findall(source)}
    intervals = {name: _interval(terms[name]) for name in expression.names}
    marks = sorted({0.0, 1.0, *constants, *(end for pair in intervals.values() for end in pair if math.isfinite(end))})
    # Every order of terms and constants is met: at each mark, between two, and beyond the last.
    between = [(a + b) / 2 for a, b in itertools.pairwise(marks)] + [marks[0] - 1, marks[-1] + 1]
    choices = [
        [value for value in (*marks, *between) if intervals[name][0] <= value <= intervals[name][1]]
        for name in expression.names
    ]
    if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
        return
    found: set[bool] = set()
    for values in itertools.product(*choices):
        found.add(bool(expression(dict(zip(expression.names, values, strict=True)))))
        if len(found) == 2 or (True in found and not may_fail):
            return
    bounds = ", ".join(f"{name} is {low:g} to {high:g}" for name, (low, high) in intervals.items())
    said, hint = "never hold", "compare with a value that the term can have, such as >= 1"
    if True in found:
        said, hint = "never fail", "ask for what only a success has, such as >= 1: as it is, every episode is one"
    yield subject.document.fault(path, f"this can {said}: {bounds}" if bounds else f"this can {said}", hint)


# Reading mathematics takes some milliseconds a value.
_MAX_READ = 1_000


async def no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise RewardError("no tool runs while a spec is validated")


def check_gold(subject: Subject) -> Iterator[Finding]:
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
        call=no_call,
        reason="answer",
    )
    try:
        ask(context)
    except Exception as error:  # a value of any kind meets a rule
        return str(error) if isinstance(error, RewardError) else failure(error)
    return ""


def _asked(
    subject: Subject, ask: Callable[[RewardContext], None], path: str, split: Split, most: int
) -> Iterator[Finding]:
    for index, row in enumerate(split.rows[:most]):
        if why := _fault(ask, row, subject.loaded.spec.vars):
            at = f"{path}.expect" if subject.document.has(f"{path}.expect") else path
            message = f"row {index + 1} of split '{split.name}' cannot be scored: {why}"
            fix = "fill the column with what the rule compares with, or drop such rows"
            yield subject.document.fault(at, message, fix, at="value" if at != path else "key")
            return
