"""The frozen record of one episode, and the constructors that name what it ends as.

`TermResult.valid`, `invalid` and `skipped` say what became of a term; `Trajectory.ended` and `failed` what became of an
episode, and hold what an episode is that has no reward. They take secrets out of what is
said of terms and of failures: evidence, errors, details, messages of a `Failure`. The rest they take as it is, prompts
and results without secrets from those who make them. The bare constructors are for readers of records, which take what
was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NotRequired, TypedDict, Unpack

from rlenv._base.bounded import SPARSE, cut_middle, encodable, quick
from rlenv.messages import Message, Observation, ParsedAction, ToolResult
from rlenv.secrets import redact, redact_ends, redact_value, redact_within

__all__ = ["EVIDENCE_CHARS", "TERMINATIONS", "Failure", "Measurement", "ModelUsage", "Record", "RewardBreakdown"]
__all__ += ["Step", "TermResult", "Trajectory", "Turn", "Where", "term_result"]

EVIDENCE_CHARS: Final = 1024
"""Evidence and error of a TermResult are cut to this many characters."""

TERMINATIONS: Final = ("answer", "final_message", "user")
"""The reasons of episodes whose task ended."""

Where = tuple[tuple[int, int, int], ...]
"""Places in an episode's messages: the message's number, its first character and the one behind its last.

Messages are numbered from 0 as they were said: those of `Trajectory.messages`, then of each turn its `action` and the
messages of its `observation`. Characters are code points of the message's text as it is recorded.
"""

Status = Literal["valid", "invalid", "skipped"]
_NOTHING: Final = Observation()


class Measurement(TypedDict, total=False):
    """The facts of a term that may be known whatever became of it; see `TermResult`."""

    evidence: str
    seconds: float
    turn_values: tuple[float | None, ...]
    details: Mapping[str, Any]
    where: Where | Callable[[], Where]


@dataclass(frozen=True, slots=True)
class TermResult:
    """One reward term as it was measured in one episode. Made by `valid`, `invalid` or `skipped`.

    `value` is the term's value, None unless `status` is `valid`. For a term measured at every turn, `turn_values`
    holds one entry a turn (None where the turn gave nothing to measure) and `value` is their mean, or their sum
    where the spec says so. `evidence` is the text that the value was read from, cut to a bounded length. `error`
    says why a term is invalid or skipped ("" for a valid one). `seconds` is wall time. `where` are the places that the
    value was read from, () where the term does not say, as in records of older versions; the text there may be longer
    than `evidence`, and may have had secrets that `evidence` has not.
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
    where: Where = field(default=(), metadata=SPARSE)

    @staticmethod
    def valid(name: str, *, value: float, weight: float, **measurement: Unpack[Measurement]) -> TermResult:
        """A term with a value, a finite number."""
        return term_result(name, "valid", value, weight, "", **measurement)

    @staticmethod
    def invalid(name: str, *, error: str, weight: float, **measurement: Unpack[Measurement]) -> TermResult:
        """A term that could not be measured."""
        return term_result(name, "invalid", None, weight, redact_ends(error, EVIDENCE_CHARS), **measurement)

    @staticmethod
    def skipped(name: str, *, why: str, weight: float, **measurement: Unpack[Measurement]) -> TermResult:
        """A term whose gate was shut, or which had nothing to measure."""
        return term_result(name, "skipped", None, weight, redact_ends(why, EVIDENCE_CHARS), **measurement)


class _Where:
    """The slot of `TermResult.where`, which may be filled by a function: it is asked once, when somebody looks.

    To place what an answer says takes a tenth of the time that scoring it does, and a loop that keeps no record never
    looks.
    """

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, result: TermResult | None, owner: type) -> Any:
        if result is None:
            return self
        found = self._slot.__get__(result)
        if type(found) is not tuple:
            found = tuple(found())
            self._slot.__set__(result, found)
        return found

    def __set__(self, result: TermResult, where: Where | Callable[[], Where]) -> None:
        self._slot.__set__(result, where)


_made_result: Callable[..., TermResult] = quick(TermResult)
TermResult.where = _Where(vars(TermResult)["where"])  # type: ignore[misc, assignment]


