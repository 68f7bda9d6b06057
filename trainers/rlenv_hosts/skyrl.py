"""SkyRL's generator, token by token exact.

Give it to a run by `BasePPOExp.get_generator`: `return RlenvGenerator(cfg, tokenizer, inference_engine_client)`. The
`env_extras` of a row are the address of an episode (`Address.as_dict()`), whose spec is a path or a name that ships.

SkyRL averages rewards over a group whatever their masks are: a sample without a reward has the mean of the others there
and a mask of zeros, so that it moves no mean and is in no loss. `RlenvTextEnv` is the other door, skyrl-gym's: by text
alone, where SkyRL renders the prompt and an invalid reward ends the batch.

The interface was read in SkyRL of 21 August 2026 (`skyrl/train/generators/base.py`, `inference_servers/base.py`); the
generator was tried against a stand-in of its engine, and `RlenvTextEnv` with skyrl-gym 0.4.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlenv.concurrency.threads import run_sync
from rlenv.errors import UsageError
from rlenv.messages import Message, ToolCall
from rlenv_train.fate import Outcome
from rlenv_train.player import Address, Hosted, Sample, environment_of, placeholder, wait_for_all
from rlenv_train.samples import EpisodeFigures, step_figures

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv
except ModuleNotFoundError:  # the generator needs nothing of it
    BaseTextEnv = object


_UNKNOWN = "trajectory_generation_times trajectory_time_splits rollout_expert_indices is_last_step".split()
_UNKNOWN += ["pixel_values", "image_grid_thw"]


class RlenvGenerator:
    """SkyRL's `GeneratorInterface`; the samples of one `instance_id` are a group, and terms may compare them.

    Args:
        cfg: SkyRL's configuration; `generator.sampling_params.max_generate_length` is the most of a turn.
        options: those of `rlenv_train.player.Player`, such as `max_response_tokens`.
    """

    def __init__(self, cfg: Any, tokenizer: Any, client: Any, **options: Any) -> None:
        self.client = client
        params = getattr(getattr(cfg, "generator", cfg), "sampling_params", None)
        options.setdefault("turn_tokens", getattr(params, "max_generate_length", None))
        options.setdefault("model", str(getattr(tokenizer, "name_or_path", "") or "policy"))
        self.player = Hosted(tokenizer, **options)

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """A `GeneratorOutput`, in the order of the batch.

        Raises:
            UsageError: a row's `env_extras` are no address.
        """
        rows = input_batch.get("env_extras") or [{}] * len(input_batch["prompts"])
        names = [
            str(getattr(one, "instance_id", at)) for at, one in enumerate(input_batch.get("trajectory_ids") or rows)
        ]
        meta = input_batch.get("batch_metadata")
        facts: dict[str, Any] = {"is_validation": getattr(meta, "training_phase", "train") == "eval"}
        facts["step"] = int(getattr(meta, "global_step", 0) or 0)
        groups: dict[str, list[int]] = {}
        samples = []
        for at, (row, name) in enumerate(zip(rows, names, strict=True)):
            place = groups.setdefault(name, [])
            samples.append(self.player.start(Address.of(row), sample=len(place), group=name, **facts))
            place.append(at)
        await wait_for_all([self._play_sample(one, input_batch.get("sampling_params") or {}) for one in samples])
        ends: list[tuple[Outcome, EpisodeFigures] | None] = [None] * len(samples)
        for places in groups.values():
            for at, end in zip(places, await self.player.outcomes([samples[at] for at in places]), strict=True):
                ends[at] = end
        return self._to_output([end for end in ends if end is not None], groups.values(), input_batch)

    async def _play_sample(self, made: Sample, params: Mapping[str, Any]) -> None:
        try:
            await made.open()
            while not made.is_ended:
                answer = await self.client.generate(
                    {
                        "prompts": None,
                        "prompt_token_ids": [made.context_ids],
                        "sampling_params": {**params, **made.played.sampling, "logprobs": params.get("logprobs", 0)},
                        "session_ids": [made.task.group],
                    }
                )
                logprobs = answer.get("response_logprobs")
                await made.feed(answer["response_ids"][0], logprobs[0] if logprobs else None)
        finally:
            await made.played.aclose()

    def _to_output(
        self, ends: Sequence[tuple[Outcome, EpisodeFigures]], groups: Any, batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        rows = [outcome.rows[0] for outcome, _ in ends]
        rewards: list[list[float]] = [[] for _ in rows]
        for places in groups:
            stands = placeholder({at: ends[at][1].reward for at in places})
            for at in places:
                row, reward = rows[at], ends[at][1].reward
                last = [0.0] * (len(row.response_ids) - 1) + [stands if reward is None else reward]
                rewards[at] = list(row.token_rewards) if reward is not None and row.token_rewards else last
        logprobs = [list(row.logprobs) for row in rows]
        is_known = not any(value != value for row in logprobs for value in row)
        return {
            "prompt_token_ids": [list(row.prompt_ids) for row in rows],
            "response_ids": [list(row.response_ids) for row in rows],
            "rewards": rewards,
            "loss_masks": [list(row.mask) for row in rows],
            "stop_reasons": ["length" if outcome.info["truncated"] else "stop" for outcome, _ in ends],
            "rollout_metrics": step_figures([figures for _, figures in ends]),
            "rollout_logprobs": logprobs if is_known else None,
            "trajectory_ids": batch.get("trajectory_ids"),
            "env_metrics": [{"success": figures.success, "ended": outcome.ended} for outcome, figures in ends],
            **dict.fromkeys(_UNKNOWN),
        }


class RlenvTextEnv(BaseTextEnv):
    """skyrl-gym's face of an environment, by text alone.

        skyrl_gym.register(id="rlenv", entry_point="rlenv_hosts.skyrl:RlenvTextEnv")

    `extras` are the address of an episode. SkyRL shows no tools to the chat template, so that `init`
    writes their schemas into the system message.

    Raises:
        UsageError: the extras are no address; or, by `step`, the reward is invalid: there is no way here to leave a
            sample out, and SkyRL ends the batch.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._address = Address.of(extras)
        environment = environment_of(self._address.spec)
        self.max_turns = environment.spec.limits.turns
        at = self._address
        self._episode = environment.start(task=at.task, split=at.split, seed=at.seed)

    def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Opens the episode; its prompt stands in place of the row's."""
        run_sync(self._episode.open)
        self._require_reward()
        messages, schemas = list(self._episode.messages), self._episode.tool_schemas
        if schemas:
            dialect = environment_of(self._address.spec).parts.dialect
            call = dialect.render_action(Message("assistant", "", (ToolCall(schemas[0]["function"]["name"], {}),)))
            about = f"Tools, as JSON schemas:\n{json.dumps(schemas)}\n\nA call is written so:\n{call}"
            is_told = bool(messages) and messages[0].role == "system"
            system = f"{messages.pop(0).content}\n\n{about}" if is_told else about
            messages.insert(0, Message("system", system))
        return [message.as_dict() for message in messages], {}

    def step(self, action: str) -> dict[str, Any]:
        """One turn of the policy's: messages, reward, end, and its reason."""
        step = run_sync(self._episode.step, action)
        self.turns = len(self._episode.turns)
        self._require_reward()
        shown = [message.as_dict() for message in step.observation.messages]
        return {
            "observations": [{**one, "role": "user"} if one["role"] == "tool" else one for one in shown],
            "reward": step.reward or 0.0,  # of this turn: they add up to the total, which stands
            "done": step.is_last,
            "metadata": {"reason": step.reason},
        }

    def get_metrics(self) -> dict[str, float]:
        """The success and the terms of the episode, as far as they are known."""
        return self._episode.trajectory.measured()

    def close(self) -> None:
        """Closes the episode; may be called twice."""
        run_sync(self._episode.aclose)

    def _require_reward(self) -> None:
        if self._episode.is_ended and self._episode.trajectory.reward.total is None:
            failure = self._episode.trajectory.failure
            raise UsageError(
                f"the episode has no reward: {failure}", hint="train with rlenv_hosts.skyrl.RlenvGenerator"
            )
