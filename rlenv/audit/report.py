"""The reports of an audit: of a spec, of its judges, and of a model that attacked it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.endpoints import Endpoint
from rlenv.errors import Finding
from rlenv.runs.files import plain
from rlenv.trajectory import Trajectory


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
    """The outcome of the attacks on one judge.

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


@dataclass(frozen=True, slots=True)
class AttackerLimits:
    """The limits of an attacker. It ends with whatever comes first; tokens are those that its server counts."""

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
    """The rewards of one strategy, on the same tasks as all others.

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
    """The strategies and the spending of an attacker; `wrong` is what a plain wrong answer earns of the oracle's
    reward, None where no such reward is valid.
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


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of an audit. Shares are of the oracle's mean reward, or of tasks."""

    adversary: float = 0.2
    """The most an adversary may earn on average."""
    no_signal: float = 0.2
    """The most tasks on which all sampled answers score alike."""


@dataclass(frozen=True, slots=True)
class HoleEpisode:
    """The least episode that shows a hole: what was done, what it earned, and what the oracle earns there.

    Long actions are cut in the middle.
    """

    split: str
    task: int
    actions: tuple[str, ...]
    reward: float | None
    oracle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole(Finding):
    """A fault of the reward. Its name is a stable word, `code`; `term` is the reward's term ("" for the whole reward).

    `hint` is what to change, `episode` the least one that shows it, `where` the place that gives an answer away (for
    `leak`), `also` are the other adversaries that earn by the same fault, and `splits` those whose rows a finding over
    rows is about.
    """

    term: str = ""
    episode: HoleEpisode | None = None
    also: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()

    @property
    def hole(self) -> str:
        """Its name: `code`."""
        return self.code


def hole_of(
    code: str,
    message: str,
    term: str = "",
    hint: str = "",
    episode: HoleEpisode | None = None,
    where: str = "",
    splits: tuple[str, ...] = (),
) -> Hole:
    """The hole of that name."""
    return Hole("error", message, hint, code=code, where=where, term=term, episode=episode, splits=splits)


@dataclass(frozen=True, slots=True)
class Attack:
    """The rewards of one adversary: means over the tasks where its reward is valid.

    `share` is of the oracle's mean on the same tasks, None where nothing was valid or it could not play. `worst_task`
    is the index of the task where it earned most, with `worst` its reward there.
    """

    name: str
    does: str
    episodes: int
    invalid: int
    reward: float | None
    share: float | None
    worst: float | None = None
    worst_task: int | None = None
    terms: Mapping[str, float | None] | None = None
    why_invalid: str = ""
    """The first reward that could not be measured: `split/task: why`; "" where none was."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The oracle's episodes while a share of its calls fails; a call that fails has not run.

    `gave_up` are episodes that the oracle's script could not go on with, for want of a result that it reads; they are
    part of no other figure than `episodes`.
    """

    share: float
    reward: float | None
    success: float | None
    invalid: int
    episodes: int
    gave_up: int = 0


class ReportCard:
    """The shared part of an audit's reports; one passes where nothing was found."""

    __slots__ = ()

    findings: tuple[Any, ...]

    @property
    def passes(self) -> bool:
        """True where nothing was found."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        found: dict[str, Any] = plain(self)
        for told in found["findings"]:
            if isinstance(told, dict):  # no file has a part in it; `hole` is the name that reports had for `code`
                told["hole"] = told["code"]
                for key in ("file", "line", "column", "quote"):
                    del told[key]
        return {"passes": self.passes, **found}


@dataclass(frozen=True, slots=True)
class AuditReport(ReportCard):
    """A report card of one spec."""

    environment: str
    digest: str
    tasks: Mapping[str, int]
    oracle_reward: float | None
    oracle_below: tuple[str, ...]
    """Tasks where the oracle is below the maximum, as `split/index: why`."""
    attacks: tuple[Attack, ...]
    no_signal: float | None
    constant_terms: tuple[str, ...]
    """Terms that had one value in all episodes of the audit."""
    foreign_terms: tuple[str, ...]
    """Terms that rose when only what tools wrote was changed."""
    faults: Faults | None
    findings: tuple[Hole, ...]
    notes: tuple[str, ...] = ()
    """What was not looked at, and why."""
    judged: tuple[JudgedTerm, ...] = ()
    """What became of the attacks on each judge."""
    attacker: AttackerReport | None = None
    """What a model tried against the reward; None where none was asked."""


@dataclass(frozen=True, slots=True)
class Attacker:
    """The model that attacks a reward, and what it may spend."""

    endpoint: Endpoint
    limits: AttackerLimits = AttackerLimits()
    on_episode: Callable[[Trajectory], None] | None = None
    """Given the least episode of what it found, to be recorded."""


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None
