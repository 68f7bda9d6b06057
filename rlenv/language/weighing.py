"""What is wrong with `rewards` and `success` beside each other: weights, bounds, gates and the terms that they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlenv._base.nearest import did_you_mean
from rlenv.errors import Finding
from rlenv.language.document import SourceDocument
from rlenv.language.expressions import ExpressionError, compile_expression
from rlenv.language.spec import EnvSpec, RewardSpec

__all__ = ["Flaw", "flaws", "weighing_faults"]


@dataclass(frozen=True, slots=True)
class Flaw:
    """One fault: the dotted key of the spec, what is wrong, the nearest fix, and a text in the value to point at."""

    path: str
    message: str
    hint: str
    find: str = ""


def weighing_faults(
    document: SourceDocument, spec: EnvSpec, *, lost: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """The `flaws` of a spec, each at its place in the document."""
    for flaw in flaws(spec.rewards, spec.success, lost=lost):
        yield document.fault(flaw.path, flaw.message, flaw.hint, find=flaw.find)


def flaws(
    rewards: Mapping[str, RewardSpec], success: str | None, *, lost: frozenset[str] = frozenset()
) -> Iterator[Flaw]:
    """Every fault of a weight, `range`, `clip`, `gate` and `success`.

    Args:
        lost: dotted places that were taken out of the spec; what reads such a term is not at fault.
    """
    names = list(rewards)
    reads: dict[str, tuple[str, ...]] = {}
    for name, reward in rewards.items():
        path = f"rewards.{name}"
        if not math.isfinite(reward.weight):
            message = f"found {reward.weight}; expected a finite number"
            yield Flaw(f"{path}.weight", message, "write a number such as 1.0")
        yield from _bounds(path, reward)
        if reward.gate is None:
            continue
        others = [one for one in names if one != name]
        found, wrong = _expression(f"{path}.gate", reward.gate, others, lost)
        if name in found:
            message = f"the gate of '{name}' reads '{name}' itself"
            yield Flaw(f"{path}.gate", message, "name another term", name)
        else:
            reads[name] = found
            yield from wrong
    yield from _circles(reads)
    if success is not None:
        yield from _expression("success", success, names, lost)[1]


def _bounds(path: str, reward: RewardSpec) -> Iterator[Flaw]:
    for key in ("range", "clip"):
        pair = getattr(reward, key)
        if pair is None:
            continue
        low, high = pair
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
            message = f"found [{low:g}, {high:g}]; expected a lower and a higher finite number"
            hint = f"write [{min(pair):g}, {max(pair):g}]" if low != high else "write [0, 1]"
            yield Flaw(f"{path}.{key}", message, hint)


def _expression(path: str, source: str, names: list[str], lost: frozenset[str]) -> tuple[tuple[str, ...], list[Flaw]]:
    """The terms that an expression reads, and what is wrong with it."""
    try:
        read = compile_expression(source).names
    except ExpressionError as error:
        rest = source[error.position :].split()
        hint = error.hint or "write TERM >= NUMBER, joined by 'and' and 'or'"
        return (), [Flaw(path, error.message, hint, rest[0] if rest else "")]
    unknown = [name for name in read if name not in names and f"rewards.{name}" not in lost]
    return read, [
        Flaw(path, f"there is no reward term '{name}'", did_you_mean(name, names, "terms"), name) for name in unknown
    ]


def _circles(reads: Mapping[str, tuple[str, ...]]) -> Iterator[Flaw]:
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
                        yield Flaw(f"rewards.{start}.gate", message, "remove one of these gates")
                elif other not in seen:
                    seen.add(other)
                    frontier.append((other, (*trail, other)))
