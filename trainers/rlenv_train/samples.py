"""A sample on its way through a trainer: its row, its state while it is played, figures of a step, and its group."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rlenv.concurrency.lanes import Lane
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.errors import UsageError
from rlenv.rewards.group import score_groups
from rlenv.runs.schema import Facts, Mode, Tokens
from rlenv.tokens import TokenRows
from rlenv.trajectory import Trajectory
from rlenv_train.fate import FailurePolicy, Outcome, Row
from rlenv_train.keeping import Activity


@dataclass(frozen=True, slots=True)
class EpisodeFigures:
    """One training episode as the replay buffer counts it. Travels as a dict in the sample's `extra_fields["rlenv"]`.

    `ended` is why the episode ended. `masked` and `zeroed` name that reason again where the failure policy took the
    sample out of the loss or counted it as reward 0.0 ("" where it did not). `reward` is None where there is none to
    train on. `success` and the values of `terms` are None where they were not measured. `tool_s` is the time in the
    environment (tools, users, rewards), `generate_s` the time in the rollout server, both in seconds over all turns;
    `tokens` is how many the policy sampled. `rows` is how many training rows the episode is, and `differences` how many
    of its observations the chat template would have written with another history (`run.history`); `respelled` is how
    many of its turns the template writes in other words than were sampled. `began` and
    `finished` are seconds of the system's clock. `stops` says why the run has to end ("" where it has not): a term with
    `on_invalid: raise` could not be measured. `id` is the episode's in the run's folder (`rlenv.runs`), "" where it is
    not kept; `is_lost` where it should be and could not be written.
    """

    spec: str
    split: str
    task: int
    ended: str
    masked: str = ""
    zeroed: str = ""
    reward: float | None = None
    success: float | None = None
    is_invalid: bool = False
    turns: int = 0
    calls: int = 0
    calls_malformed: int = 0
    rows: int = 1
    differences: int = 0
    respelled: int = 0
    tokens: int = 0
    tool_s: float = 0.0
    generate_s: float = 0.0
    began: float = 0.0
    finished: float = 0.0
    stops: str = ""
    terms: Mapping[str, float | None] = field(default_factory=dict)
    id: str = ""
    is_lost: bool = False

    def as_fields(self) -> dict[str, Any]:
        """Plain values, for a store that knows no classes."""
        # `asdict` copies every value in depth, which takes as long as a turn.
        return {name: getattr(self, name) for name in _NAMES} | {"terms": dict(self.terms)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> EpisodeFigures:
        """The inverse of `as_fields`."""
        return cls(**fields)


_NAMES = tuple(field.name for field in fields(EpisodeFigures))


def step_figures(episodes: Iterable[EpisodeFigures]) -> dict[str, float]:
    """The figures of one step's training episodes, by name, as `rlenv/SPEC/FIGURE`.

    Counts: `episodes`, `invalid` (no reward could be measured), `ended/REASON`, `masked/REASON`, `zeroed/REASON`. The
    replay buffer adds `not_kept` where the run's folder could not be written.
    Means over the episodes that are not masked: `reward` (zeroed ones count 0.0), `success`, `term/NAME`, `turns`,
    `calls`, `calls_malformed`, `rows` (training rows) and `differences` (observations before which the chat
    template would have written the history otherwise) and `respelled` (turns that it writes in other words); a mean
    over nothing is left out. Over all episodes: `tool_s/mean`, `tool_s/max` and `generate_s/mean` in seconds an
    episode, and `calls_per_s` and `tokens_per_s` (sampled ones) from the moment that the first episode began to the
    moment that the last one ended.
    """
    by_spec: dict[str, list[EpisodeFigures]] = {}
    for episode in episodes:
        by_spec.setdefault(episode.spec, []).append(episode)
    figures: dict[str, float] = {}
    for spec, found in by_spec.items():
        figures.update({f"rlenv/{spec}/{name}": value for name, value in _batch_figures(found).items()})
    return figures


def _batch_figures(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    figures: dict[str, float] = {
        "episodes": float(len(episodes)),
        "invalid": float(sum(episode.is_invalid for episode in episodes)),
    }
    for kind in ("ended", "masked", "zeroed"):
        counts = Counter(getattr(episode, kind) for episode in episodes)
        figures |= {f"{kind}/{reason}": float(count) for reason, count in sorted(counts.items()) if reason}
    trained = [episode for episode in episodes if not episode.masked]
    means: dict[str, list[float | None]] = {
        name: [getattr(episode, name) for episode in trained]
        for name in ("reward", "success", "turns", "calls", "calls_malformed", "rows", "differences", "respelled")
    }
    for name in dict.fromkeys(name for episode in trained for name in episode.terms):
        means[f"term/{name}"] = [episode.terms.get(name) for episode in trained]
    for name, values in means.items():
        known = [value for value in values if value is not None]
        if known:
            figures[name] = sum(known) / len(known)
    figures["tool_s/mean"] = sum(episode.tool_s for episode in episodes) / len(episodes)
    figures["tool_s/max"] = max(episode.tool_s for episode in episodes)
    figures["generate_s/mean"] = sum(episode.generate_s for episode in episodes) / len(episodes)
    seconds = max(episode.finished for episode in episodes) - min(episode.began for episode in episodes)
    if seconds > 0:
        figures["calls_per_s"] = sum(episode.calls for episode in episodes) / seconds
        figures["tokens_per_s"] = sum(episode.tokens for episode in episodes) / seconds
    return figures


def trained_tasks(step: int, groups: Iterable[Sequence[EpisodeFigures]]) -> list[dict[str, Any]]:
    """The tasks that a step trains on, one entry a group: step, spec, split, task, `episodes` and `valid` (not masked)
    ones, and the sums of `success` and `reward` over these.
    """
    return [
        {
            "step": step,
            **{name: getattr(group[0], name) for name in ("spec", "split", "task")},
            "episodes": len(group),
            "valid": len(valid := [episode for episode in group if not episode.masked]),
            **{name: sum(getattr(one, name) or 0.0 for one in valid) for name in ("success", "reward")},
        }
        for group in groups
        if group
    ]


@dataclass(frozen=True, slots=True)
class SampleTask:
    """The row that is played, and its step; `sample` is its place in `group`, which names the samples that are
    compared.
    """

    split: str
    index: int
    step: int
    is_validation: bool
    is_greedy: bool
    sample: int = 0
    group: str = ""

    @property
    def mode(self) -> Mode:
        """The mode of its sampling: training or validation."""
        if self.is_validation:
            return "greedy" if self.is_greedy else "sampled"
        return "train"


@dataclass(slots=True)
class Play:
    """The facts that the loop learns on the way, kept outside of the episode so that a fault does not lose them.

    `began` is its start in seconds since the epoch; `rows` are what veRL can take of it; `respelled` is how many turns
    the chat template spells otherwise, None as long as that was not counted; `id` is the episode's in the
    run's folder, "" as long as it is not kept, and `lane` is where its requests are recorded, None where none is.
    """

    activity: Activity
    policy: FailurePolicy
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: TokenRows | None = None
    versions: list[int | None] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    rows: list[Row] = field(default_factory=list)
    respelled: int | None = None
    id: str = ""
    lane: Lane | None = None

    def facts(self, task: SampleTask) -> Facts:
        """The facts that the run's folder keeps of the episode beside its record."""
        has_logprobs = self.tokens is not None and all(row.has_logprobs for row in self.tokens.rows)
        rows = [
            Tokens(row.prompt_ids, row.response_ids, row.mask, row.logprobs if has_logprobs else (), row.turn_spans)
            for row in self.rows
        ]
        return Facts(task.step, task.sample, task.mode, task.group, self.began, rows, respelled=self.respelled)

    @property
    def sampled(self) -> int:
        """The number of tokens that the policy sampled."""
        rows = self.tokens.rows if self.tokens is not None else ()
        return sum(end - start for row in rows for start, end in row.turn_spans)


