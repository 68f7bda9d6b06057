"""What a model that attacks a reward may spend, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["AttackerLimits", "AttackerReport", "LeastEpisode", "StrategyResult"]


@dataclass(frozen=True, slots=True)
class AttackerLimits:
    """What an attacker may spend. It ends with whatever comes first; tokens are those that its server counts."""

    rounds: int = 4
    tasks: int = 6
    strategies: int = 6
    """The most of one round that are played."""
    requests: int = 100
    tokens: int = 200_000
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class LeastEpisode:
    """The shortest episode that shows what the best strategy earns."""

    split: str
    task: int
    actions: tuple[str, ...]
    answer: str | None
    reward: float
    oracle: float
    terms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """What one strategy earned, on the same tasks as all others.

    `share` is all that it earned of the oracle's reward, `undone` what it earned without doing the task: in episodes
    whose answer is not the oracle's, or that left out a tool that the oracle called. Both are over the tasks where the
    reward is valid, None without any. `terms` are means of values.
    """

    name: str
    why: str
    actions: tuple[str, ...]
    is_played: bool
    """Whether the model played each task itself, in place of a script."""
    tasks: int
    invalid: int
    share: float | None
    undone: float | None
    without_tools: int
    """Tasks with a success and without a tool that the oracle called."""
    terms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class AttackerReport:
    """What an attacker tried and spent; `wrong` is what a plain wrong answer earns of the oracle's reward, None where
    no such reward is valid.
    """

    model: str
    rounds: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    unreadable: int
    """Replies that gave no strategy: the model's mistakes."""
    ended: str
    """Why it ended."""
    wrong: float | None
    strategies: tuple[StrategyResult, ...]
    best: str = ""
    least: LeastEpisode | None = None
