"""Reward terms: weights, gates, the tools that they name, and what counts as success."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from rlenv._nearest import did_you_mean
from rlenv.checks.subject import Subject, split_message
from rlenv.errors import Fault
from rlenv.expressions import ExpressionError, compile_expression
from rlenv.spec import RewardSpec

__all__ = ["check_rewards"]


def check_rewards(subject: Subject) -> Iterator[Fault]:
    """Faults of `rewards` and `success` as a whole."""
    spec, document = subject.loaded.spec, subject.document
    names = list(spec.rewards)
    positive = False
    reads: dict[str, tuple[str, ...]] = {}
    for name, reward in spec.rewards.items():
        path = f"rewards.{name}"
        positive = positive or reward.weight > 0
        if not math.isfinite(reward.weight):
            message = f"found {reward.weight}; expected a finite number"
            yield document.fault(f"{path}.weight", message, "write a number such as 1.0")
        yield from _bounds(subject, path, reward)
        if reward.gate is not None:
            if name in _names_in(reward.gate):
                message = f"the gate of '{name}' reads '{name}' itself"
                yield document.fault(f"{path}.gate", message, "name another term", find=name)
            else:
                reads[name] = _names_in(reward.gate)
                yield from _expression(subject, f"{path}.gate", reward.gate, [one for one in names if one != name])
                yield from _impossible(subject, f"{path}.gate", reward.gate)
        yield from _tool_of(subject, path, getattr(reward, "tool", None))
    if not positive:
        hint = f"give '{names[0]}' a weight above 0"
        yield document.fault("rewards", "no term has a positive weight, so nothing is rewarded", hint, at="key")
    yield from _circles(subject, reads)
    if spec.success is not None:
        yield from _expression(subject, "success", spec.success, names)
        yield from _impossible(subject, "success", spec.success)


def _bounds(subject: Subject, path: str, reward: RewardSpec) -> Iterator[Fault]:
    for key in ("range", "clip"):
        pair = getattr(reward, key)
        if pair is None:
            continue
        low, high = pair
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
            message = f"found [{low:g}, {high:g}]; expected a lower and a higher finite number"
            hint = f"write [{min(pair):g}, {max(pair):g}]" if low != high else "write [0, 1]"
            yield subject.document.fault(f"{path}.{key}", message, hint)


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


def _names_in(source: str) -> tuple[str, ...]:
    try:
        return compile_expression(source).names
    except ExpressionError:
        return ()


def _expression(subject: Subject, path: str, source: str, names: list[str]) -> Iterator[Fault]:
    try:
        expression = compile_expression(source)
    except ExpressionError as error:
        message, hint = split_message(str(error))
        rest = source[error.position :]
        hint = hint or "write TERM >= NUMBER, joined by 'and' and 'or'"
        yield subject.document.fault(path, message, hint, find=rest.split()[0] if rest.split() else "")
        return
    for name in expression.names:
        if name not in names:
            hint = did_you_mean(name, names, "terms")
            yield subject.document.fault(path, f"there is no reward term '{name}'", hint, find=name)


def _tool_of(subject: Subject, path: str, tool: object) -> Iterator[Fault]:
    if not isinstance(tool, str) or tool in subject.tools or tool in subject.loaded.spec.tools:
        return
    if not subject.tools_are_known and len(subject.loaded.spec.tools) == 0:
        return
    hint = did_you_mean(tool, subject.tool_names, "tools")
    yield subject.document.fault(f"{path}.tool", f"there is no tool '{tool}'", hint)


def _circles(subject: Subject, reads: dict[str, tuple[str, ...]]) -> Iterator[Fault]:
    reported: set[frozenset[str]] = set()
    for start in reads:
        seen = {start}
        frontier: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
        while frontier:
            name, trail_so_far = frontier.pop()
            for other in reads.get(name, ()):
                if other == start:
                    members = frozenset(trail_so_far)
                    if members not in reported:
                        reported.add(members)
                        circle = " -> ".join((*trail_so_far, start))
                        message = f"the gates form a circle: {circle}"
                        yield subject.document.fault(f"rewards.{start}.gate", message, "remove one of these gates")
                elif other not in seen:
                    seen.add(other)
                    frontier.append((other, (*trail_so_far, other)))
