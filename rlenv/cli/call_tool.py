"""One call of a tool from the command line."""

from __future__ import annotations

import time

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.messages import ToolCall, ToolResult
from rlenv.tools.base import ToolContext

__all__ = ["called"]


async def called(environment: Environment, episode: Episode, call: ToolCall) -> ToolResult:
    """The result of a call as a reward makes it: no faults are put into it."""
    context = ToolContext(
        episode.task,
        episode.resources,
        time.monotonic() + environment.spec.limits.episode_s,
        scope=episode.tools.scope,
        shared=environment.scope,
        run_calls=environment.executor.run,
    )
    (result,) = await environment.executor.run((call,), context)
    return result
