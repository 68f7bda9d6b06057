"""The agent loop that veRL runs for each sample: drives one rlenv episode, token by token exact.

Named by `actor_rollout_ref.rollout.agent.agent_loop_config_path`, a YAML list of entries such as

    - name: rlenv
      _target_: rlenv_verl.agent_loop.RlenvAgentLoop
      spec: /path/to/spec.yaml
      seed: 0
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import torch
from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from rlenv import record
from rlenv.dialects.base import SameTurn
from rlenv.environment import Environment, load
from rlenv.episode import Episode
from rlenv.errors import EpisodeError, InvalidReward, RewardError, UnsupportedTemplate
from rlenv.observe import Cut, cut_chars
from rlenv.tokens import TokenEncoder, TokenTrajectory
from rlenv.trajectory import Trajectory
from rlenv_verl.failure_policy import CRASH, SAFE, STRAGGLER, FailurePolicy, failure_policy
from rlenv_verl.figures import EpisodeFigures
from rlenv_verl.images import STRAY, check_places, generation_fields, has_stray_place, image_template, processor_images
from rlenv_verl.loop_settings import loop_settings, plain
from rlenv_verl.outcome import Outcome, failed_outcome, outcome_of
from rlenv_verl.reward_model import served_by_reward_model
from rlenv_verl.siblings import Sibling, join
from rlenv_verl.siblings import stragglers as stragglers_of
from rlenv_verl.watch import STEP, Activity, Watch, watch

__all__ = ["RlenvAgentLoop"]


class RlenvAgentLoop(AgentLoopBase):
    """Plays one episode of a spec with veRL's rollout server as the policy.

    A fault of the environment gives a sample that the failure policy decides on (masked, unless the run says
    otherwise), never an exception: veRL would fail the sample's whole group for one. A fault of the rollout server, of
    the spec itself or of the chat template is raised: it concerns every sample alike, and training on masked samples
    would hide it. A reward term with `on_invalid: raise` that could not be measured stops the run through the sampler.

    Args (beyond veRL's own, from the agent loop's YAML):
        spec: path or name of the spec.
        spec_set: values that replace keys of the spec, by dotted path.
        seed: the run's seed; episodes of one task in one step share a seed, so that a group differs in nothing but
            what the policy sampled.
        turn_tokens: the most tokens of one action; None leaves all that is left of the response.
        template_kwargs: what the chat template is given, such as `enable_thinking: false`.
        record_dir: where trajectories of validation and failures are written; None writes none.
        failures: what becomes of a sample, by the reason its episode ended (`rlenv_verl.failure_policy`).
        stragglers: `{share, grace_s}`: once that share of a prompt's samples has ended, the others are cut after
            this many seconds more; None lets them run.
        watch_dir: where each process writes what its episodes wait for; None writes nothing.
        reward_model: the spec's endpoint that veRL's own generative reward model serves; None for none.
    """

    def __init__(
        self,
        *args: Any,
        spec: str,
        spec_set: Mapping[str, Any] | None = None,
        seed: int = 0,
        turn_tokens: int | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        record_dir: str | None = None,
        failures: Mapping[str, str] | None = None,
        stragglers: Mapping[str, float] | None = None,
        watch_dir: str | None = None,
        reward_model: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._take_parts(*args, **kwargs)
        self.settings = settings = loop_settings(self.config, self.data_config)
        replaced = plain(spec_set)
        if reward_model is not None:
            replaced |= served_by_reward_model(self.config, endpoint=reward_model)
        self.environment = _environment(spec, replaced)
        kwargs = {**settings.template_kwargs, **plain(template_kwargs)}
        self.encoder = _encoder(
            self.tokenizer, kwargs, self.environment.same_turn, self.processor, settings.processor_kwargs
        )
        # An action of a dialect that goes on in one turn ends behind its call or its answer, not with an end token.
        stops = list(self.environment.stops)
        self.stops = {"stop": stops, "include_stop_str_in_output": True} if stops else {}
        self.cut = _cut(self.environment, self.encoder)
        self.seed = seed
        self.turn_tokens = turn_tokens
        self.record_dir = Path(record_dir) if record_dir is not None else None
        self.policy = failure_policy(plain(failures))
        self.stragglers = stragglers_of(None if stragglers is None else plain(stragglers))
        self.watch: Watch | None = None
        if watch_dir is not None:
            self.watch = watch(watch_dir)
            self.watch.look_at(
                self.environment.spec.name, tools=self.environment.executor, rewards=self.environment.parts.scorer
            )

    def _take_parts(self, *args: Any, **parts: Any) -> None:
        """What veRL's own constructor sets, made once for the same parts.

        Expected: a constructor that keeps its arguments. Actual (0.9.1): it also reads keys through OmegaConf and makes
        a token builder, which nothing here uses, in a sixth of the loop's CPU time. Remove when it is made on demand.
        """
        global _last_parts
        # veRL wraps its configurations anew for each loop; what is wrapped stays the same.
        same = {name: getattr(parts[name], "config", parts[name]) for name in _PARTS if name in parts}
        loop = asyncio._get_running_loop()
        known = _last_parts
        is_known = known is not None and known.loop is loop and same.keys() == known.parts.keys() and not args
        if known is not None and is_known and all(same[name] is known.parts[name] for name in same):
            self.__dict__.update(known.attributes)
            return
        super().__init__(*args, **parts)
        if loop is not None and not args:
            _last_parts = _Parts(loop, same, dict(self.__dict__))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """One sample: `row` is the data set's row, with veRL's `uid` of the prompt and `global_steps` added."""
        where = row["extra_info"]
        task = _Task(
            str(where["split"]),
            int(where["task"]),
            int(row.get("global_steps", 0)),
            is_validation=bool(where["is_validation"]),
            is_greedy=bool(where["greedy"]),
        )
        # Held-out figures must not depend on how fast the others of a group are, nor on what training leaves out.
        sibling = join(row.get("uid"), deadline=None if task.is_validation else self.stragglers)
        play = _Play(Activity(self.environment.spec.name), policy=SAFE if task.is_validation else self.policy)
        if self.watch is not None:
            self.watch.begin(play.activity)
        try:
            return await self._sample(task, sampling_params, sibling, play)
        finally:
            sibling.leave()
            if self.watch is not None:
                self.watch.end(play.activity)

    async def _sample(self, task: _Task, sampling: Mapping[str, Any], sibling: Sibling, play: _Play) -> AgentLoopOutput:
        if task.is_greedy:
            sampling = {**sampling, "temperature": 0.0, "top_p": 1.0, "top_k": -1}
        terms = tuple(self.environment.spec.rewards)
        filler = self._filler_id()
        images: Sequence[Any] = ()
        began, stops = time.time(), ""
        try:
            trajectory = await self._trajectory(task, sampling, sibling, play)
            if play.tokens is not None:
                check_places(play.tokens, images=self.encoder.images, tokenizer=self.tokenizer)
        except _ServerFault as fault:
            raise fault.cause from None
        except UnsupportedTemplate:
            raise
        except InvalidReward as error:
            # Raised from here it would cost a group and the run would go on: the sampler raises it where it ends it.
            stops = str(error)
            self._record_failure(task, RewardError.reason, stops)
            outcome = failed_outcome(terms=terms, filler_id=filler, reason=RewardError.reason)
        except Exception as error:  # the episode's boundary: a fault of one episode may not end its group
            self._record_failure(task, CRASH, f"{type(error).__name__}: {error}")
            outcome = failed_outcome(terms=terms, filler_id=filler)
        else:
            tokens = play.tokens
            images = tokens.images if tokens else ()
            outcome = outcome_of(
                trajectory,
                terms=terms,
                prompt_ids=tokens.prompt_ids if tokens else (),
                response_ids=tokens.response_ids if tokens else (),
                mask=tokens.mask if tokens else (),
                logprobs=tokens.logprobs if tokens else (),
                filler_id=filler,
                turn_spans=tokens.turn_spans if tokens else (),
                policy=play.policy,
            )
            if trajectory.failure is not None:
                self._record_failure(task, trajectory.failure.reason, trajectory.failure.message)
            if task.is_validation:
                self._record(trajectory, task.step, "greedy" if task.is_greedy else "sampled")
        figures = _figures(self.environment.spec.name, task, outcome, play, terms=terms, began=began, stops=stops)
        with_logprobs = self.settings.with_logprobs
        output = _output(outcome, play, figures, first_version=max(0, task.step - 1), with_logprobs=with_logprobs)
        if images:
            output.multi_modal_data = {"images": list(images)}
        return output

    async def _trajectory(self, task: _Task, sampling: Mapping[str, Any], sibling: Sibling, play: _Play) -> Trajectory:
        """The record of one episode, with what its group says of it."""
        # A validation task gets the same episode at every step; a training task a new one each time it is drawn.
        seed = _seed(self.seed, -1 if task.is_validation else task.step, task.split, task.index)
        episode = self.environment.start(task=task.index, split=task.split, seed=seed, cut=self.cut)
        sibling.episode = episode
        try:
            async with sibling.timeout():
                play.activity.waits_for("resources")
                await episode.open()
                await self._play(episode, sampling, play)
        except TimeoutError as error:
            if sibling.is_cut:
                await _cut_short(episode, play)
            else:
                episode.fail(CRASH, f"TimeoutError: {error}")
        except (_ServerFault, UnsupportedTemplate, InvalidReward):
            raise
        except Exception as error:  # the episode's boundary; what was sampled so far is kept beside the failure
            episode.fail(CRASH, f"{type(error).__name__}: {error}")
        finally:
            await episode.aclose()
        play.activity.waits_for("siblings")
        counts = play.sampled > 0 and play.policy.choice(episode.trajectory) != "mask"
        return await sibling.scored(episode.trajectory, self.environment.parts.scorer, counts=counts)

    async def _play(self, episode: Episode, sampling: Mapping[str, Any], play: _Play) -> Trajectory:
        """Plays `episode` to its end; the tokens so far are in `play.tokens` whatever happens."""
        if episode.is_ended:
            return episode.trajectory
        limit = self.environment.spec.limits.response_tokens
        budget = self.settings.response_length
        budget = budget if limit is None else min(budget, limit)
        try:
            start = partial(
                self.encoder.start,
                episode.messages,
                tools=self.environment.tool_schemas,
                max_prompt_tokens=self.settings.prompt_length,
                max_response_tokens=budget,
            )
            has_images = any(message.images for message in episode.messages)
            play.tokens = tokens = await asyncio.to_thread(start) if has_images else start()
        except EpisodeError as error:
            return episode.fail(error.reason, str(error))
        request = uuid4().hex
        while True:
            room = budget - len(tokens)
            if room < 1:
                return await episode.truncate("response_tokens")
            most = room if self.turn_tokens is None else min(self.turn_tokens, room)
            play.activity.waits_for("generation")
            with _Timed("generate_sequences", play.metrics):
                answer = await self._generate(request, tokens, {**sampling, **self.stops, "max_tokens": most})
            extra = answer.extra_fields
            play.versions += [extra.get("min_global_steps"), extra.get("max_global_steps")]
            if answer.stop_reason in ("aborted", "abort"):
                # Cut by a change of weights, not by the policy: nothing may be learned from where it stopped.
                return episode.fail("aborted", "the rollout server aborted the generation")
            if has_stray_place(answer.token_ids, images=self.encoder.images, tokenizer=self.tokenizer):
                play.tokens = None  # nobody can tell what image they would show: not even masked ids may go on
                return episode.fail(STRAY, "the policy wrote the placeholder of an image")
            action = tokens.add_sampled(answer.token_ids, answer.log_probs)
            play.actions.append(action)
            play.activity.waits_for(STEP)
            with _Timed("tool_calls", play.metrics):
                step = await episode.step(action)
            if step.is_last:
                return episode.trajectory
            if not await tokens.add_observation_async(step.observation):
                return await episode.truncate("response_tokens")

    async def _generate(self, request: str, tokens: TokenTrajectory, params: dict[str, Any]) -> Any:
        try:
            return await self.server_manager.generate(
                request_id=request,
                prompt_ids=tokens.context_ids,
                sampling_params=params,
                **generation_fields(tokens.images, self.settings.processor_kwargs),
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:  # marked, so that the episode's boundary does not mistake it for its own
            raise _ServerFault(error) from error

    def _filler_id(self) -> int:
        tokenizer: Any = self.tokenizer
        return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def _record(self, trajectory: Trajectory, step: int, mode: str) -> None:
        if self.record_dir is not None:
            self.record_dir.mkdir(parents=True, exist_ok=True)
            with (self.record_dir / f"step-{step:05d}-{mode}.{os.getpid()}.jsonl").open("ab") as file:
                record.append(file, trajectory)

    def _record_failure(self, task: _Task, reason: str, message: str) -> None:
        if self.record_dir is not None:
            self.record_dir.mkdir(parents=True, exist_ok=True)
            entry = {
                "spec": self.environment.spec.name,
                "step": task.step,
                "split": task.split,
                "task": task.index,
                "reason": reason,
                "message": message,
            }
            with (self.record_dir / f"failures.{os.getpid()}.jsonl").open("ab") as file:
                file.write(orjson.dumps(entry) + b"\n")


async def _cut_short(episode: Episode, play: _Play) -> None:
    """Ends an episode that its group's deadline has interrupted, and scores what there is of it."""
    if not episode.messages:  # the prompt is what opening gives
        episode.fail(STRAGGLER, "most of the group had ended before its resources were open")
        return
    missing = play.actions[len(episode.turns) :]
    await episode.truncate(STRAGGLER, action=missing[0] if missing else None)


