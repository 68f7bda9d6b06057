"""Reward terms: that something is rewarded, and that gates and `success` can hold."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from rlenv.checks.subject import Subject
from rlenv.errors import Fault
from rlenv.language.expressions import ExpressionError, compile_expression
from rlenv.language.spec import RewardSpec

__all__ = ["check_rewards"]


def check_rewards(subject: Subject) -> Iterator[Fault]:
    """Faults of `rewards` and `success` that compiling does not meet: nothing is rewarded, or a gate never opens."""
    spec = subject.loaded.spec
    if not any(reward.weight > 0 for reward in spec.rewards.values()):
        hint = f"give '{next(iter(spec.rewards))}' a weight above 0"
        yield subject.document.fault("rewards", "no term has a positive weight, so nothing is rewarded", hint, at="key")
    for name, reward in spec.rewards.items():
        if reward.gate is not None:
            yield from _impossible(subject, f"rewards.{name}.gate", reward.gate)
    if spec.success is not None:
        yield from _impossible(subject, "success", spec.success)


# Rules whose value is a share or a yes or no, whatever the policy does.
_SHARES = frozenset(
    """answered contains exact_match f1 json_match json_schema math_equal numeric_match regex sql_match tool_called
    valid_calls""".split()
)
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MOST_COMBINATIONS = 20_000


def _interval(reward: RewardSpec) -> tuple[float, float]:
    """Between which values a term lies, as far as its entry tells."""
    low, high = -math.inf, math.inf
    kind, rule = getattr(reward, "kind", ""), getattr(reward, "rule", "")
    is_share = kind == "rule" and rule in _SHARES
    if kind == "verify" and isinstance(getattr(reward, "compare", None), str):
        is_share = True
    if is_share and not (reward.when == "turn" and reward.over_turns == "sum"):
        low, high = 0.0, 1.0
    if reward.range is not None and reward.range[0] < reward.range[1]:
        low, high = ((end - reward.range[0]) / (reward.range[1] - reward.range[0]) for end in (low, high))
    if reward.clip is not None and reward.clip[0] <= reward.clip[1] and reward.when == "episode":
        low, high = (min(max(end, reward.clip[0]), reward.clip[1]) for end in (low, high))
    return low, high


def _impossible(subject: Subject, path: str, source: str) -> Iterator[Fault]:
    """A comparison that holds for no values that its terms can have."""
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
    for values in itertools.product(*choices):
        if expression(dict(zip(expression.names, values, strict=True))):
            return
    bounds = ", ".join(f"{name} is {low:g} to {high:g}" for name, (low, high) in intervals.items())
    message = f"this can never hold: {bounds}" if bounds else "this can never hold"
    yield subject.document.fault(path, message, "compare with a value that the term can have, such as >= 1")
