"""A policy plays episodes: one to its end, many at once, or those of a spec that another one plays as an agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rlenv.concurrency.lanes import POLICY, Lane, entered, here
from rlenv.concurrency.scope import Scope
from rlenv.dialects.base import Cut
from rlenv.endpoints import Client
from rlenv.episodes.episode import Episode, Step
from rlenv.errors import CassetteError, EpisodeError, InvalidReward, PolicyError, RlenvError, SpecError, UsageError
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.policies.openai import OpenAIPolicy
from rlenv.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment
    from rlenv.errors import EndpointError

__all__ = ["Job", "Make", "NestedSpec", "acting", "advance", "context_of", "drive", "nest", "play", "rollout"]
__all__ += ["gather_all", "start_policy"]

Make = Callable[[LoadedSpec], "Environment"]
"""What makes an environment of a spec: the class itself, handed down by whoever compiles, since it stands above."""

_chain: ContextVar[tuple[Path, ...]] = ContextVar("rlenv.episodes.rollout.chain", default=())
_SHARE_KEPT = 0.02
_MOST_KEPT_S = 0.5
acting: ContextVar[PolicySession | None] = ContextVar("rlenv.episodes.rollout.acting", default=None)
"""The policy of the episode that this task plays."""


def context_of(episode: Episode) -> PolicyContext:
    """The context of a policy in an open episode when it starts."""
    environment = episode.environment
    return PolicyContext(
        episode.task,
        episode.tool_schemas,
        environment.spec.vars,
        episode.prompt_text,
        environment.observation_text,
        episode.seed,
        episode.task_index,
        environment.stops,
        environment.turn_ends,
        environment.prompt_is_whole,
        episode.limits.response_tokens,
        episode.tools.account,
    )


def start_policy(episode: Episode, policy: Policy) -> PolicySession:
    """One episode's policy; raises EpisodeError where it cannot start, whatever it raised itself."""
    try:
        acting.set(session := policy.start(context_of(episode)))
        return session
    except (InvalidReward, EpisodeError):
        raise
    except RlenvError as error:
        raise PolicyError(str(error)) from error


async def _act_once(session: PolicySession, messages: list[Message]) -> str | Message | Sampled:
    try:
        return await session.act(messages)
    except (InvalidReward, EpisodeError):
        raise
    except RlenvError as error:  # a script that is over, a template that a result does not fill: this episode's
        raise PolicyError(str(error)) from error


def _with_ids(said: Message, turn: Turn, answered: Sequence[Message]) -> tuple[Message, tuple[Message, ...]]:
    """A message whose calls stood in its text, and their results, as a server takes them: each result with its call.

    A server without a parser for its model's calls leaves them in the text. Results that no call asks for are refused
    by most servers, and a policy that writes calls would end its episodes with an outage.
    """
    ids = [f"call_{turn.index}_{number}" for number in range(len(answered))]
    calls = tuple(replace(call, id=one) for call, one in zip(turn.parsed.calls, ids, strict=False))
    results = tuple(replace(message, tool_call_id=one) for message, one in zip(answered, ids, strict=True))
    return replace(said, content=turn.parsed.content, tool_calls=calls), results


def _turn_of(episode: Episode) -> Lane | None:
    """The lane of an episode's next turn; an agent's turn stands inside of the call that plays it."""
    if (lane := here()) is None:
        return None
    turn, is_agent = f"turn {len(episode.turns)}", bool(lane.place)
    return lane.at(turn if is_agent else f"{POLICY}{turn}", is_live=not is_agent and lane.tape.lets_out(""))


async def advance(
    episode: Episode, session: PolicySession, messages: list[Message], *, until: float | None = None
) -> Step:
    """Lets a policy take one action; what it said and what was answered are added to `messages`.

    Args:
        until: when the policy has to have acted, on the loop's clock; the step that follows has limits of its own.

    Raises:
        EpisodeError: the policy failed; the episode is left as it was.
        TimeoutError: it did not act in time.
    """
    async with asyncio.timeout_at(until):
        with entered(_turn_of(episode)):
            action = await _act_once(session, messages)
    said = action.action if isinstance(action, Sampled) else action
    messages.append(said if isinstance(said, Message) else Message("assistant", said))
    step = await episode.step(action)
    answered = step.observation.messages
    if isinstance(said, Message) and not said.tool_calls and answered and answered[0].role == "tool":
        messages[-1], answered = _with_ids(said, episode.turns[-1], answered)
    messages.extend(answered)
    return step


