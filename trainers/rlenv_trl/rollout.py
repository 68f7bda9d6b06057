"""TRL's `rollout_func`: episodes in lock step over TRL's own generator, token by token exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlenv.concurrency.threads import run_sync
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.tokens.encoder import History
from rlenv_train.keeping import Keeper
from rlenv_train.player import Address, Player, Sample, addresses, wait_for_all
from rlenv_train.samples import EpisodeFigures, step_figures

_ONLY_ONE = "TRL leaves a sample out only where every reward function gives None, and an outage would be a number"


class Rollout:
    """Plays TRL's prompts, which are addresses of episodes; to be given to `GRPOTrainer(rollout_func=…)`.

    Each round samples one turn for all episodes that have not ended, by whatever TRL samples with. A sample whose
    reward is invalid has the reward None and a mask of zeros: TRL leaves it out of its group's mean and of the loss.
    The first call makes encoders of the trainer's tokenizer, within its `max_completion_length`.

    Args:
        specs: paths, names of specs that ship, or environments.
        set: values that replace keys of each spec, by dotted path.
        history: what becomes of turns that the chat template would write otherwise later: `grow` refuses such a
            template, `keep` goes on with what was sampled.
        turn_tokens: the most tokens of a turn; None leaves all that is left of the response.
        failures: what becomes of a sample, by the reason its episode ended (`rlenv_train.fate`).
        keeper: keeps the episodes of this process in a run's folder; None keeps none.
        control: train on rewards that are dealt anew over each batch, to see that nothing is learned from them.
        chat_template: instead of the tokenizer's own; `template_kwargs` are what it is given.

    Raises:
        SpecError: a spec's own faults.
    """

    def __init__(
        self,
        *specs: Environment | str | Path,
        set: Mapping[str, Any] | None = None,
        history: History = "grow",
        turn_tokens: int | None = None,
        failures: Mapping[str, str] | None = None,
        keeper: Keeper | None = None,
        control: bool = False,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.environments = [one if isinstance(one, Environment) else load(one, set=set) for one in specs]
        self._options: dict[str, Any] = {
            "history": history,
            "turn_tokens": turn_tokens,
            "failures": failures,
            "keeper": keeper,
            "chat_template": chat_template,
            "template_kwargs": template_kwargs,
        }
        self._control = control
        self.player: Player | None = None
        self.figures: list[EpisodeFigures] = []
        """The figures of the last call's episodes, in the order of its prompts."""

    def rows(self, split: str, *, seed: int = 0, count: int | None = None) -> list[dict[str, Any]]:
        """The rows of a data set over a split of every spec: a prompt each, which is the address of an episode.

        Args:
            count: so many tasks of each spec; all for None.

        Raises:
            UsageError: a spec has no such split.
        """
        return [
            {"prompt": address.as_prompt()}
            for environment in self.environments
            for address in addresses(environment, split, seed=seed, count=count)
        ]

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """The columns that TRL trains on, one entry a prompt.

        Raises:
            UsageError: a prompt is no address, or the trainer has other reward functions or tools beside this.
            UnsupportedTemplate: the chat template cannot go on behind what the environment answers.
        """
        _check(trainer)
        player = self.player = self.player or self._make_player(trainer)
        is_training = bool(trainer.model.training)
        most = trainer.num_generations if is_training else trainer.num_generations_eval
        step = int(trainer.state.global_step)
        found = [Address.of(prompt) for prompt in prompts]
        first = trainer.accelerator.process_index * len(found)
        groups = groups_of(player, found, most, step, first=first, is_validation=not is_training)
        samples = [sample for group in groups for sample in group]
        run_sync(wait_for_all, [sample.open() for sample in samples])
        while _is_any_live([sample for sample in samples if not sample.is_ended], trainer):
            live = [sample for sample in samples if not sample.is_ended]
            ids, logprobs = self._sample_turn(live, trainer)
            turns = zip(live, ids, logprobs or [None] * len(live), strict=False)
            run_sync(wait_for_all, [sample.feed(one, known) for sample, one, known in turns])
        pairs = [pair for group in groups for pair in run_sync(player.outcomes, group)]
        self.figures = [figures for _, figures in pairs]
        rows = [outcome.rows[0] for outcome, _ in pairs]
        known = [list(row.logprobs) for row in rows]
        rewards = [figures.reward for figures in self.figures]
        return {
            "prompt_ids": [list(row.prompt_ids) for row in rows],
            "completion_ids": [list(row.response_ids) for row in rows],
            # Where the backend names none, they are NaN: TRL computes them itself then.
            "logprobs": None if any(value != value for row in known for value in row) else known,
            "env_mask": [list(row.mask) for row in rows],
            "rlenv_reward": _deal_rewards(rewards, step) if self._control and is_training else rewards,
            "rlenv_figures": self.figures,
        }

    def _make_player(self, trainer: Any) -> Player:
        config = trainer.model.config
        config = getattr(config, "text_config", None) or config
        lengths = (getattr(config, "max_position_embeddings", None), trainer.args.vllm_max_model_length)
        return Player(
            self.environments,
            getattr(trainer.processing_class, "tokenizer", trainer.processing_class),
            model=str(getattr(config, "_name_or_path", "") or "policy"),
            max_response_tokens=int(trainer.args.max_completion_length),
            max_total_tokens=min((length for length in lengths if length), default=None),
            **self._options,
        )

    def _sample_turn(self, live: Sequence[Sample], trainer: Any) -> tuple[Sequence[Sequence[int]], Any]:
        """One turn of each; of a process whose episodes have all ended a turn that nobody takes."""
        contexts = [sample.context_ids for sample in live]
        limits = [sample.played.max_tokens for sample in live]
        with _at_most(None if not limits or None in limits else max(limits), trainer):  # type: ignore[type-var]
            ids, logprobs = trainer._generate_single_turn(
                contexts or [[trainer.processing_class.eos_token_id]], None, {}, 1
            )
        return ids, logprobs


