"""The agent loop that veRL runs for each sample: drives one rlenv episode, token by token exact.

Named by `actor_rollout_ref.rollout.agent.agent_loop_config_path`, a YAML list of entries such as

    - name: rlenv
      _target_: rlenv_verl.loop.agent_loop.RlenvAgentLoop
      spec: /path/to/spec.yaml
      seed: 0
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from rlenv.concurrency.lanes import entered
from rlenv.episodes.episode import Episode
from rlenv.episodes.token_episode import TokenEpisode
from rlenv.errors import EpisodeError, InvalidReward, RewardError, UnsupportedTemplate
from rlenv.runs.schema import ending_of
from rlenv.tasks.rows import seed_of
from rlenv.tokens import TokenRows
from rlenv.tokens.encoder import History
from rlenv.trajectory import Failure, Trajectory
from rlenv_train.fate import CRASH, SAFE, STRAGGLER, Row, failed_outcome, failure_policy, outcome_of
from rlenv_train.keeping import KEEP_GB, STEP, Activity, Keeper, Watch, nothing_of
from rlenv_train.samples import Play, SampleTask, Sibling, figures_of
from rlenv_train.samples import stragglers as stragglers_of
from rlenv_verl.loop import process as shared
from rlenv_verl.loop import served_by_reward_model

_MAX_MESSAGE_CHARS = 4_000


class RlenvAgentLoop(AgentLoopBase):
    """Plays one episode of a spec with veRL's rollout server as the policy.

    A fault of the environment gives a sample that the failure policy decides on (masked, unless the run says
    otherwise), never an exception: veRL would fail the sample's whole group for one. A fault of the rollout server, of
    the spec itself or of the chat template is raised: it concerns every sample alike, and training on masked samples
    would hide it. A reward term with `on_invalid: raise` that could not be measured stops the run through the replay
    buffer.

    Args (beyond veRL's own, from the agent loop's YAML):
        spec: path or name of the spec.
        spec_set: values that replace keys of the spec, by dotted path.
        seed: the run's seed; episodes of one task in one step share a seed, so that a group differs in nothing but
            what the policy sampled.
        turn_tokens: the most tokens of one action; None leaves all that is left of the response.
        template_kwargs: what the chat template is given, such as `enable_thinking: false`.
        record_dir: the run's folder, in which every episode is kept (`rlenv.runs`); None keeps none.
        keep_gb: up to how many 10⁹ bytes the bodies of all episodes are kept (`run.keep_gb`).
        failures: what becomes of a sample, by the reason its episode ended (`rlenv_train.fate`).
        stragglers: `{share, grace_s}`: once that share of a prompt's samples has ended, the others are cut after
            this many seconds more; None lets them run.
        watch_dir: where each process writes what its episodes wait for; None writes nothing.
        reward_model: the spec's endpoint that veRL's own generative reward model serves; None for none.
        remote: the address of a server that plays the spec (`rlenv serve`); None plays it here.
        history: what to do where the chat template rewrites earlier turns: `grow`, `keep` or `rows` (`run.history`).
        process: what all loops of a process share; not from the YAML.
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
        keep_gb: float = KEEP_GB,
        failures: Mapping[str, str] | None = None,
        stragglers: Mapping[str, float] | None = None,
        watch_dir: str | None = None,
        reward_model: str | None = None,
        history: History = "grow",
        remote: str | None = None,
        process: shared.ProcessState = shared.PROCESS,
        **kwargs: Any,
    ) -> None:
        self._take_parts(process, *args, **kwargs)
        self.settings = settings = process.settings(self.config, self.data_config)
        replaced = shared.plain_mapping(spec_set)
        if reward_model is not None:
            replaced |= served_by_reward_model(self.config, endpoint=reward_model, ask=process.router)
        self.environment = process.environment(spec, replaced, remote)
        kwargs = {**settings.template_kwargs, **shared.plain_mapping(template_kwargs)}
        tokenizer: Any = self.tokenizer
        self.encoder = process.encoder(
            tokenizer,
            self.environment,
            self.processor,
            settings.processor_kwargs,
            template_kwargs=kwargs,
            history=history,
            model=settings.model,
        )
        self.seed = seed
        self.turn_tokens = turn_tokens
        self.keeper: Keeper | None = None
        if record_dir is not None:
            self.keeper = process.keeper(record_dir, keep_gb=keep_gb, writers=settings.workers)
        self.policy = failure_policy(shared.plain_mapping(failures))
        self.stragglers = stragglers_of(None if stragglers is None else shared.plain_mapping(stragglers))
        self.watch: Watch | None = None
        if watch_dir is not None:
            self.watch = process.watch(watch_dir)
            self.watch.look_at(
                self.environment.spec.name, tools=self.environment.executor, rewards=self.environment.parts.scorer
            )

    def _take_parts(self, process: shared.ProcessState, *args: Any, **parts: Any) -> None:
        """Sets the attributes that veRL's own constructor sets, made once for the same parts.

        Expected: a constructor that keeps its arguments. Actual (0.9.1): it also reads keys through OmegaConf and makes
        a token builder, which nothing here uses, in a sixth of the loop's CPU time. Remove when it is made on demand.
        """

        def make() -> Mapping[str, Any]:
            super(RlenvAgentLoop, self).__init__(*args, **parts)
            return dict(self.__dict__)

        # veRL wraps its configurations anew for each loop; what is wrapped stays the same.
        same = {name: getattr(parts[name], "config", parts[name]) for name in _PARTS if name in parts}
        self.__dict__.update(make() if args else process.attributes(same, make))
        self.process = process

    # veRL's own annotation knows one output; its worker takes a list as well (trainer/ppo/v1/agent_loop_tq.py).
    async def run(  # type: ignore[override]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """One sample, and a list of its training rows where it has several (`history: rows`).

        `row` is the data set's row, with veRL's `uid` of the prompt and `global_steps` added.
        """
        where = row["extra_info"]
        task = SampleTask(
            str(where["split"]),
            int(where["task"]),
            int(row.get("global_steps", 0)),
            is_validation=bool(where["is_validation"]),
            is_greedy=bool(where["greedy"]),
            sample=int(row.get("session_id", 0)),
            group=str(row.get("uid") or ""),
        )
        # Held-out figures must not depend on how fast the others of a group are, nor on what training leaves out.
        sibling = self.process.groups.join(row.get("uid"), deadline=None if task.is_validation else self.stragglers)
        play = Play(Activity(self.environment.spec.name), policy=SAFE if task.is_validation else self.policy)
        if self.watch is not None:
            self.watch.begin(play.activity)
        try:
            return await self._sample(task, sampling_params, sibling, play)
        finally:
            sibling.leave()
            if self.keeper is not None:
                self.keeper.forget_lane(play.lane)
            if self.watch is not None:
                self.watch.end(play.activity)

    async def _sample(
        self, task: SampleTask, sampling: Mapping[str, Any], sibling: Sibling, play: Play
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        if task.is_greedy:
            sampling = {**sampling, "temperature": 0.0, "top_p": 1.0, "top_k": -1}
        terms = tuple(self.environment.spec.rewards)
        filler = self._filler_id()
        stops = ""
        try:
            trajectory = await self._play_to_end(task, sampling, sibling, play)
        except _ServerFault as fault:
            # veRL is told, and has no sample of it; what had been played until then is kept.
            self._keep_failed(task, sibling, play, Failure("server", f"{type(fault.cause).__name__}: {fault.cause}"))
            raise fault.cause from None
        except UnsupportedTemplate:
            raise
        except InvalidReward as error:
            # Raised from here it would cost a group and the run would go on: the replay buffer ends it.
            stops = str(error)
            self._keep_failed(task, sibling, play, Failure(RewardError.reason, stops))
            outcome = failed_outcome(terms=terms, filler_id=filler, reason=RewardError.reason)
        except Exception as error:  # the episode's boundary: a fault of one episode may not end its group
            self._keep_failed(task, sibling, play, Failure(CRASH, f"{type(error).__name__}: {error}"))
            outcome = failed_outcome(terms=terms, filler_id=filler)
        else:
            differences = len(play.tokens.differences) if play.tokens is not None else 0
            outcome = outcome_of(
                trajectory,
                terms=terms,
                rows=play.rows,
                filler_id=filler,
                differences=differences,
                respelled=play.respelled or 0,
                policy=play.policy,
            )
        name, is_kept = self.environment.spec.name, self.keeper is not None
        figures = figures_of(name, task, outcome, play, terms=terms, stops=stops, is_kept=is_kept)
        outputs = shared.outputs_of(
            outcome,
            play,
            figures,
            first_version=max(0, task.step - 1),
            with_logprobs=self.settings.with_logprobs,
            is_validation=task.is_validation,
        )
        return outputs if len(outputs) > 1 else outputs[0]

    def _rows(self, tokens: TokenRows) -> list[Row]:
        """The rows of an episode that veRL can take.

        Raises EpisodeError: not even the first prompt (`rlenv_verl.loop.process.shown_of`).
        """
        rows: list[Row] = []
        for row in tokens.rows:
            try:
                shown = shared.shown_of(row, images=self.encoder.images, tokenizer=self.tokenizer)
            except EpisodeError:
                if not rows:
                    raise
                break  # a later prompt, in which an earlier turn of the policy's spells the placeholder
            rows.append(Row.of(row, length=shown.response, images=shown.images))
        return rows

    async def _play_to_end(
        self, task: SampleTask, sampling: Mapping[str, Any], sibling: Sibling, play: Play
    ) -> Trajectory:
        """The record of one episode, with what its group says of it."""
        others = self.environment.opponent or partial(self._play_other, sampling=sampling, play=play)
        played = self._limited_episode(task=task.index, split=task.split, seed=self._seed_of(task), others=others)
        sibling.episode = episode = played.episode
        play.lane = None if self.keeper is None else self.keeper.recorder.lane()
        with entered(play.lane):  # a straggler's judges are asked once its time is over
            try:
                async with sibling.timeout():
                    play.activity.waits_for("resources")
                    await played.open()
                    play.tokens = played.tokens
                    await self._play(played, sampling, play)
            except TimeoutError as error:
                if sibling.is_cut:
                    await _cut_short(played)
                else:
                    episode.fail(CRASH, f"TimeoutError: {error}")
            except (_ServerFault, UnsupportedTemplate, InvalidReward):
                raise
            except Exception as error:  # the episode's boundary; what was sampled so far is kept beside the failure
                episode.fail(CRASH, f"{type(error).__name__}: {error}")
            finally:
                if played.step_s:
                    play.metrics["tool_calls"] = played.step_s
                await played.aclose()
        if play.tokens is not None:
            play.rows = self._rows(play.tokens)
            play.respelled = await asyncio.to_thread(play.tokens.respelled)
        if self.keeper is not None:  # before its siblings have ended: a run that is killed until then keeps it
            play.id = self.keeper.keep(episode.trajectory, play.facts(task), play.lane)
        play.activity.waits_for("siblings")
        counts = play.sampled > 0 and play.policy.choice(episode.trajectory) != "mask"
        scored = await sibling.score(episode.trajectory, self.environment, counts=counts)
        if self.keeper is not None and scored is not episode.trajectory:
            self.keeper.append_late(play.id, **ending_of(scored))
        return scored

    def _limited_episode(self, **given: Any) -> TokenEpisode:
        """An episode within the trainer's limits."""
        settings = self.settings
        return TokenEpisode(
            self.environment,
            self.encoder,
            turn_tokens=self.turn_tokens,
            max_prompt_tokens=settings.prompt_length,
            max_response_tokens=settings.response_length,
            max_total_tokens=settings.context_length,
            **given,
        )

    async def _play_other(self, episode: Episode, *, sampling: Mapping[str, Any], play: Play) -> None:
        """Plays another player's episode with the same weights. It is not trained: that player has samples too."""
        async with self._limited_episode(episode=episode) as other:
            await self._play(other, sampling, Play(play.activity, policy=play.policy))

    async def _play(self, played: TokenEpisode, sampling: Mapping[str, Any], play: Play) -> None:
        """Plays an open episode to its end; the tokens so far are in `play.tokens` whatever happens."""
        episode, tokens = played.episode, played.tokens
        if tokens is None:
            return
        self.process.required.check(self.environment, self.encoder, episode.messages)
        request = uuid4().hex
        while not played.is_ended:
            play.activity.waits_for("generation")
            began, before = time.perf_counter(), play.metrics.get("generate_sequences", 0.0)
            try:
                answer = await self._generate(request, tokens, {**sampling, **played.sampling})
            finally:  # veRL's own timer costs as much as a call of a tool
                play.metrics["generate_sequences"] = before + time.perf_counter() - began
            extra = answer.extra_fields
            play.versions += [extra.get("min_global_steps"), extra.get("max_global_steps")]
            if answer.stop_reason in ("aborted", "abort"):
                # Cut by a change of weights, not by the policy: nothing may be learned from where it stopped.
                episode.fail("aborted", "the rollout server aborted the generation")
                return
            clean = shared.clean_length(answer.token_ids, images=self.encoder.images, tokenizer=self.tokenizer)
            if clean < len(answer.token_ids):
                # Nobody can tell what image it would show, so that no id of it may go on. What stands before it is
                # scored: a policy must not leave out its own sample by a word.
                played.take(*self._up_to(clean, answer, is_first=not len(tokens)))
                await played.truncate(shared.STRAY)
                return
            play.activity.waits_for(STEP)
            # veRL 0.9.1 says `completed` of a turn that the limit of tokens has cut too (vllm_async_server.py), so that
            # its word is not handed on.
            await played.step(answer.token_ids, answer.log_probs)

    def _up_to(self, clean: int, answer: Any, *, is_first: bool) -> tuple[list[int], list[float] | None]:
        """The first `clean` ids of an answer. Where an episode would have none, the end token stands for the rest."""
        ids, logprobs = list(answer.token_ids[:clean]), answer.log_probs
        if not ids and is_first:
            ids = [self.encoder.stop_id]
        return ids, None if logprobs is None else list(logprobs[: len(ids)])

    async def _generate(self, request: str, tokens: TokenRows, params: dict[str, Any]) -> Any:
        try:
            return await self.server_manager.generate(
                request_id=request,
                prompt_ids=tokens.context_ids,
                sampling_params=params,
                **shared.generation_fields(tokens.last.images, self.settings.processor_kwargs),
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:  # marked, so that the episode's boundary does not mistake it for its own
            raise _ServerFault(error) from error

    def _filler_id(self) -> int:
        tokenizer: Any = self.tokenizer
        return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def _keep_failed(self, task: SampleTask, sibling: Sibling, play: Play, failure: Failure) -> None:
        """Keeps an episode that has ended with a fault outside of it, or that it has where it is kept already."""
        if self.keeper is None:
            return
        failure = failure.within(_MAX_MESSAGE_CHARS)
        seed, episode = self._seed_of(task), sibling.episode
        record = nothing_of(self.environment, task, seed=seed) if episode is None else episode.record()
        reward = self.environment.parts.scorer.failed(failure, turns=len(record["turns"]))
        failed = Trajectory.failed(failure=failure, reward=reward, **record)
        if play.id:
            self.keeper.append_late(play.id, **ending_of(failed))
        else:
            play.id = self.keeper.keep(failed, play.facts(task), play.lane)

    def _seed_of(self, task: SampleTask) -> int:
        # A validation task gets the same episode at every step; a training task a new one each time it is drawn.
        step = -1 if task.is_validation else task.step
        return seed_of(self.seed, task.split, task.index, step)


async def _cut_short(played: TokenEpisode) -> None:
    """Ends an episode that its group's deadline has interrupted, and scores what there is of it."""
    if played.episode.messages:  # the prompt is what opening gives
        await played.truncate(STRAGGLER)
    else:
        played.episode.fail(STRAGGLER, "most of the group had ended before its resources were open")


class _ServerFault(Exception):
    """Carries a fault of the rollout server past the episode's boundary."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(str(cause))


_PARTS = ("trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "data_config", "hf_model_type")