def figures_of(
    spec: str, task: SampleTask, outcome: Outcome, play: Play, *, terms: Sequence[str], stops: str, is_kept: bool
) -> EpisodeFigures:
    """The replay buffer's figures of one sample; `is_kept` where episodes are."""
    info = outcome.info
    return EpisodeFigures(
        spec,
        task.split,
        task.index,
        outcome.ended,
        masked=outcome.masked,
        zeroed=outcome.zeroed,
        reward=None if outcome.masked else outcome.reward,
        success=info["success"],
        is_invalid=bool(info["invalid"]),
        turns=int(info["turns"] or 0),
        calls=int(info["calls"] or 0),
        calls_malformed=int(info["calls_malformed"] or 0),
        rows=int(info["rows"] or 1),
        differences=int(info["differences"] or 0),
        respelled=int(info["respelled"] or 0),
        tokens=play.sampled,
        tool_s=play.metrics.get("tool_calls", 0.0),
        generate_s=play.metrics.get("generate_sequences", 0.0),
        began=play.began,
        finished=time.time(),
        stops=stops,
        terms={name: info[f"term_{name}"] for name in terms},
        id=play.id,
        is_lost=is_kept and not play.id,
    )


# The samples of one prompt: terms that compare them, and a deadline for those that lag behind.
#
# veRL starts all samples of a prompt at once in one process (`AgentLoopWorkerTQ._run_prompt`): their tasks are created
# one after the other without a pause, and each comes to its agent loop without one. So whoever has joined by the next
# pass of the event loop is the whole group, whatever number of samples the configuration or a row asked for.


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Once `share` of a group has ended (0 to 1), the others have `grace_s` seconds more."""

    share: float
    grace_s: float


def stragglers(given: Mapping[str, Any] | None) -> Stragglers | None:
    """The deadline that a run's `stragglers:` section describes; None where there is none.

    Raises:
        UsageError: a key is unknown or missing, or a value is out of its range.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != {"share", "grace_s"}:
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else repr(given)
        raise UsageError(f"found {found or 'nothing'}; expected share and grace_s", key="stragglers")
    share, grace_s = float(given["share"]), float(given["grace_s"])
    if not 0 < share <= 1:
        raise UsageError(f"{share:g} is not above 0 and at most 1, such as 0.75", key="stragglers.share")
    if not 0 <= grace_s < math.inf:
        raise UsageError(f"{grace_s:g} is not a number of seconds, such as 60", key="stragglers.grace_s")
    return Stragglers(share, grace_s)


