"""Reward terms: weights, gates, the tools that they name, and what counts as success."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlenv.checks.subject import Subject, split_message
from rlenv.errors import Fault
from rlenv.expressions import ExpressionError, compile_expression
from rlenv.source import nearest

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
        if reward.gate is not None:
            if name in _names_in(reward.gate):
                message = f"the gate of '{name}' reads '{name}' itself"
                yield document.fault(f"{path}.gate", message, "name another term", find=name)
            else:
                reads[name] = _names_in(reward.gate)
                yield from _expression(subject, f"{path}.gate", reward.gate, [one for one in names if one != name])
        yield from _tool_of(subject, path, getattr(reward, "tool", None))
    if not positive:
        hint = f"give '{names[0]}' a weight above 0"
        yield document.fault("rewards", "no term has a positive weight, so nothing is rewarded", hint, at="key")
    yield from _circles(subject, reads)
    if spec.success is not None:
        yield from _expression(subject, "success", spec.success, names)


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
            close = nearest(name, names)
            hint = f"did you mean '{close}'?" if close else f"terms: {', '.join(names) or 'none'}"
            yield subject.document.fault(path, f"there is no reward term '{name}'", hint, find=name)


def _tool_of(subject: Subject, path: str, tool: object) -> Iterator[Fault]:
    if not isinstance(tool, str) or tool in subject.tools or tool in subject.loaded.spec.tools:
        return
    if not subject.tools_are_known and len(subject.loaded.spec.tools) == 0:
        return
    close = nearest(tool, subject.tools)
    hint = f"did you mean '{close}'?" if close else f"tools: {', '.join(subject.tools) or 'none'}"
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
