"""What is wrong with `rewards` and `success` beside each other: weights, bounds, gates and the terms that they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rlenv._base.nearest import did_you_mean
from rlenv.errors import Fault
from rlenv.language.document import SourceDocument
from rlenv.language.expressions import ExpressionError, compile_expression
from rlenv.language.spec import EnvSpec, RewardSpec

__all__ = ["weighing_faults"]


def weighing_faults(document: SourceDocument, spec: EnvSpec, *, lost: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Every fault of a weight, `range`, `clip`, `gate` and `success`.

    Args:
        lost: dotted places that were taken out of the spec; what reads such a term is not at fault.
    """
    names = list(spec.rewards)
    reads: dict[str, tuple[str, ...]] = {}
    for name, reward in spec.rewards.items():
        path = f"rewards.{name}"
        if not math.isfinite(reward.weight):
            message = f"found {reward.weight}; expected a finite number"
            yield document.fault(f"{path}.weight", message, "write a number such as 1.0")
        yield from _bounds(document, path, reward)
        if reward.gate is None:
            continue
        others = [one for one in names if one != name]
        found, faults = _expression(document, f"{path}.gate", reward.gate, others, lost)
        if name in found:
            message = f"the gate of '{name}' reads '{name}' itself"
            yield document.fault(f"{path}.gate", message, "name another term", find=name)
        else:
            reads[name] = found
            yield from faults
    yield from _circles(document, reads)
    if spec.success is not None:
        yield from _expression(document, "success", spec.success, names, lost)[1]


def _bounds(document: SourceDocument, path: str, reward: RewardSpec) -> Iterator[Fault]:
    for key in ("range", "clip"):
        pair = getattr(reward, key)
        if pair is None:
            continue
        low, high = pair
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
            message = f"found [{low:g}, {high:g}]; expected a lower and a higher finite number"
            hint = f"write [{min(pair):g}, {max(pair):g}]" if low != high else "write [0, 1]"
            yield document.fault(f"{path}.{key}", message, hint)


def _expression(
    document: SourceDocument, path: str, source: str, names: list[str], lost: frozenset[str]
) -> tuple[tuple[str, ...], list[Fault]]:
    """The terms that an expression reads, and what is wrong with it."""
    try:
        read = compile_expression(source).names
    except ExpressionError as error:
        rest = source[error.position :].split()
        hint = error.hint or "write TERM >= NUMBER, joined by 'and' and 'or'"
        return (), [document.fault(path, error.message, hint, find=rest[0] if rest else "")]
    unknown = [name for name in read if name not in names and f"rewards.{name}" not in lost]
    return read, [
        document.fault(path, f"there is no reward term '{name}'", did_you_mean(name, names, "terms"), find=name)
        for name in unknown
    ]


def _circles(document: SourceDocument, reads: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    reported: set[frozenset[str]] = set()
    for start in reads:
        seen = {start}
        frontier: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
        while frontier:
            name, trail = frontier.pop()
            for other in reads.get(name, ()):
                if other == start:
                    members = frozenset(trail)
                    if members not in reported:
                        reported.add(members)
                        message = f"the gates form a circle: {' -> '.join((*trail, start))}"
                        yield document.fault(f"rewards.{start}.gate", message, "remove one of these gates")
                elif other not in seen:
                    seen.add(other)
                    frontier.append((other, (*trail, other)))
