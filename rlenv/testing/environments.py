"""The laws that every environment keeps.

Run them on your own spec:

    from rlenv.testing.environments import check_environment

    def test_my_environment_keeps_the_laws():
        check_environment("my_env.yaml")
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Step
from rlenv.episodes.rollout import Job, context_of, rollout
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy, PolicyAround, PolicySession
from rlenv.policies.scripted import OraclePolicy, RandomPolicy
from rlenv.runs import files as record
from rlenv.runs.replay import replay
from rlenv.secrets import redact
from rlenv.tasks.rows import PASS, seed_of
from rlenv.testing.laws import LIMIT_S, broken, environment_of, in_own_loop, in_time, kept_as_json, law, short
from rlenv.testing.policies import closes
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.tokens.trajectory import TokenTrajectory

__all__ = ["check_environment", "check_environment_async", "check_trajectory"]

_OF_THE_MOMENT = frozenset({"seconds", "started", "waited", "details"})
"""Keys of a record that differ between equal episodes: times, and how a call was made."""


async def check_environment_async(
    spec: str | Path | Environment,
    *,
    set: Mapping[str, Any] | None = None,
    policies: Callable[[Environment], Sequence[Policy]] | None = None,
    tasks: int = 3,
    split: str | None = None,
    seed: int = 0,
    is_deterministic: bool = True,
    tokenizer: Any = None,
    chat_template: str | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Runs the laws of environments on `spec`; a law that is broken is an AssertionError that states it.

    Args:
        spec: a spec's file or name, or an environment, which is closed at the end.
        set: values that replace keys of the spec.
        policies: who plays; the spec's oracle, where it has one, and a random policy by default.
        tasks: how many rows of the split are played, by each policy.
        split: the first one by default.
        seed: of the run, of which each task's episode has its own.
        is_deterministic: equal actions give equal episodes; False for one that asks a service which does not promise
            it: its episodes are not compared then.
        tokenizer: as `rlenv.tokens.TokenEncoder` takes one; with it, the laws of ids and masks are run too.
        chat_template: the tokenizer's template, where it brings none of its own.
        limit_s: how long an action or closing may take, a task may still run once the environment is closed, and an
            episode may go on after the `limits` of its spec, in seconds: a bound for what hangs.
    """
    before = asyncio.all_tasks()
    environment = environment_of(spec, set=set)
    split = split if split is not None else next(iter(environment.spec.tasks))
    jobs = [Job(split, index, seed_of(seed, split, index)) for index in environment.part(split, tasks)]
    assert jobs, f"split '{split}' has no task"
    try:
        for policy in (policies or _players_of)(environment):
            laws = _Laws(environment, policy, limit_s)
            alone = [await laws.play(job) for job in jobs]
            if is_deterministic:
                await laws.play_side_by_side(jobs, alone)
            await laws.keep_records(alone, is_deterministic=is_deterministic)
            if tokenizer is not None:
                for job in jobs:
                    await laws.keep_tokens(job, tokenizer, chat_template)
            await closes(policy, "a policy closes without an error", limit_s)
    finally:
        for _ in range(2):  # it may be called twice
            await in_time(environment.aclose(), "an environment closes in time", limit_s)
    left = asyncio.all_tasks() - before
    if left:
        _, left = await asyncio.wait(left, timeout=limit_s)
    law("a closed environment leaves no task behind", not left, short(sorted(map(repr, left))))


check_environment = in_own_loop(check_environment_async)


