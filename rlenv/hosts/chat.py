"""An episode that is played through an OpenAI-compatible endpoint, which may be another one for each: verifiers, AReaL,
rLLM and ART record there what is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rlenv.endpoints import connections
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import drive
from rlenv.errors import PolicyError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message, Sampled
from rlenv.policies.base import PolicyAround, PolicySession
from rlenv.policies.openai import OpenAIPolicy
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    import aiohttp


async def play_endpoint(
    environment: Environment,
    *,
    base_url: str,
    model: str,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    http: aiohttp.ClientSession | None = None,
    task: int | Mapping[str, Any],
    split: str | None = None,
    seed: int | None = 0,
    sampling: SamplingSpec | None = None,
    mode: Literal["tools", "text"] = "tools",
    retries: int = 3,
    timeout_s: float = 600.0,
    asks_beside: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Trajectory:
    """Plays one episode to its end; the model at `base_url` acts. An endpoint that fails makes the reward invalid.

        trajectory = await rlenv.play_endpoint(
            environment, base_url="http://127.0.0.1:8000/v1", model="m", task=3,
            sampling=rlenv.SamplingSpec(extra={"logprobs": True, "return_token_ids": True}),
        )
        trajectory.reward.total  # None where it is invalid
        [(turn.prompt_token_ids, turn.token_ids, turn.logprobs) for turn in trajectory.turns]

    Ids and log-probabilities that the server gives stand in the turns: see `rlenv.Sampled`. The fields by which
    a server is asked for them go under `extra` of the sampling.

    Args:
        headers: sent with every request of the episode, beside the key's.
        http: connections of the caller's, which are left open. By default all episodes of the environment share some,
            whatever their addresses, which are closed with it.
        task: the row's index in the split, or a row of its own.
        split: by default the first of the spec.
        seed: of the episode; see `Environment.start`. Requests have that of the sampling alone, so that the samples of
            a group, whose episodes are equal, differ.
        mode: see `rlenv.OpenAIPolicy`.
        retries: how often a request that fails unclearly is made again, with the mark of a retry that OpenAI's SDK
            sends. A gateway that keeps every answer and does not know it wants 0.
        timeout_s: for one request; where the server is asked beside, an answer is waited for as long as its retries.
        asks_beside: see `rlenv.OpenAIPolicy`; True where the server keeps no answers for training.
        is_stopped: true once the host has ended the rollout, by a limit of its own. What the endpoint then refuses
            truncates the episode (`host`), and it is scored.

    Raises:
        UsageError: no such split or row, or two logins for one request.
    """
    key = ("connections", asyncio.get_running_loop())
    http = http or await environment.scope().get(key, connections)
    asking: dict[str, Any] = {"mode": mode, "sampling": sampling, "seeded": False, "asks_beside": asks_beside}
    asking |= {"api_key": api_key, "headers": headers, "http": http, "retries": retries, "timeout_s": timeout_s}
    policy = PolicyAround(OpenAIPolicy(base_url, model, **asking), partial(_act, is_stopped), OpenAIPolicy.name)
    others = environment.opponent or policy
    async with environment.start(task=task, split=split, seed=seed, others=others) as episode:
        try:
            return await drive(episode, policy, limit_s=episode.limits.episode_s)
        except _Stopped:
            return await episode.truncate("host")


async def _act(
    is_stopped: Callable[[], bool], session: PolicySession, messages: Sequence[Message]
) -> str | Message | Sampled:
    try:
        return await session.act(messages)
    except PolicyError as error:
        if not is_stopped():
            raise
        # The policy has used up what the host gives it. Were its reward invalid, it could leave out its own sample.
        raise _Stopped from error


class _Stopped(Exception):
    """The host has ended the rollout."""
