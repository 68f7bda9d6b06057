"""What adversaries got on one split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlenv.audit.play import Key, Way
from rlenv.trajectory import Trajectory

__all__ = ["Chapter", "Leak"]


@dataclass(frozen=True, slots=True)
class Leak:
    """A place that shows golds, the rule that finds them there, and what it takes on each task (by its number)."""

    where: str
    rule: str
    taken: Mapping[int, str]
    hits: int


@dataclass(slots=True)
class Chapter:
    """What adversaries got on one split, each way on its own."""

    split: str
    golds: Mapping[Key, Trajectory]
    answers: int
    """How many different answers the oracle gives."""
    ways: dict[str, list[Way]] = field(default_factory=dict)
    """By the adversary's name."""
    controls: dict[str, list[Way]] = field(default_factory=dict)
    """The same ways without the right answer, of adversaries that earn."""
    worked: Way = field(default_factory=dict)
    """The oracle's actions without its last one, and then no answer: what is done and not what is said."""
    emptied: list[Way] = field(default_factory=list)
    asked: list[tuple[str, Way]] = field(default_factory=list)
    """By what was asked: a tool and its parameter."""
    echoed: list[tuple[str, Way]] = field(default_factory=list)
    """By what was told: a tool that says it back, and its parameter; without tasks that pay for anything else."""
    leaks: list[tuple[Leak, Way]] = field(default_factory=list)
    constants: list[tuple[str, Way]] = field(default_factory=list)
    choices: list[Way] = field(default_factory=list)
    """The first option of each task, its second, and so on."""

    def all_ways(self, name: str) -> list[Way]:
        """The ways of an adversary by its name."""
        others = {
            "constant_answer": [way for _, way in self.constants],
            "chance": [],
            "leak": [way for _, way in self.leaks],
            "emptied_state": self.emptied,
            "echoed": [way for _, way in self.echoed],
            "asked_until_right": [way for _, way in self.asked],
        }
        return [way for way in self.ways.get(name, others.get(name, [])) if way]
