"""What an audit looks at beside the adversaries: each look takes one split and gives findings and notes.

A look is one entry of `LOOKS`. It is called once for each split, behind the oracle's episodes, and awaits what it has
to; it raises nothing for what it finds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rlenv.audit.report import Finding
from rlenv.episodes.environment import Environment
from rlenv.trajectory import Trajectory

__all__ = ["LOOKS", "Look", "Looked"]


@dataclass(frozen=True, slots=True)
class Looked:
    """One split as a look sees it, and where what it finds goes."""

    environment: Environment
    split: str
    golds: Sequence[Trajectory]
    """The oracle's episodes, failed ones too, in the order of the rows."""
    tasks: int
    """How many tasks an adversary plays."""
    seed: int
    concurrency: int
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Look = Callable[[Looked], Awaitable[None]]

LOOKS: tuple[Look, ...] = ()