def term_result(
    name: str,
    status: Status,
    value: float | None,
    weight: float,
    error: str,
    evidence: str = "",
    seconds: float = 0.0,
    turn_values: tuple[float | None, ...] = (),
    details: Mapping[str, Any] | None = None,
    where: Where | Callable[[], Where] = (),
) -> TermResult:
    """A result whose evidence and details hold no secret and are bounded; see `TermResult.valid` and its kin."""
    # Redacted before it is cut: a half of a secret is no longer found.
    shown = redact_within(evidence, EVIDENCE_CHARS)
    if len(evidence) > EVIDENCE_CHARS:
        shown = shown[: EVIDENCE_CHARS - 1] + "…"
    kept = redact_value(details) if details else {}
    return _made_result(name, status, value, weight, shown, error, seconds, turn_values, kept, where)


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

    @staticmethod
    def invalid(terms: Mapping[str, TermResult], *, turns: int) -> RewardBreakdown:
        """The breakdown of an episode of so many turns that has no total."""
        return RewardBreakdown(None, terms, (0.0,) * turns)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an episode's reward is invalid: a stable `reason` for counting and a `message` for people."""

    reason: str
    message: str

    def within(self, chars: int) -> Failure:
        """The same with at most so many characters of its message, which any process can take."""
        return Failure(self.reason, cut_middle(encodable(self.message), chars))


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and what came of it.

    `action` is the policy's text as it was given. `observation` is None on the last turn. `calls_malformed` counts
    calls that could not be read, named no tool or did not fit its schema. `finish_reason`, `token_ids`, `logprobs`
    and `prompt_token_ids` are what the sampler said of the action (see `rlenv.messages.Sampled`); "" and () where it
    said nothing. `started` is when the
    action came, in seconds from the episode's start, and `seconds` how long it took to answer it: what lies between the
    end of one turn and the start of the next is the policy's.
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
    started: float | None = None
    logprobs: tuple[float, ...] = field(default=(), metadata=SPARSE)
    prompt_token_ids: tuple[int, ...] = field(default=(), metadata=SPARSE)

    @property
    def was_cut(self) -> bool:
        """True where a limit of tokens ended the action and not the policy."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The usage of one model by one role in one episode.

    `role` is `policy`, `user`, `judge TERM`, `term TERM`, `tool NAME`, and within an agent what its own roles ask:
    `agent NAME > policy`. `requests` counts every try, and `failed` those of them that were of no use: refused, lost,
    late, or with a reply that could not be read. `unknown` counts good answers that do not say their tokens; no count
    of tokens holds anything for them. `cached` counts questions whose answer was kept from another, and for which
    nothing was asked. `prompt_tokens` include `cached_tokens`, which the server says it had kept, and
    `completion_tokens` include `reasoning_tokens`, both where it says so. `seconds` is the time that tries took, added
    up, without the waits between them.

    `is_recorded` marks what a tape or a record answered: it was asked for then, and costs nothing now.
    """

    role: str
    model: str
    requests: int = 0
    failed: int = field(default=0, metadata=SPARSE)
    unknown: int = field(default=0, metadata=SPARSE)
    cached: int = field(default=0, metadata=SPARSE)
    prompt_tokens: int = 0
    cached_tokens: int = field(default=0, metadata=SPARSE)
    completion_tokens: int = 0
    reasoning_tokens: int = field(default=0, metadata=SPARSE)
    seconds: float = 0.0
    is_recorded: bool = field(default=False, metadata=SPARSE)


