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
from pathlib import Path
from typing import Any

from rlenv.episodes.drive import context_of
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.episode import Step
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy
from rlenv.policies.oracle import OraclePolicy
from rlenv.policies.scripted import RandomPolicy
from rlenv.runs import files as record
from rlenv.runs.replay import replay
from rlenv.secrets import redact
from rlenv.testing.laws import LIMIT_S, broken, in_own_loop, kept_as_json, law, short
from rlenv.trajectory import Trajectory

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
        seed: the episodes' seed.
        is_deterministic: equal actions give equal episodes; False for one that asks a service which does not promise
            it: its episodes are not compared then.
        tokenizer: as `rlenv.tokens.TokenEncoder` takes one; with it, the laws of ids and masks are run too.
        chat_template: the tokenizer's template, where it brings none of its own.
        limit_s: how long a task may still run once the environment is closed, in seconds.
    """
    before = asyncio.all_tasks()
    environment = spec if isinstance(spec, Environment) else load(spec, set=set)
    split = split if split is not None else next(iter(environment.spec.tasks))
    jobs = [Job(split, index, seed) for index in environment.part(split, tasks)]
    assert jobs, f"split '{split}' has no task"
    async with environment:
        players = (policies or _players)(environment)
        for policy in players:
            episodes = [await _played(environment, policy, job) for job in jobs]
            for trajectory, steps in episodes:
                _check_episode(trajectory, steps, is_gold=isinstance(policy, OraclePolicy))
            alone = [trajectory for trajectory, _ in episodes]
            if is_deterministic:
                await _check_side_by_side(environment, policy, jobs, alone)
            await _check_records(environment, alone, is_deterministic=is_deterministic)
            if tokenizer is not None:
                for job in jobs:
                    await _check_tokens(environment, policy, job, tokenizer, chat_template)
            await policy.aclose()
    await environment.aclose()  # may be called twice
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
    for rule, holds, found in (
        ("an episode that has ended is either terminated or truncated", ends[0] != ends[1], ends),
        ("an episode's end has a reason", bool(trajectory.reason), repr(trajectory.reason)),
        ("turns are numbered from 0", [one.index for one in turns] == [*range(len(turns))], len(turns)),
        (
            "there is one reward a turn",
            len(reward.turn_rewards) == len(turns),
            f"{reward.turn_rewards} of {len(turns)}",
        ),
        ("rewards are finite", all(map(math.isfinite, numbers)), numbers),
        ("a term has a value exactly where it is valid", not odd, odd),
        ("a reward is invalid exactly where something failed", is_invalid == bool(trajectory.failure), reward.total),
        ("success is unknown exactly where the reward is invalid", is_invalid == (trajectory.success is None), ends),
        (
            "the rewards of the turns sum to the total",
            not turns or is_invalid or math.isclose(summed, reward.total or 0.0, abs_tol=1e-9),
            f"{summed} and {reward.total}",
        ),
    ):
        law(rule, holds, f"task {trajectory.task_index}: {found}")


def _players(environment: Environment) -> Sequence[Policy]:
    players: list[Policy] = [RandomPolicy(environment.parts.dialect, environment.spec.answer)]
    if environment.spec.oracle:
        players.insert(0, OraclePolicy(environment.spec, environment.parts.dialect))
    return players


async def _played(environment: Environment, policy: Policy, job: Job) -> tuple[Trajectory, list[Step]]:
    steps: list[Step] = []
    async with environment.start(task=job.task, split=job.split, seed=job.seed) as episode:
        row = kept_as_json(episode.task)
        if not episode.is_ended:
            session, messages = policy.start(context_of(episode)), list(episode.messages)
            while not steps or not steps[-1].is_last:
                action = await session.act(messages)
                steps.append(await episode.step(action))
                messages += [_message_of(action), *steps[-1].observation.messages]
        law("an episode leaves its task as it is", kept_as_json(episode.task) == row, short(episode.task))
        return episode.trajectory, steps


def _message_of(action: Any) -> Message:
    said = action.action if isinstance(action, Sampled) else action
    return said if isinstance(said, Message) else Message("assistant", said)


def _check_episode(trajectory: Trajectory, steps: Sequence[Step], *, is_gold: bool) -> None:
    check_trajectory(trajectory)
    where = f"task {trajectory.task_index}"
    law("no action makes its own reward invalid", trajectory.failure is None, f"{where}: {trajectory.failure}")
    earned = math.fsum(step.reward or 0.0 for step in steps)
    total = trajectory.reward.total or 0.0
    law(
        "the rewards of the steps sum to the total",
        math.isclose(earned, total, abs_tol=1e-9),
        f"{where}: {earned} and {total}",
    )
    if is_gold:
        law("the oracle succeeds", trajectory.success is True, f"{where}: {trajectory.reason}, {trajectory.answer!r}")


async def _check_side_by_side(
    environment: Environment, policy: Policy, jobs: Sequence[Job], alone: Sequence[Trajectory]
) -> None:
    twice = await rollout(environment, policy, [*jobs, *jobs], concurrency=2 * len(jobs))
    for one, other in zip([*alone, *alone], twice, strict=True):
        found = _difference(_lasting(one), _lasting(other))
        rule = "episodes side by side are what each is alone"
        law(rule, not found, f"task {one.task_index} differs: {found}")


async def _check_records(environment: Environment, played: Sequence[Trajectory], *, is_deterministic: bool) -> None:
    read = []
    for trajectory in played:
        line = record.dump(trajectory).decode()
        law("no secret stands in a record", redact(line) == line, f"task {trajectory.task_index}")
        again = record.parse(line)
        law("a record is read back as it was", record.dump(again).decode() == line, f"task {trajectory.task_index}")
        read.append(again)
    if not is_deterministic:
        return
    for replayed in await replay(environment, read):
        law(
            "a record replays to the same episode and reward",
            not replayed.differences and not replayed.skipped,
            f"task {replayed.recorded.task_index}: {replayed.skipped or '; '.join(replayed.differences)}",
        )


async def _check_tokens(
    environment: Environment, policy: Policy, job: Job, tokenizer: Any, chat_template: str | None
) -> None:
    from rlenv.tokens.bound import bind, cut_of

    encoder = bind(tokenizer, environment, chat_template=chat_template)
    cut = cut_of(environment, encoder)
    async with environment.start(task=job.task, split=job.split, seed=job.seed, cut=cut) as episode:
        session, messages = policy.start(context_of(episode)), list(episode.messages)
        tokens = encoder.start(episode.messages, tools=environment.tool_schemas)
        sampled: list[int] = []
        while True:
            action = await session.act(messages)
            said = action.action if isinstance(action, Sampled) else action
            if not isinstance(said, str):
                raise broken("ids are looked at for a policy that gives texts", short(said))
            ids = [*encoder.encode_text(said), encoder.stop_id]
            sampled += ids
            step = await episode.step(Sampled(tokens.add_sampled(ids), "stop", tuple(ids)))
            messages += [_message_of(action), *step.observation.messages]
            if step.is_last or not await tokens.add_observation_async(step.observation):
                break
        mask, response = tokens.mask, tokens.response_ids
        law("there is one entry of the mask for each id", len(mask) == len(response), f"{len(mask)} of {len(response)}")
        law("the mask has 0 and 1 alone", {*mask} <= {0, 1}, short(sorted({*mask})))
        trained = [one for one, is_sampled in zip(response, mask, strict=True) if is_sampled]
        law(
            "the mask marks what was sampled, and nothing else",
            trained == sampled,
            f"{len(trained)} ids are marked, {len(sampled)} were sampled",
        )


def _lasting(trajectory: Trajectory) -> Any:
    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(held) for key, held in value.items() if key not in _OF_THE_MOMENT}
        return [without(held) for held in value] if isinstance(value, list) else value

    return without(json.loads(record.dump(trajectory)))


def _difference(one: Any, other: Any, place: str = "") -> str:
    """The first place at which two records differ, with what stands there; "" where there is none."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        places = (_difference(one[key], other[key], f"{place}.{key}") for key in one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        places = (_difference(a, b, f"{place}.{index}") for index, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return "" if one == other else f"{place.lstrip('.')}: {short(one)} alone, {short(other)} beside others"
    return next(filter(None, places), "")