async def drive(episode: Episode, policy: Policy, *, limit_s: float) -> Trajectory:
    """Lets `policy` act until the open `episode` ends.

    A policy that fails makes the reward invalid; one that is not done after `limit_s` seconds truncates the episode,
    unless its server is out (`PolicySession.late`). What is done with its last action in time has the episode's own
    limits, where those are no longer.
    """
    if episode.is_ended:
        return episode.trajectory
    messages = list(episode.messages)
    try:
        until = asyncio.get_running_loop().time() + limit_s
        async with asyncio.timeout_at(until if limit_s < episode.limits.episode_s else None):
            session = start_policy(episode, policy)
            while not (await advance(episode, session, messages, until=until)).is_last:
                pass
            return episode.trajectory
    except EpisodeError as error:
        return episode.fail(error.reason, str(error))
    except TimeoutError:
        late = getattr(session, "late", None) if limit_s >= episode.limits.episode_s else None
        if late is not None:
            with entered(_turn_of(episode)):
                why = await late()
            if why:
                return episode.fail(PolicyError.reason, why)
        return await episode.truncate("time")


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play; without a seed that of its task (`Environment.start`)."""

    split: str
    task: int
    seed: int | None = None


async def play(environment: Environment, policy: Policy, job: Job, *, cut: Cut | None = None) -> Trajectory:
    """Plays one episode to its end. A policy that fails gives a trajectory with an invalid reward.

    Other players are played by `Environment.opponent`, where there is one, and by the same policy otherwise.

    Args:
        cut: how results are cut; None: by the spec's characters.
    """
    others = environment.opponent or policy
    async with environment.start(task=job.task, split=job.split, seed=job.seed, cut=cut, others=others) as episode:
        return await drive(episode, policy, limit_s=episode.limits.episode_s)


async def rollout(
    environment: Environment,
    policy: Policy,
    jobs: Sequence[Job],
    *,
    concurrency: int = 64,
    on_end: Callable[[int, Trajectory], None] | None = None,
    lane: Callable[[int], Lane] | None = None,
) -> list[Trajectory]:
    """Plays all jobs, at most `concurrency` at once.

    Args:
        on_end: called with the job's index and its trajectory as soon as an episode ends.
        lane: the lane of a job's episode on a tape; `on_end` is called in it.

    Raises:
        RlenvError: what an episode raised (a policy without a script, a row that no template can fill); the others
            are given up.

    Returns:
        The trajectories in the order of `jobs`; `len(result) == len(jobs)`.
    """
    environment.parts.check_rows(_rows(environment, jobs))
    ended: list[Trajectory | None] = [None] * len(jobs)
    queue = iter(range(len(jobs)))

    async def work() -> None:
        for index in queue:
            with entered(lane(index) if lane is not None else here()):
                trajectory = await play(environment, policy, jobs[index])
                ended[index] = trajectory
                if on_end is not None:
                    on_end(index, trajectory)

    await gather_all([work() for _ in range(min(concurrency, len(jobs)))])
    return [trajectory for trajectory in ended if trajectory is not None]


def _rows(environment: Environment, jobs: Sequence[Job]) -> Iterator[Mapping[str, Any]]:
    for split, task in dict.fromkeys((job.split, job.task) for job in jobs):
        with suppress(SpecError, UsageError):  # its own episode says so
            yield environment.tasks(split)[task]


async def gather_all(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results, in order. What one raises is raised as it is, once the others are cancelled and over."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in running]


def nest(outer: Path, make: Make, path: Path, overrides: Mapping[str, Any]) -> NestedSpec:
    """Compiles the spec at `path`, which the one at `outer` plays.

    Raises:
        UsageError: the specs call each other in a circle, or there is no such file.
        SpecError: the spec has faults.
    """
    chain = _chain.get() or (outer.resolve(),)
    target = path.resolve()
    if target in chain:
        circle = " -> ".join(file.name for file in (*chain[chain.index(target) :], target))
        message = f"the specs call each other in a circle: {circle}"
        raise UsageError(message, key="spec", hint="remove one of the agents")
    if not path.is_file():
        message = f"there is no file '{path.name}' in {path.parent}"
        raise UsageError(message, key="spec", hint="the path is relative to the spec")
    token = _chain.set((*chain, target))
    try:
        return NestedSpec(make(load_spec(path, set=overrides)))
    finally:
        _chain.reset(token)


class NestedSpec:
    """A compiled spec whose episodes are played inside others. `episode_s` is its own time limit."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.episode_s = environment.limits.episode_s

    async def play(
        self,
        task: Mapping[str, Any],
        *,
        client: Client,
        mode: Literal["tools", "text"],
        seed: int,
        deadline: float,
        shared: Scope,
    ) -> tuple[Trajectory, EndpointError | None]:
        """One episode to its end, its own limits within `deadline` (on the clock of `time.monotonic()`), and the
        failure of the server that ended it, None where none did.

        Args:
            task: the row.
            shared: closes what the nested environment shares, together with the outer one.
        """
        environment = await shared.get(("nested", id(self)), lambda: self._environment)
        # It ends a little before the call that plays it is given up, so that its trajectory is kept.
        left = deadline - time.monotonic()
        limit_s = left - min(left * _SHARE_KEPT, _MOST_KEPT_S)
        policy = OpenAIPolicy.over(client, mode=mode)
        with entered("> agent"):
            async with environment.start(task=task, seed=seed) as episode:
                played = await drive(episode, policy, limit_s=min(episode.limits.episode_s, limit_s))
        if played.failure is not None and played.failure.reason == CassetteError.reason:
            raise CassetteError(played.failure.message)  # not the agent's: the outer episode is not what was recorded
        return played, policy.lost