class _Timed:
    """Adds the seconds of a block to veRL's metrics; veRL's own timer costs as much as a call of a tool."""

    __slots__ = ("_began", "_metrics", "_name")

    def __init__(self, name: str, metrics: dict[str, float]) -> None:
        self._name, self._metrics = name, metrics

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._metrics[self._name] = self._metrics.get(self._name, 0.0) + time.perf_counter() - self._began


class _ServerFault(Exception):
    """Carries a fault of the rollout server past the episode's boundary."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(str(cause))


@dataclass(frozen=True, slots=True)
class _Task:
    """Which row is played, and when."""

    split: str
    index: int
    step: int
    is_validation: bool
    is_greedy: bool


_PARTS = (
    "trainer_config",
    "server_manager",
    "tokenizer",
    "processor",
    "dataset_cls",
    "data_config",
    "hf_model_type",
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What veRL handed the last loop object of this process, and the attributes that its constructor made of it."""

    loop: asyncio.AbstractEventLoop
    parts: Mapping[str, Any]
    attributes: Mapping[str, Any]


_last_parts: _Parts | None = None


@dataclass(slots=True)
class _Play:
    """What the loop learns on the way, kept outside of the episode so that a fault does not lose it."""

    activity: Activity
    policy: FailurePolicy
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: TokenTrajectory | None = None
    actions: list[str] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        """How many tokens the policy sampled."""
        return sum(end - start for start, end in self.tokens.turn_spans) if self.tokens is not None else 0


