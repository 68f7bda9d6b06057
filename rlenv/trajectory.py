"""The frozen record of one episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlenv.messages import Message, Observation, ParsedAction, ToolResult

__all__ = ["Failure", "RewardBreakdown", "TermResult", "Trajectory", "Turn"]

Status = Literal["valid", "invalid", "skipped"]


@dataclass(frozen=True, slots=True)
class TermResult:
    """One reward term as it was measured in one episode.

    `value` is the term's value, None unless `status` is `valid`. For a term measured at every turn, `turn_values`
    holds one entry a turn (None where the turn gave nothing to measure) and `value` is their mean, or their sum
    where the spec says so. `evidence` is the text that the value was read from, cut to a bounded length. `error`
    says why a term is invalid or skipped ("" for a valid one). `seconds` is wall time.
    """

    name: str
    status: Status
    value: float | None
    weight: float
    evidence: str = ""
    error: str = ""
    seconds: float = 0.0
    turn_values: tuple[float | None, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """The reward of one episode: R = Σ wᵢ·rᵢ over the valid terms.

    `total` is None where a required term is invalid or the episode failed: such a reward is masked out of training,
    never a number. `turn_rewards` has one entry a turn; their sum is `total` (all zero where `total` is None):
    a turn term's share stands on its own turn, every other term's on the last.
    """

    total: float | None
    terms: Mapping[str, TermResult]
    turn_rewards: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode's reward is invalid: a stable `reason` for counting and a `message` for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and what came of it.

    `action` is the policy's text as it was given. `observation` is None on the last turn. `calls_malformed` counts
    calls that could not be read, named no tool or did not fit its schema. `finish_reason` and `token_ids` are what the
    sampler said of the action (see `rlenv.messages.Sampled`); "" and () where it said nothing.
    """

    index: int
    action: str
    parsed: ParsedAction
    results: tuple[ToolResult, ...] = ()
    observation: Observation | None = None
    calls_malformed: int = 0
    seconds: float = 0.0
    finish_reason: str = ""
    token_ids: tuple[int, ...] = ()

    @property
    def was_cut(self) -> bool:
        """True where a limit of tokens ended the action and not the policy."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode from prompt to reward; never changes once made.

    `terminated`: the task ended (`reason` `answer`, `final_message` or `user`). `truncated`: a limit or a failure cut
    it (`reason` names which). `answer` is what the answer rule read from the policy's own text, None where nothing was.
    `success` is None where the reward is invalid.
    """

    environment: str
    split: str
    task_index: int
    seed: int
    task: Mapping[str, Any]
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    answer: str | None
    terminated: bool
    truncated: bool
    reason: str
    reward: RewardBreakdown
    success: bool | None
    failure: Failure | None = None
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """How many calls were made, malformed ones included."""
        return sum(len(turn.results) for turn in self.turns)
