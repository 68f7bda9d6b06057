"""Episodes inside episodes: a spec that another one plays through its tool of kind `agent`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlenv.concurrency.lanes import entered, here
from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Client
from rlenv.episodes.rollout import drive
from rlenv.errors import CassetteError, UsageError
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.policies.openai import OpenAIPolicy
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["Make", "NestedSpec", "nest"]

Make = Callable[[LoadedSpec], "Environment"]
"""What makes an environment of a spec: the class itself, handed down by whoever compiles, since it stands above."""

_chain: ContextVar[tuple[Path, ...]] = ContextVar("rlenv.episodes.nested.chain", default=())
_SHARE_KEPT = 0.02
_MOST_KEPT_S = 0.5


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
        raise UsageError(
            f"the specs call each other in a circle: {circle}", key="spec", hint="remove one of the agents"
        )
    if not path.is_file():
        raise UsageError(
            f"there is no file '{path.name}' in {path.parent}", key="spec", hint="the path is relative to the spec"
        )
    token = _chain.set((*chain, target))
    try:
        return NestedSpec(make(load_spec(path, set=overrides)))
    finally:
        _chain.reset(token)


class NestedSpec:
    """A compiled spec whose episodes are played inside others. `episode_s` is its own time limit."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.episode_s = environment.spec.limits.episode_s

    async def play(
        self,
        task: Mapping[str, Any],
        *,
        client: Client,
        mode: Literal["tools", "text"],
        seed: int,
        deadline: float,
        shared: Scope,
    ) -> Trajectory:
        """One episode to its end, its own limits within `deadline` (on the clock of `time.monotonic()`).

        Args:
            task: the row.
            shared: closes what the nested environment shares, together with the outer one.
        """
        environment = await shared.get(("nested", id(self)), lambda: self._environment)
        # It ends a little before the call that plays it is given up, so that its trajectory is kept.
        left = deadline - time.monotonic()
        limit_s = min(self.episode_s, left - min(left * _SHARE_KEPT, _MOST_KEPT_S))
        policy = OpenAIPolicy.over(client, mode=mode)
        lane = here()
        with entered(lane and lane.at("> agent")):
            async with environment.start(task=task, seed=seed) as episode:
                played = await drive(episode, policy, limit_s=limit_s)
        if played.failure is not None and played.failure.reason == CassetteError.reason:
            raise CassetteError(played.failure.message)  # not the agent's: the outer episode is not what was recorded
        return played