class _TurnRewards(AgentLoopOutput):
    """An output whose rewards stand on their own turns.

    veRL's `as_dict` puts `reward_score` on the response's last token. The field it fills, `rm_scores`, has one entry
    a token: with the same sum, rewards of turns stand where they were earned, for estimators and critics that look.
    """

    _token_rewards: tuple[float, ...] = PrivateAttr(default=())

    def as_dict(self) -> dict[str, Any]:
        """As veRL's own, with the rewards of turns in `rm_scores`."""
        fields: dict[str, Any] = super().as_dict()
        if self._token_rewards:
            fields["rm_scores"] = torch.tensor(self._token_rewards, dtype=torch.float32)
        return fields


def _figures(
    spec: str, task: _Task, outcome: Outcome, play: _Play, *, terms: Sequence[str], began: float, stops: str
) -> EpisodeFigures:
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
        tokens=play.sampled,
        tool_s=play.metrics.get("tool_calls", 0.0),
        generate_s=play.metrics.get("generate_sequences", 0.0),
        began=began,
        finished=time.time(),
        stops=stops,
        terms={name: info[f"term_{name}"] for name in terms},
    )


def _output(
    outcome: Outcome, play: _Play, figures: EpisodeFigures, *, first_version: int, with_logprobs: bool
) -> AgentLoopOutput:
    versions = [version for version in play.versions if version is not None]
    output = _TurnRewards(
        prompt_ids=list(outcome.prompt_ids),
        response_ids=list(outcome.response_ids),
        response_mask=list(outcome.mask),
        response_logprobs=list(outcome.logprobs) if with_logprobs else None,
        reward_score=outcome.reward,
        num_turns=int(outcome.info["turns"] or 0),
        metrics=AgentLoopMetrics.model_validate(play.metrics),
        extra_fields={
            "reward_extra_info": dict(outcome.info),
            "rlenv": figures.as_fields(),
            "turn_scores": list(outcome.turn_rewards),
            "tool_rewards": [],
            # veRL computes staleness from these and needs numbers, also where nothing was generated.
            "global_steps": max(versions, default=first_version),
            "min_global_steps": min(versions, default=first_version),
            "max_global_steps": max(versions, default=first_version),
        },
    )
    output._token_rewards = outcome.token_rewards
    return output