class Record(TypedDict):
    """The record of an episode however it ends; see `Trajectory`."""

    environment: str
    split: str
    task_index: int
    seed: int
    task: Mapping[str, Any]
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    answer: str | None
    seconds: float
    usage: NotRequired[tuple[ModelUsage, ...]]
    others: NotRequired[tuple[Trajectory, ...]]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode from prompt to reward; never changes once made. Made by `termination`, `truncation` or `failed`.

    `terminated`: the task ended (`reason` is one of `TERMINATIONS`). `truncated`: a limit or a failure cut it
    (`reason` names which). `answer` is what the answer rule read from the policy's own text, None where nothing was.

    An episode whose reward is invalid has failed: `failure` says why, `reward.total` and `success` are None, and it
    counts as truncated. Its `reason` is the failure's, or the limit's where one had cut it before.

    `usage` is what was asked of models until the episode was scored, by role and model; () where nothing was. `others`
    are the episodes of the other players, where there are any (`user: {kind: players}`).
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
    usage: tuple[ModelUsage, ...] = field(default=(), metadata=SPARSE)
    others: tuple[Trajectory, ...] = field(default=(), metadata=SPARSE)

    @staticmethod
    def ended(
        record: Record, *, terminated: bool, reason: str, reward: RewardBreakdown, success: bool | None
    ) -> Trajectory:
        """An episode whose task ended (`terminated`) or that the limit `reason` cut; failed if `reward` is invalid."""
        ended = _made_trajectory(
            **record, terminated=terminated, truncated=not terminated, reason=reason, reward=reward, success=success
        )
        return ended if reward.total is not None else ended._held()

    @staticmethod
    def failed(*, failure: Failure, reward: RewardBreakdown, **record: Unpack[Record]) -> Trajectory:
        """An episode that ended by no doing of its policy, before it could be scored; `reward` is invalid."""
        told = Failure(failure.reason, redact(failure.message))
        return Trajectory(
            **record, terminated=False, truncated=True, reason=told.reason, reward=reward, success=None, failure=told
        )

    def rescored(self, reward: RewardBreakdown, success: bool | None) -> Trajectory:
        """The same episode with another reward; it has failed where that is invalid. Not for one that has failed."""
        return replace(self, reward=reward, success=success)._held()

    def _held(self) -> Trajectory:
        """Itself where it has a reward. The one place that says what an invalid one makes of an episode."""
        if self.reward.total is not None:
            return self
        bad = [f"{term.name}: {term.error}" for term in self.reward.terms.values() if term.status == "invalid"]
        return replace(
            self,
            terminated=False,
            truncated=True,
            reason="reward" if self.terminated else self.reason,
            success=None,
            failure=Failure("reward", redact("; ".join(bad)) or "the terms add up to no finite number"),
        )

    @property
    def cut_by(self) -> str:
        """The limit that cut the episode, "" where none did: its task ended, or it failed before either."""
        if not self.truncated:
            return ""
        return "" if self.failure is not None and self.reason == self.failure.reason else self.reason

    def measured(self) -> dict[str, float]:
        """The success and the value of each term by `term/NAME`, those that are known: what a trainer's log takes."""
        known = {} if self.success is None else {"success": float(self.success)}
        return known | {f"term/{n}": one.value for n, one in self.reward.terms.items() if one.value is not None}

    def outcome(self) -> dict[str, Any]:
        """The end as JSON, without clocks: `total`, `success` and each term's value, None where they are not known,
        `reason`, and `failure` with its reason and message, None where the reward is valid."""
        failure = self.failure
        return {
            "total": self.reward.total,
            "success": self.success,
            "reason": self.reason,
            "failure": None if failure is None else {"reason": failure.reason, "message": failure.message},
            "terms": {name: term.value for name, term in self.reward.terms.items()},
        }

    @property
    def calls(self) -> int:
        """The number of calls that were made, malformed ones included."""
        return sum(len(turn.results) for turn in self.turns)


_made_trajectory = quick(Trajectory)


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one action.

    `reward` is what this turn earned: the shares of `RewardBreakdown.turn_rewards` that are known by now; over an
    episode the rewards of all steps sum to its total. It is None where the reward is invalid. `reason` says why the
    episode ended ("" while it runs). `observation` is empty where the episode terminated.
    """

    observation: Observation
    reward: float | None
    terminated: bool = False
    truncated: bool = False
    reason: str = ""

    @staticmethod
    def last(trajectory: Trajectory, *, reward: float | None, observation: Observation = _NOTHING) -> Step:
        """The step that ended an episode."""
        return _made_step(observation, reward, trajectory.terminated, trajectory.truncated, trajectory.reason)

    @property
    def is_last(self) -> bool:
        """True where the episode ended with this step."""
        return self.terminated or self.truncated

    def as_dict(self) -> dict[str, Any]:
        """The step as JSON: `text` and `messages` of its observation in OpenAI's form, and its own fields."""
        return {
            "text": self.observation.text,
            "messages": [message.as_dict() for message in self.observation.messages],
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "reason": self.reason,
        }


_made_step = quick(Step)