def check_trajectory(trajectory: Trajectory) -> None:
    """States what holds for the record of every episode that has ended."""
    reward, turns = trajectory.reward, trajectory.turns
    is_invalid = reward.total is None
    summed = math.fsum(reward.turn_rewards)
    values = [term.value for term in reward.terms.values()]
    numbers = [number for number in (reward.total, *values, *reward.turn_rewards) if number is not None]
    odd = [name for name, term in reward.terms.items() if (term.status == "valid") != (term.value is not None)]
    ends = (trajectory.terminated, trajectory.truncated)
    indexes = [one.index for one in turns]
    failure, success = trajectory.failure, trajectory.success
    for rule, holds, found in (
        ("an episode that has ended is either terminated or truncated", ends[0] != ends[1], ends),
        ("an episode's end has a reason", bool(trajectory.reason), repr(trajectory.reason)),
        ("turns are numbered from 0", indexes == [*range(len(turns))], indexes),
        (
            "there is one reward a turn",
            len(reward.turn_rewards) == len(turns),
            f"{reward.turn_rewards} of {len(turns)}",
        ),
        ("rewards are finite", all(map(math.isfinite, numbers)), numbers),
        ("a term has a value exactly where it is valid", not odd, odd),
        (
            "a reward is invalid exactly where something failed",
            is_invalid == bool(failure),
            f"total {reward.total}, failure {failure}",
        ),
        (
            "success is unknown exactly where the reward is invalid",
            is_invalid == (success is None),
            f"success {success}, total {reward.total}",
        ),
        (
            "the rewards of the turns sum to the total",
            not turns or is_invalid or math.isclose(summed, reward.total or 0.0, abs_tol=1e-9),
            f"{summed} and {reward.total}",
        ),
    ):
        law(rule, holds, f"task {trajectory.task_index}: {found}")


def _players_of(environment: Environment) -> Sequence[Policy]:
    players: list[Policy] = [RandomPolicy(environment.parts.dialect, environment.spec.answer)]
    if environment.spec.oracle:
        players.insert(0, environment.oracle())
    return players


def _message_of(action: Any) -> Message:
    said = action.action if isinstance(action, Sampled) else action
    return said if isinstance(said, Message) else Message("assistant", said)


def _check_episode(trajectory: Trajectory, steps: Sequence[Step], *, is_gold: bool) -> None:
    check_trajectory(trajectory)
    where = f"task {trajectory.task_index}"
    law("no action makes its own reward invalid", trajectory.failure is None, f"{where}: {trajectory.failure}")
    earned = math.fsum(step.reward or 0.0 for step in steps)
    total = (trajectory.reward.total or 0.0) if steps else 0.0  # of a player whose turn never came
    law(
        "the rewards of the steps sum to the total",
        math.isclose(earned, total, abs_tol=1e-9),
        f"{where}: {earned} and {total}",
    )
    if is_gold:
        law("the oracle succeeds", trajectory.success is True, f"{where}: {trajectory.reason}, {trajectory.answer!r}")