@dataclass(slots=True, eq=False)
class Sibling:
    """One sample of a group, from `Groups.join` to `leave`, which has to be called whatever happened in between."""

    group: _Group
    limit: asyncio.Timeout | None = None
    """Bounds the part of the episode that may be cut; set while the sample is in it."""
    episode: Episode | None = None
    trajectory: Trajectory | None = None
    _is_running: bool = True
    _scored: asyncio.Future[Trajectory] | None = None

    @property
    def is_cut(self) -> bool:
        """True once the group's deadline has ended this sample's episode."""
        return self.limit is not None and self.limit.expired()

    def timeout(self) -> asyncio.Timeout:
        """An `asyncio.timeout` that the group's deadline ends; enter it around what may be cut."""
        self.limit = asyncio.timeout(None)
        return self.limit

    async def score(self, trajectory: Trajectory, environment: Environment, *, counts: bool) -> Trajectory:
        """The trajectory with its group terms measured; waits for the other samples only where there are such terms.

        Args:
            environment: the same for all of a group.
            counts: False for a sample that will be masked; the others are compared without it.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        if not environment.parts.scorer.has_group_terms or not counts or trajectory.failure is not None:
            self._end()
            return trajectory
        self.trajectory = trajectory
        self._scored = asyncio.get_running_loop().create_future()
        self.group.environment = environment
        self._end()
        return await self._scored

    def leave(self) -> None:
        """Ends this sample's part in the group, however it ended; may be called twice."""
        if self._scored is not None and not self._scored.done():
            # Cancelled while it waited: nobody will take its result, but the others are still compared with it.
            self._scored.cancel()
        self._end()
        self.group.has_left()

    @property
    def waits(self) -> bool:
        """True if somebody waits for what the group's scoring gives."""
        return self._scored is not None and not self._scored.done()

    def _end(self) -> None:
        if self._is_running:
            self._is_running = False
            self.group.has_ended()

    def resolve(self, result: Trajectory | Exception) -> None:
        """Hands the sample what the group's scoring gave."""
        if self._scored is None or self._scored.done():
            return
        if isinstance(result, Exception):
            self._scored.set_exception(result)
        else:
            self._scored.set_result(result)

    def cut_short(self) -> None:
        """Ends the episode now, unless nothing but its reward is missing: `limits.reward_s` bounds that."""
        if self._is_running and self.limit is not None and not (self.episode is not None and self.episode.is_ending):
            self.limit.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True, eq=False)
