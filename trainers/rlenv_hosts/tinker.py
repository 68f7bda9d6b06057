"""tinker-cookbook's environments, token by token exact.

    builder = RlenvGroup(address=Address("arithmetic", "train", 7), size=8, tokenizer="Qwen/Qwen3-8B")

The group's own terms are scored by `compute_group_rewards`. There is no reward that says nothing here: an episode whose
reward is invalid raises `InvalidReward`, so that a run has to say `rollout_error_tolerance=MinViableGroup(…)` or
`RetryOnFailure(…)`; by default it ends the group. Tried with tinker-cookbook 0.6.1 and a sampler of its interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tinker
from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, Metrics, StepResult, StopReason, Trajectory

from rlenv.errors import RlenvError, UsageError
from rlenv_train.player import Address, Hosted, Sample

_STOPS = {
    "turns": StopReason.MAX_TURNS,
    "tool_calls": StopReason.MAX_TOOL_CALLS,
    "response_tokens": StopReason.MAX_TOKENS,
    "turn_tokens": StopReason.MAX_TOKENS,
    "total_tokens": StopReason.CONTEXT_OVERFLOW,
    "prompt_tokens": StopReason.CONTEXT_OVERFLOW,
    "invalid_actions": StopReason.PARSE_ERROR,
    "time": StopReason.ROLLOUT_TIMEOUT,
}


class InvalidReward(RlenvError):
    """An episode's reward could not be measured; the message says why."""


class RlenvEnv(Env):
    """One sample. The rewards of its turns add up to the episode's."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._paid = 0.0

    async def initial_observation(self) -> tuple[Any, list[int]]:
        """The prompt, and the ids at which a turn ends.

        Raises:
            InvalidReward: the episode does not open.
        """
        await self.sample.open()
        if self.sample.is_ended:
            self._total()
        return self._model_input(), self.sample.played.sampling["stop_token_ids"]

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """Takes a turn as it was sampled.

        Raises:
            InvalidReward: the episode has ended without a reward.
        """
        await self.sample.feed(action, finish_reason="length" if (extra or {}).get("stop_reason") == "length" else None)
        stops = self.sample.played.sampling["stop_token_ids"] if not self.sample.is_ended else []
        if not self.sample.is_ended:
            return StepResult(0.0, False, self._model_input(), stops)
        total, record = self._total(), self.sample.played.trajectory
        metrics = {f"stop/{_STOPS.get(record.reason, StopReason.COMPLETED)}": 1.0, **record.measured()}
        self._paid = total
        return StepResult(total, True, tinker.ModelInput.empty(), stops, metrics=metrics)

    async def aclose(self) -> None:
        """Closes the episode; may be called twice."""
        await self.sample.played.aclose()

    def add_late_reward(self, reward: float | None) -> float:
        """The reward that a group's terms add to those that were given already."""
        if reward is None:
            raise InvalidReward("a term that compares the group could not be measured")
        return reward - self._paid

    def _model_input(self) -> Any:
        return tinker.ModelInput.from_ints(self.sample.context_ids)

    def _total(self) -> float:
        record = self.sample.played.trajectory
        if record.reward.total is None:
            raise InvalidReward(f"the episode has no reward: {record.failure}")
        return record.reward.total


@dataclass(frozen=True)
class RlenvGroup(EnvGroupBuilder):
    """The samples of one task. It can be pickled: a worker loads spec and tokenizer once.

    Args:
        address: the task; its spec is a path or a name that ships.
        tokenizer: the folder or hub name of the policy's.
        limits: those of `rlenv.TokenEpisode`, such as `max_response_tokens`.
        step: of the training, which the episode's seed follows.
    """

    address: Address
    size: int
    tokenizer: str
    limits: dict[str, int] = field(default_factory=dict)
    step: int = 0
    _envs: list[RlenvEnv] = field(default_factory=list, compare=False, repr=False)

    async def make_envs(self) -> Sequence[Env]:
        """The samples, not open yet.

        Raises:
            UsageError: turns end at texts, and tinker would train on what is sampled behind them.
        """
        player = _player_of(self.tokenizer, tuple(sorted(self.limits.items())))
        if stops := player.environment(self.address.spec).stops:
            told = f"turns of {self.address.spec} end at {', '.join(stops)}, and tinker's at tokens alone"
            raise UsageError(told, hint="train it with another trainer")
        made = [RlenvEnv(player.start(self.address, step=self.step, sample=at)) for at in range(self.size)]
        self._envs.extend(made)  # a strategy that tries one again asks for all once more, and the first still run
        return made

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """What terms that compare the samples add to each; 0.0 where a spec has none."""
        known = [env for env in env_group if isinstance(env, RlenvEnv)]
        if not known or not known[0].sample.environment.parts.scorer.has_group_terms:
            return [(0.0, {}) for _ in trajectory_group]
        ends = await known[0].sample.player.outcomes([env.sample for env in known])
        return [(env.add_late_reward(figures.reward), {}) for env, (_, figures) in zip(known, ends, strict=True)]

    async def cleanup(self) -> None:
        """Closes the episodes that a failed group has left open."""
        while self._envs:
            await self._envs.pop().aclose()

    def logging_tags(self) -> list[str]:
        """The spec's name."""
        return [self.address.spec]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_envs": []}


@cache
def _player_of(tokenizer: str, limits: tuple[tuple[str, int], ...]) -> Hosted:
    from rlenv.tokens.bound import load_tokenizer

    return Hosted(load_tokenizer(tokenizer), model=tokenizer, **dict(limits))