class _Laws:
    """An environment, and a policy that plays in it."""

    def __init__(self, environment: Environment, policy: Policy, limit_s: float) -> None:
        self._environment = environment
        self._is_gold = isinstance(policy, OraclePolicy) and environment.players is None  # who plays well may lose
        self._policy = _in_time(policy, limit_s)
        rows = (row for split in environment.spec.tasks for row in islice(environment.tasks(split), PASS))
        limits = environment.parts.limits.widest(rows)
        self._episode_s = limits.episode_s + limits.reward_s + limit_s

    async def play(self, job: Job) -> Trajectory:
        """The record of one episode, whose every step is looked at."""
        trajectory, steps = await in_time(self._play_job(job), "an episode ends in time", self._episode_s)
        _check_episode(trajectory, steps, is_gold=self._is_gold)
        return trajectory

    async def _play_job(self, job: Job) -> tuple[Trajectory, list[Step]]:
        steps: list[Step] = []
        others = self._environment.opponent or self._policy
        async with self._environment.start(task=job.task, split=job.split, seed=job.seed, others=others) as episode:
            row = kept_as_json(episode.task)
            if not episode.is_ended:
                session, messages = self._policy.start(context_of(episode)), list(episode.messages)
                while not steps or not steps[-1].is_last:
                    action = await session.act(messages)
                    steps.append(await episode.step(action))
                    messages += [_message_of(action), *steps[-1].observation.messages]
            law("an episode leaves its task as it is", kept_as_json(episode.task) == row, short(episode.task))
            return episode.trajectory, steps

    async def play_side_by_side(self, jobs: Sequence[Job], alone: Sequence[Trajectory]) -> None:
        """States that episodes played twice, and all at once, are the same."""
        playing = rollout(self._environment, self._policy, [*jobs, *jobs], concurrency=2 * len(jobs))
        twice = await in_time(playing, "episodes side by side end in time", self._episode_s)
        for one, other in zip([*alone, *alone], twice, strict=True):
            found = _find_change(_lasting_facts(one), _lasting_facts(other))
            rule = "episodes side by side are what each is alone"
            law(rule, not found, f"task {one.task_index} differs: {found}")

    async def keep_records(self, played: Sequence[Trajectory], *, is_deterministic: bool) -> None:
        """Checks that records of episodes are read back as written, and replay."""
        read = []
        for trajectory in played:
            line = record.dump(trajectory).decode()
            law("no secret stands in a record", redact(line) == line, f"task {trajectory.task_index}")
            again = record.parse(line)
            law("a record is read back as it was", record.dump(again).decode() == line, f"task {trajectory.task_index}")
            read.append(again)
        if not is_deterministic:
            return
        replaying = replay(self._environment, read)
        for replayed in await in_time(replaying, "records replay in time", self._episode_s * len(read)):
            law(
                "a record replays to the same episode and reward",
                not replayed.differences and not replayed.skipped,
                f"task {replayed.recorded.task_index}: {replayed.skipped or '; '.join(replayed.differences)}",
            )

    async def keep_tokens(self, job: Job, tokenizer: Any, chat_template: str | None) -> None:
        """An episode's ids are those that were sampled and observed, and its mask tells them apart."""
        tokens, sampled = await in_time(
            self._sample(job, tokenizer, chat_template), "an episode ends in time", self._episode_s
        )
        mask, response = tokens.mask, tokens.response_ids
        law("there is one entry of the mask for each id", len(mask) == len(response), f"{len(mask)} of {len(response)}")
        law("the mask has 0 and 1 alone", {*mask} <= {0, 1}, short(sorted({*mask})))
        trained = [one for one, is_sampled in zip(response, mask, strict=True) if is_sampled]
        law(
            "the mask marks what was sampled, and nothing else",
            trained == sampled,
            f"{len(trained)} ids are marked, {len(sampled)} were sampled",
        )

    async def _sample(self, job: Job, tokenizer: Any, chat_template: str | None) -> tuple[TokenTrajectory, list[int]]:
        from rlenv.episodes.token_episode import TokenEpisode
        from rlenv.tokens.bound import bind

        encoder = bind(tokenizer, self._environment, chat_template=chat_template)
        place: dict[str, Any] = {"task": job.task, "split": job.split, "seed": job.seed}
        async with TokenEpisode(self._environment, encoder, **place) as played:
            session, messages = self._policy.start(context_of(played.episode)), list(played.episode.messages)
            sampled: list[int] = []
            while not played.is_ended:
                action = await session.act(messages)
                said = action.action if isinstance(action, Sampled) else action
                if not isinstance(said, str):
                    raise broken("ids are looked at for a policy that gives texts", short(said))
                ids = [*encoder.encode_text(said), encoder.stop_id]
                sampled += ids
                await played.step(ids, finish_reason="stop")
                observed = played.episode.turns[-1].observation
                messages += [_message_of(action), *(observed.messages if observed is not None else ())]
            return played.rows[0], sampled


def _in_time(policy: Policy, limit_s: float) -> PolicyAround:
    """A policy whose every action has a time."""

    async def act(session: PolicySession, messages: Sequence[Message]) -> Any:
        return await in_time(session.act(messages), "a policy acts in time", limit_s)

    return PolicyAround(policy, act, policy.name)


def _lasting_facts(trajectory: Trajectory) -> Any:
    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(held) for key, held in value.items() if key not in _OF_THE_MOMENT}
        return [without(held) for held in value] if isinstance(value, list) else value

    return without(json.loads(record.dump(trajectory)))


def _find_change(one: Any, other: Any, place: str = "") -> str:
    """The first place at which two records differ, with what stands there; "" where there is none."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        places = (_find_change(one[key], other[key], f"{place}.{key}") for key in one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        places = (_find_change(a, b, f"{place}.{index}") for index, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return "" if one == other else f"{place.lstrip('.')}: {short(one)} alone, {short(other)} beside others"
    return next(filter(None, places), "")