class _Group:
    deadline: Stragglers | None
    members: list[Sibling] = field(default_factory=list)
    ended: int = 0
    is_whole: bool = False
    environment: Environment | None = None
    timer: asyncio.TimerHandle | None = None
    asking: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Nobody joins any more."""
        self.is_whole = True
        self._look()

    def has_ended(self) -> None:
        self.ended += 1
        if self.is_whole:
            self._look()

    def _look(self) -> None:
        if self.ended == len(self.members):
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            self._score()
        elif self.deadline is not None and self.timer is None and self.ended >= self.deadline.share * len(self.members):
            self.timer = asyncio.get_running_loop().call_later(self.deadline.grace_s, self._cut_members)

    def _cut_members(self) -> None:
        for member in self.members:
            member.cut_short()

    def _score(self) -> None:
        present = [member for member in self.members if member.trajectory is not None]
        if self.environment is None or not present:
            return
        scorer = self.environment.parts.scorer
        if scorer.asked_names:
            # By none of the samples: one that is cancelled while models are asked must not take the others' rewards.
            self.asking = asyncio.get_running_loop().create_task(self._score_present(self.environment, present))
            return
        try:
            _resolve_all(present, score_groups(scorer, _trajectories_of(present)))
        except Exception as error:  # every sample of the group is told, so that none waits for ever
            _refuse_all(present, error)

    async def _score_present(self, environment: Environment, present: list[Sibling]) -> None:
        try:
            _resolve_all(present, await environment.score_groups(_trajectories_of(present)))
        except Exception as error:  # as above
            _refuse_all(present, error)

    def has_left(self) -> None:
        """Ends what is asked once nobody waits for it any more."""
        if self.asking is not None and not any(member.waits for member in self.members):
            self.asking.cancel()


def _trajectories_of(present: list[Sibling]) -> list[Trajectory]:
    return [member.trajectory for member in present if member.trajectory is not None]


def _resolve_all(present: list[Sibling], trajectories: list[Trajectory]) -> None:
    for member, trajectory in zip(present, trajectories, strict=True):
        member.resolve(trajectory)


def _refuse_all(present: list[Sibling], error: Exception) -> None:
    for member in present:
        member.resolve(error)


@dataclass(slots=True, eq=False)
class Groups:
    """The groups of a process that are not whole yet, by event loop and key."""

    _joining: dict[tuple[asyncio.AbstractEventLoop, object], _Group] = field(default_factory=dict)

    def join(self, key: object, *, deadline: Stragglers | None = None) -> Sibling:
        """The place of this sample in its group; to be called in the sample's task before anything is awaited.

        Args:
            key: what the samples of one prompt have in common and nothing else has; None for a sample of its own.
            deadline: the same for all of a group.
        """
        loop = asyncio.get_running_loop()
        group = self._joining.get((loop, key)) if key is not None else None
        if group is None:
            group = _Group(deadline)
            if key is not None:
                self._joining[loop, key] = group
            # Behind the first steps of all siblings, which are in the loop's queue already.
            loop.call_soon(self._close, (loop, key), group)
        sibling = Sibling(group)
        group.members.append(sibling)
        return sibling

    def _close(self, key: tuple[asyncio.AbstractEventLoop, object], group: _Group) -> None:
        if self._joining.get(key) is group:
            del self._joining[key]
        group.close()
