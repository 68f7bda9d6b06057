"""What became of the attacks on the judges of a spec."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JudgeFall", "JudgedTerm"]


@dataclass(frozen=True, slots=True)
class JudgeFall:
    """The least text that moved a judge: values are places on the scale, 0 (its lower end) to 1."""

    hole: str
    attack: str
    split: str
    task: int
    text: str
    before: float
    after: float
    share: float
    """Of the tasks where there was room to rise, those where it did."""
    judges: tuple[str, ...] = ()
    """Which judges of a panel rose on as many tasks; () for a single judge."""


@dataclass(frozen=True, slots=True)
class JudgedTerm:
    """What became of the attacks on one judge.

    `oracle` and `wrong` are the means of what it gives the oracle's episodes and plain wrong answers, as places on the
    scale. `requests` are those that were sent, those for replies that could not be read included; `cached` verdicts
    needed none.
    """

    term: str
    scale: tuple[float, float]
    tasks: int
    verdicts: int
    invalid: int
    requests: int
    cached: int
    oracle: float | None
    wrong: float | None
    falls: tuple[JudgeFall, ...]
