"""A policy drives an episode to its end."""

from __future__ import annotations

import asyncio

from rlenv.episode import Episode
from rlenv.errors import EpisodeError, InvalidReward, PolicyError, RlenvError
from rlenv.messages import Message
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.trajectory import Trajectory

__all__ = ["context_of", "drive"]


def context_of(episode: Episode) -> PolicyContext:
    """What a policy may see of an open episode when it starts."""
    environment = episode.environment
    return PolicyContext(
        episode.task,
        environment.tool_schemas,
        environment.spec.vars,
        environment.prompt_text(episode.messages),
        environment.observation_text,
        episode.seed,
        episode.task_index,
        environment.stops,
    )


def _started(episode: Episode, policy: Policy) -> PolicySession:
    try:
        return policy.start(context_of(episode))
    except (InvalidReward, EpisodeError):
        raise
    except RlenvError as error:
        raise PolicyError(str(error)) from error


async def _acted(session: PolicySession, messages: list[Message]) -> str | Message:
    try:
        return await session.act(messages)
    except (InvalidReward, EpisodeError):
        raise
    except RlenvError as error:  # a script that is over, a template that a result does not fill: this episode's
        raise PolicyError(str(error)) from error


async def drive(episode: Episode, policy: Policy, *, limit_s: float) -> Trajectory:
    """Lets `policy` act until the open `episode` ends.

    A policy that fails makes the reward invalid; one that is not done after `limit_s` seconds truncates the episode.
    """
    if episode.is_ended:
        return episode.trajectory
    messages = list(episode.messages)
    try:
        async with asyncio.timeout(limit_s):
            session = _started(episode, policy)
            while True:
                action = await _acted(session, messages)
                messages.append(action if isinstance(action, Message) else Message("assistant", action))
                step = await episode.step(action)
                if step.is_last:
                    return episode.trajectory
                messages.extend(step.observation.messages)
    except EpisodeError as error:
        return episode.fail(error.reason, str(error))
    except TimeoutError:
        return await episode.truncate("time")