def _seed(*parts: object) -> int:
    """A seed of 31 bits, the same in every process (`hash` of a str is not)."""
    return zlib.crc32("/".join(str(part) for part in parts).encode()) & 0x7FFFFFFF


# veRL builds one loop object a sample. Compiling a spec and deriving a template's program take milliseconds to
# seconds, so both are kept for the life of the process.
_ENVIRONMENTS: dict[bytes, Environment] = {}
_ENCODERS: dict[tuple[int, int, bytes, SameTurn | None], tuple[Any, TokenEncoder]] = {}


def _environment(spec: str, spec_set: Mapping[str, Any]) -> Environment:
    key = orjson.dumps([spec, spec_set])
    if key not in _ENVIRONMENTS:
        _ENVIRONMENTS[key] = load(spec, set=spec_set or None)
    return _ENVIRONMENTS[key]


def _encoder(
    tokenizer: Any,
    template_kwargs: Mapping[str, Any],
    same_turn: SameTurn | None,
    processor: Any,
    processor_kwargs: Mapping[str, Any],
) -> TokenEncoder:
    key = (id(tokenizer), id(processor), orjson.dumps([template_kwargs, processor_kwargs]), same_turn)
    if key not in _ENCODERS:
        encoder = TokenEncoder(
            tokenizer,
            chat_template=image_template(processor),
            template_kwargs=template_kwargs,
            same_turn=same_turn,
            images=processor_images(processor, processor_kwargs),
        )
        # The tokenizer and the processor are kept beside the encoder: their ids stay taken as long as the entry lives.
        _ENCODERS[key] = ((tokenizer, processor), encoder)
    return _ENCODERS[key][1]


def _cut(environment: Environment, encoder: TokenEncoder) -> Cut:
    """How results are cut: by the spec's characters, and by its tokens as the policy's tokenizer counts them."""
    spec = environment.spec.observation
    by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
    if spec.max_tokens is None:
        return lambda text: by_chars(text)  # a cut of the loop's own: limits are then counted in tokens
    by_tokens = encoder.cut(max_tokens=spec.max_tokens, keep=spec.keep)
    return lambda text: by_tokens(by_chars(text))