def rlenv_reward(
    completions: Sequence[Any], rlenv_reward: Sequence[float | None] | None = None, **columns: Any
) -> list[float | None]:
    """TRL's reward function for `Rollout`: each episode's reward, None where it is invalid or left out.

    The figures of the step's episodes go to the trainer's log.

    Raises:
        UsageError: no `Rollout` was asked for these completions, as with trainers that take a `rollout_func` and never
            call it.
    """
    if rlenv_reward is None:
        raise UsageError(
            "the trainer never called its rollout_func: no episode was played, and nothing may be learned of this",
            hint="some trainers on top of TRL (Unsloth's) leave rollout_func out; use trl.GRPOTrainer itself",
        )
    log = columns.get("log_metric")
    if log is not None:
        # TRL averages what it is told of a batch: in means each of its episodes counts once.
        episodes = columns.get("rlenv_figures") or ()
        for is_mean, some in ((False, episodes), *((True, [one]) for one in episodes)):
            for name, value in step_figures(some).items():
                if name.endswith(("/success", "/reward")) == is_mean:
                    log(name, value)
    return list(rlenv_reward)


def require_only(reward: Callable[..., Any], given: Sequence[Any]) -> None:
    """Passes where a trainer has this reward function and no other; raises UsageError otherwise."""
    others = [getattr(one, "__name__", str(one)) for one in given if one is not reward]
    if others or not given:
        raise UsageError(
            f"reward_funcs has {', '.join(others) or 'nothing'} beside rlenv_trl.{reward.__name__}; {_ONLY_ONE}",
            key="reward_funcs",
            hint="make them terms of the spec, such as `kind: python`",
        )


def _check(trainer: Any) -> None:
    require_only(rlenv_reward, trainer.reward_funcs)
    if trainer.tools:
        raise UsageError(
            "TRL takes no mask of a rollout_func beside tools of its own", key="tools", hint="the spec has the tools"
        )


def groups_of(
    player: Player, found: Sequence[Address], most: int, step: int, *, first: int, is_validation: bool
) -> list[list[Sample]]:
    """The samples, made but not open: so many that follow one another are a group, counted over all processes.

    Args:
        first: the place of the first among those of all processes, which TRL deals in order.

    Raises:
        UsageError: terms compare the samples of a group, and another process plays a part of one.
    """
    groups: list[list[Sample]] = []
    for at, address in enumerate(found, first):
        if at == first or at % most == 0:
            groups.append([])
        name = f"{step}/{address.spec}/{address.split}/{address.task}/{at // most}"
        facts: dict[str, Any] = {"step": step, "group": name, "is_validation": is_validation}
        groups[-1].append(player.start(address, sample=at % most, **facts))
    for group in groups:
        if not is_validation and len(group) < most and group[0].environment.parts.scorer.has_group_terms:
            raise UsageError(
                f"terms of {group[0].environment.spec.name} compare samples that two processes play",
                key="per_device_train_batch_size",
                hint=f"with steps_per_generation it has to make a multiple of num_generations ({most})",
            )
    return groups


def _is_any_live(live: Sequence[Sample], trainer: Any) -> bool:
    """True as long as an episode of any process goes on: generating may be a step that all take together."""
    if trainer.accelerator.num_processes == 1:
        return bool(live)
    import torch

    count = torch.tensor([len(live)], device=trainer.accelerator.device)
    return bool(trainer.accelerator.gather(count).sum() > 0)


@contextmanager
def _at_most(tokens: int | None, trainer: Any) -> Iterator[None]:
    """Lets TRL's generators of transformers sample no more than the longest turn may have."""
    config = None if trainer.use_vllm else getattr(trainer, "generation_config", None)
    if config is None or tokens is None:
        yield
        return
    before, config.max_new_tokens = config.max_new_tokens, tokens
    try:
        yield
    finally:
        config.max_new_tokens = before


def _deal_rewards(rewards: Sequence[float | None], step: int) -> list[float | None]:
    """The rewards that there are, dealt anew over their samples; the same for the same step."""
    import random

    held = [reward for reward in rewards if reward is not None]
    random.Random(step).shuffle(held)
    return [None if reward is None else held.pop() for reward in rewards]
